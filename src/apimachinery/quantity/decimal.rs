//! Amounts of any size: decimal digits and a power of ten.
//!
//! Invariant: no leading zeros; zero has no digits. Only quantities that do not fit 64 bits are
//! represented like this, so digits are single bytes and arithmetic is done digit by digit.

use std::cmp::Ordering;

use super::amount::Small;

/// Number of digits beyond which two numbers are not aligned, and the smaller one is dropped
/// instead. No real amount is so large; the limit bounds memory for malicious exponents.
const DIGITS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// The digits, most significant first, each 0 to 9.
    digits: Vec<u8>,
    /// The power of ten of the last digit.
    scale: i32,
}

impl Decimal {
    pub fn new(negative: bool, digits: impl IntoIterator<Item = u8>, scale: i32) -> Self {
        let digits: Vec<u8> = digits.into_iter().skip_while(|digit| *digit == 0).collect();
        Self {
            negative: negative && !digits.is_empty(),
            digits,
            scale,
        }
    }

    pub fn from_small(small: Small) -> Self {
        let text = small.value.unsigned_abs().to_string();
        Self::new(
            small.value < 0,
            text.bytes().map(|byte| byte - b'0'),
            small.scale,
        )
    }

    pub fn sign(&self) -> i32 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }

    pub fn negated(mut self) -> Self {
        self.negative = !self.negative && !self.digits.is_empty();
        self
    }

    /// Returns the exponent of the power of ten just above the first digit.
    fn top(&self) -> i64 {
        i64::from(self.scale) + self.digits.len() as i64
    }

    fn cmp_abs(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => {}
        }
        self.top().cmp(&other.top()).then_with(|| {
            let length = self.digits.len().max(other.digits.len());
            let digit = |digits: &[u8], at: usize| digits.get(at).copied().unwrap_or(0);
            (0..length)
                .map(|at| digit(&self.digits, at).cmp(&digit(&other.digits, at)))
                .find(|order| *order != Ordering::Equal)
                .unwrap_or(Ordering::Equal)
        })
    }

    /// Returns the digits of both numbers with one common power of ten; `None` if they are too far
    /// apart.
    fn aligned(&self, other: &Self) -> Option<(Vec<u8>, Vec<u8>, i32)> {
        let scale = self.scale.min(other.scale);
        if self.top().max(other.top()) - i64::from(scale) > DIGITS_MAX as i64 {
            return None;
        }
        let fill = |number: &Self| {
            let mut digits = number.digits.clone();
            digits.resize(digits.len() + number.scale.abs_diff(scale) as usize, 0);
            digits
        };
        Some((fill(self), fill(other), scale))
    }

    pub fn add(&self, other: &Self) -> Self {
        if self.digits.is_empty() {
            return other.clone();
        }
        if other.digits.is_empty() {
            return self.clone();
        }
        let (large, small) = match self.cmp_abs(other) {
            Ordering::Less => (other, self),
            Ordering::Equal | Ordering::Greater => (self, other),
        };
        let Some((mut sum, addend, scale)) = large.aligned(small) else {
            return large.clone();
        };
        let subtract = large.negative != small.negative;
        let mut carry = 0i8;
        for at in 0..sum.len() {
            let place = sum.len() - 1 - at;
            let digit = if at < addend.len() {
                addend[addend.len() - 1 - at] as i8
            } else {
                0
            };
            let total = sum[place] as i8 + if subtract { -digit } else { digit } + carry;
            carry = total.div_euclid(10);
            sum[place] = total.rem_euclid(10) as u8;
        }
        let first = (carry > 0).then_some(1);
        Self::new(large.negative, first.into_iter().chain(sum), scale)
    }

    pub fn mul_small(&self, factor: u64) -> Self {
        let mut carry = 0u128;
        let mut reversed = Vec::with_capacity(self.digits.len() + 20);
        for digit in self.digits.iter().rev() {
            carry += u128::from(*digit) * u128::from(factor);
            reversed.push((carry % 10) as u8);
            carry /= 10;
        }
        while carry > 0 {
            reversed.push((carry % 10) as u8);
            carry /= 10;
        }
        Self::new(self.negative, reversed.into_iter().rev(), self.scale)
    }

    /// Returns the number without digits below ten to the `scale`, with a fraction rounded away
    /// from zero.
    pub fn rounded_up(mut self, scale: i32) -> Self {
        if self.scale >= scale || self.digits.is_empty() {
            return self;
        }
        let drop = self.scale.abs_diff(scale) as usize;
        let kept = self.digits.len().saturating_sub(drop);
        let fraction = self.digits[kept..].iter().any(|digit| *digit != 0);
        self.digits.truncate(kept);
        self.scale = scale;
        if fraction {
            let one = Self {
                negative: self.negative,
                digits: vec![1],
                scale,
            };
            return self.add(&one);
        }
        self
    }

    /// Returns mantissa and exponent, the exponent a multiple of three.
    pub fn canonical(&self) -> (String, i32) {
        let mut digits = self.digits.clone();
        let mut exponent = self.scale;
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        let over = exponent.rem_euclid(3);
        digits.resize(digits.len() + over.unsigned_abs() as usize, 0);
        (
            Self {
                negative: self.negative,
                digits,
                scale: 0,
            }
            .integer_text(),
            exponent - over,
        )
    }

    /// Returns the digits with their sign.
    pub fn integer_text(&self) -> String {
        let sign = self.negative.then_some('-');
        let digits = self.digits.iter().map(|digit| char::from(b'0' + digit));
        let text: String = sign.into_iter().chain(digits).collect();
        if text.is_empty() { "0".into() } else { text }
    }

    /// Returns the number with scale 0, if it has no fraction and is small enough to be written
    /// out.
    pub fn whole(&self) -> Option<Self> {
        if self.top() > DIGITS_MAX as i64 {
            return None;
        }
        let mut number = self.clone();
        if number.scale < 0 {
            let drop = number.scale.unsigned_abs() as usize;
            let kept = number.digits.len().saturating_sub(drop);
            if number.digits[kept..].iter().any(|digit| *digit != 0) {
                return None;
            }
            number.digits.truncate(kept);
        } else {
            number.digits.resize(
                number.digits.len() + number.scale.unsigned_abs() as usize,
                0,
            );
        }
        number.scale = 0;
        Some(number)
    }

    /// Returns true if the absolute value of this whole number is below `bound`.
    pub fn abs_below(&self, bound: i64) -> bool {
        let bound = Self::from_small(Small {
            value: bound,
            scale: 0,
        });
        self.cmp_abs(&bound) == Ordering::Less
    }

    /// Returns a 1024th of this whole number, if the result is whole and not zero.
    pub fn div_exact_1024(&self) -> Option<Self> {
        let mut rest = 0u32;
        let mut quotient = Vec::with_capacity(self.digits.len());
        for digit in &self.digits {
            rest = rest * 10 + u32::from(*digit);
            quotient.push((rest / 1024) as u8);
            rest %= 1024;
        }
        (rest == 0 && !self.digits.is_empty()).then(|| Self::new(self.negative, quotient, 0))
    }

    /// Returns the number in units of ten to the `scale`, rounded up; its low bits if it does not
    /// fit.
    pub fn scaled(&self, scale: i32) -> i64 {
        let power = self.scale - scale;
        let keep = if power < 0 {
            self.digits
                .len()
                .saturating_sub(power.unsigned_abs() as usize)
        } else {
            self.digits.len()
        };
        let append = |value: u64, digit: u8| value.wrapping_mul(10).wrapping_add(u64::from(digit));
        let mut value = self.digits[..keep]
            .iter()
            .fold(0u64, |value, digit| append(value, *digit));
        for _ in 0..power.clamp(0, 64) {
            value = append(value, 0);
        }
        let fraction = self.digits[keep..].iter().any(|digit| *digit != 0);
        // As upstream does: a fraction adds one to the remaining number, also for negative numbers.
        let whole = if self.negative {
            value.wrapping_neg()
        } else {
            value
        };
        whole.wrapping_add(u64::from(fraction)).cast_signed()
    }

    pub fn as_f64(&self) -> f64 {
        let text = format!("{}e{}", self.integer_text(), self.scale);
        text.parse().expect("digits and an exponent are a float")
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.sign(), other.sign()) {
            (a, b) if a != b => a.cmp(&b),
            (-1, _) => other.cmp_abs(self),
            _ => self.cmp_abs(other),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
