//! The node: peers that send each other messages over loopback TCP, transactions that it holds in memory, a database, and threads
//! that live for a moment. All of it runs in the background from the start to the drop.

use anyhow::{Context, anyhow, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use redb::backends::FileBackend;
use redb::{Durability, ReadableDatabase, TableDefinition};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time;

// The load is fixed, so that every allocator gets the same work: about 20 MB of messages a second, 1,000 threads a minute, and a heap
// of about 100 MB. It takes a quarter of a core.

/// Each peer sends to each other peer.
const PEERS: u32 = 4;
/// Messages of all peers together.
const MESSAGES_PER_SECOND: u32 = 2_000;
/// Lengths of messages. Each power of two gets as many messages as the next.
const MESSAGE_BYTES: RangeInclusive<f64> = 200.0..=65_536.0;
/// A sender takes an answer that comes later for a lost one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Threads of tokio. The number is fixed, because allocators keep memory for each thread.
const TRAFFIC_THREADS: usize = 2;
/// Lengths of the transactions in a message.
const TRANSACTION_BYTES: RangeInclusive<usize> = 48..=640;
/// Memory of the transactions that the node holds.
const MEMPOOL_BYTES: usize = 64 << 20;
/// Records that the database holds. A newer one replaces the oldest.
const RECORDS: usize = 20_000;
/// Longest record of a message.
const RECORD_BYTES: usize = 512;
/// Records in a batch, and in the queue to the database. Peers wait while the queue is full.
const QUEUE: usize = 1024;
/// Memory for the database's pages.
const CACHE_BYTES: usize = 16 << 20;
/// Time between two commits.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// Of so many commits one goes to the disk. redb reuses the pages of the others from then on.
const DURABLE_EVERY: u64 = 10;
/// Records read back after each commit.
const READS: usize = 100;
/// Time between the starts of two short-lived threads.
const JOB_EVERY: Duration = Duration::from_millis(60);
/// A job works for about a millisecond. One that is not back after this time is lost.
const JOB_LOST: Duration = Duration::from_secs(10);
/// Parcels that wait for a job: memory of threads that are gone.
const SHELF: usize = 64;
/// Blocks in a parcel.
const BLOCKS: usize = 64;

/// A part of the node that shows nothing for this long has stopped.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait until the mempool is full.
const WARM_WITHIN: Duration = Duration::from_secs(60);
/// A node that answers less than this share of its messages did less work than the others.
const PACE: f64 = 0.8;
/// Shortest time over which the pace is judged.
const PACE_OVER: Duration = Duration::from_secs(10);

/// A running node.
pub(crate) struct Node {
    health: Arc<Health>,
    on_thread_start: fn(),
    /// When the node was warm, and its messages until then.
    warm: (Instant, u64),
    traffic: Option<Runtime>,
    stop_jobs: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Node {
    /// Starts all parts, and waits until the node holds as much memory as it will. Each thread calls `on_thread_start` first.
    pub(crate) fn start(on_thread_start: fn()) -> anyhow::Result<Self> {
        let warm = (Instant::now(), 0);
        let health = Arc::new(Health::new());
        let mut node = Self { health, on_thread_start, warm, traffic: None, stop_jobs: None, threads: Vec::new() };
        let (records, received) = tokio::sync::mpsc::channel(QUEUE);
        let store = Store::create()?;
        node.spawn("database", move |health| store.serve(received, health))?;

        let runtime = Builder::new_multi_thread()
            .worker_threads(TRAFFIC_THREADS)
            .thread_name("traffic")
            .on_thread_start(on_thread_start)
            .enable_all()
            .build()
            .context("cannot start tokio")?;
        let inbox = Inbox { mempool: Arc::default(), records };
        runtime.block_on(connect(&node.health, &inbox)).context("cannot connect the peers")?;
        node.traffic = Some(runtime);

        let (stop_jobs, stopped) = mpsc::channel();
        node.stop_jobs = Some(stop_jobs);
        node.spawn("jobs", move |health| run_jobs(&stopped, on_thread_start, health))?;
        node.wait_until_warm(&inbox.mempool)?;
        Ok(node)
    }

    fn spawn(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&Health) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let (health, on_thread_start) = (self.health.clone(), self.on_thread_start);
        let run = move || {
            on_thread_start();
            health.note(work(&health).context(name));
        };
        self.threads.push(thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")?);
        Ok(())
    }

    fn wait_until_warm(&mut self, mempool: &Mutex<Mempool>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let is_full = || mempool.lock().unwrap_or_else(PoisonError::into_inner).is_full;
        while !(is_full() && self.health.is_everyone_up()) {
            self.health.check(Instant::now())?;
            ensure!(begun.elapsed() < WARM_WITHIN, "the node is not warm after {WARM_WITHIN:?}");
            thread::sleep(Duration::from_millis(10));
        }
        self.warm = (Instant::now(), self.health.count(Part::Messages));
        Ok(())
    }

    /// Fails if anything went wrong, if a part has stopped, or if the node fell behind its load.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.health.check(Instant::now())?;
        let (since, before) = self.warm;
        keeps_pace(self.health.count(Part::Messages) - before, since.elapsed())
    }
}

/// An allocator that slows the node down would otherwise be measured with less traffic than the others.
fn keeps_pace(messages: u64, time: Duration) -> anyhow::Result<()> {
    let due = f64::from(MESSAGES_PER_SECOND) * time.as_secs_f64();
    let is_behind = time >= PACE_OVER && (messages as f64) < PACE * due;
    ensure!(!is_behind, "it fell behind its load: {messages} of {due:.0} messages were answered");
    Ok(())
}

impl Drop for Node {
    fn drop(&mut self) {
        // The runtime drops the peers, which hold the senders of records. The database's thread ends with these.
        drop(self.traffic.take());
        drop(self.stop_jobs.take());
        for thread in self.threads.drain(..) {
            // A panic was noticed as silence, and there is nobody left to tell.
            _ = thread.join();
        }
    }
}

/// A part of a node that must stay busy.
#[derive(Clone, Copy)]
enum Part {
    Messages,
    Database,
    Jobs,
}

/// The work of each part.
const DONE: [&str; 3] = ["message was answered", "record was read back", "short-lived thread ended"];

/// The place to which all parts of a node report.
struct Health {
    begun: Instant,
    /// The work that each part did, and the milliseconds from the start to the last time.
    done: [(AtomicU64, AtomicU64); DONE.len()],
    /// The first failure, because others may follow from it.
    failure: OnceLock<String>,
}

impl Health {
    fn new() -> Self {
        Self { begun: Instant::now(), done: Default::default(), failure: OnceLock::new() }
    }

    fn beat(&self, part: Part) {
        let (count, last_ms) = &self.done[part as usize];
        last_ms.store(self.begun.elapsed().as_millis() as u64, Relaxed);
        count.fetch_add(1, Relaxed);
    }

    fn count(&self, part: Part) -> u64 {
        self.done[part as usize].0.load(Relaxed)
    }

    fn is_everyone_up(&self) -> bool {
        self.done.iter().all(|(count, _)| count.load(Relaxed) > 0)
    }

    fn note(&self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            _ = self.failure.set(format!("{error:#}"));
        }
    }

    /// Fails with the first failure, or if a part has shown nothing for [`QUIET`].
    fn check(&self, now: Instant) -> anyhow::Result<()> {
        if let Some(failure) = self.failure.get() {
            bail!("{failure}");
        }
        let now_ms = now.duration_since(self.begun).as_millis() as u64;
        for ((_, last_ms), done) in self.done.iter().zip(DONE) {
            let silent = Duration::from_millis(now_ms.saturating_sub(last_ms.load(Relaxed)));
            ensure!(silent <= QUIET, "no {done} in the last {:.1} s", silent.as_secs_f64());
        }
        Ok(())
    }
}

