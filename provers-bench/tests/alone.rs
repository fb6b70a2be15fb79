//! Each binary contains only its own allocator.

use std::fs;

/// The library names every allocator that an arm may link. If the linker pulled one into another arm's binary, its
/// constructors would run there and use memory.
#[test]
fn no_arm_carries_the_allocator_of_another() {
    let carries = |binary: &str, symbol: &str| {
        let bytes = fs::read(binary).unwrap_or_else(|error| panic!("{binary}: {error}"));
        bytes.windows(symbol.len()).any(|window| window == symbol.as_bytes())
    };
    let jemalloc = "_rjem_malloc";
    assert!(carries(env!("CARGO_BIN_EXE_with-jemalloc"), jemalloc), "the search finds what is there");
    for other in
        [env!("CARGO_BIN_EXE_with-glibc"), env!("CARGO_BIN_EXE_with-zk-alloc"), env!("CARGO_BIN_EXE_prove-bench")]
    {
        assert!(!carries(other, jemalloc), "{other}");
    }
}
