//! The binary logarithm in fixed point, the same on every machine. Owns arithmetic only.
//!
//! `neg_log2(h)` is −log2(h / 2^64) with [`FRACTION_BITS`] bits behind the point. −ln differs from
//! it by a constant factor, which no comparison of scores can see. The method: multiplication by
//! one of 128 reciprocals in a table brings the mantissa within 2^-8 of one, and six terms of the
//! series for log2(1 + z) give the rest of the logarithm. The table is computed bit by bit when the
//! crate is compiled.

/// Number of bits behind the point of a logarithm. Changing it would change scores, and so move
/// planes.
pub(crate) const FRACTION_BITS: u32 = 56;

const STEPS: usize = 128;
/// Number of bits behind the point of a reciprocal.
const RECIPROCAL_BITS: u32 = 16;
/// Number of bits behind the point inside the series.
const SERIES_BITS: u32 = 62;
/// The constant 1 / ln 2 with `SERIES_BITS` bits behind the point.
const LOG2_E: i64 = 6_653_256_548_922_161_246;

/// One step of the table: a reciprocal of the middle of its interval, and that reciprocal's −log2.
#[derive(Clone, Copy)]
struct Step {
    reciprocal: u64,
    neg_log2: u64,
}

static TABLE: [Step; STEPS] = table();

/// Returns −log2(hash / 2^64). A hash of zero counts as one. The result is never more than 64.
pub(crate) fn neg_log2(hash: u64) -> u64 {
    let hash = if hash == 0 { 1 } else { hash };
    let shift = hash.leading_zeros();
    let mantissa = hash << shift;
    let step = TABLE[(mantissa >> (63 - 7)) as usize & (STEPS - 1)];
    let near_one = u128::from(mantissa) * u128::from(step.reciprocal);
    let excess_bits = 63 + RECIPROCAL_BITS;
    let z = (near_one as i128 - (1_i128 << excess_bits)) >> (excess_bits - SERIES_BITS);
    let fraction =
        step.neg_log2 as i64 + (log2_near_one(z as i64) >> (SERIES_BITS - FRACTION_BITS));
    // log2(hash / 2^64) = fraction − shift − 1.
    let whole = (i64::from(shift) + 1) << FRACTION_BITS;
    u64::try_from(whole - fraction).unwrap_or(0)
}

/// Returns log2(1 + z) for |z| < 2^-7, with `SERIES_BITS` bits behind the point in argument and
/// result.
fn log2_near_one(z: i64) -> i64 {
    const ONE: i64 = 1 << SERIES_BITS;
    let times = |a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> SERIES_BITS) as i64;
    let mut sum = -ONE / 6;
    sum = ONE / 5 + times(z, sum);
    sum = -ONE / 4 + times(z, sum);
    sum = ONE / 3 + times(z, sum);
    sum = -ONE / 2 + times(z, sum);
    sum = ONE + times(z, sum);
    times(times(z, sum), LOG2_E)
}

const fn table() -> [Step; STEPS] {
    let mut steps = [Step {
        reciprocal: 0,
        neg_log2: 0,
    }; STEPS];
    let mut index = 0;
    while index < STEPS {
        // The middle of the interval is (257 + 2·index) / 256.
        let middle = 257 + 2 * index as u64;
        let reciprocal = ((256 << RECIPROCAL_BITS) + middle / 2) / middle;
        // The reciprocal r lies in (1/2, 1), so its leading bit is bit 15. The shift by 48 moves it
        // to bit 63 and makes the mantissa 2·r, in [1, 2): −log2(r) = 1 − log2(mantissa).
        let mantissa = reciprocal << (63 - RECIPROCAL_BITS + 1);
        steps[index] = Step {
            reciprocal,
            neg_log2: (1 << FRACTION_BITS) - log2_by_squaring(mantissa),
        };
        index += 1;
    }
    steps
}

/// Returns log2 of a mantissa in [1, 2) with 63 bits behind the point: one bit of the result per
/// squaring.
const fn log2_by_squaring(mantissa: u64) -> u64 {
    let mut square = mantissa;
    let mut result = 0;
    let mut bit = 0;
    while bit < FRACTION_BITS {
        let wide = square as u128 * square as u128;
        result <<= 1;
        if wide >> 127 == 1 {
            square = (wide >> 64) as u64;
            result |= 1;
        } else {
            square = (wide >> 63) as u64;
        }
        bit += 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference(hash: u64) -> u64 {
        let shift = hash.leading_zeros();
        let log2 = log2_by_squaring(hash << shift);
        ((u64::from(shift) + 1) << FRACTION_BITS) - log2
    }

    #[test]
    fn powers_of_two_come_out_whole() {
        for bit in 0..64 {
            let distance = neg_log2(1 << bit).abs_diff((64 - bit) << FRACTION_BITS);
            assert!(distance <= 8, "bit {bit} is off by {distance}");
        }
        assert_eq!(neg_log2(0), neg_log2(1));
        assert!(neg_log2(u64::MAX) <= 8);
    }

    #[test]
    fn every_table_step_joins_its_neighbours() {
        for index in 0..STEPS as u64 {
            for offset in [0, 1, (1 << 56) - 1] {
                let hash = (1 << 63) + (index << 56) + offset;
                assert!(
                    neg_log2(hash).abs_diff(reference(hash)) <= 8,
                    "{index} {offset}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_repeated_squaring(hash in 1..u64::MAX, shift in 0..64_u32) {
            let hash = (hash >> shift).max(1);
            prop_assert!(neg_log2(hash).abs_diff(reference(hash)) <= 8);
        }

        #[test]
        fn falls_as_the_hash_rises(hash in 1..u64::MAX - (1 << 16)) {
            let step = 1 + (hash >> 48);
            prop_assert!(neg_log2(hash + step) <= neg_log2(hash) + 8);
        }
    }
}
