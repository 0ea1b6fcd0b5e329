//! Makes clients open new connections now and then, so that they spread over the servers behind a load
//! balancer: HTTP/2 clients keep one connection for as long as they can. And makes them leave a server that
//! stops: with HTTP/2 the connection tells them so when it closes, with HTTP/1.1 only an answer can.

use aws_lc_rs::rand;
use http::header::CONNECTION;
use http::{HeaderValue, StatusCode};

use crate::answer::respond::Reply;
use crate::operations::drain::Drain;

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

/// Says in an answer over HTTP/1.1 that the connection ends with it, once the server is about to stop. Without
/// that, the client's next request may meet a connection that is just being closed, and the client cannot know
/// whether it was carried out.
pub(crate) fn close_if_stopping(drain: &Drain, reply: &mut Reply) {
    if !drain.is_ready() && reply.status() != StatusCode::SWITCHING_PROTOCOLS {
        let close = HeaderValue::from_static("close");
        reply.headers_mut().insert(CONNECTION, close);
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
