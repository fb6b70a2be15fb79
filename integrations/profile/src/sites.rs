//! Looks up the function names of call sites. Their return addresses come from this process or from a file that another process wrote. The
//! names for another process come from the files that it had mapped.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use addr2line::Loader;
use addr2line::fallible_iterator::FallibleIterator;
use object::{Object, ObjectSegment};
use zk_alloc::profile::{Site, Snapshot, Source};

use crate::Value;

/// The values of a site, in the order of [`Value::ALL`].
pub(crate) type Figures = [u64; 7];

/// A call site without function names: the return addresses of its calls.
type RawSite = Stack<usize>;

/// The call sites of a process, without function names.
#[derive(Debug)]
pub(crate) struct RawProfile {
    pub(crate) sites: Vec<RawSite>,
    pub(crate) mean_bytes: usize,
    pub(crate) missed: u64,
}

impl From<&Snapshot> for RawProfile {
    fn from(snapshot: &Snapshot) -> Self {
        let site = |site: &Site| {
            let [allocated, live, peak] = [site.allocated, site.live, site.peak].map(|it| [it.allocations, it.bytes]);
            RawSite {
                calls: site.addresses.clone(),
                is_of_arena: site.source == Source::Arena,
                figures: [allocated[0], allocated[1], live[0], live[1], peak[0], peak[1], site.fresh_bytes],
            }
        };
        let sites = snapshot.sites.iter().map(site).collect();
        Self { sites, mean_bytes: snapshot.mean_bytes, missed: snapshot.missed }
    }
}

impl RawProfile {
    /// Parses the text of a `.raw` file. Returns the profile and the lines of the process's `/proc/self/maps`, or `None` if the format is
    /// not recognised.
    pub(crate) fn parse(text: &str) -> Option<(Self, &str)> {
        let (head, maps) = text.split_once("\nmaps\n")?;
        let mut lines = head.strip_prefix("zk-alloc-profile 1\n")?.lines();
        let mean_bytes = lines.next()?.strip_prefix("mean_bytes ")?.parse().ok()?;
        let missed = lines.next()?.strip_prefix("missed ")?.parse().ok()?;
        let sites = lines.map(|line| RawSite::parse(line.strip_prefix("site ")?)).collect::<Option<_>>()?;
        Some((Self { sites, mean_bytes, missed }, maps))
    }
}

impl RawSite {
    /// Parses a site: seven decimal values, a colon, and hexadecimal addresses.
    fn parse(words: &str) -> Option<Self> {
        let (figures, addresses) = words.split_once(" :")?;
        let figures: Vec<u64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let address = |word| usize::from_str_radix(word, 16);
        let calls = addresses.split_whitespace().map(address).collect::<Result<_, _>>().ok()?;
        Some(Self { calls, is_of_arena: true, figures: figures.try_into().ok()? })
    }
}

/// A source location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) function: String,
    /// The source file; empty if unknown.
    pub(crate) file: String,
    /// The line number; 0 if unknown.
    pub(crate) line: u32,
}

impl Line {
    /// Returns a location with only a function name.
    pub(crate) fn named(function: String) -> Self {
        Self { function, file: String::new(), line: 0 }
    }
}

/// A call, identified by its return address. If functions were inlined there, it has several source locations, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) address: usize,
    pub(crate) lines: Arc<[Line]>,
}

/// A call site of the program. Once the function names are looked up, it no longer contains the allocator's own calls.
#[derive(Debug)]
pub(crate) struct Stack<C = Call> {
    /// The calls, innermost first.
    pub(crate) calls: Vec<C>,
    pub(crate) is_of_arena: bool,
    pub(crate) figures: Figures,
}

/// Returns the sites, with the lines that `look_up` finds for each address. Merges sites that differ only in the allocator's own calls. The
/// site with the most bytes at the peak comes first.
pub(crate) fn stacks(sites: &[RawSite], mut look_up: impl FnMut(usize) -> Vec<Line>) -> Vec<Stack> {
    let mut known = Known::new();
    let mut stacks = HashMap::<_, Stack>::new();
    for &RawSite { ref calls, is_of_arena, figures } in sites {
        let calls = of_program(calls, &mut known, &mut look_up);
        let key = (is_of_arena, calls.iter().map(|call| (call.address, call.lines.len())).collect::<Vec<_>>());
        let sum = |stack: &mut Stack| stack.figures.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        stacks.entry(key).and_modify(sum).or_insert(Stack { calls, is_of_arena, figures });
    }
    let mut stacks: Vec<_> = stacks.into_values().collect();
    stacks.sort_by_key(|stack| std::cmp::Reverse((Value::PeakSpace.of(&stack.figures), stack.figures)));
    stacks
}

/// The lines that were found so far, by address.
type Known = HashMap<usize, Arc<[Line]>>;

