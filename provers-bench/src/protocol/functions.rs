//! Names of functions for tables: the function that tells most about a call site, and its name in short.

/// These, the bench and the C library only lead to a call site, or away from it.
const OF_LIBRARIES: [&str; 14] = [
    "alloc::",
    "core::",
    "std::",
    "rayon::",
    "rayon_core::",
    "hashbrown::",
    "tracing::",
    "tracing_core::",
    "provers_bench::",
    "0x",
    "_start",
    "__libc_start",
    "clone3",
    "start_thread",
];

/// The innermost of these functions that tells something of the program.
pub(crate) fn function_of(calls: &[String]) -> &str {
    let is_own = |call: &&String| !OF_LIBRARIES.iter().any(|prefix| call.trim_start_matches('<').starts_with(prefix));
    let found = calls.iter().rev().find(is_own).or_else(|| calls.last());
    found.map_or("[no call site]", String::as_str)
}

/// A function's name without generic arguments. In place of an `impl` block stands its type.
pub(crate) fn short(name: &str) -> String {
    let mut short = String::new();
    let mut rest = name;
    while let Some(open) = rest.find('<') {
        let len = length_of_brackets(&rest[open..]);
        let inner = rest[open..].get(1..len.saturating_sub(1)).unwrap_or_default();
        short.push_str(&rest[..open]);
        rest = &rest[open + len..];
        // `<T as Trait>::f` begins a name or a path. Elsewhere, brackets hold generic arguments.
        let is_type = short.is_empty() || (short.ends_with("::") && inner.starts_with("impl "));
        if is_type {
            short.push_str(&type_of(inner));
        } else {
            short.truncate(short.trim_end_matches("::").len());
        }
    }
    short + rest
}

/// The bytes up to the bracket that closes the first one; the arrow of a function's type closes none.
fn length_of_brackets(text: &str) -> usize {
    let mut depth = 0;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
        before = letter;
    }
    text.len()
}

/// The type in `T as Trait`, `impl Trait for T` or `impl T`.
fn type_of(inner: &str) -> String {
    let outside = |word: &str| {
        let depth_at = |at: usize| inner[..at].matches('<').count() == inner[..at].matches('>').count();
        inner.match_indices(word).map(|(at, _)| at).find(|&at| depth_at(at))
    };
    match (inner.strip_prefix("impl "), outside(" for "), outside(" as ")) {
        (Some(_), Some(at), _) => {
            short(&inner[at + " for ".len()..]).rsplit("::").next().unwrap_or_default().to_owned()
        }
        (Some(own), ..) => short(own).rsplit("::").next().unwrap_or_default().to_owned(),
        (None, _, Some(at)) => short(&inner[..at]),
        (None, ..) => short(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Vec::with_capacity` is where all memory comes from, and tells nothing.
    #[test]
    fn a_call_site_is_named_after_the_provers_own_function() {
        let named =
            |calls: &[&str]| function_of(&calls.iter().map(|&call| call.to_owned()).collect::<Vec<_>>()).to_owned();
        let calls = ["main", "prover::commit", "rayon_core::join", "<alloc::vec::Vec<T>>::with_capacity"];
        assert_eq!(named(&calls), "prover::commit");
        assert_eq!(named(&["prover::commit", "tracing::span::Span::in_scope"]), "prover::commit");
        assert_eq!(named(&["start_thread", "std::thread::run"]), "std::thread::run");
        assert_eq!(named(&[]), "[no call site]");
    }

    #[test]
    fn short_names_have_the_type_and_no_arguments() {
        for (name, expected) in [
            ("prover::commit", "prover::commit"),
            ("prover::commit::<F, G<H>>", "prover::commit"),
            ("prover::commit::{{closure}}", "prover::commit::{{closure}}"),
            ("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", "alloc::vec::Vec::extend"),
            (
                "tree::batch::<impl mmcs::Mmcs<<P as Packed>::Value> for tree::Mmcs<P, _>>::commit",
                "tree::batch::Mmcs::commit",
            ),
            ("tree::<impl tree::Tree<T>>::new", "tree::Tree::new"),
            ("<F as core::ops::Fn<(u32,)>>::call::<fn(u8) -> u8>", "F::call"),
            ("a < b", "a "),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }
}
