//! Amounts that fit 64 bits: a whole number times a power of ten.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Small {
    pub value: i64,
    pub scale: i32,
}

impl Small {
    pub const ZERO: Self = Self { value: 0, scale: 0 };

    pub fn checked_add(self, other: Self) -> Option<Self> {
        if other.value == 0 {
            return Some(self);
        }
        if self.value == 0 {
            return Some(other);
        }
        let scale = self.scale.min(other.scale);
        let a = times_power_of_ten(self.value, self.scale.checked_sub(scale)?)?;
        let b = times_power_of_ten(other.value, other.scale.checked_sub(scale)?)?;
        Some(Self {
            value: a.checked_add(b)?,
            scale,
        })
    }

    /// Returns the number in units of ten to the `scale`, with fractions rounded away from zero; 0
    /// if it does not fit.
    pub fn scaled(self, scale: i32) -> i64 {
        let difference = i64::from(self.scale) - i64::from(scale);
        if difference >= 0 {
            let power = i32::try_from(difference).unwrap_or(i32::MAX);
            return match (times_power_of_ten(self.value, power), power) {
                (Some(value), _) => value,
                // Upstream's special code for these powers returns the low bits of a number that
                // does not fit.
                (None, 1 | 2 | 3 | 6 | 9) if self.value != i64::MIN => {
                    self.value.wrapping_mul(10i64.pow(power.unsigned_abs()))
                }
                (None, _) => 0,
            };
        }
        let (mut value, mut fraction) = (self.value, false);
        for _ in difference..0 {
            fraction |= value % 10 != 0;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        if fraction {
            value + self.value.signum()
        } else {
            value
        }
    }

    /// Returns mantissa and exponent, the exponent a multiple of three; `None` if they do not fit.
    pub fn canonical(self) -> Option<(i64, i32)> {
        let Self {
            mut value,
            scale: mut exponent,
        } = self;
        while value != 0 && value % 10 == 0 {
            value /= 10;
            exponent = exponent.checked_add(1)?;
        }
        let over = exponent.rem_euclid(3);
        Some((times_power_of_ten(value, over)?, exponent - over))
    }
}

fn times_power_of_ten(value: i64, power: i32) -> Option<i64> {
    if value == 0 {
        return Some(0);
    }
    let power = u32::try_from(power).ok().filter(|power| *power < 19)?;
    value.checked_mul(10i64.pow(power))
}
