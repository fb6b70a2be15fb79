//! Measures how much page-locked memory speeds up copies to device 0 and back on this host. Compares pageable memory, the driver's own
//! page-locked memory (`cuMemHostAlloc`), and zk-alloc's pinned range. Prints two Markdown tables: the proof times, and the copy rates by
//! size. Each proof fills a matrix, copies it to the device, swaps its halves there, copies it back, and checks every byte. Each proof
//! allocates its own two matrices, except with the driver's memory, which is allocated once for all proofs.
//!
//!     cargo run --release --package zk-alloc-cuda --example copies -- [MIB]
//!
//! MIB is the size of the largest matrix in MiB, 1024 by default. The host needs six times that much memory, and the device twice that
//! much.
//!
//! Exit codes: 0 if every byte was right; 1 if something failed; 3 if nothing was measured, because there is no driver or device, or
//! because the driver refused to register memory.
#![allow(unsafe_code, reason = "promises to wait for each copy")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use zk_alloc::{NotPinned, ZkAllocator, phase, pinned, release};
use zk_alloc_cuda::pin;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const NO_DEVICE: u8 = 3;
/// The number of rounds. Each reported rate is the median of the rounds.
const ROUNDS: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;
/// The host's matrices: the one that is copied to the device, and the one that receives the result.
type Matrices<'a> = [&'a mut [u64]; 2];

