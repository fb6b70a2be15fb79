//! Short-lived threads: each frees memory of an earlier thread and leaves some for a later one.

use crate::health::{Health, Part};
use crate::load::Load;
use anyhow::{Context, anyhow, ensure};
use crc32fast::Hasher;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Parcels that wait for a thread: memory of threads that are gone.
const SHELF: usize = 64;
/// Blocks in a parcel.
const BLOCKS: usize = 64;
/// Shortest and longest block, as powers of two.
const BLOCK_LOG_BYTES: (u32, u32) = (6, 14);
/// A thread works for about a millisecond. One that is not back after this time is lost.
const LOST: Duration = Duration::from_secs(10);

/// Memory that travels from thread to thread.
#[derive(Debug)]
struct Parcel {
    blocks: Vec<Box<[u8]>>,
    checksum: u32,
}

impl Parcel {
    fn pack(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (least, most) = BLOCK_LOG_BYTES;
        let blocks: Vec<_> = (0..BLOCKS)
            .map(|_| {
                let least_bytes = 1 << rng.random_range(least..most);
                let mut block = vec![0; rng.random_range(least_bytes..2 * least_bytes)].into_boxed_slice();
                rng.fill_bytes(&mut block);
                block
            })
            .collect();
        Self { checksum: checksum(&blocks), blocks }
    }

    fn check(&self) -> anyhow::Result<()> {
        let (found, packed) = (checksum(&self.blocks), self.checksum);
        ensure!(found == packed, "memory of an earlier thread changed: its checksum is {found:08x}, not {packed:08x}");
        Ok(())
    }
}

fn checksum(blocks: &[Box<[u8]>]) -> u32 {
    let mut hasher = Hasher::new();
    blocks.iter().for_each(|block| hasher.update(block));
    hasher.finalize()
}

type Job = JoinHandle<anyhow::Result<Parcel>>;

/// The threads that run, and the memory that earlier ones left.
struct Jobs {
    running: VecDeque<(Instant, Job)>,
    shelf: VecDeque<Parcel>,
    started: u64,
    on_thread_start: fn(),
}

impl Jobs {
    fn start_one(&mut self) -> anyhow::Result<()> {
        let parcel = if self.shelf.len() >= SHELF { self.shelf.pop_front() } else { None };
        let (seed, on_thread_start) = (self.started, self.on_thread_start);
        let work = move || {
            on_thread_start();
            // The parcel is freed here, by a thread that did not allocate it.
            parcel.map_or(Ok(()), |parcel| parcel.check())?;
            Ok(Parcel::pack(seed))
        };
        self.spawn(work)
    }

    fn spawn(&mut self, work: impl FnOnce() -> anyhow::Result<Parcel> + Send + 'static) -> anyhow::Result<()> {
        let job = thread::Builder::new().name("job".into()).spawn(work).context("cannot start a thread")?;
        self.running.push_back((Instant::now(), job));
        self.started += 1;
        Ok(())
    }

    /// Takes the parcels of threads that ended, the oldest first. Fails if a thread panicked, found damage, or is not
    /// back in time.
    fn take_back(&mut self, health: &Health, lost: Duration) -> anyhow::Result<()> {
        while let Some((started, job)) = self.running.pop_front() {
            if !job.is_finished() {
                ensure!(started.elapsed() < lost, "a short-lived thread is not back after {lost:?}");
                self.running.push_front((started, job));
                break;
            }
            self.shelf.push_back(job.join().map_err(|_| anyhow!("a short-lived thread panicked"))??);
            health.beat(Part::Jobs);
        }
        Ok(())
    }
}

/// Starts the thread that starts the others. It ends when the sender of `stop` is gone.
pub(crate) fn start(load: &Load, stop: Receiver<()>, health: Arc<Health>) -> anyhow::Result<JoinHandle<()>> {
    let (on_thread_start, every) = (load.on_thread_start, load.job_every);
    let run = move || {
        on_thread_start();
        let mut jobs = Jobs { running: VecDeque::new(), shelf: VecDeque::new(), started: 0, on_thread_start };
        let mut next = Instant::now();
        // A late start does not delay the next ones: the rate is fixed.
        while stop.recv_timeout(next.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            next += every;
            if let Err(error) = jobs.start_one().and_then(|()| jobs.take_back(&health, LOST)) {
                health.report(&error);
                break;
            }
        }
        for (_, job) in jobs.running {
            // Reported if it failed in time; now the node stops.
            _ = job.join();
        }
    };
    thread::Builder::new().name("jobs".into()).spawn(run).context("cannot start the jobs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn jobs() -> Jobs {
        Jobs { running: VecDeque::new(), shelf: VecDeque::new(), started: 0, on_thread_start: || () }
    }

    fn wait(jobs: &mut Jobs) -> anyhow::Result<()> {
        let health = Health::new();
        while !jobs.running.is_empty() {
            jobs.take_back(&health, LOST)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    #[test]
    fn memory_goes_from_thread_to_thread() {
        let mut jobs = jobs();
        for _ in 0..2 * SHELF {
            jobs.start_one().unwrap();
            wait(&mut jobs).unwrap();
        }
        assert_eq!((jobs.shelf.len(), jobs.started), (SHELF, 2 * SHELF as u64));
    }

    #[test]
    fn damage_on_the_shelf_is_noticed_by_the_next_thread() {
        let mut jobs = jobs();
        jobs.shelf = (0..SHELF as u64).map(Parcel::pack).collect();
        *jobs.shelf[0].blocks[5].last_mut().unwrap() ^= 1;
        jobs.start_one().unwrap();
        assert!(wait(&mut jobs).unwrap_err().to_string().contains("memory of an earlier thread changed"));
    }

    #[test]
    fn a_thread_that_panics_or_does_not_come_back_is_lost() {
        let (mut jobs, health) = (jobs(), Health::new());
        jobs.spawn(|| panic!("on purpose")).unwrap();
        assert_eq!(wait(&mut jobs).unwrap_err().to_string(), "a short-lived thread panicked");
        let (keep, until) = mpsc::channel::<()>();
        jobs.spawn(move || until.recv().map(|()| Parcel::pack(1)).context("the test is over")).unwrap();
        jobs.take_back(&health, LOST).unwrap();
        thread::sleep(Duration::from_millis(10));
        let error = jobs.take_back(&health, Duration::from_millis(5)).unwrap_err().to_string();
        assert!(error.contains("is not back"), "{error}");
        drop(keep);
    }

    #[test]
    fn the_thread_ends_with_its_sender() {
        let (health, (stop, stopped)) = (Arc::new(Health::new()), mpsc::channel());
        let thread = start(&Load::SMALL, stopped, health.clone()).unwrap();
        while health.beats(Part::Jobs) < 3 {
            thread::sleep(Duration::from_millis(5));
        }
        drop(stop);
        thread.join().unwrap();
        health.check(LOST).unwrap();
    }
}
