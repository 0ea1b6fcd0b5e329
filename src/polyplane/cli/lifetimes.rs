//! The flags that say how long things last, by the names of kube-apiserver's, which the drop-in reads too.

use crate::cli::audit::go_duration;
use clap::{ArgAction, Args};
use polyplane_registry::settings::Lifetimes;
use std::ops::RangeInclusive;

/// What upstream takes for the longest lifetime of a token, in seconds.
const TOKEN_SECONDS: RangeInclusive<i64> = 3600..=1 << 32;

/// How long Events and the tokens of service accounts last, in all control planes.
#[derive(Clone, Debug, Args)]
pub struct LifetimeOptions {
    /// Time after which an Event is deleted that nobody writes again, such as 30m; 0 for never.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        env = "POLYPLANE_EVENT_TTL",
        value_parser = event_seconds
    )]
    pub event_ttl: u32,
    /// Longest time for which the token of a service account is issued, such as 24h; at least an hour. A
    /// request for a longer one gets this. Without it, or with 0, as long as was requested.
    #[arg(
        long,
        value_name = "DURATION",
        env = "POLYPLANE_SERVICE_ACCOUNT_MAX_TOKEN_EXPIRATION",
        value_parser = token_seconds
    )]
    pub service_account_max_token_expiration: Option<i64>,
    /// Whether the token of a pod is accepted for a year after it was to be renewed, so that a client which
    /// never reads the renewed one does not fail.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = Lifetimes::default().are_pod_tokens_extended,
        action = ArgAction::Set,
        env = "POLYPLANE_SERVICE_ACCOUNT_EXTEND_TOKEN_EXPIRATION"
    )]
    pub service_account_extend_token_expiration: bool,
}

impl LifetimeOptions {
    /// Returns what planes are told.
    pub fn lifetimes(&self) -> Lifetimes {
        Lifetimes {
            event_seconds: self.event_ttl,
            // As upstream 0 is no limit.
            token_seconds_max: self.service_account_max_token_expiration.filter(|s| *s > 0),
            are_pod_tokens_extended: self.service_account_extend_token_expiration,
        }
    }
}

/// Reads the lifetime of Events, in seconds.
///
/// # Errors
/// Returns what is wrong with the text.
pub fn event_seconds(text: &str) -> Result<u32, String> {
    let seconds = go_duration(text)?.as_secs();
    u32::try_from(seconds).map_err(|_| format!("{text} is too long"))
}

/// Reads the longest lifetime of tokens, in seconds; 0 is no limit.
///
/// # Errors
/// Returns what is wrong with the text.
pub fn token_seconds(text: &str) -> Result<i64, String> {
    let duration = go_duration(text)?;
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match duration.is_zero() || TOKEN_SECONDS.contains(&seconds) {
        true => Ok(seconds),
        false => Err("it must be between 1 hour and 2^32 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        lifetimes: LifetimeOptions,
    }

    fn typed(words: &[&str]) -> Result<Lifetimes, String> {
        let words = std::iter::once("test").chain(words.iter().copied());
        let typed = Typed::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(typed.lifetimes.lifetimes())
    }

    #[test]
    fn lifetimes_are_those_of_upstream_unless_flags_say_otherwise() {
        assert_eq!(typed(&[]), Ok(Lifetimes::default()));
        let given = typed(&[
            "--event-ttl=90m",
            "--service-account-max-token-expiration=2h0m0s",
            "--service-account-extend-token-expiration=false",
        ]);
        let expected = Lifetimes {
            event_seconds: 5400,
            token_seconds_max: Some(7200),
            are_pod_tokens_extended: false,
        };
        assert_eq!(given, Ok(expected));
        let none = typed(&["--service-account-max-token-expiration=0"]);
        assert_eq!(none, Ok(Lifetimes::default()));
    }

    #[test]
    fn wrong_lifetimes_are_refused_with_the_flag_they_stand_in() {
        for wrong in [
            "--event-ttl=soon",
            "--event-ttl=2000000h",
            "--event-ttl=-1h",
            "--service-account-max-token-expiration=59m",
            "--service-account-max-token-expiration=500ms",
            "--service-account-max-token-expiration=1194000h",
            "--service-account-extend-token-expiration=perhaps",
        ] {
            let (flag, _) = wrong.split_once('=').expect("a flag");
            let error = typed(&[wrong]).expect_err("nonsense");
            assert!(error.contains(flag), "{wrong}: {error}");
        }
    }
}
