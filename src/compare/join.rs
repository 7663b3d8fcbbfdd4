//! Two sorted lists side by side.

use super::point::Seen;

/// Packets of one point and an order over them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side<'a> {
    pub seen: &'a [Seen],
    pub order: &'a [u32],
}

impl<'a> Side<'a> {
    pub(super) fn get(&self, index: u32) -> &'a Seen {
        &self.seen[index as usize]
    }

    /// The same packets, but for all that are not in `order`.
    pub(super) const fn only<'b>(self, order: &'b [u32]) -> Side<'b>
    where
        'a: 'b,
    {
        Side {
            seen: self.seen,
            order,
        }
    }

    /// Cuts off what has the key of the first.
    fn take<K: Eq>(&mut self, key: &K, of: impl Fn(&Seen) -> K) -> &'a [u32] {
        let mut len = 0;
        while len < self.order.len() && of(self.get(self.order[len])) == *key {
            len += 1;
        }
        let (taken, rest) = self.order.split_at(len);
        self.order = rest;
        taken
    }
}

/// Pairs of groups with the same key, of lists that are sorted by it; one of
/// the two is empty where the other side has none.
pub(super) struct Join<'a, F> {
    near: Side<'a>,
    far: Side<'a>,
    key: F,
}

impl<'a, K: Ord, F: Fn(&Seen) -> K> Join<'a, F> {
    pub(super) const fn new(near: Side<'a>, far: Side<'a>, key: F) -> Self {
        Self { near, far, key }
    }
}

impl<'a, K: Ord, F: Fn(&Seen) -> K> Iterator for Join<'a, F> {
    type Item = (&'a [u32], &'a [u32]);

    fn next(&mut self) -> Option<Self::Item> {
        let head = |side: &Side<'_>| side.order.first().map(|&i| (self.key)(side.get(i)));
        let key = match (head(&self.near), head(&self.far)) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        Some((
            self.near.take(&key, &self.key),
            self.far.take(&key, &self.key),
        ))
    }
}
