//! A verdict that is usually available at once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A verdict that is either known already or needs a wait. Callers await it in both cases.
pub enum Verdict<'a, T> {
    /// The known verdict; the first poll removes it.
    Now(Option<T>),
    /// The verdict depends on something outside memory, which the future reads.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Verdict<'a, T> {
    /// Creates a verdict that is known.
    pub fn now(value: T) -> Self {
        Self::Now(Some(value))
    }

    /// Creates a verdict that `future` returns.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Later(Box::pin(future))
    }
}

impl<T: Unpin> Future for Verdict<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Now(value) => Poll::Ready(
                value
                    .take()
                    .expect("an answer is not polled after it was given"),
            ),
            Self::Later(future) => future.as_mut().poll(context),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Verdict<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(value) => formatter.debug_tuple("Now").field(value).finish(),
            Self::Later(_) => formatter.write_str("Later"),
        }
    }
}
