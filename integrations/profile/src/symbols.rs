//! The names of functions: of this process, and of another one by the files that it had mapped.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::ptr::without_provenance_mut;

use addr2line::Loader;
use addr2line::fallible_iterator::FallibleIterator;
use object::{Object, ObjectSegment};

use crate::sites::Line;

/// The lines at an address of this process, the innermost first.
pub(crate) fn here(address: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    // Looks at the call before the address.
    backtrace::resolve(without_provenance_mut(address), |symbol| {
        lines.push(Line {
            function: symbol.name().map_or_else(|| format!("{address:#x}"), |name| format!("{name:#}")),
            file: symbol.filename().map_or_else(String::new, |file| file.display().to_string()),
            line: symbol.lineno().unwrap_or(0),
        });
    });
    or_address(lines, address)
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
    segments: Vec<(u64, u64, u64)>,
}

impl<'a> Elsewhere<'a> {
    pub(crate) fn new(maps: &'a str) -> Self {
        Self { mappings: maps.lines().filter_map(Mapping::parse).collect(), files: HashMap::new() }
    }

    /// The lines at an address of that process, the innermost first. Files that are not there any more have no names.
    pub(crate) fn lines(&mut self, address: usize) -> Vec<Line> {
        // The call lies before the address.
        let call = (address as u64).wrapping_sub(1);
        let mapping = self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&call));
        if mapping.is_some_and(Mapping::is_allocator) {
            return vec![Line::named("zk_alloc::".into())];
        }
        let Some(mapping) = mapping else { return or_address(Vec::new(), address) };
        let file = self.files.entry(mapping.path).or_insert_with(|| File::open(Path::new(mapping.path)));
        let offset = call - mapping.start + mapping.offset;
        let lines = file.as_ref().and_then(|file| file.lines(offset)).unwrap_or_default();
        if !lines.is_empty() {
            return lines;
        }
        // A stripped file has no names. The place in it is the same in every run.
        let place = file.as_ref().and_then(|file| file.address(offset)).unwrap_or(offset) + 1;
        let name = Path::new(mapping.path).file_name().unwrap_or_default().to_string_lossy();
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

    /// Whether it is the preload library.
    fn is_allocator(&self) -> bool {
        Path::new(self.path).file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libzk_alloc.so"))
    }
}

impl File {
    fn open(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        let object = object::File::parse(&*bytes).ok()?;
        let segment = |segment: object::Segment<'_, '_>| {
            let (offset, len) = segment.file_range();
            (offset, len, segment.address())
        };
        Some(Self { segments: object.segments().map(segment).collect(), loader: Loader::new(path).ok()? })
    }

    /// The address of an offset in the file, as `nm` and debuggers know it.
    fn address(&self, offset: u64) -> Option<u64> {
        let is_within = |&&(start, len, _): &&(u64, u64, u64)| (start..start + len).contains(&offset);
        let &(start, _, address) = self.segments.iter().find(is_within)?;
        Some(offset - start + address)
    }

    /// The lines at an offset in the file.
    fn lines(&self, offset: u64) -> Option<Vec<Line>> {
        let probe = self.address(offset)?;
        let mut lines: Vec<_> = self.loader.find_frames(probe).ok()?.map(|frame| Ok(line(&frame))).collect().ok()?;
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

fn line<R: addr2line::gimli::Reader>(frame: &addr2line::Frame<'_, R>) -> Line {
    let name = frame.function.as_ref().and_then(|function| function.demangle().ok().map(|name| name.into_owned()));
    let location = frame.location.as_ref();
    Line {
        function: name.unwrap_or_default(),
        file: location.and_then(|location| location.file).unwrap_or_default().into(),
        line: location.and_then(|location| location.line).unwrap_or(0),
    }
}

/// If nothing is known, the address stands for the function.
fn or_address(mut lines: Vec<Line>, address: usize) -> Vec<Line> {
    if lines.is_empty() {
        lines.push(Line::named(format!("{address:#x}")));
    }
    lines
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[inline(never)]
    fn here_or_elsewhere() -> Vec<usize> {
        let mut addresses = Vec::new();
        backtrace::trace(|frame| {
            addresses.push(frame.ip().addr());
            true
        });
        addresses
    }

    /// The files of a process give the names that the process itself finds.
    #[test]
    fn names_are_the_same_from_within_and_from_without() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = Elsewhere::new(&maps);
        let addresses = here_or_elsewhere();
        let names = |lines: Vec<Line>| lines.into_iter().map(|line| line.function).collect::<Vec<_>>();
        let within: Vec<_> = addresses.iter().map(|&address| names(here(address))).collect();
        let without: Vec<_> = addresses.iter().map(|&address| names(files.lines(address))).collect();
        let is_here = |names: &Vec<Vec<String>>| names.iter().flatten().any(|name| name.contains("here_or_elsewhere"));
        assert!(is_here(&within) && is_here(&without), "{without:?}");
        assert_eq!(files.lines(7)[0].function, "0x7");
    }

    /// Programs are mapped elsewhere in each run, so a bare address could not be compared, nor looked up.
    #[test]
    fn a_place_without_a_name_is_one_in_its_file() {
        let mut files = Elsewhere::new("7000-9000 r-xp 00001000 00:00 0 /nowhere/stripped\n");
        assert_eq!(files.lines(0x7235)[0].function, "stripped+0x1235");
    }
}
