//! Random load for some minutes: proofs, cancellations, panics, nonsense. `cargo make soak` runs it.

mod common;

use std::collections::BTreeMap;
use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::{Server, body};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::process::Signal;

const CLIENTS: u64 = 4;

/// The digest of each statement: its proof is the same each time.
type Digests = Mutex<BTreeMap<(u32, u64), String>>;

/// Sends one random request, and checks its answer. Returns whether it was a proof.
fn act(server: &Server, digests: &Digests, rng: &mut SmallRng) -> bool {
    let (log_rows, seed) = (rng.random_range(7..=10), rng.random_range(0..4));
    match rng.random_range(0..100) {
        0..70 => {
            let reply = server.prove(log_rows, seed);
            assert!(matches!(reply.status, 200 | 503), "{}", reply.body);
            if reply.status == 200 {
                let digest = reply.json()["digest"].as_str().unwrap().to_owned();
                let mut digests = digests.lock().unwrap();
                let first = digests.entry((log_rows, seed)).or_insert_with(|| digest.clone());
                assert_eq!(*first, digest, "2^{log_rows}, seed {seed}");
            }
            return reply.status == 200;
        }
        70..82 => {
            let stream = server.send("POST", "/proofs", &body(log_rows, seed));
            thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            drop(stream);
        }
        82..90 => {
            let reply = server.post(&format!(r#"{{"log_rows":{log_rows},"panic":true}}"#));
            assert!(matches!(reply.status, 500 | 503), "{}", reply.body);
        }
        // Too large for the limit and for the budget.
        90..93 => assert!(matches!(server.prove(13, seed).status, 507 | 503)),
        93..97 => assert_eq!(server.post("{\"log_rows\":").status, 400),
        _ => assert_eq!(server.get(if rng.random() { "/memory" } else { "/metrics" }).status, 200),
    }
    false
}

fn soak(args: &str, most_rss_bytes: usize) {
    let minutes: f64 =
        env::var("SOAK_MINUTES").map_or(0.2, |minutes| minutes.parse().expect("SOAK_MINUTES in minutes"));
    let server = Server::start(args);
    // The service knows the peak of each size, and has filled its caches.
    for log_rows in (7..=10).chain(7..=10) {
        assert_eq!(server.prove(log_rows, 0).status, 200);
    }
    let live_before = server.metric("zk_alloc_live_bytes", "");
    let (digests, deadline) = (Digests::default(), Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let proofs: u64 = thread::scope(|scope| {
        let client = |number| {
            let (server, digests) = (&server, &digests);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(number);
                let mut proofs = 0;
                while Instant::now() < deadline {
                    proofs += u64::from(act(server, digests, &mut rng));
                }
                proofs
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    server.until("service_running_proofs", "", 0.0);
    let (live, rss) = (server.metric("zk_alloc_live_bytes", ""), server.peak_rss_bytes());
    println!("{args}: {proofs} proofs; {live_before} bytes were live, and {live} are; RSS reached {rss} bytes");
    assert!(proofs > 0 && server.metric("service_proofs_total", "done") >= proofs as f64);
    assert!(live < live_before + 1048576.0, "{live_before} bytes were live, and {live} are");
    assert!(rss < most_rss_bytes, "RSS reached {rss} bytes");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

#[test]
#[ignore = "takes minutes"]
fn the_service_survives_random_load() {
    soak("--memory-limit 120", 120 << 20);
}

/// Each worker is held to its budget by the kernel.
#[test]
#[ignore = "takes minutes"]
fn workers_survive_random_load() {
    soak("--isolate 128", 64 << 20);
}
