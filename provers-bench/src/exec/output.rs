//! The output of a run: scanned as it arrives, for lines that end an interval, and compared after the run.

use crate::machine;
use regex::bytes::Regex;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Names standard output where a file is expected.
const STDOUT: &str = "-";

/// The file that `--same-output` compares.
#[derive(Debug)]
pub(super) struct SameOutput {
    file: PathBuf,
    /// SHA-256 from the first run.
    expected: Option<String>,
}

/// The metadata that changes when a file is written; `None` if there is no file.
type State = Option<(u64, i64, i64)>;

impl SameOutput {
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), expected: None }
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.file == Path::new(STDOUT)
    }

    /// The state of the file before a run.
    pub(super) fn before(&self) -> State {
        state(&self.file)
    }

    /// Compares the output of a run with that of the first run. Returns why the run does not count, if it does not.
    pub(super) fn objection(&mut self, before: State, stdout_sha256: &str) -> Option<String> {
        let name = self.file.display();
        let found = if self.is_stdout() {
            stdout_sha256.to_owned()
        } else {
            // Otherwise a file from an earlier run could pass for this run's.
            if state(&self.file) == before {
                return Some(format!("it did not write {name}"));
            }
            match machine::sha256_of(&self.file) {
                Some(found) => found,
                None => return Some(format!("{name} cannot be read")),
            }
        };
        let what = if self.is_stdout() { "its output".into() } else { name.to_string() };
        let expected = self.expected.get_or_insert_with(|| found.clone());
        let [short, expected_short] = [&found, expected].map(|digest| digest.chars().take(12).collect::<String>());
        (found != *expected).then(|| {
            format!(
                "{what} differs from that of the first run, without a library: SHA-256 {short}…, not {expected_short}…"
            )
        })
    }
}

fn state(file: &Path) -> State {
    let file = fs::metadata(file).ok()?;
    Some((file.ino(), file.ctime(), file.ctime_nsec()))
}

/// A pipe that is scanned while it is read.
pub(super) struct OutputScanner<R> {
    pub(super) pipe: R,
    pub(super) lines: Option<Lines>,
    /// Hash of the whole, if another run's output is compared with it.
    pub(super) hash: Option<Sha256>,
}

impl<R: Read> Read for OutputScanner<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.pipe.read(buffer)?;
        if let Some(lines) = &mut self.lines {
            lines.take(&buffer[..length]);
        }
        if let Some(hash) = &mut self.hash {
            hash.update(&buffer[..length]);
        }
        Ok(length)
    }
}

impl<R: Read> OutputScanner<R> {
    /// Reads to the end, and returns the hash.
    pub(super) fn drained(mut self) -> String {
        // A read error ends the pipe as well.
        let _ = io::copy(&mut self, &mut io::sink());
        self.hash.map(|hash| machine::in_hex(&hash.finalize())).unwrap_or_default()
    }
}

/// Reports when the end of a matching line has arrived.
pub(super) struct Lines {
    each: Regex,
    tell: Box<dyn FnMut(Instant) + Send>,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(each: Regex, tell: impl FnMut(Instant) + Send + 'static) -> Self {
        Self { each, tell: Box::new(tell), partial: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        let arrived = Instant::now();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            if part.ends_with(b"\n") {
                if self.each.is_match(&self.partial) {
                    (self.tell)(arrived);
                }
                self.partial.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A run that wrote nothing must not pass with the file of the previous run.
    #[test]
    fn a_file_must_be_written_and_be_the_same() {
        let file = std::env::temp_dir().join(format!("prove-bench-same-{}", std::process::id()));
        let mut same = SameOutput::new(&file);
        let mut run = |text: Option<&str>| {
            let before = same.before();
            // File times are coarse.
            std::thread::sleep(std::time::Duration::from_millis(20));
            if let Some(text) = text {
                fs::write(&file, text).unwrap();
            }
            same.objection(before, "")
        };
        assert_eq!(run(Some("a")), None);
        assert_eq!(run(Some("a")), None);
        assert!(run(None).unwrap().starts_with("it did not write"));
        assert!(run(Some("b")).unwrap().contains("differs from that of the first run"));
        fs::remove_file(&file).unwrap();
        let mut stdout = SameOutput::new(Path::new("-"));
        let before = stdout.before();
        assert_eq!(stdout.objection(before, "aa"), None);
        assert!(stdout.objection(before, "bb").unwrap().starts_with("its output differs"));
    }

    /// A line may arrive in several reads, and one read may bring several lines.
    #[test]
    fn each_complete_matching_line_is_reported_once() {
        let (sender, events) = mpsc::channel();
        let tell = move |at| sender.send(at).unwrap();
        let mut lines = Lines::new(Regex::new("^proof [0-9]+$").unwrap(), tell);
        let mut told = |bytes: &[u8]| {
            lines.take(bytes);
            events.try_iter().count()
        };
        assert_eq!(told(b"start\npro"), 0);
        assert_eq!(told(b"of 1"), 0);
        assert_eq!(told(b"\nproof 2\nno proof 3\nproof 4\npr"), 3);
        assert_eq!(told(b"oof 5x\n"), 0);
    }
}
