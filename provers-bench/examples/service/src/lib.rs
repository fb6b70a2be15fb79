//! A proving service that knows its memory: it proves Plonky3 statements over HTTP, and starts a proof only if its peak
//! fits below a limit. README.md says how to run it.
//!
//! ```text
//! routes, page, record      HTTP: requests and answers, /memory, /metrics
//! server                    connections, their limits, and the shutdown
//! service                   the queue: what runs, what waits, who gets which answer
//! admission, peaks          which proof may start: no I/O, tested alone
//! prover  |  pool, worker   a proof in this process, or in a worker process with a budget
//! budget                    the allocator of a worker: reports a refused request
//! ```
//!
//! The library has no global allocator; `src/main.rs` installs it.

pub mod admission;
pub mod budget;
pub mod bytes;
pub mod client;
pub mod failure;
pub mod memory;
pub mod page;
pub mod peaks;
pub mod pool;
pub mod prover;
pub mod record;
pub mod request;
pub mod routes;
pub mod server;
pub mod service;
pub mod settings;
pub mod worker;