/// A message, as it travels: the length and the checksum, the number, the body.
#[derive(Debug, PartialEq)]
struct Message {
    number: u64,
    body: Vec<u8>,
    checksum: u32,
}

impl Message {
    const HEADER_BYTES: usize = 16;
    /// A longer length is a corrupt one. Without this limit, it would become a huge request to the allocator.
    const MAX_BODY_BYTES: usize = 1 << 20;

    fn new(number: u64, body: Vec<u8>) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&number.to_le_bytes());
        hasher.update(&body);
        Self { number, body, checksum: hasher.finalize() }
    }

    /// The answer that says that this message arrived as it was sent.
    fn receipt(&self) -> Self {
        Self::new(self.number, self.checksum.to_le_bytes().into())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::HEADER_BYTES + self.body.len());
        bytes.extend((self.body.len() as u32).to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }

    async fn read_from(stream: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<Self> {
        let mut header = [0; Self::HEADER_BYTES];
        stream.read_exact(&mut header).await.context("the connection ended")?;
        let header = u128::from_le_bytes(header);
        let (length, checksum, number) = (header as u32 as usize, (header >> 32) as u32, (header >> 64) as u64);
        ensure!(length <= Self::MAX_BODY_BYTES, "message {number} is corrupt: its length is {length}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.with_context(|| format!("the connection ended in message {number}"))?;
        let message = Self::new(number, body);
        let found = message.checksum;
        ensure!(found == checksum, "message {number} is corrupt: its checksum is {found:08x}, not {checksum:08x}");
        Ok(message)
    }
}

/// The parts of the node to which a peer hands the messages that it receives.
#[derive(Clone)]
struct Inbox {
    mempool: Arc<Mutex<Mempool>>,
    records: Sender<Vec<u8>>,
}

/// Connects each peer to each other one. The messages last until the runtime is dropped.
async fn connect(health: &Arc<Health>, inbox: &Inbox) -> anyhow::Result<()> {
    let links = PEERS * (PEERS - 1);
    let period = Duration::from_secs(1) * links / MESSAGES_PER_SECOND;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    for link in 0..links {
        let asker = TcpStream::connect(listener.local_addr()?).await?;
        let (answerer, _) = listener.accept().await?;
        asker.set_nodelay(true)?;
        answerer.set_nodelay(true)?;
        // The links take turns. Otherwise all of them would send at the same moment.
        let ticks = time::interval_at(time::Instant::now() + period * link / links, period);
        watch(health, ask(asker, link, ticks, health.clone()));
        watch(health, answer(answerer, inbox.clone()));
    }
    Ok(())
}

/// Runs one end of a link, and reports its failure.
fn watch(health: &Arc<Health>, end: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
    let health = health.clone();
    tokio::spawn(async move { health.note(end.await) });
}

/// Sends a message every period, and checks the answer. A sender that was held up catches up, so that all allocators
/// get the same number of messages.
async fn ask(mut stream: TcpStream, link: u32, mut ticks: time::Interval, health: Arc<Health>) -> anyhow::Result<()> {
    let mut rng = SmallRng::seed_from_u64(link.into());
    let (least, most) = MESSAGE_BYTES.into_inner();
    for number in 0.. {
        ticks.tick().await;
        let bytes = least * (most / least).powf(rng.random());
        let message = Message::new(number, pack(&mut rng, bytes as usize));
        exchange(&mut stream, &message, ANSWER_WITHIN).await?;
        health.beat(Part::Messages);
    }
    Ok(())
}

/// Sends a message and takes its answer.
async fn exchange(stream: &mut TcpStream, message: &Message, within: Duration) -> anyhow::Result<()> {
    let answer = time::timeout(within, async {
        stream.write_all(&message.encode()).await.context("cannot send a message")?;
        Message::read_from(stream).await
    });
    let number = message.number;
    let answer = answer.await.with_context(|| format!("no answer to message {number} within {within:?}"))??;
    ensure!(answer == message.receipt(), "the answer to message {number} is of another message");
    Ok(())
}

/// Takes messages, keeps their transactions, has the database keep a record, and answers.
async fn answer(mut stream: TcpStream, inbox: Inbox) -> anyhow::Result<()> {
    loop {
        let message = Message::read_from(&mut stream).await?;
        let transactions = unpack(&message.body)?;
        inbox.mempool.lock().unwrap_or_else(PoisonError::into_inner).add(transactions)?;
        let record = message.body[..message.body.len().min(RECORD_BYTES)].to_vec();
        inbox.records.send(record).await.context("the database takes no more records")?;
        stream.write_all(&message.receipt().encode()).await.context("cannot answer")?;
    }
}

/// The body of a message: random transactions of at least `bytes` in all. Each follows its length.
fn pack(rng: &mut SmallRng, bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes + TRANSACTION_BYTES.end());
    while body.len() < bytes {
        let length = rng.random_range(TRANSACTION_BYTES);
        body.extend((length as u16).to_le_bytes());
        let start = body.len();
        body.resize(start + length, 0);
        rng.fill_bytes(&mut body[start..]);
    }
    body
}

