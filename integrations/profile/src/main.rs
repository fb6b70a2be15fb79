//! Turns the files that `libzk_alloc.so` writes (`ZK_ALLOC_PROFILE=DIR`) into files for pprof, folded stacks and flame graphs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use zk_alloc_profile::Profile;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        eprintln!("usage: zk-alloc-profile FILE.raw...\nWrites each profile into the folder FILE next to FILE.raw.");
        return ExitCode::from(2);
    }
    let failed = files.iter().filter(|raw| !is_written(raw)).count();
    ExitCode::from(u8::from(failed > 0))
}

fn is_written(raw: &Path) -> bool {
    let dir = raw.with_extension("");
    if dir == raw {
        eprintln!("{}: the name of a raw profile must end with `.raw`", raw.display());
        return false;
    }
    match Profile::read(raw).and_then(|profile| profile.write(&dir)) {
        Ok(()) => println!("{}", dir.display()),
        Err(error) => eprintln!("{}: {error}", raw.display()),
    }
    dir.join("profile.pb.gz").exists()
}
