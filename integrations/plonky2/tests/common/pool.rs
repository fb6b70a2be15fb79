//! A pool of one thread.

use rayon::ThreadPoolBuilder;

/// rayon's threads race for the proof of work. One thread finds the same every time.
pub(crate) fn on_one_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread starts");
    pool.install(f)
}
