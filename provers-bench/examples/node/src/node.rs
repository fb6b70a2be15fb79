//! The node: peers that send each other messages over loopback TCP, a mempool of transactions, a database, and short-lived threads. All of
//! these run in the background until the node is dropped.

use anyhow::{Context, anyhow, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use redb::backends::FileBackend;
use redb::{Durability, ReadableDatabase, TableDefinition};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time;

// The load is fixed, so every allocator gets the same work: about 20 MB of messages a second, 1,000 threads a minute, and a heap of about
// 100 MB. The load takes a quarter of a core.

/// Number of peers. Each sends messages to every other peer.
const PEERS: u32 = 4;
/// Number of messages that all peers together send per second.
const MESSAGES_PER_SECOND: u32 = 2_000;
/// Message lengths in bytes. Their logarithm is uniformly distributed.
const MESSAGE_BYTES: RangeInclusive<f64> = 200.0..=65_536.0;
/// Timeout for an answer to a message, and for a short-lived thread to end. The node fails if either takes longer. An answer waits for the
/// database, so the node also fails if the database hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Number of Tokio's worker threads. It does not depend on the number of cores, because allocators keep memory for each thread.
const TRAFFIC_THREADS: usize = 2;
/// Lengths in bytes of the transactions in a message.
const TRANSACTION_BYTES: RangeInclusive<usize> = 48..=640;
/// Maximum size of the mempool.
const MEMPOOL_BYTES: usize = 64 << 20;
/// Number of records in the database. Once it is full, a new record replaces the oldest.
const RECORDS: u64 = 20_000;
/// Maximum length of the record that a message yields.
const RECORD_BYTES: usize = 512;
/// Maximum number of records in a batch, and in the queue to the database. Peers wait while the queue is full.
const QUEUE: usize = 1024;
/// Size of the database's page cache.
const CACHE_BYTES: usize = 16 << 20;
/// Time between commits.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// Interval, in commits, at which a commit is written to disk. After such a commit, redb reuses the pages of the earlier ones.
const DURABLE_EVERY: u64 = 10;
/// Number of records read back after each commit.
const READS: usize = 100;
/// Interval between the starts of short-lived threads. Each works for about a millisecond.
const JOB_EVERY: Duration = Duration::from_millis(60);
/// Number of parcels on the shelf. Earlier jobs allocated them, and later jobs free them.
const SHELF: usize = 64;
/// Number of blocks in a parcel.
const BLOCKS: usize = 64;

/// Maximum length of a valid message. Without this limit, a corrupt length would become a huge request to the allocator.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Maximum time to fill the mempool.
const WARM_WITHIN: Duration = Duration::from_secs(60);
/// Minimum share of the messages that a node must answer. A node below it did less work than under other allocators.
const PACE: f64 = 0.8;
/// Minimum time over which the share of answered messages is judged.
const PACE_OVER: Duration = Duration::from_secs(10);

/// A running node.
pub(crate) struct Node {
    health: Arc<Health>,
    /// When the mempool became full, and the number of messages answered by then.
    warm: (Instant, u64),
    /// Dropping the runtime stops all parts: it drops the peers and their record senders, and waits for the database and the last job.
    _runtime: Runtime,
}

impl Node {
    /// Starts all parts and waits until the mempool is full. Each thread calls `on_thread_start` first.
    pub(crate) fn start(on_thread_start: fn()) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(TRAFFIC_THREADS)
            .thread_name("node")
            .on_thread_start(on_thread_start)
            .enable_all()
            .build()
            .context("cannot start tokio")?;
        let (health, store) = (Arc::new(Health::default()), Store::create()?);
        let (mempool, (records, received)) = (Arc::default(), channel(QUEUE));
        runtime.block_on(async {
            watch(&health, async { spawn_blocking(|| store.serve(received)).await? });
            watch(&health, run_jobs(on_thread_start));
            connect(&health, &mempool, records).await.context("cannot connect the peers")
        })?;
        let begun = Instant::now();
        while !mempool.lock().unwrap_or_else(PoisonError::into_inner).is_full {
            health.check()?;
            ensure!(begun.elapsed() < WARM_WITHIN, "the node is not warm after {WARM_WITHIN:?}");
            thread::sleep(Duration::from_millis(10));
        }
        let warm = (Instant::now(), health.answered.load(Relaxed));
        Ok(Self { health, warm, _runtime: runtime })
    }

    /// Fails if a part of the node failed, or if the node fell behind its load.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.health.check()?;
        let (since, before) = self.warm;
        keeps_pace(self.health.answered.load(Relaxed) - before, since.elapsed())
    }
}

