//! Sizes of tests, which the environment sets.

use std::str::FromStr;

use anyhow::{Context as _, Result};

/// Returns the number that an environment variable says, or `default` without it.
///
/// # Errors
/// Returns an error if the variable is no such number.
pub fn number<N>(variable: &str, default: N) -> Result<N>
where
    N: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable}={text:?} is no number")),
        Err(_) => Ok(default),
    }
}
