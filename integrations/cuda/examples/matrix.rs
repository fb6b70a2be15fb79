//! Fills a matrix as a prover does, copies it to the device, swaps its halves there, copies it back, and checks every byte: once from the
//! pinned range, and once from ordinary memory. Prints the times.
//!
//!     cargo run --release --package zk-alloc-cuda --example matrix -- [MIB]
#![allow(unsafe_code, reason = "promises to wait for each copy")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use zk_alloc::{ZkAllocator, phase, pinned};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(256), |mib| mib.parse())?;
    let started = Instant::now();
    // SAFETY: each copy below is waited for.
    let range = unsafe { zk_alloc_cuda::pin(mib << 21, 0) }?;
    let stream = CudaContext::new(0)?.default_stream();
    println!("{range:?} in {:.3} s, on {}", started.elapsed().as_secs_f64(), stream.context().name()?);
    (0..10).try_for_each(|proof| phase(|| there_and_back(&stream, "pinned", mib << 17, proof)))?;
    there_and_back(&stream, "pageable", mib << 17, 10) // no phase is open
}

fn there_and_back(stream: &Arc<CudaStream>, name: &str, words: usize, proof: u64) -> Result<(), Box<dyn Error>> {
    let matrix: Vec<u64> = (0..words as u64).map(|index| (index ^ proof).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let mut answer = vec![0u64; words];
    assert_eq!([&matrix, &answer].map(|values| pinned::contains(values.as_ptr())), [name == "pinned"; 2]);
    let (mut on_device, mut swapped) = (stream.alloc_zeros::<u64>(words)?, stream.alloc_zeros::<u64>(words)?);
    let there = timed(stream, || stream.memcpy_htod(&matrix, &mut on_device))?;
    let (low, high) = on_device.split_at(words / 2);
    stream.memcpy_dtod(&high, &mut swapped.slice_mut(..high.len()))?;
    stream.memcpy_dtod(&low, &mut swapped.slice_mut(high.len()..))?;
    let back = timed(stream, || stream.memcpy_dtoh(&swapped, &mut answer))?;
    assert!(answer.iter().eq(matrix[words / 2..].iter().chain(&matrix[..words / 2])), "a byte is wrong");
    let [there, back] = [there, back].map(|seconds| (words * 8) as f64 / seconds / 1e9);
    println!("proof {proof}, {name}: {there:.1} GB/s to the device, {back:.1} GB/s back, every byte checked");
    Ok(())
}

/// The seconds that a copy takes, until it has ended.
fn timed(stream: &CudaStream, copy: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
    stream.synchronize()?;
    let started = Instant::now();
    copy()?;
    stream.synchronize()?;
    Ok(started.elapsed().as_secs_f64())
}
