//! The place of a value in the tree that is decoded.

use crate::complaints::{BoundedText, PATH_BYTES_MAX, STEP_BYTES_MAX, shortened};
use crate::schema::{Definition, Field};

/// The path from the root to a value, as a chain on the stack.
pub(super) struct Trail<'t> {
    parent: Option<&'t Trail<'t>>,
    step: PathSegment<'t>,
}

/// One step of a [`Trail`].
#[derive(Clone, Copy)]
pub(super) enum PathSegment<'t> {
    /// The value that is decoded.
    Root,
    /// A field of a definition.
    Field(&'t Definition, &'t Field),
    /// An item of a list.
    Index(usize),
    /// An entry of a map, or a member that is not a field.
    Key(&'t str),
}

impl<'t> Trail<'t> {
    /// The path of the root.
    pub(super) const ROOT: Self = Self {
        parent: None,
        step: PathSegment::Root,
    };

    /// Returns the path of a value within this one.
    pub(super) fn then(&'t self, step: PathSegment<'t>) -> Trail<'t> {
        Trail {
            parent: Some(self),
            step,
        }
    }

    /// Returns the path as strict reports print it, shortened as those of other complaints.
    pub(super) fn path(&self) -> String {
        let mut out = BoundedText::new(PATH_BYTES_MAX);
        self.write(&mut out);
        out.into_string()
    }

    fn write(&self, out: &mut BoundedText) {
        if let Some(parent) = self.parent {
            parent.write(out);
        }
        let name = match self.step {
            PathSegment::Root => return,
            PathSegment::Index(index) => {
                out.push(&format!("[{index}]"));
                return;
            }
            PathSegment::Field(_, field) => field.name.as_str(),
            PathSegment::Key(key) => key,
        };
        if !out.is_empty() {
            out.push(".");
        }
        out.push(&shortened(name, STEP_BYTES_MAX));
    }

    /// Appends the names of the fields on the path, as errors about wrong types print them.
    pub(super) fn fields(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.fields(out);
        }
        if let PathSegment::Field(_, field) = self.step {
            for name in field
                .notes
                .embedded
                .as_deref()
                .into_iter()
                .chain([field.name.as_str()])
            {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
        }
    }

    /// Returns the innermost field.
    pub(super) fn field(&self) -> Option<(&'t Definition, &'t Field)> {
        match self.step {
            PathSegment::Field(definition, field) => Some((definition, field)),
            _ => self.parent.and_then(Trail::field),
        }
    }
}
