//! The object that a client wants, before and after its defaults.

use crate::metadata;
use crate::plan::prepare;
use crate::request::Verb;
use crate::request::body;
use crate::request::call::Call;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::Beyond;
use polyplane_apimachinery::status::ApiError;

/// The object that the client wants, in the version of the request: decoded, or merged into the
/// present object.
pub struct Decoded {
    tree: Value,
    beyond: Beyond,
}

impl Decoded {
    /// Creates it from a tree that has been decoded by the schema of its kind.
    pub fn new(tree: Value) -> Self {
        Self {
            tree,
            beyond: Beyond::Nothing,
        }
    }

    /// Creates it from a tree that has been decoded with
    /// [`Empties::AsSent`](polyplane_apimachinery::schema::decode::Empties::AsSent).
    pub fn as_sent(tree: Value, beyond: Beyond) -> Self {
        Self { tree, beyond }
    }

    /// Returns the tree.
    pub fn into_tree(self) -> Value {
        self.tree
    }

    /// Passes the object on without applying defaults, for verbs whose subject has none.
    pub fn without_defaults(self) -> Defaulted {
        Defaulted {
            lacks_labels: lacks_labels(&self.tree),
            tree: self.tree,
            beyond: self.beyond,
            other_kind: None,
        }
    }
}

/// An object with defaults, whose name and namespace are those of the path.
pub struct Defaulted {
    tree: Value,
    beyond: Beyond,
    lacks_labels: bool,
    /// See [`Complaints::other_kind`](body::Complaints::other_kind).
    other_kind: Option<ApiError>,
}

impl Defaulted {
    /// Returns the tree.
    pub fn tree(&self) -> &Value {
        &self.tree
    }

    /// Returns what the tree has beyond its stored form.
    pub(super) fn beyond(&self) -> Beyond {
        self.beyond
    }

    /// Returns whether the object had no labels before the defaults were applied.
    pub(super) fn lacks_labels(&self) -> bool {
        self.lacks_labels
    }

    pub(super) fn into_tree(self) -> Value {
        self.tree
    }

    /// Has the object refused with this error, if there is one, once the place of the object is admitted.
    pub(crate) fn refuse_later(&mut self, other_kind: Option<ApiError>) {
        self.other_kind = other_kind;
    }

    /// Returns the error of [`Self::refuse_later`].
    pub(super) fn take_refusal(&mut self) -> Option<ApiError> {
        self.other_kind.take()
    }

    /// Makes this a new object: removes the members that only a stored object has, except the version, which
    /// is read later.
    pub fn as_new(mut self) -> Self {
        metadata::wipe_system_fields(&mut self.tree);
        self
    }
}

/// The name in the path of a request.
#[derive(Clone, Copy)]
pub enum PathName<'a> {
    /// The path has no name: the object is created.
    Absent,
    /// The object has to have this name.
    Given(&'a str),
}

/// Applies the defaults of the request's version, and checks the object against the path.
///
/// # Errors
/// Returns 400 if they contradict each other, and the error of the store if the object is longer than it takes.
pub fn default(
    call: &Call<'_>,
    decoded: Decoded,
    path_name: PathName<'_>,
) -> Result<Defaulted, ApiError> {
    let Decoded { mut tree, beyond } = decoded;
    call.check_storable(&tree)?;
    let lacks_labels = lacks_labels(&tree);
    prepare::default(call.row, call.row.definition, &mut tree)?;
    body::match_path(call, &mut tree)?;
    match path_name {
        PathName::Given(name) => body::match_name(&tree, name)?,
        PathName::Absent => metadata::wipe_system_fields(&mut tree),
    }
    let duplicates = metadata::dedup_owner_references(&mut tree);
    if !duplicates.is_empty() {
        // Upstream looks at a patched object where it looks at others a second time.
        let when = match call.request.verb {
            Verb::Patch => " after mutating admission happens",
            _ => "",
        };
        call.warn(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        ));
    }
    Ok(Defaulted {
        tree,
        beyond,
        lacks_labels,
        other_kind: None,
    })
}

fn lacks_labels(object: &Value) -> bool {
    let labels = object.at(&["metadata", "labels"]);
    let labels = labels.and_then(Value::as_object);
    labels.is_none_or(|labels| labels.is_empty())
}
