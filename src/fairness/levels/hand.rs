//! Shuffle sharding: the few queues that a flow may join.

/// The longest hand that is dealt. Validation allows no longer one: its number of different hands would
/// not fit into a hash.
const HAND_MAX: usize = 64;

/// The queues that a flow may join, each once.
pub(super) struct Hand {
    cards: [u32; HAND_MAX],
    size: usize,
}

impl Hand {
    /// Deals `size` of `queues` queues by a hash: each hand is as likely as any other, if the hash is.
    pub(super) fn deal(mut hash: u64, queues: u32, size: u32) -> Self {
        let queues = queues.max(1);
        let size = (size.clamp(1, queues) as usize).min(HAND_MAX);
        let mut hand = Self {
            cards: [0; HAND_MAX],
            size,
        };
        // Those dealt so far, in order.
        let mut sorted = [0_u32; HAND_MAX];
        for dealt in 0..size {
            let left = u64::from(queues) - dealt as u64;
            let mut card = u32::try_from(hash % left).unwrap_or(0);
            hash /= left;
            // The card counts among those that are left: step over those that are not.
            let mut place = 0;
            while place < dealt && sorted[place] <= card {
                card += 1;
                place += 1;
            }
            sorted.copy_within(place..dealt, place + 1);
            sorted[place] = card;
            hand.cards[dealt] = card;
        }
        hand
    }

    pub(super) fn cards(&self) -> &[u32] {
        &self.cards[..self.size]
    }
}
