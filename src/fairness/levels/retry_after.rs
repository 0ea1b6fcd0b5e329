//! How long a client that was refused should wait: longer while a level keeps refusing.

use std::collections::VecDeque;

/// The longest wait, in seconds.
const SECONDS_MAX: u64 = 32;

/// The refusals of a level, by the second.
#[derive(Debug)]
pub(super) struct RetryAfter {
    /// The wait, in seconds.
    seconds: u64,
    /// The second in which the wait was last doubled.
    raised: u64,
    /// Refusals in each second in which there were any, oldest first.
    history: VecDeque<(u64, u64)>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            seconds: 1,
            raised: 0,
            history: VecDeque::new(),
        }
    }
}

impl RetryAfter {
    /// Counts a refusal in a second. Returns after how many seconds the client may retry: twice as long
    /// when three refusals or more came in each second of the wait, and a second less when less than
    /// one came.
    pub(super) fn refused(&mut self, second: u64) -> u32 {
        match self.history.back_mut() {
            Some((last, count)) if *last >= second => *count += 1,
            _ => {
                self.adjust(second);
                self.history.push_back((second, 1));
            }
        }
        u32::try_from(self.seconds).unwrap_or(1)
    }

    fn adjust(&mut self, second: u64) {
        if self.history.is_empty() {
            return;
        }
        let since = |then: u64| second.saturating_sub(then);
        let recent = self
            .history
            .iter()
            .filter(|(then, _)| since(*then) <= self.seconds);
        let refused: u64 = recent.map(|(_, count)| count).sum();
        if since(self.raised) >= self.seconds && refused >= 3 * self.seconds {
            self.seconds = (self.seconds * 2).min(SECONDS_MAX);
            self.raised = second;
        } else if refused < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
        let kept = (2 * self.seconds).min(SECONDS_MAX);
        self.history.retain(|(then, _)| since(*then) <= kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_waits_longer_and_calm_shortens_the_wait() {
        let mut retry = RetryAfter::default();
        assert_eq!(retry.refused(100), 1);
        let mut longest = 0;
        for second in 100..300 {
            for _ in 0..200 {
                longest = longest.max(retry.refused(second));
            }
        }
        assert_eq!(longest, 32);
        assert!(retry.history.len() <= 34, "{}", retry.history.len());
        let mut last = longest;
        for step in 1..100 {
            last = retry.refused(300 + step * 40);
        }
        assert_eq!(last, 1);
    }
}
