//! Options of the commands about what control planes use, and may use.

use clap::Args;
use std::time::Duration;

/// Options of `kubectl plane limits`.
#[derive(Debug, Args)]
pub struct SpecLimitOptions {
    /// Name of the control plane.
    pub name: String,
    /// Requests in a second; `none` takes the limit away, so that the server's default holds.
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub requests: Option<Limit>,
    /// Changing requests in a second, or `none`.
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub writes: Option<Limit>,
    /// Open watches, or `none`.
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub watches: Option<Limit>,
    /// Objects, or `none`.
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub objects: Option<Limit>,
    /// Bytes of the objects, such as 256Mi, or `none`.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
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

fn number(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        text => text
            .parse()
            .map(Limit::Most)
            .map_err(|_| "give a number, or `none`".to_owned()),
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
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub limit: usize,
    /// How long to measure, such as 5s. With 0s, what each control plane has used since it woke.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = crate::plugin::access::duration)]
    pub over: Duration,
}
