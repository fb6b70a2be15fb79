//! The format of pprof: a message of Protocol Buffers, compressed with gzip.
//!
//! The numbers of the fields are those of `profile.proto` in <https://github.com/google/pprof>.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::Value;
use crate::sites::Stack;

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number. Fields that are 0 are left out.
    fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        fill(&mut message);
        self.bytes(field, &message.0);
    }

    fn numbers(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut packed = Message::default();
        values.into_iter().for_each(|value| packed.varint(value));
        self.bytes(field, &packed.0);
    }
}

/// Values, numbered from 0 on in the order in which they were first seen.
type Numbers<T> = HashMap<T, u64>;

fn number<T: Eq + Hash>(numbers: &mut Numbers<T>, value: T) -> u64 {
    let next = numbers.len() as u64;
    *numbers.entry(value).or_insert(next)
}

fn in_order<T>(numbers: Numbers<T>) -> Vec<T> {
    let mut values: Vec<_> = numbers.into_iter().collect();
    values.sort_unstable_by_key(|value| value.1);
    values.into_iter().map(|value| value.0).collect()
}

/// The file.
pub(crate) fn encode(stacks: &[Stack], mean_bytes: usize) -> io::Result<Vec<u8>> {
    let mut profile = Message::default();
    let mut strings = Numbers::new();
    let (mut functions, mut locations) = (Numbers::new(), Numbers::new());
    // The format wants the empty string first.
    number(&mut strings, String::new());
    for value in Value::ALL {
        profile.message(1, |kind| value_type(kind, &mut strings, value.name(), value.unit()));
    }
    for stack in stacks {
        profile.message(2, |sample| {
            // The numbers of locations begin with 1.
            sample.numbers(1, stack.calls.iter().map(|call| number(&mut locations, call.clone()) + 1));
            sample.numbers(2, Value::ALL.iter().map(|value| value.of(&stack.figures)));
            sample.message(3, |label| {
                label.number(1, number(&mut strings, "served_by".into()));
                let source = if stack.is_of_arena { "arena" } else { "backing allocator" };
                label.number(2, number(&mut strings, source.into()));
            });
        });
    }
    for (id, call) in (1..).zip(in_order(locations)) {
        profile.message(4, |location| {
            location.number(1, id);
            location.number(3, call.address as u64);
            for line in call.lines.iter() {
                location.message(4, |entry| {
                    entry.number(1, number(&mut functions, (line.function.clone(), line.file.clone())) + 1);
                    entry.number(2, u64::from(line.line));
                });
            }
        });
    }
    for (id, (name, file)) in (1..).zip(in_order(functions)) {
        profile.message(5, |function| {
            function.number(1, id);
            function.number(2, number(&mut strings, name));
            // Without a system name (field 3). If it were the name, `go tool pprof` would take `<T as Trait>::f` for C++, and show `::f`.
            function.number(4, number(&mut strings, file));
        });
    }
    profile.message(11, |kind| value_type(kind, &mut strings, "space", "bytes"));
    profile.number(12, mean_bytes as u64);
    profile.number(14, number(&mut strings, Value::PeakSpace.name().into()));
    in_order(strings).iter().for_each(|string| profile.bytes(6, string.as_bytes()));

    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&profile.0)?;
    gzip.finish()
}

fn value_type(kind: &mut Message, strings: &mut Numbers<String>, name: &str, unit: &str) {
    kind.number(1, number(strings, name.into()));
    kind.number(2, number(strings, unit.into()));
}
