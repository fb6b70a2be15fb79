#![doc = include_str!("../README.md")]

mod sites;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::Hash;
use std::io::{self, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use inferno::flamegraph;
use inferno::flamegraph::TextTruncateDirection;
use inferno::flamegraph::color::{BasicPalette, Palette};
use zk_alloc::profile::{self, Snapshot};

use sites::{Elsewhere, Figures, Line, RawProfile, Stack};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That crate's arena
// overwrites live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// A site gets its own line in a file if its value is at least the total of all sites divided by this number. Smaller sites share one
/// line, because they would be too narrow to see in a flame graph.
const SMALLEST_PART: u64 = 10_000;

/// The minimum width of a frame in a flame graph, in percent. Without this minimum, a narrow tower of a hundred frames makes the graph
/// tall and empty.
const MIN_WIDTH: f64 = 0.2;

/// CSS that adapts a flame graph to a narrow page and to dark mode.
const LOOK: &str = "#search { opacity: 0.6; }
@media (max-width: 600px) { #title { font-size: 11px; } }
@media (prefers-color-scheme: dark) {
svg > rect { fill: #14161a; } #title, #subtitle, #details, #unzoom, #search, #matched { fill: #e8eaed; } #frames > *:hover { stroke: white; }
}
</style>";

/// A profile with function names.
#[derive(Debug)]
pub struct Profile {
    stacks: Vec<Stack>,
    mean_bytes: usize,
    missed: u64,
}

/// Takes a profile now and writes it into `dir`, which it creates if needed: `profile.pb.gz` for pprof, and for each of [`Value::OF_BYTES`]
/// folded stacks (`peak_space.folded`) and a flame graph (`peak_space.svg`). Writes no files for a value that is 0 at every site.
///
/// Looking up the names may take a second, and needs memory for the program's debug information, which the profile does not include.
///
/// # Errors
/// The system's error, if the folder or a file can't be written.
///
/// ```no_run
/// zk_alloc::profile::start(zk_alloc::profile::MEAN_BYTES);
/// // ... prove ...
/// zk_alloc_profile::write("profile")?;
/// # std::io::Result::Ok(())
/// ```
pub fn write(dir: impl AsRef<Path>) -> io::Result<()> {
    profile::unsampled(|| Profile::new(&profile::snapshot()).write(dir.as_ref()))
}

impl Profile {
    /// Looks up the names of the functions in a snapshot of this process.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();
    /// # use zk_alloc::profile;
    /// use zk_alloc_profile::{Profile, Value};
    ///
    /// profile::start(profile::MEAN_BYTES);
    /// let proof = vec![1u8; 4 << 20];
    /// let profile = Profile::new(&profile::snapshot());
    /// println!("{}", profile.folded(Value::InuseSpace)); // main;<alloc::vec::Vec<u8> as ...> 4194304
    /// # assert!(profile.folded(Value::InuseSpace).contains(" 4194304"));
    /// # drop(proof);
    /// ```
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        profile::unsampled(|| Self::with_names(&snapshot.into(), sites::here))
    }

    /// Reads a file that `libzk_alloc.so` wrote, and looks up the names of the functions in the program's binaries.
    ///
    /// # Errors
    /// The system's error, if the file can't be read; `InvalidData`, if its format is not recognised.
    pub fn read(raw: impl AsRef<Path>) -> io::Result<Self> {
        let text = fs::read_to_string(raw)?;
        let (profile, maps) = RawProfile::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not a raw profile of this version"))?;
        let mut files = Elsewhere::new(maps);
        Ok(Self::with_names(&profile, |address| files.lines(address)))
    }

    fn with_names(raw: &RawProfile, look_up: impl FnMut(usize) -> Vec<Line>) -> Self {
        let stacks = sites::stacks(&raw.sites, look_up);
        Self { stacks, mean_bytes: raw.mean_bytes, missed: raw.missed }
    }

    /// Returns the number of samples that could not be stored. The profile's values do not include these samples.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns the sum of `value` over all call sites.
    #[must_use]
    pub fn total(&self, value: Value) -> u64 {
        self.stacks.iter().map(|stack| value.of(&stack.figures)).sum()
    }

    /// Returns the contents of the file for pprof: a message of `profile.proto`, compressed with gzip. A server may return them for
    /// `/debug/pprof/heap`.
    ///
    /// # Errors
    /// None in practice: the compressor writes to memory.
    pub fn pprof(&self) -> io::Result<Vec<u8>> {
        let mut profile = Message::default();
        let mut strings = Numbers::new();
        let (mut functions, mut locations) = (Numbers::new(), Numbers::new());
        // The format requires the first string to be empty.
        number(&mut strings, String::new());
        for value in Value::ALL {
            profile.message(1, |kind| value_type(kind, &mut strings, value.name(), value.unit()));
        }
        for stack in &self.stacks {
            profile.message(2, |sample| {
                // Location ids start at 1.
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
                // The system name (field 3) stays empty. If it contained the name, `go tool pprof` would treat `<T as Trait>::f` as C++,
                // and show `::f`.
                function.number(4, number(&mut strings, file));
            });
        }
        profile.message(11, |kind| value_type(kind, &mut strings, "space", "bytes"));
        profile.number(12, self.mean_bytes as u64);
        profile.number(14, number(&mut strings, Value::PeakSpace.name().into()));
        in_order(strings).iter().for_each(|string| profile.bytes(6, string.as_bytes()));

        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&profile.0)?;
        gzip.finish()
    }

    /// Returns folded stacks: a line for each call site, with its functions from the outermost to the innermost, and its value. Omits sites
    /// whose value is 0. Requests that the backing allocator served are under `[backing allocator]`.
    #[must_use]
    pub fn folded(&self, value: Value) -> String {
        self.folded_from(value, 1)
    }

    /// Like [`folded`](Self::folded), but with a single line for all sites whose value is below `least`.
    fn folded_from(&self, value: Value, least: u64) -> String {
        let mut text = String::new();
        let mut rest = 0;
        for stack in &self.stacks {
            let figure = value.of(&stack.figures);
            if figure < least {
                rest += figure;
                continue;
            }
            let root = (!stack.is_of_arena).then(|| "[backing allocator]".to_owned());
            let lines = stack.calls.iter().rev().flat_map(|call| call.lines.iter().rev());
            // In folded stacks, a semicolon separates functions.
            let names = lines.map(|line| line.function.replace(';', ","));
            let mut names: Vec<_> = root.into_iter().chain(names).collect();
            if names.is_empty() {
                names.push("[no call site]".into());
            }
            let _ = writeln!(text, "{} {figure}", names.join(";"));
        }
        if rest > 0 {
            let _ = writeln!(text, "[smaller call sites] {rest}");
        }
        text
    }

    /// Returns a flame graph as SVG, or `None` if the value is 0 at every site.
    ///
    /// # Errors
    /// None in practice: the graph is written to memory.
    pub fn flame_graph(&self, value: Value) -> io::Result<Option<Vec<u8>>> {
        let folded = self.folded_from(value, self.least(value));
        if folded.is_empty() {
            return Ok(None);
        }
        let mut options = flamegraph::Options::default();
        options.title = value.words().1.into();
        options.count_name = value.unit().into();
        options.min_width = MIN_WIDTH;
        options.colors = Palette::Basic(BasicPalette::Mem);
        // A truncated name keeps its beginning, which has most of the function's path.
        options.text_truncate_direction = TextTruncateDirection::Right;
        let mut svg = Vec::new();
        flamegraph::from_lines(&mut options, folded.lines(), &mut svg).map_err(io::Error::other)?;
        Ok(Some(String::from_utf8_lossy(&svg).replacen("</style>", LOOK, 1).into_bytes()))
    }

    /// Returns the smallest value for which a site gets its own line in the files.
    fn least(&self, value: Value) -> u64 {
        (self.total(value) / SMALLEST_PART).max(1)
    }

    /// Writes the files that [`write()`] describes.
    ///
    /// # Errors
    /// The system's error, if the folder or a file can't be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("profile.pb.gz"), self.pprof()?)?;
        for value in Value::OF_BYTES {
            let file = |extension: &str| dir.join(value.name()).with_extension(extension);
            if let Some(svg) = self.flame_graph(value)? {
                fs::write(file("folded"), self.folded_from(value, self.least(value)))?;
                fs::write(file("svg"), svg)?;
            }
        }
        Ok(())
    }
}

