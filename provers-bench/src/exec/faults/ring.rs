//! A buffer in which the kernel leaves records of one processor (perf_event_open(2)).
#![allow(unsafe_code, reason = "shares memory with the kernel")]

use super::records::SAMPLE_TYPE;
use memmap2::{MmapOptions, MmapRaw};
use nix::unistd::{SysconfVar, sysconf};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a buffer, without the first, which describes it. The system lets each user lock this much for each processor.
const PAGES: usize = 128;
/// Where the first page has the ends of the records: written by the kernel, and by the reader.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Bytes of a record's header, with its length in the last two.
const HEADER: usize = 8;

/// `struct perf_event_attr` in its fifth version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    more: [u64; 4],
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS_MIN` and `PERF_FLAG_FD_CLOEXEC`.
const SOFTWARE: u32 = 1;
const MINOR_FAULTS: u64 = 5;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Flags: disabled, inherit, exclude_kernel, exclude_hv, mmap, enable_on_exec, exclude_callchain_kernel, mmap2.
const FLAGS: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 12 | 1 << 21 | 1 << 23;

pub(super) struct Ring {
    map: MmapRaw,
    page_bytes: usize,
    /// Closed after the buffer is unmapped.
    _event: File,
}

impl Ring {
    /// Samples each `period`th page fault on a processor, of the programs that the calling thread starts.
    pub(super) fn open(cpu: usize, period: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind: SOFTWARE,
            bytes: size_of::<Attributes>() as u32,
            config: MINOR_FAULTS,
            sample_period: period,
            sample_type: SAMPLE_TYPE,
            flags: FLAGS,
            ..Attributes::default()
        };
        let (this_thread, no_group) = (0, -1);
        // SAFETY: reads a valid structure of the length that it names.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                cpu as libc::c_int,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned this descriptor, and nobody else has it.
        let event = unsafe { File::from_raw_fd(event as libc::c_int) };
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(4096);
        let map = MmapOptions::new().len((1 + PAGES) * page_bytes).map_raw(&event)?;
        Ok(Self { map, page_bytes, _event: event })
    }

    /// Calls `f` with each record since the last call.
    pub(super) fn read(&mut self, mut f: impl FnMut(&[u8])) {
        // Pairs with the kernel's store after it wrote the records.
        let head = self.end(HEAD).load(Ordering::Acquire);
        let mut tail = self.end(TAIL).load(Ordering::Relaxed);
        let mut record = Vec::new();
        while tail < head {
            self.copy(tail, HEADER, &mut record);
            let bytes = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if bytes < HEADER {
                tail = head;
                break;
            }
            self.copy(tail, bytes, &mut record);
            f(&record);
            tail += bytes as u64;
        }
        // The kernel may write there again.
        self.end(TAIL).store(tail, Ordering::Release);
    }

    fn end(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both lie in the first page, aligned, and the kernel accesses them whole.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Copies `bytes` from a position of the records. They may go on at the start of the buffer.
    fn copy(&self, from: u64, bytes: usize, into: &mut Vec<u8>) {
        let length = PAGES * self.page_bytes;
        into.clear();
        into.extend((0..bytes).map(|index| {
            let offset = (from as usize + index) % length;
            // SAFETY: it lies in the buffer, and the kernel writes nothing between the two ends.
            unsafe { self.map.as_ptr().add(self.page_bytes + offset).read() }
        }));
    }
}