/// The transactions of a body.
fn unpack(mut body: &[u8]) -> anyhow::Result<Vec<Sealed>> {
    let mut transactions = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let (data, rest) = rest.split_at_checked(length).context("a transaction is longer than its message")?;
        transactions.push(Sealed::new(data.into()));
        body = rest;
    }
    Ok(transactions)
}

/// An allocation of its own, and the checksum that it had at first.
struct Sealed {
    data: Box<[u8]>,
    checksum: u32,
}

impl Sealed {
    fn new(data: Box<[u8]>) -> Self {
        Self { checksum: crc32fast::hash(&data), data }
    }

    fn is_intact(&self) -> bool {
        crc32fast::hash(&self.data) == self.checksum
    }
}

/// Transactions that a node holds until chance evicts them, so that old and new ones lie side by side.
struct Mempool {
    held: Vec<Sealed>,
    bytes: usize,
    /// Whether it ever had to evict.
    is_full: bool,
    rng: SmallRng,
}

impl Default for Mempool {
    fn default() -> Self {
        Self { held: Vec::new(), bytes: 0, is_full: false, rng: SmallRng::seed_from_u64(1) }
    }
}

impl Mempool {
    /// Takes transactions, and evicts others if there is no room. The thread that frees one is seldom the one that allocated it.
    /// Fails if an evicted transaction changed while it was held.
    fn add(&mut self, transactions: Vec<Sealed>) -> anyhow::Result<()> {
        let bytes = |transaction: &Sealed| size_of::<Sealed>() + transaction.data.len();
        self.bytes += transactions.iter().map(bytes).sum::<usize>();
        self.held.extend(transactions);
        while self.bytes > MEMPOOL_BYTES {
            self.is_full = true;
            let evicted = self.held.swap_remove(self.rng.random_range(..self.held.len()));
            self.bytes -= bytes(&evicted);
            ensure!(evicted.is_intact(), "a transaction changed while the node held it");
        }
        Ok(())
    }
}

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("records");