/// Fails if `messages` is too few answers for `time`. An allocator that slows the node down would otherwise be measured with less traffic
/// than the others.
fn keeps_pace(messages: u64, time: Duration) -> anyhow::Result<()> {
    let due = f64::from(MESSAGES_PER_SECOND) * time.as_secs_f64();
    let is_behind = time >= PACE_OVER && (messages as f64) < PACE * due;
    ensure!(!is_behind, "it fell behind its load: {messages} of {due:.0} messages were answered");
    Ok(())
}

/// The shared state to which all parts of a node report.
#[derive(Default)]
struct Health {
    /// Number of messages answered.
    answered: AtomicU64,
    /// The first failure. Later ones are ignored, because they may follow from it.
    failure: OnceLock<String>,
}

impl Health {
    fn note(&self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            _ = self.failure.set(format!("{error:#}"));
        }
    }

    /// Returns the first failure as an error.
    fn check(&self) -> anyhow::Result<()> {
        self.failure.get().map_or(Ok(()), |failure| bail!("{failure}"))
    }
}

/// Spawns a part of the node and reports its failure.
fn watch(health: &Arc<Health>, part: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
    let (health, part) = (health.clone(), tokio::spawn(part));
    tokio::spawn(async move { health.note(part.await.context("a part of the node panicked").flatten()) });
}

/// An allocation, and the checksum of its original contents.
#[derive(Debug, PartialEq)]
struct Sealed {
    data: Box<[u8]>,
    checksum: u32,
}

impl Sealed {
    fn new(data: impl Into<Box<[u8]>>) -> Self {
        let data = data.into();
        Self { checksum: crc32fast::hash(&data), data }
    }

    fn is_intact(&self) -> bool {
        crc32fast::hash(&self.data) == self.checksum
    }

    /// Returns the answer that confirms that this message arrived unchanged.
    fn receipt(&self) -> Self {
        Self::new(self.checksum.to_le_bytes())
    }

    /// Encodes the message: its length, its checksum and its data.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<u64>() + self.data.len());
        bytes.extend((self.data.len() as u64 | u64::from(self.checksum) << 32).to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }

    async fn read_from(stream: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<Self> {
        let header = stream.read_u64_le().await.context("the connection ended")?;
        let (length, checksum) = (header as u32 as usize, (header >> 32) as u32);
        ensure!(length <= MAX_MESSAGE_BYTES, "a message is corrupt: its length is {length}");
        let mut data = vec![0; length].into_boxed_slice();
        stream.read_exact(&mut data).await.context("the connection ended in a message")?;
        let message = Self { data, checksum };
        ensure!(message.is_intact(), "a message is corrupt: its checksum is not {checksum:08x}");
        Ok(message)
    }
}

/// Connects each peer to every other peer. The peers exchange messages until the runtime is dropped.
async fn connect(health: &Arc<Health>, mempool: &Arc<Mutex<Mempool>>, records: Sender<Vec<u8>>) -> anyhow::Result<()> {
    let links = PEERS * (PEERS - 1);
    let period = Duration::from_secs(1) * links / MESSAGES_PER_SECOND;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    for link in 0..links {
        let asker = TcpStream::connect(listener.local_addr()?).await?;
        let (answerer, _) = listener.accept().await?;
        asker.set_nodelay(true)?;
        answerer.set_nodelay(true)?;
        // Staggers the links, which would otherwise all send at the same time.
        let ticks = time::interval_at(time::Instant::now() + period * link / links, period);
        watch(health, ask(asker, link, ticks, health.clone()));
        watch(health, answer(answerer, mempool.clone(), records.clone()));
    }
    Ok(())
}

/// Sends a message at each tick and checks the answer. A delayed sender catches up, so all allocators get the same number of messages.
async fn ask(mut stream: TcpStream, link: u32, mut ticks: time::Interval, health: Arc<Health>) -> anyhow::Result<()> {
    let mut rng = SmallRng::seed_from_u64(link.into());
    let (least, most) = MESSAGE_BYTES.into_inner();
    loop {
        ticks.tick().await;
        let mut body = vec![0; (least * (most / least).powf(rng.random())) as usize];
        rng.fill_bytes(&mut body);
        exchange(&mut stream, &Sealed::new(body), WITHIN).await?;
        health.answered.fetch_add(1, Relaxed);
    }
}

/// Sends a message and checks that the answer confirms it.
async fn exchange(stream: &mut TcpStream, message: &Sealed, within: Duration) -> anyhow::Result<()> {
    let answer = time::timeout(within, async {
        stream.write_all(&message.encode()).await.context("cannot send a message")?;
        Sealed::read_from(stream).await
    });
    let answer = answer.await.with_context(|| format!("no answer to a message within {within:?}"))??;
    ensure!(answer == message.receipt(), "the answer is to another message");
    Ok(())
}

/// Receives messages, keeps their transactions, sends a record to the database, and answers.
async fn answer(mut stream: TcpStream, mempool: Arc<Mutex<Mempool>>, records: Sender<Vec<u8>>) -> anyhow::Result<()> {
    loop {
        let message = Sealed::read_from(&mut stream).await?;
        mempool.lock().unwrap_or_else(PoisonError::into_inner).add(unpack(&message.data))?;
        let record = message.data[..message.data.len().min(RECORD_BYTES)].to_vec();
        records.send(record).await.context("the database takes no more records")?;
        stream.write_all(&message.receipt().encode()).await.context("cannot answer")?;
    }
}

/// Splits a random message into transactions. The first bytes of each determine its length.
fn unpack(mut data: &[u8]) -> Vec<Sealed> {
    let (least, most) = TRANSACTION_BYTES.into_inner();
    let mut transactions = Vec::new();
    while let Some(first) = data.first_chunk() {
        let length = least + usize::from(u16::from_le_bytes(*first)) % (most - least + 1);
        let (transaction, rest) = data.split_at(length.min(data.len()));
        transactions.push(Sealed::new(transaction));
        data = rest;
    }
    transactions
}

/// The transactions that the node holds. Because eviction is random, old and new transactions are side by side in memory.
#[derive(Default)]
struct Mempool {
    transactions: Vec<Sealed>,
    bytes: usize,
    /// Whether the mempool has ever evicted a transaction.
    is_full: bool,
}

impl Mempool {
    /// Adds transactions, and evicts random ones while the mempool is over its limit. The thread that frees a transaction is seldom the one
    /// that allocated it. Fails if an evicted transaction changed while it was held.
    fn add(&mut self, transactions: Vec<Sealed>) -> anyhow::Result<()> {
        let bytes = |transaction: &Sealed| size_of::<Sealed>() + transaction.data.len();
        self.bytes += transactions.iter().map(bytes).sum::<usize>();
        self.transactions.extend(transactions);
        while self.bytes > MEMPOOL_BYTES {
            self.is_full = true;
            // The checksum of the last transaction serves as a random number.
            let chance = self.transactions.last().map_or(0, |last| last.checksum as usize);
            let evicted = self.transactions.swap_remove(chance % self.transactions.len());
            self.bytes -= bytes(&evicted);
            ensure!(evicted.is_intact(), "a transaction changed while the node held it");
        }
        Ok(())
    }
}

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("records");

/// A database of the most recent records.
struct Store {
    database: redb::Database,
    /// Checksums of the records that the database must contain, by key.
    written: HashMap<u64, u32>,
    next: u64,
    commits: u64,
    rng: SmallRng,
}

impl Store {
    /// Creates a database. Its file has no name, so the kernel removes it when the process exits.
    fn create() -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot create a file for the database")?;
        let database = redb::Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(FileBackend::new(file)?)
            .context("cannot create the database")?;
        Ok(Self { database, written: HashMap::new(), next: 0, commits: 0, rng: SmallRng::seed_from_u64(2) })
    }

