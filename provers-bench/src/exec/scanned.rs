//! Scans the output of a command as it arrives: finds lines that end an interval, and hashes the whole.

use crate::machine;
use regex::bytes::Regex;
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::time::Instant;

/// A pipe that is scanned while it is read.
pub(super) struct Scanned<R> {
    pub(super) pipe: R,
    pub(super) lines: Option<Lines>,
    /// Hash of the whole, if another run's output is compared with it.
    pub(super) hash: Option<Sha256>,
}

impl<R: Read> Read for Scanned<R> {
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

impl<R: Read> Scanned<R> {
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

    /// A line may arrive in several reads, and one read may bring several lines.
    #[test]
    fn a_line_is_told_once_when_it_is_whole() {
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