/// A database of the last records.
struct Store {
    database: redb::Database,
    /// Checksums of the records that the database must have, by key.
    written: Vec<u32>,
    next: usize,
    commits: u64,
    rng: SmallRng,
}

impl Store {
    /// A new database. Its file has no name, so the system removes it with the process.
    fn create() -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot create a file for the database")?;
        let database = redb::Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(FileBackend::new(file)?)
            .context("cannot create the database")?;
        Ok(Self { database, written: Vec::new(), next: 0, commits: 0, rng: SmallRng::seed_from_u64(2) })
    }

    /// Writes records until all of their senders are gone.
    fn serve(mut self, mut records: Receiver<Vec<u8>>, health: &Health) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        while records.blocking_recv_many(&mut batch, QUEUE) > 0 {
            self.write(&batch)?;
            batch.clear();
            self.check(READS)?;
            health.beat(Part::Database);
            thread::sleep(COMMIT_EVERY);
        }
        Ok(())
    }

    /// Writes records, in place of the oldest.
    fn write(&mut self, records: &[Vec<u8>]) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        let is_durable = self.commits.is_multiple_of(DURABLE_EVERY);
        transaction.set_durability(if is_durable { Durability::Immediate } else { Durability::None })?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for record in records {
                let checksum = crc32fast::hash(record);
                table.insert(self.next as u64, record.as_slice())?;
                match self.written.get_mut(self.next) {
                    Some(old) => *old = checksum,
                    None => self.written.push(checksum),
                }
                self.next = (self.next + 1) % RECORDS;
            }
        }
        transaction.commit()?;
        self.commits += 1;
        Ok(())
    }

    /// Reads records at random, and compares them with those that were written.
    fn check(&mut self, reads: usize) -> anyhow::Result<()> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for _ in 0..reads {
            let key = self.rng.random_range(..self.written.len());
            let value = table.get(key as u64)?.with_context(|| format!("the database lost record {key}"))?;
            let (found, written) = (crc32fast::hash(value.value()), self.written[key]);
            ensure!(found == written, "the database has {found:08x} as record {key}, and {written:08x} was written");
        }
        Ok(())
    }
}

