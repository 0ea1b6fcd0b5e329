//! Answers of a webhook, each for a time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;

/// Answers that are kept in each of two halves. Each takes about 1 KiB.
const HALF_MAX: usize = 4096;

/// The SHA-256 of what was asked.
pub(super) type Question = [u8; 32];

pub(super) fn question(asked: &[u8]) -> Question {
    let mut question = [0; 32];
    question.copy_from_slice(digest(&SHA256, asked).as_ref());
    question
}

/// A cache with two halves: when the newer is full it replaces the older.
pub(super) struct Answers<T> {
    halves: Mutex<[HashMap<Question, (T, Instant)>; 2]>,
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self {
            halves: Mutex::default(),
        }
    }
}

impl<T: Clone> Answers<T> {
    pub(super) fn get(&self, question: &Question, now: Instant) -> Option<T> {
        let halves = self.halves.lock();
        let found = halves.iter().find_map(|half| half.get(question));
        let (answer, until) = found?;
        (now < *until).then(|| answer.clone())
    }

    pub(super) fn insert(&self, question: Question, answer: T, lifetime: Duration, now: Instant) {
        if lifetime.is_zero() {
            return;
        }
        let mut halves = self.halves.lock();
        if halves[0].len() >= HALF_MAX {
            halves[1] = std::mem::take(&mut halves[0]);
        }
        halves[0].insert(question, (answer, now + lifetime));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_and_never_fill_more_than_two_halves() {
        let answers = Answers::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        for number in 0..5 * HALF_MAX {
            answers.insert(question(&number.to_be_bytes()), number, second, now);
        }
        let last = 5 * HALF_MAX - 1;
        let question_of = |number: usize| question(&number.to_be_bytes());
        assert_eq!(answers.get(&question_of(last), now), Some(last));
        assert_eq!(answers.get(&question_of(last), now + second), None);
        assert_eq!(answers.get(&question_of(0), now), None);
        let kept: usize = answers.halves.lock().iter().map(HashMap::len).sum();
        assert!(kept <= 2 * HALF_MAX);
        answers.insert(question_of(0), 0, Duration::ZERO, now);
        assert_eq!(answers.get(&question_of(0), now), None);
    }
}
