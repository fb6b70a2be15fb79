//! The command `profile`: where a prover's memory goes, by stage and by call site, on one page.
//!
//! The arm `zk-alloc-profile` makes two proofs. The process writes its files ([`child`](crate::child)), and the driver
//! draws the page from them.

mod cli;
mod session;
mod table;

pub(crate) use cli::{Job, command, job};
pub(crate) use session::run;
