//! Call sites with the names of their functions.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sites::{Figures, RawSite};

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) function: String,
    /// Empty if it is not known.
    pub(crate) file: String,
    /// 0 if it is not known.
    pub(crate) line: u32,
}

/// A call, by the address to which it returns. It has several lines, the innermost first, if functions were inlined there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) address: usize,
    pub(crate) lines: Arc<[Line]>,
}

/// A call site of the program, without the allocator's own calls.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The innermost call first.
    pub(crate) calls: Vec<Call>,
    pub(crate) is_of_arena: bool,
    pub(crate) figures: Figures,
}

/// The sites with the lines that `look_up` finds for an address. Sites that differ only in the allocator's own calls are one. The
/// largest at the peak comes first.
pub(crate) fn stacks(sites: &[RawSite], mut look_up: impl FnMut(usize) -> Vec<Line>) -> Vec<Stack> {
    let mut known = Known::new();
    let mut stacks = HashMap::<_, Stack>::new();
    for &RawSite { ref addresses, is_of_arena, figures } in sites {
        let calls = of_program(addresses, &mut known, &mut look_up);
        let key = (is_of_arena, calls.iter().map(|call| (call.address, call.lines.len())).collect::<Vec<_>>());
        let sum = |stack: &mut Stack| stack.figures.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        stacks.entry(key).and_modify(sum).or_insert(Stack { calls, is_of_arena, figures });
    }
    let mut stacks: Vec<_> = stacks.into_values().collect();
    stacks.sort_by_key(|stack| std::cmp::Reverse(stack.figures));
    stacks
}

/// The lines of each address that was looked up.
type Known = HashMap<usize, Arc<[Line]>>;

/// The calls of the program itself. The innermost calls of a site are those of the allocator, and of the standard library on the way
/// there.
fn of_program(addresses: &[usize], known: &mut Known, look_up: &mut impl FnMut(usize) -> Vec<Line>) -> Vec<Call> {
    let mut names = |address| known.entry(address).or_insert_with(|| look_up(address).into()).clone();
    let calls: Vec<_> = addresses.iter().map(|&address| Call { address, lines: names(address) }).collect();
    let lines: Vec<&Line> = calls.iter().flat_map(|call| call.lines.iter()).collect();
    // The program's own `GlobalAlloc` may lie within.
    let innermost = &lines[..lines.len().min(MOST_LINES)];
    let entered = innermost.iter().rposition(|line| is_entry(&line.function)).map_or(0, |last| last + 1);
    let mut skipped = entered + lines[entered..].iter().take_while(|line| is_allocator(line)).count();
    let mut kept = Vec::new();
    for Call { address, lines } in &calls {
        let here = skipped.min(lines.len());
        skipped -= here;
        if here < lines.len() {
            kept.push(Call { address: *address, lines: lines[here..].into() });
        }
    }
    kept
}

/// Allocators take fewer lines than that.
const MOST_LINES: usize = 40;

/// Whether a function is the way into an allocator: one of the compiler's, or of the C library's.
fn is_entry(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    OF_RUST.iter().any(|prefix| last.starts_with(prefix)) || OF_C.contains(&name)
}

const OF_RUST: &[&str] = &["__rust_alloc", "__rust_realloc", "__rg_", "__rdl_"];
const OF_C: &[&str] = &["malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "memalign"];

/// Whether a line belongs to an allocator, or to the standard library's way there. The names of inlined functions may lack their
/// modules, so the file counts too.
fn is_allocator(line: &Line) -> bool {
    let name = line.function.trim_start_matches('<');
    is_entry(name)
        || OF_ALLOCATORS.iter().any(|prefix| name.starts_with(prefix))
        || FILES.iter().any(|part| line.file.contains(part))
}

const OF_ALLOCATORS: &[&str] =
    &["zk_alloc::", "backtrace::", "alloc::alloc::", "alloc::raw_vec::", "core::alloc::", "operator new"];
const FILES: &[&str] = &["zk-alloc/src/", "/backtrace-0.", "/alloc/src/alloc.rs", "/alloc/src/raw_vec"];