    /// Writes records until all senders are dropped.
    fn serve(mut self, mut records: Receiver<Vec<u8>>) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        while records.blocking_recv_many(&mut batch, QUEUE) > 0 {
            self.write(&batch)?;
            batch.clear();
            self.check(READS)?;
            thread::sleep(COMMIT_EVERY);
        }
        Ok(())
    }

    /// Writes records. Once the database is full, they replace the oldest ones.
    fn write(&mut self, records: &[Vec<u8>]) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        let is_durable = self.commits.is_multiple_of(DURABLE_EVERY);
        transaction.set_durability(if is_durable { Durability::Immediate } else { Durability::None })?;
        let mut table = transaction.open_table(TABLE)?;
        for record in records {
            table.insert(self.next, record.as_slice())?;
            self.written.insert(self.next, crc32fast::hash(record));
            self.next = (self.next + 1) % RECORDS;
        }
        drop(table);
        transaction.commit()?;
        self.commits += 1;
        Ok(())
    }

    /// Reads random records and compares them with what was written.
    fn check(&mut self, reads: usize) -> anyhow::Result<()> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for _ in 0..reads {
            let key = self.rng.random_range(..self.written.len() as u64);
            let value = table.get(key)?.with_context(|| format!("the database lost record {key}"))?;
            let (found, written) = (crc32fast::hash(value.value()), self.written[&key]);
            ensure!(found == written, "the database has {found:08x} as record {key}, and {written:08x} was written");
        }
        Ok(())
    }
}

/// Memory that one thread allocates and a later one frees.
type Parcel = Vec<Sealed>;

/// Starts short-lived threads at a fixed rate: a late start does not delay the next ones.
async fn run_jobs(on_thread_start: fn()) -> anyhow::Result<()> {
    let (mut shelf, mut ticks) = (VecDeque::new(), time::interval(JOB_EVERY));
    for seed in 0.. {
        ticks.tick().await;
        let parcel = if shelf.len() >= SHELF { shelf.pop_front() } else { None };
        let job = move || {
            on_thread_start();
            work(parcel, seed)
        };
        let joined = spawn_blocking(|| {
            let job = thread::Builder::new().name("job".into()).spawn(job).context("cannot start a thread")?;
            job.join().map_err(|_| anyhow!("a short-lived thread panicked"))?
        });
        let returned = time::timeout(WITHIN, joined).await;
        shelf.push_back(returned.with_context(|| format!("a short-lived thread is not back after {WITHIN:?}"))???);
    }
    Ok(())
}

