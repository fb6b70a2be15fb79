//! The mempool: transactions that a node holds until chance evicts them, so that old and new ones lie side by side.

use crate::transaction::Transaction;
use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Transactions, up to a bound on their bytes.
#[derive(Debug)]
pub(crate) struct Mempool {
    held: Vec<Transaction>,
    bytes: usize,
    most_bytes: usize,
    is_full: bool,
    rng: SmallRng,
}

impl Mempool {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self { held: Vec::new(), bytes: 0, most_bytes, is_full: false, rng: SmallRng::seed_from_u64(1) }
    }

    /// Whether it ever had to evict.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes transactions, and evicts others at random if there is no room. The thread that frees one is seldom the one
    /// that allocated it. Fails if an evicted transaction changed while it was held.
    pub(crate) fn add(&mut self, transactions: Vec<Transaction>) -> anyhow::Result<()> {
        self.bytes += transactions.iter().map(Transaction::bytes).sum::<usize>();
        self.held.extend(transactions);
        while self.bytes > self.most_bytes {
            self.is_full = true;
            let evicted = self.held.swap_remove(self.rng.random_range(..self.held.len()));
            self.bytes -= evicted.bytes();
            ensure!(evicted.is_intact(), "a transaction changed while the node held it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::{pack, unpack};

    fn some(seed: u64) -> Vec<Transaction> {
        unpack(&pack(&mut SmallRng::seed_from_u64(seed), 20_000)).unwrap()
    }

    #[test]
    fn it_holds_no_more_than_its_bound() {
        let mut mempool = Mempool::new(50_000);
        mempool.add(some(1)).unwrap();
        assert!(!mempool.is_full());
        for seed in 2..10 {
            mempool.add(some(seed)).unwrap();
        }
        let held: usize = mempool.held.iter().map(Transaction::bytes).sum();
        assert!(mempool.is_full() && held == mempool.bytes && (45_000..=50_000).contains(&held), "{held}");
    }

    /// Memory that was handed out twice changes while a transaction lies in the pool.
    #[test]
    fn a_transaction_that_changed_is_noticed_when_it_leaves() {
        let mut mempool = Mempool::new(50_000);
        mempool.add(some(1)).unwrap();
        mempool.held[3].damage();
        let outcome = (2..50).try_for_each(|seed| mempool.add(some(seed)));
        assert!(outcome.unwrap_err().to_string().contains("changed while"));
    }
}
