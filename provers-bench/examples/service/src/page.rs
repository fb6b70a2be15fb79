//! `/memory`: where the memory is, what runs, what waits and why. For people.

use std::fmt::{self, Write};

use crate::admission::Wait;
use crate::bytes::Shown;
use crate::memory;
use crate::service::{Engine, Service, State};

/// The page.
pub fn text(service: &Service) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(service, &mut page);
    page
}

fn write(service: &Service, out: &mut String) -> fmt::Result {
    let state = service.state();
    match &service.engine {
        Engine::Here(_) => write_process(&state, out)?,
        Engine::Workers(pool) => {
            let settings = &service.settings;
            let (workers, budget) = (settings.slots(), settings.budget);
            writeln!(out, "{workers} workers, each with a budget of {}", Shown(budget))?;
            writeln!(out, "limit {}, this process {}", Shown(settings.limit_bytes()), Shown(memory::rss_bytes()))?;
            for (number, worker) in pool.statuses().iter().enumerate() {
                let Some(pid) = worker.pid else {
                    writeln!(out, "  worker {number}: no process, the next proof starts one")?;
                    continue;
                };
                writeln!(
                    out,
                    "  worker {number}: pid {pid}, {}, {} proofs, process {} of its place; live {}, RSS {}",
                    if worker.is_busy { "busy" } else { "idle" },
                    worker.proofs,
                    worker.processes,
                    Shown(worker.figures.live_bytes),
                    Shown(memory::rss_of(&pid.to_string())),
                )?;
            }
        }
    }
    write_proofs(service, &state, out)?;
    drop(state);
    if matches!(service.engine, Engine::Here(_)) {
        writeln!(out, "\nresident memory of zk-alloc\n{}", zk_alloc::resident_parts())?;
        writeln!(out, "\nzk-alloc\n{}", zk_alloc::stats())?;
    }
    Ok(())
}

fn write_process(state: &State, out: &mut String) -> fmt::Result {
    let (stats, room) = (zk_alloc::stats(), &state.room);
    let reserved = state.ledger.reserved_bytes();
    let rows = [
        ("limit", room.limit_bytes),
        ("RSS now", memory::rss_bytes()),
        ("live in the arena", stats.live_bytes),
        ("retained for the next proof", stats.retained_bytes()),
        ("outside of the arena", room.outside_bytes),
        ("in the prover's caches", room.base_bytes),
        ("reserved by running proofs", reserved),
        ("free for another proof", room.free_bytes(reserved)),
    ];
    for (name, bytes) in rows {
        writeln!(out, "{name:<28} {:>12}", Shown(bytes).to_string())?;
    }
    Ok(())
}

fn write_proofs(service: &Service, state: &State, out: &mut String) -> fmt::Result {
    writeln!(out, "\nlearned peaks")?;
    for (size, bytes, proofs) in state.peaks.iter() {
        writeln!(out, "  {:<16} {:>12}  proofs that count: {proofs}", size.to_string(), Shown(bytes).to_string())?;
    }
    writeln!(out, "running")?;
    for (id, running) in state.ledger.running() {
        let seconds = running.job.started.unwrap_or(running.job.joined).elapsed().as_secs_f64();
        write!(out, "  #{id} {}, for {seconds:.1} s", running.size)?;
        match (running.reserved_bytes, running.job.is_cancelled) {
            (_, true) => writeln!(out, ", cancelled: it is finished and thrown away")?,
            (None, _) => writeln!(out, ", alone, to learn its peak")?,
            (Some(0), _) => writeln!(out)?,
            (Some(bytes), _) => writeln!(out, ", {} reserved", Shown(bytes))?,
        }
    }
    writeln!(out, "waiting")?;
    for (waiting, reason) in state.ledger.waits(&state.room, |size| service.reserve_for(&state.peaks, size)) {
        let seconds = waiting.job.joined.elapsed().as_secs_f64();
        write!(out, "  #{} {}, for {seconds:.1} s: ", waiting.id, waiting.size)?;
        match reason {
            Wait::Slot => writeln!(out, "{} proofs run, and no more may", state.ledger.running().len())?,
            Wait::Turn => writeln!(out, "an earlier proof was overtaken often enough")?,
            Wait::Trial => writeln!(out, "a proof of an unknown size runs alone")?,
            Wait::Alone => writeln!(out, "its size is unknown, so it runs alone, after the others")?,
            Wait::Memory { need_bytes, free_bytes } => {
                writeln!(out, "it needs {}, and {} are free", Shown(need_bytes), Shown(free_bytes))?;
            }
            Wait::TooLarge { need_bytes } => writeln!(out, "it needs {}, more than the limit", Shown(need_bytes))?,
        }
    }
    Ok(())
}
