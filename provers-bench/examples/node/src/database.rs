//! The embedded database: records on disk, written in batches and read back at random.

use crate::health::{Health, Part};
use crate::load::Load;
use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redb::backends::FileBackend;
use redb::{Durability, ReadableDatabase, TableDefinition};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;

/// The start of a message.
pub(crate) type Record = Vec<u8>;

/// Most records in a batch, and in the queue to the database. Peers wait while the queue is full.
pub(crate) const QUEUE: usize = 1024;
/// Records read back after each batch.
const READS: usize = 100;
/// Of so many commits one goes to the disk. redb reuses the pages of the others from then on.
const DURABLE_EVERY: u64 = 10;

const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");

/// A database of the last records.
pub(crate) struct Store {
    database: redb::Database,
    /// Checksums of the records that the database must have, by key.
    written: Vec<u32>,
    next: usize,
    most: usize,
    commits: u64,
    rng: SmallRng,
}

impl Store {
    /// A new database. Its file has no name, so the system removes it with the process.
    pub(crate) fn create(load: &Load) -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot create a file for the database")?;
        let database = redb::Database::builder()
            .set_cache_size(load.database_cache_bytes)
            .create_with_backend(FileBackend::new(file)?)
            .context("cannot create the database")?;
        let rng = SmallRng::seed_from_u64(2);
        Ok(Self { database, written: Vec::new(), next: 0, most: load.records, commits: 0, rng })
    }

    /// Writes records, in place of the oldest.
    fn write(&mut self, records: &[Record]) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        let is_durable = self.commits.is_multiple_of(DURABLE_EVERY);
        transaction.set_durability(if is_durable { Durability::Immediate } else { Durability::None })?;
        {
            let mut table = transaction.open_table(RECORDS)?;
            for record in records {
                let checksum = crc32fast::hash(record);
                table.insert(self.next as u64, record.as_slice())?;
                match self.written.get_mut(self.next) {
                    Some(old) => *old = checksum,
                    None => self.written.push(checksum),
                }
                self.next = (self.next + 1) % self.most;
            }
        }
        transaction.commit()?;
        self.commits += 1;
        Ok(())
    }

    /// Reads records at random, and compares them with those that were written.
    fn check(&mut self, reads: usize) -> anyhow::Result<()> {
        let table = self.database.begin_read()?.open_table(RECORDS)?;
        for _ in 0..reads {
            let key = self.rng.random_range(..self.written.len());
            let value = table.get(key as u64)?.with_context(|| format!("the database lost record {key}"))?;
            let (found, written) = (crc32fast::hash(value.value()), self.written[key]);
            ensure!(found == written, "the database has {found:08x} as record {key}, and {written:08x} was written");
        }
        Ok(())
    }
}

/// Starts the thread of the database. It ends when all senders of records are gone.
pub(crate) fn start(
    load: &Load,
    mut store: Store,
    mut records: Receiver<Record>,
    health: Arc<Health>,
) -> anyhow::Result<JoinHandle<()>> {
    let (on_thread_start, commit_every) = (load.on_thread_start, load.commit_every);
    let serve = move || {
        on_thread_start();
        if let Err(error) = serve(&mut store, &mut records, &health, commit_every) {
            health.report(&error.context("the database"));
        }
    };
    thread::Builder::new().name("database".into()).spawn(serve).context("cannot start the database")
}

fn serve(store: &mut Store, records: &mut Receiver<Record>, health: &Health, every: Duration) -> anyhow::Result<()> {
    let mut batch = Vec::new();
    while records.blocking_recv_many(&mut batch, QUEUE) > 0 {
        store.write(&batch)?;
        batch.clear();
        store.check(READS)?;
        health.beat(Part::Database);
        thread::sleep(every);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn records(count: u8) -> Vec<Record> {
        (0..count).map(|byte| vec![byte; 100]).collect()
    }

    fn store() -> Store {
        let mut store = Store::create(&Load::SMALL).unwrap();
        store.write(&records(60)).unwrap();
        store.check(200).unwrap();
        store
    }

    /// Changes the table without the store's knowledge.
    fn tamper(store: &Store, change: impl FnOnce(&mut redb::Table<u64, &'static [u8]>)) {
        let transaction = store.database.begin_write().unwrap();
        change(&mut transaction.open_table(RECORDS).unwrap());
        transaction.commit().unwrap();
    }

    #[test]
    fn newer_records_replace_the_oldest() {
        let mut store = store();
        for _ in 0..5 {
            store.write(&records(50)).unwrap();
            store.check(200).unwrap();
        }
        assert_eq!((store.written.len(), store.next), (Load::SMALL.records, 10));
    }

    #[test]
    fn a_record_that_differs_from_the_written_one_is_noticed() {
        let mut store = store();
        tamper(&store, |table| drop(table.insert(7, [9_u8; 100].as_slice()).unwrap()));
        let error = store.check(2_000).unwrap_err().to_string();
        assert!(error.contains("as record 7, and"), "{error}");
    }

    #[test]
    fn a_record_that_is_gone_is_noticed() {
        let mut store = store();
        tamper(&store, |table| drop(table.remove(7).unwrap()));
        assert_eq!(store.check(2_000).unwrap_err().to_string(), "the database lost record 7");
    }

    /// The thread must tell the node, which otherwise sees only that the peers wait.
    #[test]
    fn the_thread_reports_a_mismatch_and_ends() {
        let (health, mut store) = (Arc::new(Health::new()), store());
        store.written.fill(1);
        let (sender, received) = mpsc::channel(QUEUE);
        sender.blocking_send(vec![1]).unwrap();
        start(&Load::SMALL, store, received, health.clone()).unwrap().join().unwrap();
        let error = health.check(Duration::MAX).unwrap_err().to_string();
        assert!(error.starts_with("the database: the database has"), "{error}");
    }

    #[test]
    fn the_thread_ends_with_its_senders() {
        let health = Arc::new(Health::new());
        let (sender, received) = mpsc::channel(QUEUE);
        let thread = start(&Load::SMALL, store(), received, health.clone()).unwrap();
        sender.blocking_send(vec![1]).unwrap();
        drop(sender);
        thread.join().unwrap();
        assert_eq!(health.beats(Part::Database), 1);
    }
}
