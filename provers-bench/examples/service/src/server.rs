//! Connections, their limits, and the shutdown.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::bytes::Shown;
use crate::pool::Pool;
use crate::prover::Prover;
use crate::service::{Engine, Service};
use crate::settings::Settings;
use crate::{record, routes};

/// Connections at once; others wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// A client has this long to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or Ctrl-C, and then until the running proofs are finished.
///
/// # Errors
/// The port, the workers, or proofs that did not finish in time.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let metrics = record::install()?;
    let engine = engine(&settings).await?;
    let (port, grace) = (settings.port, settings.grace());
    let service = Service::new(settings, engine);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("listening on 127.0.0.1:{port}"))?;
    announce(listener.local_addr()?)?;

    let router = routes::router(Arc::clone(&service), metrics);
    let (graceful, connections) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    let mut stop = pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    loop {
        let accept = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit)
        };
        tokio::select! {
            () = &mut stop => break,
            (accepted, permit) = accept => match accepted {
                Ok((stream, _)) => {
                    let connection = serve(stream, &router, &graceful);
                    tokio::spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                // No descriptor is free, or the client has gone already.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }

    drop(listener);
    service.stop();
    eprintln!("shutting down: running proofs have {} s to finish", grace.as_secs());
    let finished = async {
        graceful.shutdown().await;
        service.idle().await;
    };
    if tokio::time::timeout(grace, finished).await.is_err() {
        bail!("proofs still run after {} s; they are given up", grace.as_secs());
    }
    Ok(())
}

/// Serves one connection until it is closed.
fn serve(stream: TcpStream, router: &Router, graceful: &GracefulShutdown) -> impl Future<Output = ()> + use<> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let service = TowerToHyperService::new(router.clone());
    let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
    async move {
        // The client's errors are of no interest here.
        let _ = connection.await;
    }
}

/// Prepares the place where proofs are made.
async fn engine(settings: &Settings) -> anyhow::Result<Engine> {
    if !settings.isolate {
        // By default, the arena retains up to half of the machine's memory between proofs. Here the limit is known.
        if std::env::var_os("ZK_ALLOC_RETAIN_BYTES").is_none() {
            zk_alloc::set_retain(zk_alloc::Retain::Bytes(settings.limit_bytes()));
        }
        return Ok(Engine::Here(Arc::new(Prover::default())));
    }
    let (workers, budget, limit) = (settings.slots(), settings.budget, settings.limit_bytes());
    ensure!(
        workers.saturating_mul(budget) <= limit,
        "{workers} workers with {} each do not fit below the limit of {}: use fewer --workers or a smaller --budget",
        Shown(budget),
        Shown(limit)
    );
    Ok(Engine::Workers(Pool::start(workers, budget).await?))
}

/// Prints the address, for people and for programs that asked for port 0.
fn announce(address: SocketAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on http://{address}").and_then(|()| out.flush()).context("printing the address")
}
