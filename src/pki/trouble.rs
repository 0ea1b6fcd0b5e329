//! What keeps changed files from being used, so that the log says it once and not at each look: files are
//! looked at every few seconds, for as long as nobody mends them.
//!
//! Must not know which files.

use std::error::Error;

use parking_lot::Mutex;

/// The error of the last attempt, as `Debug` writes it, which shows the causes too; empty if it did not fail.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<String>);

impl Trouble {
    /// Records that an attempt failed. Returns whether it did so for another reason than the one before.
    pub(crate) fn is_news(&self, error: &dyn Error) -> bool {
        let text = format!("{error:?}");
        let mut last = self.0.lock();
        let is_news = *last != text;
        *last = text;
        is_news
    }

    /// Records that an attempt succeeded.
    pub(crate) fn end(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::PkiError;

    fn unreadable(why: &str) -> PkiError {
        PkiError::Read {
            path: "peer.crt".into(),
            source: io::Error::other(why.to_owned()),
        }
    }

    #[test]
    fn a_trouble_is_news_until_its_cause_changes_or_it_ends() {
        let trouble = Trouble::default();
        assert!(trouble.is_news(&unreadable("denied")));
        assert!(!trouble.is_news(&unreadable("denied")));
        assert!(trouble.is_news(&unreadable("gone")), "another cause");
        trouble.end();
        assert!(trouble.is_news(&unreadable("gone")), "it came back");
    }
}
