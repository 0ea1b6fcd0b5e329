//! The verdict over two builds: slower, faster or the same.
//!
//! A build runs beside itself, and whatever that shows is noise. This module owns the rule; it
//! knows neither servers nor files.

use serde::{Deserialize, Serialize};

/// The chance that an interval contains the true median is at least this.
const CONFIDENCE: f64 = 0.95;
/// The fewest rounds from which an interval of that confidence exists.
pub const ROUNDS_MIN: u32 = 6;

/// A median with the interval in which the true one lies, with a confidence of at least 95 %, and
/// the range of all values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median of the values.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Interval {
    /// Returns the interval of the sign test: it assumes nothing about how the values are
    /// distributed, and needs no random numbers. With fewer than [`ROUNDS_MIN`] values it is the
    /// range, which then has less confidence. Returns `None` for no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let last = count.checked_sub(1)?;
        let cut = cut(count);
        Some(Self {
            median: f64::midpoint(sorted[last / 2], sorted[count / 2]),
            low: sorted[cut],
            high: sorted[last - cut],
            min: sorted[0],
            max: sorted[last],
        })
    }
}

/// Returns the number of values that may be cut off at each end. The true median lies beyond one of
/// the ends with the chance that so many tosses of a fair coin show heads at most `cut` times, or
/// tails.
fn cut(count: usize) -> usize {
    let mut chance = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut at_most, mut cut) = (chance, 0);
    loop {
        chance *= (count - cut) as f64 / (cut + 1) as f64;
        at_most += chance;
        if 2.0 * at_most > 1.0 - CONFIDENCE {
            return cut;
        }
        cut += 1;
    }
}

/// What a comparison of two builds says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No difference that the noise does not explain.
    Same,
    /// The new build needs less CPU.
    Faster,
    /// The new build needs more CPU.
    Slower,
    /// The figures mean nothing: requests failed, or a block used less CPU than the kernel counts.
    Failed,
}

impl Verdict {
    /// Returns the word in tables. The two that need attention stand out.
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Faster => "faster",
            Self::Slower => "SLOWER",
            Self::Failed => "FAILED",
        }
    }
}

/// Returns the verdict over ratios of operations per CPU second, new build over old one. `twin` has
/// the ratios of the old build over itself, and `margin` is the share that counts as noise whatever
/// the twin shows: two processes of one build differ a little, and one twin shows one such
/// difference only.
///
/// The noise is a band around 1 that is as wide to both sides as the further end of the twin's
/// interval. The verdict is [`Verdict::Same`] unless the whole interval of `ratio` lies beyond it.
pub fn verdict(ratio: &Interval, twin: &Interval, margin: f64) -> Verdict {
    let noise = twin.high.max(1.0 / twin.low).max(1.0 + margin);
    if ratio.high < 1.0 / noise {
        Verdict::Slower
    } else if ratio.low > noise {
        Verdict::Faster
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: f64 = 0.02;

    /// Random numbers that are the same in every run (splitmix64).
    struct Numbers(u64);

    impl Numbers {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
        }

        /// A factor around 1 whose logarithm is close to normal, with this deviation.
        fn noise(&mut self, deviation: f64) -> f64 {
            let sum: f64 = (0..12).map(|_| self.uniform()).sum();
            ((sum - 6.0) * deviation).exp()
        }
    }

    /// Returns the verdict over made-up CPU times: a drift that the blocks of a round share, noise
    /// of each block, one block in twenty disturbed by a neighbour, processes that differ by 1 %
    /// and are started anew after every third of the rounds, and a new build that needs `factor` as
    /// much.
    fn judged(numbers: &mut Numbers, rounds: u32, deviation: f64, factor: f64) -> Verdict {
        let (mut ratio, mut twin) = (Vec::new(), Vec::new());
        let mut processes = [1.0; 3];
        for round in 0..rounds {
            if round % (rounds / 3) == 0 {
                processes = [1.0, factor, 1.0].map(|factor| factor * numbers.noise(0.01));
            }
            let drift = numbers.noise(0.2);
            let [old, new, again] = processes.map(|factor| {
                let disturbed = if numbers.uniform() < 0.05 { 1.5 } else { 1.0 };
                100.0 * drift * factor * disturbed * numbers.noise(deviation)
            });
            ratio.push(old / new);
            twin.push(old / again);
        }
        let of = |values: &[f64]| Interval::of(values).expect("values");
        verdict(&of(&ratio), &of(&twin), MARGIN)
    }

    fn count(rounds: u32, deviation: f64, factor: f64, wanted: Verdict) -> usize {
        let mut numbers = Numbers(7);
        (0..400)
            .filter(|_| judged(&mut numbers, rounds, deviation, factor) == wanted)
            .count()
    }

    #[test]
    fn a_build_against_itself_is_the_same() {
        for deviation in [0.0, 0.01, 0.03, 0.1] {
            for rounds in [ROUNDS_MIN, 12, 24] {
                let same = count(rounds, deviation, 1.0, Verdict::Same);
                assert!(same >= 396, "{same} of 400 at {deviation}, {rounds} rounds");
            }
        }
    }

    #[test]
    fn a_slower_build_is_found_and_a_faster_one_too() {
        for (deviation, factor) in [(0.0, 1.06), (0.01, 1.07), (0.03, 1.12), (0.1, 1.4)] {
            let slower = count(24, deviation, factor, Verdict::Slower);
            assert!(slower >= 380, "{slower} of 400 at {deviation}, {factor}");
            let faster = count(24, deviation, 1.0 / factor, Verdict::Faster);
            assert!(faster >= 380, "{faster} of 400 at {deviation}, {factor}");
        }
    }

    #[test]
    fn a_difference_within_the_noise_of_the_twin_is_none() {
        let ratio = Interval::of(&[0.9; 12]).expect("values");
        let twin = |values: &[f64]| Interval::of(values).expect("values");
        assert_eq!(verdict(&ratio, &twin(&[1.0; 12]), MARGIN), Verdict::Slower);
        // The twin is off by more, to either side: then 0.9 says nothing.
        assert_eq!(verdict(&ratio, &twin(&[0.85; 12]), MARGIN), Verdict::Same);
        assert_eq!(verdict(&ratio, &twin(&[1.15; 12]), MARGIN), Verdict::Same);
        assert_eq!(verdict(&ratio, &twin(&[1.0; 12]), 0.2), Verdict::Same);
    }

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // Standard tables: the ends are the first and last of 6 values, the third of 12 from each
        // end, the seventh of 24.
        assert_eq!([1, 2, 5, 6, 9, 12, 24].map(cut), [0, 0, 0, 0, 1, 2, 6]);
        let values: Vec<f64> = (1..=12).map(f64::from).collect();
        let interval = Interval::of(&values).expect("values");
        assert_eq!(
            (interval.low, interval.median, interval.high),
            (3.0, 6.5, 10.0)
        );
        assert_eq!((interval.min, interval.max), (1.0, 12.0));
        assert!(Interval::of(&[]).is_none());
    }
}
