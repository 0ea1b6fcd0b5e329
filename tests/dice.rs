//! Choices that look random and follow from a seed.

/// A generator of choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator. Seeds that are neighbours give unrelated choices.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number (SplitMix64).
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next_number() % limit).unwrap_or_default()
    }

    /// Returns true in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of several values.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn pick<'v, T>(&mut self, values: &'v [T]) -> &'v T {
        &values[self.below(values.len())]
    }

    /// Returns some of several values, in random order.
    pub fn some<T: Clone>(&mut self, values: &[T]) -> Vec<T> {
        let mut left = values.to_vec();
        let count = self.below(values.len() + 1);
        (0..count)
            .map(|_| left.remove(self.below(left.len())))
            .collect()
    }
}
