//! Call sites by their addresses, and the text in which a process leaves them.

use std::io;

use zk_alloc::profile::{Amount, Site, Snapshot, Source};

/// The figures of a site, in the order of [`Value::ALL`](crate::Value::ALL).
pub(crate) type Figures = [u64; 7];

/// A call site without names.
#[derive(Debug)]
pub(crate) struct RawSite {
    /// The addresses to which the calls return, the innermost first.
    pub(crate) addresses: Vec<usize>,
    pub(crate) is_of_arena: bool,
    pub(crate) figures: Figures,
}

/// The sites of a process.
#[derive(Debug, Default)]
pub(crate) struct RawProfile {
    pub(crate) sites: Vec<RawSite>,
    pub(crate) mean_bytes: usize,
    pub(crate) missed: u64,
}

impl From<&Snapshot> for RawProfile {
    fn from(snapshot: &Snapshot) -> Self {
        let sites = snapshot.sites.iter().map(RawSite::from).collect();
        Self { sites, mean_bytes: snapshot.mean_bytes, missed: snapshot.missed }
    }
}

impl From<&Site> for RawSite {
    fn from(site: &Site) -> Self {
        let [allocated, live, peak] =
            [site.allocated, site.live, site.peak].map(|amount: Amount| [amount.allocations, amount.bytes]);
        Self {
            addresses: site.addresses.clone(),
            is_of_arena: site.source == Source::Arena,
            figures: [allocated[0], allocated[1], live[0], live[1], peak[0], peak[1], site.fresh_bytes],
        }
    }
}

impl RawProfile {
    /// The profile in the text of a `.raw` file, and the lines of the process's `/proc/self/maps`.
    ///
    /// # Errors
    /// `InvalidData`, with the line, if the text is of another format.
    pub(crate) fn parse(text: &str) -> io::Result<(Self, &str)> {
        let (head, maps) = text.split_once("\nmaps\n").ok_or_else(|| invalid("it has no maps"))?;
        let mut profile = Self::default();
        let mut lines = head.lines();
        if lines.next() != Some("zk-alloc-profile 1") {
            return Err(invalid("its first line is not `zk-alloc-profile 1`"));
        }
        for line in lines {
            let known = match line.split_once(' ') {
                Some(("mean_bytes", bytes)) => bytes.parse().ok().map(|bytes| profile.mean_bytes = bytes),
                Some(("missed", count)) => count.parse().ok().map(|count| profile.missed = count),
                Some(("site", site)) => RawSite::parse(site).map(|site| profile.sites.push(site)),
                _ => None,
            };
            known.ok_or_else(|| invalid(line))?;
        }
        Ok((profile, maps))
    }
}

impl RawSite {
    /// A site in the words `figure * 7 : address ...`, the figures decimal and the addresses hexadecimal.
    fn parse(words: &str) -> Option<Self> {
        let (figures, addresses) = words.split_once(" :")?;
        let figures: Vec<u64> = figures.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let address = |word| usize::from_str_radix(word, 16);
        let addresses = addresses.split_whitespace().map(address).collect::<Result<_, _>>().ok()?;
        Some(Self { addresses, is_of_arena: true, figures: figures.try_into().ok()? })
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is no raw profile: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_profile_is_read_or_refused_with_the_line() {
        let text = "zk-alloc-profile 1\nmean_bytes 5\nmissed 2\nsite 1 2 3 4 5 6 7 : 1f 2e\nsite 0 0 0 0 0 0 9 :\nmaps\nx\ny\n";
        let (profile, maps) = RawProfile::parse(text).unwrap();
        assert_eq!((profile.mean_bytes, profile.missed, maps), (5, 2, "x\ny\n"));
        assert_eq!(
            (profile.sites[0].figures, &*profile.sites[0].addresses),
            ([1, 2, 3, 4, 5, 6, 7], &[0x1f, 0x2e][..])
        );
        assert!(profile.sites[1].addresses.is_empty());
        for (wrong, what) in [
            ("", "maps"),
            ("x\nmaps\n", "first line"),
            (&text.replace("7 :", "7 8 :"), "site 1 2"),
            (&text.replace("2e", "2g"), "2g"),
        ] {
            let error = RawProfile::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