/// Memory that travels from thread to thread.
type Parcel = Vec<Sealed>;
type Job = (Instant, JoinHandle<anyhow::Result<Parcel>>);

/// Starts jobs at a fixed rate: a late start does not delay the next ones. Ends when the sender of `stop` is gone.
fn run_jobs(stop: &mpsc::Receiver<()>, on_thread_start: fn(), health: &Health) -> anyhow::Result<()> {
    let (mut running, mut shelf) = (VecDeque::<Job>::new(), VecDeque::new());
    let mut next = Instant::now();
    let mut seed = 0;
    while stop.recv_timeout(next.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
        let parcel = if shelf.len() >= SHELF { shelf.pop_front() } else { None };
        let work = move || {
            on_thread_start();
            work(parcel, seed)
        };
        let job = thread::Builder::new().name("job".into()).spawn(work).context("cannot start a thread")?;
        running.push_back((Instant::now(), job));
        take_back(&mut running, &mut shelf, health)?;
        next += JOB_EVERY;
        seed += 1;
    }
    for (_, job) in running {
        // Reported if it failed in time; now the node stops.
        _ = job.join();
    }
    Ok(())
}

/// Frees the parcel of a thread that is gone, and packs another.
fn work(parcel: Option<Parcel>, seed: u64) -> anyhow::Result<Parcel> {
    let is_intact = parcel.iter().flatten().all(Sealed::is_intact);
    ensure!(is_intact, "memory of an earlier thread changed");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut pack = || {
        let least_bytes = 1 << rng.random_range(6..14);
        let mut block = vec![0; rng.random_range(least_bytes..2 * least_bytes)].into_boxed_slice();
        rng.fill_bytes(&mut block);
        Sealed::new(block)
    };
    Ok((0..BLOCKS).map(|_| pack()).collect())
}