/// Defines the values of a profile, with their names and the titles of their flame graphs.
macro_rules! values {
    ($($(#[$doc:meta])* $value:ident = $name:literal, $title:literal;)*) => {
        /// A value that a profile records for each call site. The names are those that pprof shows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Value {
            $($(#[$doc])* $value,)*
        }

        impl Value {
            /// All values, in the order of the pprof file.
            pub const ALL: [Self; 7] = [$(Self::$value),*];

            /// Returns the value's name, and the title of its flame graph.
            const fn words(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$value => ($name, $title),)*
                }
            }
        }
    };
}

values! {
    /// `alloc_objects`: the number of allocations.
    AllocObjects = "alloc_objects", "Allocations";
    /// `alloc_space`: the bytes of all allocations.
    AllocSpace = "alloc_space", "Bytes allocated";
    /// `inuse_objects`: the number of live allocations.
    InuseObjects = "inuse_objects", "Allocations alive now";
    /// `inuse_space`: the bytes of live allocations.
    InuseSpace = "inuse_space", "Bytes alive now";
    /// `peak_objects`: the number of allocations that were live when live bytes peaked.
    PeakObjects = "peak_objects", "Allocations alive at the peak";
    /// `peak_space`: the bytes of the allocations that were live when live bytes peaked.
    PeakSpace = "peak_space", "Bytes alive at the peak";
    /// `fresh_space`: the bytes that were not resident when the arena handed them out.
    FreshSpace = "fresh_space", "Fresh bytes, which cost page faults";
}

impl Value {
    /// The values that count bytes. Each has a file of folded stacks and a flame graph.
    pub const OF_BYTES: [Self; 4] = [Self::AllocSpace, Self::InuseSpace, Self::PeakSpace, Self::FreshSpace];

    /// Returns the name that pprof shows.
    ///
    /// ```
    /// assert_eq!(zk_alloc_profile::Value::PeakSpace.name(), "peak_space");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    pub(crate) fn unit(self) -> &'static str {
        if Self::OF_BYTES.contains(&self) { "bytes" } else { "count" }
    }

    pub(crate) fn of(self, figures: &Figures) -> u64 {
        figures[self as usize]
    }
}

// The format of pprof: a message of Protocol Buffers, compressed with gzip. The numbers of the fields are those of `profile.proto` in
// <https://github.com/google/pprof>.

/// A Protocol Buffers message under construction.
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

    /// Writes a number as a field. Omits it if it is 0.
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
        self.message(field, |packed| values.into_iter().for_each(|value| packed.varint(value)));
    }
}

/// A map from items to numbers, which count from 0 in the order in which the items were first seen.
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

fn value_type(kind: &mut Message, strings: &mut Numbers<String>, name: &str, unit: &str) {
    kind.number(1, number(strings, name.into()));
    kind.number(2, number(strings, unit.into()));
}
