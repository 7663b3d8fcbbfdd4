//! Counters of a port.

use std::collections::BTreeMap;

/// Counters of a port (`hw_counters`), by the driver's own names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// A counter by the driver's name for it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// What changed since an earlier reading; a counter that one of the two
    /// does not have is left out. Counters wrap as 64-bit numbers do.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> BTreeMap<String, i64> {
        let changes = self.0.iter().filter_map(|(name, now)| {
            let change = now.wrapping_sub(earlier.get(name)?) as i64;
            (change != 0).then(|| (name.clone(), change))
        });
        changes.collect()
    }

    /// Packets the device sent, looped ones and retransmissions too; `None`
    /// where the driver does not count them here (only `rdma_rxe` does).
    #[must_use]
    pub fn sent(&self) -> Option<u64> {
        self.get("sent_pkts")
    }

    /// Packets the device took in, past header and ICRC checks; `None` where
    /// the driver does not count them here.
    #[must_use]
    pub fn received(&self) -> Option<u64> {
        self.get("rcvd_pkts")
    }
}

impl FromIterator<(String, u64)> for Counters {
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(counters: I) -> Self {
        Self(counters.into_iter().collect())
    }
}
