//! Options of the commands about what control planes use, and may use.

use crate::plugin::access::duration;
use clap::Args;
use std::time::Duration;

/// The longest measurement of `kubectl plane top`, a day. The command shows nothing before its end, so a
/// longer one is a mistake.
const OVER_MAX: Duration = Duration::from_secs(86_400);

/// Options of `kubectl plane limits`.
#[derive(Debug, Args)]
pub struct SpecLimitOptions {
    /// Name of the control plane.
    pub name: String,
    /// Requests in a second, at least 1; `none` takes the limit away, so that the server's default holds.
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = rate)]
    pub requests: Option<Limit>,
    /// Changing requests in a second, at least 1, or `none`.
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = rate)]
    pub writes: Option<Limit>,
    /// Open watches, or `none`.
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = number)]
    pub watches: Option<Limit>,
    /// Objects, or `none`. Those that each control plane has from the start count once they are
    /// changed or made anew.
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = number)]
    pub objects: Option<Limit>,
    /// Bytes of the objects, such as 256Mi, or `none`.
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = bytes)]
    pub bytes: Option<Limit>,
}

/// A limit as it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// None of the control plane's own.
    None,
    /// At most this.
    Most(u64),
}

/// Reads a rate. With none at all nobody could use the control plane, so the server refuses a rate of 0.
fn rate(text: &str) -> Result<Limit, String> {
    at_least(1, text)
}

fn number(text: &str) -> Result<Limit, String> {
    at_least(0, text)
}

fn at_least(min: u64, text: &str) -> Result<Limit, String> {
    match (text, text.parse::<u64>()) {
        ("none", _) => Ok(Limit::None),
        (_, Ok(limit)) if limit >= min => Ok(Limit::Most(limit)),
        _ => Err(format!("give a whole number, not below {min}, or `none`")),
    }
}

fn bytes(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        text => crate::cli::memory::bytes(text).map(Limit::Most),
    }
}

/// Options of `kubectl plane top`.
#[derive(Debug, Args)]
pub struct TopOptions {
    /// Number of control planes that are shown, those with the most CPU time first.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 20,
        allow_hyphen_values = true,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000)
    )]
    pub limit: usize,
    /// How long to measure, such as 5s. With 0s, what each control plane has used since it woke.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        allow_hyphen_values = true,
        value_parser = over
    )]
    pub over: Duration,
}

fn over(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(over) if over <= OVER_MAX => Ok(over),
        Ok(_) => Err("this is more than a day; give for example 30s, 10m or 8h".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    enum Typed {
        Limits(SpecLimitOptions),
        Top(TopOptions),
    }

    fn refused(words: &[&str]) -> String {
        let words = std::iter::once("test").chain(words.iter().copied());
        let typed = Typed::try_parse_from(words);
        typed.expect_err("this is no value").to_string()
    }

    #[test]
    fn a_limit_below_zero_is_refused_with_what_can_be_given() {
        let flags = [
            ("--requests", 1),
            ("--writes", 1),
            ("--watches", 0),
            ("--objects", 0),
        ];
        for (flag, min) in flags {
            for value in ["-5", "-1.5", "many", "--bytes"] {
                let said = refused(&["limits", "a", flag, value]);
                let words = format!("invalid value '{value}' for '{flag} <NUMBER>'");
                assert!(said.contains(&words), "{said}");
                let words = format!("not below {min}, or `none`");
                assert!(said.contains(&words), "{said}");
                assert!(!said.contains("tip:"), "{said}");
            }
        }
        // As the server does.
        for flag in ["--requests", "--writes"] {
            let said = refused(&["limits", "a", flag, "0"]);
            assert!(said.contains("not below 1, or `none`"), "{said}");
        }
        let none_at_all = ["test", "limits", "a", "--watches", "0", "--objects", "0"];
        assert!(Typed::try_parse_from(none_at_all).is_ok());
        let said = refused(&["limits", "a", "--bytes", "-5Mi"]);
        assert!(said.contains("512Mi") && !said.contains("tip:"), "{said}");
        let typed = ["test", "limits", "a", "--requests", "5", "--bytes", "none"];
        let Ok(Typed::Limits(limits)) = Typed::try_parse_from(typed) else {
            panic!("these are limits");
        };
        assert_eq!(limits.requests, Some(Limit::Most(5)));
        assert_eq!(limits.bytes, Some(Limit::None));
    }

    #[test]
    fn a_measurement_has_units_and_an_end() {
        for (value, words) in [
            ("100", "units s, m, h or d"),
            ("-1s", "units s, m, h or d"),
            ("100d", "more than a day"),
            ("25h", "more than a day"),
        ] {
            let said = refused(&["top", "--over", value]);
            assert!(said.contains(words) && !said.contains("tip:"), "{said}");
        }
        assert!(!refused(&["top", "--limit", "-1"]).contains("tip:"));
        let Ok(Typed::Top(top)) = Typed::try_parse_from(["test", "top", "--over", "1d"]) else {
            panic!("it is a duration");
        };
        assert_eq!(top.over, OVER_MAX);
    }
}
