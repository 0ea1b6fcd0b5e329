//! The text of an error with its causes, for messages and logs.

use std::error::Error;

/// Returns an error with its causes, outermost first, on one line.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::num::ParseIntError;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the port is wrong")]
    struct WrongPort(#[source] ParseIntError);

    #[test]
    fn causes_stand_behind_the_error_that_they_cause() {
        let cause = "x".parse::<u16>().expect_err("it is no number");
        let text = format!("the port is wrong: {cause}");
        assert_eq!(error_chain(&WrongPort(cause)), text);
    }
}
