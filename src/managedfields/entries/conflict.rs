//! Conflicts as clients read them.

use polyplane_apimachinery::quote::quote;

use super::identity::{self, Operation};
use crate::managers::Conflicts;

/// The texts about one conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictText {
    /// Whom the field belongs to.
    pub message: String,
    /// The field.
    pub field: String,
}

impl Conflicts {
    /// Returns the texts about each conflict. The managers must be identities of
    /// [`Entries`](super::Entries).
    pub fn texts(&self) -> Vec<ConflictText> {
        let texts = self.0.iter().map(|conflict| ConflictText {
            message: format!("conflict with {}", shown(&conflict.manager)),
            field: conflict.path.to_string(),
        });
        texts.collect()
    }

    /// Returns the text about all of them.
    pub fn message(&self) -> String {
        if let [only] = self.0.as_slice() {
            let manager = shown(&only.manager);
            return format!(
                "Apply failed with 1 conflict: conflict with {manager}: {}",
                only.path
            );
        }
        let mut lines = Vec::new();
        for group in self.0.chunk_by(|a, b| a.manager == b.manager) {
            lines.push(format!("conflicts with {}:", shown(&group[0].manager)));
            lines.extend(group.iter().map(|conflict| format!("- {}", conflict.path)));
        }
        format!(
            "Apply failed with {} conflicts: {}",
            self.0.len(),
            lines.join("\n")
        )
    }
}

/// Returns a manager as upstream shows it.
fn shown(identity: &str) -> String {
    let manager = identity::parse(identity);
    let mut text = quote(&manager.manager);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(
            " with subresource {}",
            quote(&manager.subresource)
        ));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.version));
    }
    text
}
