//! Sizes in bytes, as people write and read them.

use std::fmt;

/// Parses `65536`, `64K`, `512M`, `2G` or `2Gi`. Each unit is a power of 1,024, as in zk-alloc's variables.
pub fn parse(text: &str) -> Result<usize, String> {
    let unit = text.trim_end_matches(['i', 'B']);
    let (digits, shift) = match unit.as_bytes().last() {
        Some(b'K' | b'k') => (&unit[..unit.len() - 1], 10),
        Some(b'M' | b'm') => (&unit[..unit.len() - 1], 20),
        Some(b'G' | b'g') => (&unit[..unit.len() - 1], 30),
        _ => (text, 0),
    };
    let number: Option<usize> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift)).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| format!("{text:?} is no size: write a number of bytes, such as 65536, 512M or 2G"))
}

/// Bytes, shown in the unit that fits.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub usize);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_units = |shift: u32| self.0 as f64 / f64::from(1 << shift);
        match self.0 {
            0 => f.write_str("0 MiB"),
            1..=1023 => write!(f, "{} B", self.0),
            1024..0x10_0000 => write!(f, "{:.1} KiB", in_units(10)),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", in_units(20)),
            _ => write!(f, "{:.2} GiB", in_units(30)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_zk_alloc_reads_them_and_nonsense_is_refused() {
        assert_eq!(parse("65536"), Ok(65536));
        assert_eq!(
            ["64K", "512M", "2G", "2Gi", "2GiB"].map(|text| parse(text).unwrap_or(0)),
            [64 << 10, 512 << 20, 2 << 30, 2 << 30, 2 << 30]
        );
        for text in ["", "G", "0", "-1", "2T", "1.5G", "99999999999G", "12i"] {
            assert!(parse(text).is_err(), "{text:?} was read as {:?}", parse(text));
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        let shown = [0, 24, 1536, 3 << 19, 5 << 29].map(|bytes| Shown(bytes).to_string());
        assert_eq!(shown, ["0 MiB", "24 B", "1.5 KiB", "1.5 MiB", "2.50 GiB"]);
    }
}
