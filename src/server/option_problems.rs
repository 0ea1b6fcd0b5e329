//! The problems that options can have, each with a sentence that says what to do.

use std::fmt;

use crate::answer::browsers::BrowserProblem;

/// One problem with the options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionProblem {
    /// There is no listener.
    #[error("give at least one address to listen on, such as 127.0.0.1:6443")]
    NoListener,
    /// A text that is not an address.
    #[error("cannot listen on {0:?}: give an IP address and a port, such as 127.0.0.1:6443")]
    Listen(String),
    /// A name that a certificate cannot contain.
    #[error("cannot serve {0:?}: give a host name or an IP address, such as api.example.com")]
    HostName(String),
    /// An advertised address that is not a host and a port.
    #[error("cannot advertise {0:?}: give a host and a port, such as api.example.com:6443")]
    Advertise(String),
    /// A limit of zero, which would refuse everything.
    #[error("the limit {} must not be zero", flag(.0))]
    Zero(&'static str),
    /// A time so long that it would limit nothing.
    #[error("the limit {} must not be longer than a day", flag(.0))]
    TooLong(&'static str),
    /// A limit above another one that contains it, so that it would never be reached.
    #[error("the limit {} must not be above {}", flag(.0), flag(.1))]
    Above(&'static str, &'static str),
    /// A problem with what browsers get.
    #[error(transparent)]
    Browser(BrowserProblem),
}

/// Returns the flag that sets a limit.
fn flag(limit: &str) -> String {
    format!("--{}", limit.replace('_', "-"))
}

/// All problems with the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionProblems(pub Vec<OptionProblem>);

impl fmt::Display for OptionProblems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().enumerate() {
            if place > 0 {
                formatter.write_str("; ")?;
            }
            problem.fmt(formatter)?;
        }
        Ok(())
    }
}

impl std::error::Error for OptionProblems {}
