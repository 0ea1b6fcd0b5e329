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
    /// Returns the texts about each conflict, as far as one answer has room for them. The managers must be identities of
    /// [`Entries`](super::Entries).
    pub fn texts(&self) -> Vec<ConflictText> {
        let longest = self.0.iter().map(|conflict| conflict.manager.len()).max();
        let groups = self.shown(longest.unwrap_or_default());
        let texts = groups.into_iter().flat_map(|(manager, paths)| {
            let message = format!("conflict with {}", shown(manager));
            paths.into_iter().map(move |field| ConflictText {
                message: message.clone(),
                field,
            })
        });
        texts.collect()
    }

    /// Returns the text about all of them.
    pub fn message(&self) -> String {
        let (groups, fields) = (self.shown(0), self.fields());
        if let ([(manager, paths)], 1) = (groups.as_slice(), fields) {
            let manager = shown(manager);
            return format!(
                "Apply failed with 1 conflict: conflict with {manager}: {}",
                paths.concat()
            );
        }
        let mut lines = Vec::new();
        for (manager, paths) in groups {
            lines.push(format!("conflicts with {}:", shown(manager)));
            lines.extend(paths.iter().map(|path| format!("- {path}")));
        }
        format!("Apply failed with {fields} conflicts: {}", lines.join("\n"))
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
