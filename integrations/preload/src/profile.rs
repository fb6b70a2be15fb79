//! `ZK_ALLOC_PROFILE=DIR`: samples the call sites of the arena's requests. Writes them to a file in the folder when the process exits, and
//! when it gets the signal that `ZK_ALLOC_PROFILE_SIGNAL` names. The program `zk-alloc-profile` looks up the function names.
#![allow(unsafe_code, reason = "is called by the loader")]

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arena::c_api;
use arena::profile::{self, Site};

use crate::glibc;

/// The variable that names the folder.
pub(crate) const VARIABLE: &str = "ZK_ALLOC_PROFILE";

/// The folder for the files; empty if the process is not profiled.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Starts sampling, and stores the folder for the files. Without a folder, or with `0`, the library samples nothing.
pub(crate) fn configure(folder: Option<&[u8]>, is_reported: impl Fn(&str) -> bool) {
    let Some(folder) = folder.filter(|folder| !folder.is_empty() && *folder != b"0") else { return };
    // SAFETY: getauxval(3) has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A set-uid program must not write to a folder that its user chose.
        return;
    }
    if !glibc::prepare_walks() {
        return c_api::print_line(format_args!("{VARIABLE} needs glibc 2.35 or later; nothing is sampled"));
    }
    // The program may change its working directory.
    let Ok(folder) = std::path::absolute(OsStr::from_bytes(folder)) else { return };
    if FOLDER.set(folder).is_ok() {
        profile::start(c_api::profile_mean_bytes(is_reported));
        c_api::profile_on_signal(at_signal);
    }
}

// SAFETY: the loader calls the functions in this section without arguments when the process exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    write_if_on("", profile::stop);
}

/// Writes the profile after a signal. Runs on its own thread.
fn at_signal() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    write_if_on(&format!(".{number}"), || ());
}

/// If the process is profiled, calls `first`, then writes the process's file with this suffix.
fn write_if_on(suffix: &str, first: impl FnOnce()) {
    // A sandbox may end a process that opens a file.
    let Some(folder) = FOLDER.get().filter(|_| profile::is_on() && !c_api::is_in_sandbox()) else { return };
    first();
    if let Err(error) = write(folder, suffix) {
        c_api::print_line(format_args!("no profile in {}: {error}", folder.display()));
    }
}

/// Writes the file, unless the arena served nothing, as in the many small programs of a script.
fn write(folder: &Path, suffix: &str) -> io::Result<()> {
    let profile = profile::snapshot();
    if profile.sites.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    // Another user may have put a symbolic link there.
    let options = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).to_owned();
    let name = format!("{}{suffix}", std::process::id());
    let (part, whole) = (folder.join(format!("{name}.part")), folder.join(format!("{name}.raw")));
    let mut file = BufWriter::new(options.open(&part)?);
    writeln!(file, "zk-alloc-profile 1\nmean_bytes {}\nmissed {}", profile.mean_bytes, profile.missed)?;
    profile.sites.iter().try_for_each(|site| write_site(&mut file, site))?;
    writeln!(file, "maps")?;
    io::copy(&mut fs::File::open("/proc/self/maps")?, &mut file)?;
    file.flush()?;
    // Renames the file when it is complete, so no reader sees a partial file.
    fs::rename(part, whole)
}

fn write_site(file: &mut impl Write, site: &Site) -> io::Result<()> {
    let figures = [site.allocated, site.live, site.peak];
    write!(file, "site")?;
    figures.iter().try_for_each(|amount| write!(file, " {} {}", amount.allocations, amount.bytes))?;
    write!(file, " {} :", site.fresh_bytes)?;
    site.addresses.iter().try_for_each(|address| write!(file, " {address:x}"))?;
    writeln!(file)
}
