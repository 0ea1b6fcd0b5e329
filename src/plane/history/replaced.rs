//! The memory that a snapshot alone keeps, after the plane has replaced its objects.

use crate::plane::Plane;

/// The total bytes of objects that a plane had replaced at a moment.
#[derive(Debug, Clone, Copy)]
pub struct ReplacedMark(u64);

impl Plane {
    /// Marks the moment at which a snapshot was taken, for [`Self::pinned_since`].
    #[must_use]
    pub fn replaced_mark(&self) -> ReplacedMark {
        ReplacedMark(self.log().replaced())
    }

    /// Returns the most bytes that only the snapshot taken at `mark` can keep in memory: objects
    /// that were replaced after it and whose events the log has dropped. Objects that the log still
    /// holds are counted with the log.
    #[must_use]
    pub fn pinned_since(&self, mark: ReplacedMark) -> usize {
        let pinned = self.log().dropped().saturating_sub(mark.0);
        usize::try_from(pinned).unwrap_or(usize::MAX)
    }
}