/// Checks and frees an earlier thread's parcel, then allocates another one.
fn work(parcel: Option<Parcel>, seed: u64) -> anyhow::Result<Parcel> {
    ensure!(parcel.iter().flatten().all(Sealed::is_intact), "memory of an earlier thread changed");
    let mut rng = SmallRng::seed_from_u64(seed);
    let pack = |_| {
        let least_bytes = 1 << rng.random_range(6..14);
        let mut block = vec![0; rng.random_range(least_bytes..2 * least_bytes)];
        rng.fill_bytes(&mut block);
        Sealed::new(block)
    };
    Ok((0..BLOCKS).map(pack).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    /// Returns the error of a peer that sends a message to `other` and waits half a second for the answer.
    fn asked<F: Future<Output = ()> + Send + 'static>(other: impl FnOnce(TcpStream) -> F) -> String {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let mut asker = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            tokio::spawn(other(listener.accept().await.unwrap().0));
            exchange(&mut asker, &Sealed::new([1; 100]), Duration::from_millis(500)).await.unwrap_err().to_string()
        })
    }

    /// A node that lost a message must not yield measurements, even if the proof is valid. Later failures may follow from the first one.
    #[test]
    fn a_node_in_trouble_fails_its_check_with_the_first_failure() {
        let node = Node::start(|| ()).unwrap();
        node.check().unwrap();
        node._runtime.block_on(async { watch(&node.health, async { panic!("on purpose") }) });
        while node.check().is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
        node.health.note(Err(anyhow!("another")));
        assert!(node.check().unwrap_err().to_string().starts_with("a part of the node panicked: "));
        let error = keeps_pace(30_000, Duration::from_secs(20)).unwrap_err().to_string();
        assert_eq!(error, "it fell behind its load: 30000 of 40000 messages were answered");
    }

    /// If an allocator hands out a message's memory a second time, only the checksum shows it.
    #[test]
    fn a_flipped_byte_is_detected_wherever_it_is() {
        let read = |mut bytes: &[u8]| run(Sealed::read_from(&mut bytes));
        let sent = Sealed::new([7; 100]);
        let bytes = sent.encode();
        assert_eq!(read(&bytes).unwrap(), sent);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let error = read(&flipped).unwrap_err().to_string();
            assert!(error.contains("is corrupt") || error.contains("ended in a message"), "byte {at}: {error}");
        }
    }

    /// A peer that receives messages and never answers must fail the node, not slow it down. Here the peer waits for a database whose queue
    /// is full.
    #[test]
    fn a_missing_answer_and_a_wrong_answer_are_noticed() {
        let (records, _full) = channel(1);
        records.try_send(Vec::new()).unwrap();
        let waiting = |stream| async { _ = answer(stream, Arc::default(), records).await };
        assert!(asked(waiting).contains("no answer to a message"));
        let wrong = async |mut stream: TcpStream| {
            stream.write_all(&Sealed::new([2; 100]).receipt().encode()).await.unwrap();
            time::sleep(WITHIN).await;
        };
        assert!(asked(wrong).contains("to another message"));
    }

    /// Memory that was handed out twice changes while its owner holds it.
    #[test]
    fn memory_that_changed_is_noticed() {
        let mut mempool = Mempool::default();
        let large = |number: u32| vec![Sealed::new(vec![number as u8; MEMPOOL_BYTES / 3])];
        mempool.add(large(0)).unwrap();
        mempool.transactions[0].data[9] ^= 1;
        let outcome = (0..100).try_for_each(|number| mempool.add(large(number)));
        assert_eq!(outcome.unwrap_err().to_string(), "a transaction changed while the node held it");
        assert!(mempool.bytes <= MEMPOOL_BYTES && mempool.is_full);

        let mut parcel = work(None, 1).unwrap();
        parcel = work(Some(parcel), 2).unwrap();
        *parcel[5].data.last_mut().unwrap() ^= 1;
        assert_eq!(work(Some(parcel), 3).err().unwrap().to_string(), "memory of an earlier thread changed");
    }

    #[test]
    fn a_record_that_differs_or_is_gone_is_noticed() {
        let changed = |change: fn(&mut redb::Table<u64, &'static [u8]>)| {
            let mut store = Store::create().unwrap();
            store.write(&[vec![1; 100], vec![2; 100]]).unwrap();
            store.check(READS).unwrap();
            let transaction = store.database.begin_write().unwrap();
            change(&mut transaction.open_table(TABLE).unwrap());
            transaction.commit().unwrap();
            store.check(READS).unwrap_err().to_string()
        };
        assert!(changed(|table| drop(table.insert(1, [9; 100].as_slice()).unwrap())).contains("as record 1, and"));
        assert_eq!(changed(|table| drop(table.remove(1).unwrap())), "the database lost record 1");
    }
}
