//! Collections of the layer's own. They live in the system allocator: the program's allocator would count them as the prover's.

use std::hash::{BuildHasherDefault, DefaultHasher};

use allocator_api2::alloc::System;

pub(crate) type List<T> = allocator_api2::vec::Vec<T, System>;

/// Without random keys, which a thread would have to fetch first.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<DefaultHasher>, System>;

pub(crate) const fn list<T>() -> List<T> {
    List::new_in(System)
}

pub(crate) fn map<K, V>() -> Map<K, V> {
    Map::with_hasher_in(BuildHasherDefault::default(), System)
}