/// Returns only the program's own calls. Removes the innermost calls, which are in the allocator and in the standard library code that
/// leads to it, and the outermost calls, which start the program or a thread.
fn of_program(addresses: &[usize], known: &mut Known, look_up: &mut impl FnMut(usize) -> Vec<Line>) -> Vec<Call> {
    let mut look_up = |address| match look_up(address) {
        // An unknown address is shown in place of a function name.
        lines if lines.is_empty() => vec![Line::named(format!("{address:#x}"))],
        lines => lines,
    };
    let mut names = |address| known.entry(address).or_insert_with(|| look_up(address).into()).clone();
    let calls: Vec<_> = addresses.iter().map(|&address| Call { address, lines: names(address) }).collect();
    let lines: Vec<&Line> = calls.iter().flat_map(|call| call.lines.iter()).collect();
    // Takes the outermost entry point, because the program's own `GlobalAlloc` may be between two entry points.
    let innermost = &lines[..lines.len().min(MAX_LINES)];
    let entered = innermost.iter().rposition(|line| is_entry(line)).map_or(0, |last| last + 1);
    let mut skipped = entered + lines[entered..].iter().take_while(|line| is_allocator(line)).count();
    let mut left = lines.len() - skipped - of_runtime(&lines[skipped..]);
    let mut kept = Vec::new();
    for Call { address, lines } in &calls {
        let here = skipped.min(lines.len());
        skipped -= here;
        let end = lines.len().min(here + left);
        if here < end {
            left -= end - here;
            kept.push(Call { address: *address, lines: lines[here..end].into() });
        }
    }
    kept
}

/// Returns the number of outermost lines that start the program or a thread: those of the C library, and those of Rust up to
/// `__rust_begin_short_backtrace`. Returns 0 if there are no other lines.
fn of_runtime(lines: &[&Line]) -> usize {
    let marked = lines.iter().rposition(|line| line.function.contains("__rust_begin_short_backtrace"));
    let within = &lines[..marked.unwrap_or(lines.len())];
    let starts = within.iter().rev().take_while(|line| {
        let name = line.function.trim_start_matches('<');
        matches!(name, "_start" | "start_thread" | "clone" | "clone3" | "__clone3")
            || name.starts_with("__libc_start_")
            || name.starts_with("core::ops::function::")
    });
    let within = within.len() - starts.count();
    if within == 0 { 0 } else { lines.len() - within }
}

/// The number of innermost lines that may contain an allocator's own calls.
const MAX_LINES: usize = 40;

/// Returns whether a line is an entry point of an allocator: a symbol such as `__rust_alloc`, a C function such as `malloc`, or a method of
/// `ZkAllocator`.
fn is_entry(line: &Line) -> bool {
    let name = &*line.function;
    let last = name.rsplit("::").next().unwrap_or(name);
    OF_RUST.iter().any(|prefix| last.starts_with(prefix))
        || OF_C.contains(&name)
        || name.trim_start_matches('<').starts_with("zk_alloc::allocator::")
        || line.file.ends_with("zk-alloc/src/allocator.rs")
}

const OF_RUST: &[&str] = &["__rust_alloc", "__rust_realloc", "__rg_", "__rdl_"];
const OF_C: &[&str] = &["malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "memalign"];

/// Returns whether a line belongs to an allocator, or to the standard library code that leads to it. The names of inlined functions may
/// lack their modules, so the source file is checked too.
fn is_allocator(line: &Line) -> bool {
    let name = line.function.trim_start_matches('<');
    is_entry(line)
        || OF_ALLOCATORS.iter().any(|prefix| name.starts_with(prefix))
        || FILES.iter().any(|part| line.file.contains(part))
}

const OF_ALLOCATORS: &[&str] =
    &["zk_alloc::", "backtrace::", "alloc::alloc::", "alloc::raw_vec::", "core::alloc::", "operator new"];
const FILES: &[&str] = &["/alloc/src/alloc.rs", "/alloc/src/raw_vec"];

/// Returns the lines at an address of this process, innermost first.
pub(crate) fn here(address: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    // `resolve` looks up the call just before this return address.
    backtrace::resolve(without_provenance_mut(address), |symbol| {
        lines.push(Line {
            function: symbol.name().map_or_else(|| format!("{address:#x}"), |name| format!("{name:#}")),
            file: symbol.filename().map_or_else(String::new, |file| file.display().to_string()),
            line: symbol.lineno().unwrap_or(0),
        });
    });
    lines
}

/// The files that another process had mapped.
pub(crate) struct Elsewhere<'a> {
    mappings: Vec<Mapping<'a>>,
    files: HashMap<&'a str, Option<File>>,
}

/// A line of `/proc/self/maps` (proc_pid_maps(5)).
struct Mapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    path: &'a str,
}

struct File {
    loader: Loader,
    /// The offset in the file, the length and the address of each segment.
    segments: Vec<((u64, u64), u64)>,
}

impl<'a> Elsewhere<'a> {
    pub(crate) fn new(maps: &'a str) -> Self {
        Self { mappings: maps.lines().filter_map(Mapping::parse).collect(), files: HashMap::new() }
    }

