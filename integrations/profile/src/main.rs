//! Converts the files that `libzk_alloc.so` writes (`ZK_ALLOC_PROFILE=DIR`) into pprof files, folded stacks and flame graphs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use zk_alloc_profile::Profile;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        eprintln!("usage: zk-alloc-profile FILE.raw...\nWrites each profile into the folder FILE next to FILE.raw.");
        return ExitCode::from(2);
    }
    let failed =
        files.iter().filter(|raw| write(raw).inspect_err(|error| eprintln!("{}: {error}", raw.display())).is_err());
    ExitCode::from(u8::from(failed.count() > 0))
}

fn write(raw: &Path) -> io::Result<()> {
    let dir = raw.with_extension("");
    if dir == raw {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of a raw profile must end with `.raw`"));
    }
    Profile::read(raw)?.write(&dir)?;
    println!("{}", dir.display());
    Ok(())
}
