//! Transactions: the small objects that a message carries, and that a node holds by the hundred thousand.

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};
use std::mem::size_of;
use std::ops::RangeInclusive;

/// Lengths of transactions.
const BYTES: RangeInclusive<usize> = 48..=640;

/// A transaction with an allocation of its own, and the checksum that it had on arrival.
#[derive(Debug)]
pub(crate) struct Transaction {
    data: Box<[u8]>,
    checksum: u32,
}

impl Transaction {
    fn new(data: &[u8]) -> Self {
        Self { checksum: crc32fast::hash(data), data: data.into() }
    }

    /// Its memory, without the allocator's overhead.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }

    /// Whether its memory is as it was on arrival.
    pub(crate) fn is_intact(&self) -> bool {
        crc32fast::hash(&self.data) == self.checksum
    }

    /// Flips a bit, as another owner of the same memory would.
    #[cfg(test)]
    pub(crate) fn damage(&mut self) {
        self.data[0] ^= 1;
    }
}

/// The body of a message: random transactions of at least `bytes` in all. Each follows its length.
pub(crate) fn pack(rng: &mut SmallRng, bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes + BYTES.end());
    while body.len() < bytes {
        let length = rng.random_range(BYTES);
        body.extend((length as u16).to_le_bytes());
        let start = body.len();
        body.resize(start + length, 0);
        rng.fill_bytes(&mut body[start..]);
    }
    body
}

/// The transactions of a body.
pub(crate) fn unpack(mut body: &[u8]) -> anyhow::Result<Vec<Transaction>> {
    let mut transactions = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let (data, rest) = rest.split_at_checked(length).context("a transaction is longer than its message")?;
        transactions.push(Transaction::new(data));
        body = rest;
    }
    Ok(transactions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_body_holds_its_transactions() {
        let mut rng = SmallRng::seed_from_u64(1);
        let body = pack(&mut rng, 10_000);
        assert!((10_000..10_000 + BYTES.end() + 2).contains(&body.len()), "{}", body.len());
        let transactions = unpack(&body).unwrap();
        assert_eq!(transactions.iter().map(|one| one.data.len() + 2).sum::<usize>(), body.len());
        assert!(transactions.iter().all(Transaction::is_intact));
        assert!(unpack(&body[..body.len() - 1]).unwrap_err().to_string().contains("longer than its message"));
    }
}
