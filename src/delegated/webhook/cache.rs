//! Answers of a webhook, each for a time.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use polyplane_auth::Digest;

use crate::halves::Halves;

/// Answers that are kept in each of two halves. Each takes about 1 KiB.
const HALF_MAX: usize = 4096;

/// The answers by the digests of what was asked, with the times of their ends.
pub(super) struct Answers<T> {
    known: Mutex<Halves<(T, Instant)>>,
}

impl<T: Clone> Default for Answers<T> {
    fn default() -> Self {
        Self {
            known: Mutex::new(Halves::new(HALF_MAX)),
        }
    }
}

impl<T: Clone> Answers<T> {
    pub(super) fn get(&self, asked: &Digest, now: Instant) -> Option<T> {
        let (answer, until) = self.known.lock().get(asked)?;
        (now < until).then_some(answer)
    }

    pub(super) fn insert(&self, asked: Digest, answer: T, lifetime: Duration, now: Instant) {
        if !lifetime.is_zero() {
            self.known.lock().insert(asked, (answer, now + lifetime));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::digest_of;

    #[test]
    fn answers_end_and_never_fill_more_than_two_halves() {
        let answers = Answers::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        for number in 0..5 * HALF_MAX {
            answers.insert(digest_of(number.to_be_bytes()), number, second, now);
        }
        let last = 5 * HALF_MAX - 1;
        let question_of = |number: usize| digest_of(number.to_be_bytes());
        assert_eq!(answers.get(&question_of(last), now), Some(last));
        assert_eq!(answers.get(&question_of(last), now + second), None);
        assert_eq!(answers.get(&question_of(0), now), None);
        assert!(answers.known.lock().len() <= 2 * HALF_MAX);
        answers.insert(question_of(0), 0, Duration::ZERO, now);
        assert_eq!(answers.get(&question_of(0), now), None);
    }
}