fn main() -> Outcome<ExitCode> {
    let max_mib: usize = std::env::args().nth(1).map_or(Ok(1024), |mib| mib.parse())?;
    let words = max_mib << 17;
    // SAFETY: nothing is copied to or from this range.
    match unsafe { pin(1, 0) } {
        Err(NotPinned::NotRegistered { error, .. }) => {
            eprintln!("nothing was measured: {error}");
            return Ok(ExitCode::from(NO_DEVICE));
        }
        tried => drop(tried?),
    }
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let matrices = [stream.alloc_zeros(words)?, stream.alloc_zeros(words)?];
    let mut device = Device { stream, matrices, seed: 0 };
    println!("{}, proofs of {max_mib} MiB, medians of {ROUNDS} rates, every byte checked", context.name()?);

    println!("\n| memory | set up, s | first proof, s | tenth proof, s |\n|---|--:|--:|--:|");
    let fresh = || [vec![0; words], vec![0; words]];
    // Warms up the device, because the first copies are slow from any kind of memory.
    device.there_and_back(slices(&mut fresh()), 1)?;
    proofs("pageable, from malloc", 0.0, || device.there_and_back(slices(&mut fresh()), 1))?;
    proofs("pageable, from zk-alloc", 0.0, || device.there_and_back(slices(&mut phase(fresh)), 1))?;

    let started = Instant::now();
    // SAFETY: the buffers need no initialisation, because the driver maps new pages, which contain zeroes.
    let allocate = || unsafe { context.alloc_pinned_with_flags(words, CU_MEMHOSTALLOC_PORTABLE) };
    let [mut matrix, mut answer] = [allocate()?, allocate()?];
    let set_up = started.elapsed().as_secs_f64();
    let mut of_driver: Matrices = [matrix.as_mut_slice()?, answer.as_mut_slice()?];
    proofs("the driver's, kept for all proofs", set_up, || {
        device.there_and_back(of_driver.each_mut().map(|all| &mut **all), 1)
    })?;

    // Purges the memory that the proofs above left resident. Otherwise, the range would reuse it, and its set-up time would not include the
    // page faults.
    release();
    let started = Instant::now();
    // SAFETY: `timed` waits for its copies, so no copy outlives its buffers.
    let _range = unsafe { pin(words * 16, 0) }?;
    let set_up = started.elapsed().as_secs_f64();
    proofs("zk-alloc's range", set_up, || device.there_and_back(slices(&mut phase(fresh)), 1))?;

    println!("\n| MiB | copy | pageable, GB/s | driver's, GB/s | zk-alloc's, GB/s | of driver's | of pageable |");
    println!("|--:|---|--:|--:|--:|--:|--:|");
    let (mut pageable, mut of_range) = (fresh(), phase(fresh));
    if !of_range.iter().all(|matrix| pinned::contains(matrix.as_ptr())) {
        return Err("a matrix is not in the range".into());
    }
    let mut kinds = [slices(&mut pageable), of_driver, slices(&mut of_range)];
    for mib in (0..).map(|step| 1 << (2 * step)).take_while(|&mib| mib <= max_mib) {
        let words = mib << 17;
        let mut rates = [[[0.0; ROUNDS]; 3]; 2];
        for round in 0..ROUNDS {
            for (kind, matrices) in kinds.iter_mut().enumerate() {
                let matrices = matrices.each_mut().map(|all| &mut all[..words]);
                let seconds = device.there_and_back(matrices, (64 / mib).max(1))?;
                for (rates, seconds) in rates.iter_mut().zip(seconds) {
                    rates[kind][round] = (words * 8) as f64 / seconds / 1e9;
                }
            }
        }
        for (copy, rates) in ["to the device", "back"].into_iter().zip(rates) {
            let [pageable, driver, ours] = rates.map(|mut rates| {
                rates.sort_by(f64::total_cmp);
                rates[ROUNDS / 2]
            });
            let (share, gain) = (ours / driver, ours / pageable);
            println!("| {mib} | {copy} | {pageable:.1} | {driver:.1} | {ours:.1} | {share:.2} | {gain:.2} |");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn slices(matrices: &mut [Vec<u64>; 2]) -> Matrices<'_> {
    matrices.each_mut().map(Vec::as_mut_slice)
}

/// Runs ten proofs, and prints the times of the first and the last.
fn proofs(memory: &str, set_up: f64, mut proof: impl FnMut() -> Outcome<[f64; 2]>) -> Outcome<()> {
    let mut seconds = [0.0; 10];
    for seconds in &mut seconds {
        let started = Instant::now();
        proof()?;
        *seconds = started.elapsed().as_secs_f64();
    }
    println!("| {memory} | {set_up:.3} | {:.3} | {:.3} |", seconds[0], seconds[9]);
    Ok(())
}

struct Device {
    stream: Arc<CudaStream>,
    matrices: [CudaSlice<u64>; 2],
    /// The seed of the most recently filled matrix. Each matrix has its own seed.
    seed: u64,
}

impl Device {
    /// Fills `matrix`, copies it to the device, swaps its halves there, copies the result back into `answer`, and checks every byte.
    /// Repeats each copy `times` times. Returns the mean time of a copy to the device and of a copy back, in seconds.
    fn there_and_back(&mut self, [matrix, answer]: Matrices, times: usize) -> Outcome<[f64; 2]> {
        let Self { stream, matrices: [sent, swapped], seed } = self;
        *seed += 1;
        for (word, index) in matrix.iter_mut().zip(0u64..) {
            *word = (index ^ *seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        let there = timed(stream, times, || stream.memcpy_htod(&*matrix, sent))?;
        let (len, half) = (matrix.len(), matrix.len() / 2);
        stream.memcpy_dtod(&sent.slice(half..len), &mut swapped.slice_mut(..half))?;
        stream.memcpy_dtod(&sent.slice(..half), &mut swapped.slice_mut(half..len))?;
        let back = timed(stream, times, || stream.memcpy_dtoh(&swapped.slice(..len), &mut *answer))?;
        if answer[..half] != matrix[half..] || answer[half..] != matrix[..half] {
            return Err("the matrix that came back is not the one that was sent, with its halves swapped".into());
        }
        Ok([there, back])
    }
}

/// Calls `copy` `times` times, waits until the copies have finished, and returns the mean time of a copy in seconds.
fn timed(stream: &CudaStream, times: usize, mut copy: impl FnMut() -> Result<(), DriverError>) -> Outcome<f64> {
    stream.synchronize()?;
    let started = Instant::now();
    let copied = (0..times).try_for_each(|_| copy());
    stream.synchronize()?;
    let seconds = started.elapsed().as_secs_f64();
    copied?;
    Ok(seconds / times as f64)
}
