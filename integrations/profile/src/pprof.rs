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

/// Values in the order in which they were first seen.
struct Numbered<T> {
    numbers: HashMap<T, u64>,
    values: Vec<T>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn new() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }

    /// The position of a value, from 0.
    fn number(&mut self, value: T) -> u64 {
        let next = self.values.len() as u64;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }
}

/// The file.
pub(crate) fn encode(stacks: &[Stack], mean_bytes: usize) -> io::Result<Vec<u8>> {
    let mut profile = Message::default();
    let mut strings = Numbered::new();
    let (mut functions, mut locations) = (Numbered::new(), Numbered::new());
    // The format wants the empty string first.
    strings.number(String::new());
    for value in Value::ALL {
        profile.message(1, |kind| value_type(kind, &mut strings, value.name(), value.unit()));
    }
    for stack in stacks {
        profile.message(2, |sample| {
            // The numbers of locations begin with 1.
            sample.numbers(1, stack.calls.iter().map(|call| locations.number(call.clone()) + 1));
            sample.numbers(2, Value::ALL.iter().map(|value| value.of(&stack.figures)));
            sample.message(3, |label| {
                label.number(1, strings.number("served_by".into()));
                label.number(2, strings.number(if stack.is_of_arena { "arena" } else { "backing allocator" }.into()));
            });
        });
    }
    for (id, call) in (1..).zip(&locations.values) {
        profile.message(4, |location| {
            location.number(1, id);
            location.number(3, call.address as u64);
            for line in call.lines.iter() {
                location.message(4, |entry| {
                    entry.number(1, functions.number((line.function.clone(), line.file.clone())) + 1);
                    entry.number(2, u64::from(line.line));
                });
            }
        });
    }
    for (id, (name, file)) in (1..).zip(&functions.values) {
        profile.message(5, |function| {
            function.number(1, id);
            function.number(2, strings.number(name.clone()));
            // Without a system name (field 3). If it were the name, `go tool pprof` would take `<T as Trait>::f` for C++, and show `::f`.
            function.number(4, strings.number(file.clone()));
        });
    }
    profile.message(11, |kind| value_type(kind, &mut strings, "space", "bytes"));
    profile.number(12, mean_bytes as u64);
    profile.number(14, strings.number(Value::PeakSpace.name().into()));
    strings.values.iter().for_each(|string| profile.bytes(6, string.as_bytes()));

    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&profile.0)?;
    gzip.finish()
}

fn value_type(kind: &mut Message, strings: &mut Numbered<String>, name: &str, unit: &str) {
    kind.number(1, strings.number(name.into()));
    kind.number(2, strings.number(unit.into()));
}
