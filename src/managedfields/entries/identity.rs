//! The identity of a manager: its name with operation, version and subresource, as text.
//!
//! The text is the JSON that upstream makes of it, because the order of these texts decides between
//! entries of one time.

use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::value::Str;

/// The operation by which a manager came to its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Server-side apply.
    Apply,
    /// Every other write.
    Update,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// An identity before it is text.
pub(super) struct Identity<'a> {
    pub(super) manager: &'a str,
    pub(super) operation: Operation,
    pub(super) version: &'a str,
    pub(super) subresource: &'a str,
}

impl Identity<'_> {
    /// Returns the text. It leaves out the version if the manager applies: whoever applies in
    /// another version is still the same manager.
    pub(super) fn to_text(&self) -> Str {
        let version = match self.operation {
            Operation::Apply => "",
            Operation::Update => self.version,
        };
        let mut out = Vec::with_capacity(96);
        for (name, value) in [
            ("manager", self.manager),
            ("operation", self.operation.name()),
            ("apiVersion", version),
            ("subresource", self.subresource),
        ] {
            if value.is_empty() {
                continue;
            }
            out.push(if out.is_empty() { b'{' } else { b',' });
            json::write_string(name, &mut out);
            out.push(b':');
            json::write_string(value, &mut out);
        }
        out.push(b'}');
        String::from_utf8_lossy(&out).into()
    }
}

/// The parts of an identity.
pub(super) struct Parsed {
    pub(super) manager: Str,
    pub(super) operation: Operation,
    pub(super) version: Str,
    pub(super) subresource: Str,
}

/// Reads what [`Identity::to_text`] has written.
pub(super) fn parse(text: &str) -> Parsed {
    let parsed = json::parse(text.as_bytes(), &Limits::default());
    let tree = parsed.map(|parsed| parsed.value).unwrap_or_default();
    Parsed {
        manager: tree.str_at(&["manager"]).into(),
        operation: match tree.str_at(&["operation"]) {
            "Apply" => Operation::Apply,
            _ => Operation::Update,
        },
        version: tree.str_at(&["apiVersion"]).into(),
        subresource: tree.str_at(&["subresource"]).into(),
    }
}