/// Takes the parcels of jobs that ended, the oldest first. Fails if a job panicked, found damage, or is not back in time.
fn take_back(running: &mut VecDeque<Job>, shelf: &mut VecDeque<Parcel>, health: &Health) -> anyhow::Result<()> {
    while running.front().is_some_and(|(_, job)| job.is_finished()) {
        let Some((_, job)) = running.pop_front() else { break };
        shelf.push_back(job.join().map_err(|_| anyhow!("a short-lived thread panicked"))??);
        health.beat(Part::Jobs);
    }
    let is_lost = running.front().is_some_and(|(started, _)| started.elapsed() > JOB_LOST);
    ensure!(!is_lost, "a short-lived thread is not back after {JOB_LOST:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    /// The answer to a peer that sends message 3 to `other` and waits for half a second.
    fn asked<F: Future<Output = ()> + Send + 'static>(other: impl FnOnce(TcpStream) -> F) -> String {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let mut asker = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            tokio::spawn(other(listener.accept().await.unwrap().0));
            let message = Message::new(3, pack(&mut SmallRng::seed_from_u64(1), 100));
            exchange(&mut asker, &message, Duration::from_millis(500)).await.unwrap_err().to_string()
        })
    }

    /// A node that lost a message must not yield a figure, even if the proof is right.
    #[test]
    fn a_node_in_trouble_fails_its_check() {
        let node = Node::start(|| ()).unwrap();
        node.check().unwrap();
        node.health.note(Err(anyhow!("a message was lost")));
        assert_eq!(node.check().unwrap_err().to_string(), "a message was lost");
    }

    /// A part that stops without an error must fail the next proof.
    #[test]
    fn silence_and_the_first_failure_are_noticed() {
        let health = Health::new();
        let late = health.begun + QUIET + Duration::from_millis(100);
        health.check(health.begun + QUIET).unwrap();
        for (part, done) in [Part::Messages, Part::Database, Part::Jobs].into_iter().zip(DONE) {
            let error = health.check(late).unwrap_err().to_string();
            assert_eq!(error, format!("no {done} in the last 10.1 s"));
            assert!(!health.is_everyone_up());
            health.beat(part);
            health.done[part as usize].1.store(5_000, Relaxed);
        }
        assert!(health.is_everyone_up() && health.check(late).is_ok());
        health.note(Err(anyhow!("root").context("leaf")));
        health.note(Err(anyhow!("another")));
        assert_eq!(health.check(late).unwrap_err().to_string(), "leaf: root");
    }

    #[test]
    fn a_node_that_falls_behind_is_noticed() {
        let after = |messages, seconds| keeps_pace(messages, Duration::from_secs(seconds));
        after(0, 9).unwrap();
        after(36_000, 20).unwrap();
        let error = after(30_000, 20).unwrap_err().to_string();
        assert_eq!(error, "it fell behind its load: 30000 of 40000 messages were answered");
    }

    /// Only a checksum shows that an allocator handed out the memory of a message twice.
    #[test]
    fn a_flipped_byte_is_detected_wherever_it_is() {
        let read = |mut bytes: &[u8]| run(Message::read_from(&mut bytes));
        let sent = Message::new(7, (0..100).collect());
        let bytes = sent.encode();
        assert_eq!(read(&bytes).unwrap(), sent);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let error = read(&flipped).unwrap_err().to_string();
            assert!(error.contains("is corrupt") || error.contains("ended in message"), "byte {at}: {error}");
        }
        assert!(unpack(&[9, 0, 1]).is_err_and(|error| error.to_string().contains("longer than its message")));
    }

    /// A peer that takes messages and never answers must fail the node, not slow it down.
    #[test]
    fn a_missing_answer_and_one_to_something_else_are_noticed() {
        let silent = async |mut stream| _ = (Message::read_from(&mut stream).await, time::sleep(QUIET).await);
        assert!(asked(silent).contains("no answer to message 3"));
        let wrong = async |mut stream: TcpStream| {
            stream.write_all(&Message::new(3, vec![2; 100]).receipt().encode()).await.unwrap();
            time::sleep(QUIET).await;
        };
        assert!(asked(wrong).contains("of another message"));
    }

    /// A link whose other end fails reports it to the node.
    #[test]
    fn a_failed_end_is_reported() {
        let health = Arc::new(Health::new());
        let (records, _) = tokio::sync::mpsc::channel(1);
        let (inbox, of_end) = (Inbox { mempool: Arc::default(), records }, health.clone());
        asked(|stream| async move { of_end.note(answer(stream, inbox).await) });
        assert_eq!(health.failure.get().unwrap(), "the database takes no more records: channel closed");
    }

    /// Memory that was handed out twice changes while it is held.
    #[test]
    fn memory_that_changed_is_noticed() {
        let mut mempool = Mempool::default();
        let large = || vec![Sealed::new(vec![1; MEMPOOL_BYTES / 3].into())];
        mempool.add(large()).unwrap();
        mempool.held[0].data[9] ^= 1;
        let outcome = (0..100).try_for_each(|_| mempool.add(large()));
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

    #[test]
    fn a_thread_that_panics_or_does_not_come_back_is_lost() {
        let lost = |started, job: fn() -> anyhow::Result<Parcel>| {
            let mut running = VecDeque::from([(started, thread::spawn(job))]);
            thread::sleep(Duration::from_millis(100));
            take_back(&mut running, &mut VecDeque::new(), &Health::new()).unwrap_err().to_string()
        };
        assert_eq!(lost(Instant::now(), || panic!("on purpose")), "a short-lived thread panicked");
        let sleep = || {
            thread::sleep(Duration::from_secs(1));
            work(None, 1)
        };
        assert!(lost(Instant::now().checked_sub(2 * JOB_LOST).unwrap(), sleep).contains("is not back"));
    }
}
