//! Pages: the zones of the region, which hand out runs of them, and the state of the memory behind each.

pub(crate) mod bitmap;
pub(crate) mod layout;
#[cfg(feature = "c-api")]
pub(crate) mod lengths;
pub(crate) mod memory;
pub(crate) mod moved;
pub(crate) mod runs;
pub(crate) mod zone;
