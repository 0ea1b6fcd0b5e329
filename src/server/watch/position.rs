//! Up to which version the client of a forwarded watch has all events, and which bookmarks it gets.

use polyplane_registry::WatchProgress;

/// The bookmarks that the client gets. Its replica always requests all of them from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BookmarkFilter {
    /// No bookmarks.
    None,
    /// All bookmarks except the one that ends the initial events, which the client did not request.
    AfterInitial,
    /// All bookmarks.
    All,
}

/// Whether the client gets a part of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    Shown,
    Hidden,
}

/// The version up to which the client of a forwarded watch has all events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPosition {
    bookmarks_shown: BookmarkFilter,
    /// The version; `None` while the initial events are being sent.
    sent_up_to: Option<u64>,
    /// True if the client got an error event, so that there is nothing to resume.
    failed: bool,
}

impl ClientPosition {
    /// Creates a position. `sent_up_to` is the version at which the watch begins, if it begins at
    /// one.
    pub(crate) fn new(bookmarks_shown: BookmarkFilter, sent_up_to: Option<u64>) -> Self {
        Self {
            bookmarks_shown,
            sent_up_to,
            failed: false,
        }
    }

    /// Returns which bookmarks the client gets.
    pub(crate) fn bookmarks_shown(&self) -> BookmarkFilter {
        self.bookmarks_shown
    }

    /// Returns the version to resume after if the source breaks now, or `None` if the watch cannot
    /// be resumed.
    pub(crate) fn sent_up_to(&self) -> Option<u64> {
        self.sent_up_to.filter(|_| !self.failed)
    }

    /// Returns whether the initial events are still being sent.
    pub(super) fn is_initial(&self) -> bool {
        self.sent_up_to.is_none()
    }

    /// Advances the position by the next part of the watch, and returns whether the client gets
    /// that part.
    pub(super) fn advance(&mut self, progress: WatchProgress) -> Visibility {
        match progress {
            WatchProgress::Initial => Visibility::Shown,
            WatchProgress::Failed => {
                self.failed = true;
                Visibility::Shown
            }
            WatchProgress::Events(version) => {
                self.raise(version);
                Visibility::Shown
            }
            WatchProgress::Bookmark(version) => {
                let is_first = self.is_initial();
                self.raise(version);
                match self.bookmarks_shown {
                    BookmarkFilter::None => Visibility::Hidden,
                    BookmarkFilter::AfterInitial if is_first => Visibility::Hidden,
                    BookmarkFilter::AfterInitial | BookmarkFilter::All => Visibility::Shown,
                }
            }
        }
    }

    fn raise(&mut self, version: u64) {
        self.sent_up_to = Some(self.sent_up_to.unwrap_or(0).max(version));
    }
}