    /// Returns the lines at an address of that process, innermost first. Files that no longer exist provide no names.
    pub(crate) fn lines(&mut self, address: usize) -> Vec<Line> {
        // The call instruction is just before its return address.
        let call = (address as u64).wrapping_sub(1);
        let mapping = self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&call));
        let Some(mapping) = mapping else { return Vec::new() };
        let name = Path::new(mapping.path).file_name().unwrap_or_default().to_string_lossy();
        // Frames in the preload library belong to the allocator.
        if name.starts_with("libzk_alloc.so") {
            return vec![Line::named("zk_alloc::".into())];
        }
        let file = self.files.entry(mapping.path).or_insert_with(|| File::open(Path::new(mapping.path)));
        let offset = call - mapping.start + mapping.offset;
        if let Some(lines) = file.as_ref().and_then(|file| file.lines(offset)) {
            return lines;
        }
        // A stripped file has no names. Shows the address in the file instead, which is the same in every run.
        let place = file.as_ref().and_then(|file| file.address(offset)).unwrap_or(offset) + 1;
        vec![Line::named(format!("{name}+{place:#x}"))]
    }
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let path = &line[line.find('/')?..];
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self { start: number(start)?, end: number(end)?, offset: number(words.nth(1)?)?, path })
    }
}

impl File {
    fn open(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        let object = object::File::parse(&*bytes).ok()?;
        let segments = object.segments().map(|segment| (segment.file_range(), segment.address())).collect();
        Some(Self { segments, loader: Loader::new(path).ok()? })
    }

    /// Returns the address of an offset in the file, as `nm` and debuggers show it.
    fn address(&self, offset: u64) -> Option<u64> {
        let is_within = |&&((start, len), _): &&((u64, u64), u64)| (start..start + len).contains(&offset);
        let &((start, _), address) = self.segments.iter().find(is_within)?;
        Some(offset - start + address)
    }

    /// Returns the source lines at an offset in the file.
    fn lines(&self, offset: u64) -> Option<Vec<Line>> {
        let probe = self.address(offset)?;
        let mut lines: Vec<_> = self.loader.find_frames(probe).ok()?.map(|frame| Ok(line_of(&frame))).collect().ok()?;
        let symbol =
            || self.loader.find_symbol(probe).map(|name| addr2line::demangle_auto(name.into(), None).into_owned());
        match &mut *lines {
            [] => lines.push(Line::named(symbol()?)),
            [.., outermost] if outermost.function.is_empty() => outermost.function = symbol()?,
            _ => {}
        }
        Some(lines)
    }
}

fn line_of<R: addr2line::gimli::Reader>(frame: &addr2line::Frame<'_, R>) -> Line {
    let name = frame.function.as_ref().and_then(|function| function.demangle().ok().map(|name| name.into_owned()));
    let location = frame.location.as_ref();
    Line {
        function: name.unwrap_or_default(),
        file: location.and_then(|location| location.file).unwrap_or_default().into(),
        line: location.and_then(|location| location.line).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_that_start_a_program_in_c_are_skipped() {
        let functions = ["prove", "main", "__libc_start_call_main", "__libc_start_main_impl", "_start"];
        let site = RawSite { calls: (0..functions.len()).collect(), is_of_arena: true, figures: [1; 7] };
        let stacks = stacks(&[site], |address| vec![Line::named(functions[address].into())]);
        let names: Vec<_> = stacks[0].calls.iter().map(|call| &*call.lines[0].function).collect();
        assert_eq!(names, ["prove", "main"]);
    }

    /// A lookup in the files of a process finds the same names as a lookup in the process itself.
    #[cfg(target_os = "linux")]
    #[test]
    fn lookup_in_files_finds_the_names_that_the_process_finds() {
        #[inline(never)]
        fn here_or_elsewhere() -> Vec<usize> {
            let mut addresses = Vec::new();
            backtrace::trace(|frame| {
                addresses.push(frame.ip().addr());
                true
            });
            addresses
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = Elsewhere::new(&maps);
        let addresses = here_or_elsewhere();
        let names = |lines: Vec<Line>| lines.into_iter().map(|line| line.function).collect::<Vec<_>>();
        let within: Vec<_> = addresses.iter().map(|&address| names(here(address))).collect();
        let without: Vec<_> = addresses.iter().map(|&address| names(files.lines(address))).collect();
        let is_here = |names: &Vec<Vec<String>>| names.iter().flatten().any(|name| name.contains("here_or_elsewhere"));
        assert!(is_here(&within) && is_here(&without), "{without:?}");
        let unknown = RawSite { calls: vec![7], is_of_arena: true, figures: [1; 7] };
        assert_eq!(&*stacks(&[unknown], |address| files.lines(address))[0].calls[0].lines[0].function, "0x7");
    }

    /// A program is mapped at a different address in each run, so a bare address could not be compared between runs or looked up.
    #[test]
    fn address_without_a_name_is_shown_as_an_offset_in_its_file() {
        let mut files = Elsewhere::new("7000-9000 r-xp 00001000 00:00 0 /nowhere/stripped\n");
        assert_eq!(files.lines(0x7235)[0].function, "stripped+0x1235");
    }
}
