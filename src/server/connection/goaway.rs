//! Makes clients open new connections now and then, so that they spread over the servers behind a load
//! balancer: HTTP/2 clients keep one connection for as long as they can.

use aws_lc_rs::rand;

/// The greatest chance, as upstream. With more, clients would do little but shake hands.
pub const GOAWAY_CHANCE_MAX: f64 = 0.02;

/// Draws the requests after which a connection takes no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Goaway {
    /// A request is drawn if its number is below this one.
    below: u32,
}

impl Goaway {
    /// Creates one by which each request is drawn with a chance between 0 and 1.
    pub(crate) fn new(chance: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the chance is kept within the bounds"
        )]
        let below = (chance.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        Self { below }
    }

    /// Returns whether this request is drawn.
    pub(crate) fn draws(self) -> bool {
        if self.below == 0 {
            return false;
        }
        let mut number = [0; 4];
        // Without randomness nobody is sent away.
        rand::fill(&mut number).is_ok() && u32::from_ne_bytes(number) < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_drawn_as_often_as_the_chance_says() {
        let drawn = |chance| {
            let goaway = Goaway::new(chance);
            (0..100_000).filter(|_| goaway.draws()).count()
        };
        assert_eq!(drawn(0.0), 0);
        assert!((1500..2500).contains(&drawn(GOAWAY_CHANCE_MAX)));
    }
}
