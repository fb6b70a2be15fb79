//! Message traffic: peers in this process that send each other messages over loopback TCP, at a fixed rate.

use crate::database::Record;
use crate::health::{Health, Part};
use crate::load::Load;
use crate::mempool::Mempool;
use crate::message::Message;
use crate::transaction;
use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::Sender;
use tokio::time::{self, Instant};

/// Threads of the runtime. The number is fixed, because allocators keep memory for each thread.
const THREADS: usize = 2;
/// Longest record of a message.
const RECORD_BYTES: usize = 512;

/// The parts of the node to which a peer hands the messages that it receives.
#[derive(Clone)]
pub(crate) struct Inbox {
    pub(crate) mempool: Arc<Mutex<Mempool>>,
    pub(crate) records: Sender<Record>,
}

/// Starts the traffic, which lasts until the runtime is dropped.
pub(crate) fn start(load: &Load, health: &Arc<Health>, inbox: Inbox) -> anyhow::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("traffic")
        .on_thread_start(load.on_thread_start)
        .enable_all()
        .build()
        .context("cannot start tokio")?;
    runtime.block_on(connect(load, health, inbox)).context("cannot connect the peers")?;
    Ok(runtime)
}

/// Connects each peer to each other one.
async fn connect(load: &Load, health: &Arc<Health>, inbox: Inbox) -> anyhow::Result<()> {
    let links = load.peers * (load.peers - 1);
    let period = Duration::from_secs(1) * links / load.messages_per_second;
    let mut link = 0;
    for _ in 0..load.peers {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        for _ in 1..load.peers {
            let asker = TcpStream::connect(address).await?;
            let (answerer, _) = listener.accept().await?;
            asker.set_nodelay(true)?;
            answerer.set_nodelay(true)?;
            // The links take turns. Otherwise all of them would send at the same moment.
            let first = Instant::now() + period * link / links;
            watch(health, ask(asker, load.clone(), u64::from(link), (first, period), health.clone()));
            watch(health, answer(answerer, inbox.clone()));
            link += 1;
        }
    }
    Ok(())
}

/// Runs one end of a link, and reports its failure.
fn watch(health: &Arc<Health>, end: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
    let health = health.clone();
    tokio::spawn(async move {
        if let Err(error) = end.await {
            health.report(&error);
        }
    });
}

/// Sends a message every period, and checks the answer. A sender that was held up catches up, so that all allocators
/// get the same number of messages.
async fn ask(
    mut stream: TcpStream,
    load: Load,
    seed: u64,
    (first, period): (Instant, Duration),
    health: Arc<Health>,
) -> anyhow::Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut ticks = time::interval_at(first, period);
    let (least, most) = (*load.message_bytes.start() as f64, *load.message_bytes.end() as f64);
    for number in 0.. {
        ticks.tick().await;
        let bytes = least * (most / least).powf(rng.random());
        let message = Message::new(number, transaction::pack(&mut rng, bytes as usize));
        exchange(&mut stream, &message, load.answer_within).await?;
        health.beat(Part::Messages);
    }
    Ok(())
}

/// Sends a message and takes its answer.
async fn exchange(stream: &mut TcpStream, message: &Message, within: Duration) -> anyhow::Result<()> {
    let answer = time::timeout(within, async {
        message.write_to(stream).await?;
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
        let transactions = transaction::unpack(&message.body)?;
        inbox.mempool.lock().unwrap_or_else(PoisonError::into_inner).add(transactions)?;
        let record = message.body[..message.body.len().min(RECORD_BYTES)].to_vec();
        inbox.records.send(record).await.context("the database takes no more records")?;
        message.receipt().write_to(&mut stream).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let asker = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (asker, listener.accept().await.unwrap().0)
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    fn inbox() -> (Inbox, mpsc::Receiver<Record>) {
        let (records, received) = mpsc::channel(10);
        (Inbox { mempool: Arc::new(Mutex::new(Mempool::new(1 << 20))), records }, received)
    }

    /// A peer that takes messages and never answers must fail the node, not slow it down.
    #[test]
    fn a_missing_answer_is_noticed() {
        let error = run(async {
            let (mut asker, mut silent) = pair().await;
            let message = Message::new(3, vec![1; 100]);
            let asked = exchange(&mut asker, &message, Duration::from_millis(50)).await;
            // It arrived, so the answer is what is missing.
            assert_eq!(Message::read_from(&mut silent).await.unwrap(), message);
            asked.unwrap_err()
        });
        assert!(error.to_string().contains("no answer to message 3"), "{error}");
    }

    #[test]
    fn an_answer_to_something_else_is_noticed() {
        let error = run(async {
            let (mut asker, mut wrong) = pair().await;
            let receipt = Message::new(3, vec![2; 100]).receipt();
            receipt.write_to(&mut wrong).await.unwrap();
            exchange(&mut asker, &Message::new(3, vec![1; 100]), Duration::from_secs(5)).await.unwrap_err()
        });
        assert!(error.to_string().contains("of another message"), "{error}");
    }

    /// A link whose other end fails reports it to the node.
    #[test]
    fn a_failed_end_is_reported() {
        let (health, (inbox, received)) = (Arc::new(Health::new()), inbox());
        drop(received);
        run(async {
            let (mut asker, answerer) = pair().await;
            watch(&health, answer(answerer, inbox));
            let message = Message::new(1, transaction::pack(&mut SmallRng::seed_from_u64(1), 500));
            exchange(&mut asker, &message, Duration::from_secs(5)).await.unwrap_err();
        });
        assert!(health.check(Duration::MAX).unwrap_err().to_string().contains("takes no more records"));
    }

    #[test]
    fn a_message_is_recorded_and_answered() {
        let (inbox, mut received) = inbox();
        run(async {
            let (mut asker, answerer) = pair().await;
            watch(&Arc::new(Health::new()), answer(answerer, inbox));
            let message = Message::new(1, transaction::pack(&mut SmallRng::seed_from_u64(1), 2_000));
            exchange(&mut asker, &message, Duration::from_secs(5)).await.unwrap();
            assert_eq!(received.recv().await.unwrap(), message.body[..RECORD_BYTES]);
        });
    }
}
