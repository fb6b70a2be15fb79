//! Turns between threads: one thread acts at a time, and passes the turn on.

use std::hint;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};

/// The holder after the last turn.
const OVER: usize = usize::MAX;
/// Checks for the turn before a thread sleeps: some microseconds. The turns of a prover's threads are that short, and
/// waking a thread takes longer.
const LOOKS: u32 = 200;

/// Threads that take turns, by their numbers. Number 0 has the first turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    holder: AtomicUsize,
    threads: OnceLock<Vec<Thread>>,
}

impl Turns {
    /// Names the threads. Must be called before any turn is passed.
    pub(crate) fn between(&self, threads: Vec<Thread>) {
        assert!(self.threads.set(threads).is_ok(), "the threads are named once");
    }

    /// Waits for the turn of thread `me`, which must be the caller. Returns false after the last turn.
    pub(crate) fn wait(&self, me: usize) -> bool {
        let mut looks = 0;
        loop {
            match self.holder.load(Ordering::Acquire) {
                OVER => return false,
                holder if holder == me => return true,
                _ if looks < LOOKS => hint::spin_loop(),
                // If the turn was passed since, this thread is unparked, and `park` returns at once.
                _ => thread::park(),
            }
            looks += 1;
        }
    }

    /// Ends the calling thread's turn and passes it to number `next`.
    pub(crate) fn pass(&self, next: usize) {
        self.holder.store(next, Ordering::Release);
        if let Some(thread) = self.threads.get().and_then(|threads| threads.get(next)) {
            thread.unpark();
        }
    }

    /// Ends all turns.
    pub(crate) fn end(&self) {
        self.holder.store(OVER, Ordering::Release);
        self.threads.get().into_iter().flatten().for_each(Thread::unpark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A lost wake-up hangs the replay. A turn that two threads take replays another program.
    #[test]
    fn threads_act_in_the_order_in_which_turns_are_passed() {
        let (turns, acted) = (Turns::default(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            let act = |me: usize| {
                while turns.wait(me) {
                    acted.lock().unwrap().push(me);
                    turns.pass((me + 1) % 4);
                }
            };
            let workers: Vec<_> = (1..4).map(|me| scope.spawn(move || act(me))).collect();
            let others = workers.iter().map(|worker| worker.thread().clone());
            turns.between([thread::current()].into_iter().chain(others).collect());
            for _ in 0..1000 {
                turns.pass(1);
                assert!(turns.wait(0));
            }
            turns.end();
        });
        assert_eq!(acted.into_inner().unwrap(), [1, 2, 3].repeat(1000));
    }
}
