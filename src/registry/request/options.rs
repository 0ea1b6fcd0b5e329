//! Query parameters and the bodies of options, checked as upstream checks them.
//!
//! Owns the parsed form of everything that a client may send beside the object: list, get, write
//! and delete options, and which of them may be combined. [`crate::request::parameters`] has how a
//! single parameter is read.

use crate::request::parameters::{
    ALLOW_WATCH_BOOKMARKS, CONTINUE, DRY_RUN, FIELD_MANAGER, FIELD_SELECTOR, FIELD_VALIDATION,
    FORCE, GRACE_PERIOD_SECONDS, IGNORE_STORE_READ_ERROR, LABEL_SELECTOR, LIMIT, ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY, RESOURCE_VERSION, RESOURCE_VERSION_MATCH, SEND_INITIAL_EVENTS,
    TIMEOUT_SECONDS, Text, UID, WATCH,
};
use crate::request::{ResourceRequest, Verb};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::field_selector::FieldSelector;
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::quote::is_print;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Str, Value};
use polyplane_managedfields::Force;

/// The treatment of fields that a kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning.
    Warn,
    /// The request fails.
    Strict,
}

/// The choice whether a write is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It is stored.
    Store,
    /// A dry run: everything but storing is done.
    DryRun,
}

/// The options of create, update and patch.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The choice whether the write is stored.
    pub persistence: Persistence,
    /// The treatment of unknown fields.
    pub field_validation: FieldValidation,
    /// The name of the writer, as the client gives it.
    pub field_manager: Str,
    /// The treatment of conflicts of a server-side apply.
    pub force: Force,
}

/// The media type of a server-side apply.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// Returns whether a request is a server-side apply.
pub(crate) fn is_apply(request: &ResourceRequest) -> bool {
    let media = request.content_type.as_deref().unwrap_or("");
    let media = media.split(';').next().unwrap_or("").trim();
    request.verb == Verb::Patch && media == APPLY
}

/// Bytes of the name of a field manager.
pub(crate) const FIELD_MANAGER_MAX: usize = 128;

impl WriteOptions {
    /// Reads the options of a `kind` such as `CreateOptions`.
    ///
    /// # Errors
    /// Returns 422, which names every parameter that is out of range.
    pub fn parse(request: &ResourceRequest, kind: &str) -> Result<Self, ApiError> {
        let mut errors = Complaints::default();
        let manager = FIELD_MANAGER.read(&request.query);
        let force = FORCE.read(&request.query);
        if is_apply(request) {
            if manager.is_empty() {
                let detail = "is required for apply patch";
                errors.push(FieldError::required(&Path::new("fieldManager"), detail));
            }
        } else if kind == "PatchOptions" && force.is_some() {
            let detail = "may not be specified for non-apply patch";
            errors.push(FieldError::forbidden(&Path::new("force"), detail));
        }
        check_field_manager(manager, &Path::new("fieldManager"), &mut errors);
        let persistence = dry_run(request, &mut errors);
        let field_validation = match FIELD_VALIDATION.read(&request.query) {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &known,
                ));
                FieldValidation::Warn
            }
        };
        if errors.is_empty() {
            Ok(Self {
                persistence,
                field_validation,
                field_manager: manager.into(),
                force: match force {
                    Some(true) => Force::Yes,
                    Some(false) | None => Force::No,
                },
            })
        } else {
            Err(ApiError::invalid(
                Qualified::new("meta.k8s.io", kind),
                "",
                &errors,
            ))
        }
    }
}

/// Validates the name of a field manager: it is short, and all of it can be shown.
pub(crate) fn check_field_manager(manager: &str, path: &Path, errors: &mut Complaints) {
    if manager.len() > FIELD_MANAGER_MAX {
        errors.push(FieldError::too_long(path, FIELD_MANAGER_MAX));
    }
    for (at, letter) in manager.char_indices() {
        if !is_print(letter) {
            let code = u32::from(letter);
            let detail = format!("invalid character U+{code:04X} (at position {at})");
            errors.push(FieldError::invalid(path, manager, detail));
        }
    }
}

fn dry_run(request: &ResourceRequest, errors: &mut Complaints) -> Persistence {
    let wishes: Vec<&str> = DRY_RUN.read(&request.query).collect();
    dry_run_of(&wishes, errors)
}

fn dry_run_of(wishes: &[&str], errors: &mut Complaints) -> Persistence {
    if wishes.iter().any(|wish| *wish != "All") {
        let bad = Value::Array(wishes.iter().map(|wish| Value::string(*wish)).collect());
        errors.push(FieldError::not_supported(
            &Path::new("dryRun"),
            bad,
            &["All"],
        ));
    }
    if wishes.is_empty() {
        Persistence::Store
    } else {
        Persistence::DryRun
    }
}

/// The way in which a list or watch uses `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// The client has not chosen one.
    Unset,
    /// Any state that is not older than the version.
    NotOlderThan,
    /// Exactly the state of the version.
    Exact,
}

/// The options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// The text of the label selector.
    pub label_selector: String,
    /// The text of the field selector.
    pub field_selector: String,
    /// The version that the client knows; empty if none.
    pub resource_version: String,
    /// The way in which that version is used.
    pub version_match: VersionMatch,
    /// Most items of a page; 0 means no limit.
    pub limit: usize,
    /// The token of the next page.
    pub continuation: String,
    /// Seconds after which a watch ends; 0 and `None` leave it to the server.
    pub timeout_seconds: Option<i64>,
    /// The choice whether the client wants bookmarks.
    pub bookmarks: Bookmarks,
    /// The choice whether the watch begins with the present objects; `None` if the client has not
    /// chosen.
    pub initial_events: Option<InitialEvents>,
}

/// The choice whether a watcher wants bookmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookmarks {
    /// It wants them.
    Welcome,
    /// It does not want them.
    Unwanted,
}

/// The choice whether a watch begins with the present objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialEvents {
    /// It does, and a bookmark marks their end.
    Send,
    /// It does not.
    Skip,
}

impl ListOptions {
    /// Reads the options of a list or of a watch, as `purpose` says.
    ///
    /// # Errors
    /// Returns 400 for a number that cannot be parsed, 422 for a combination that is forbidden,
    /// which it names.
    pub fn parse(request: &ResourceRequest, purpose: ListPurpose) -> Result<Self, ApiError> {
        let query = &request.query;
        let timeout = TIMEOUT_SECONDS.read(query)?;
        let limit = LIMIT.read(query)?.unwrap_or(0);
        let initial = SEND_INITIAL_EVENTS.read(query).map(|send| {
            if send {
                InitialEvents::Send
            } else {
                InitialEvents::Skip
            }
        });
        let mut options = Self {
            label_selector: LABEL_SELECTOR.read(query).to_owned(),
            field_selector: FIELD_SELECTOR.read(query).to_owned(),
            resource_version: RESOURCE_VERSION.read(query).to_owned(),
            version_match: match RESOURCE_VERSION_MATCH.read(query) {
                "NotOlderThan" => VersionMatch::NotOlderThan,
                "Exact" => VersionMatch::Exact,
                _ => VersionMatch::Unset,
            },
            limit: usize::try_from(limit.max(0)).unwrap_or(usize::MAX),
            continuation: CONTINUE.read(query).to_owned(),
            timeout_seconds: timeout,
            bookmarks: if ALLOW_WATCH_BOOKMARKS.read(query) == Some(true) {
                Bookmarks::Welcome
            } else {
                Bookmarks::Unwanted
            },
            initial_events: initial,
        };
        let errors = options.check(RESOURCE_VERSION_MATCH.read(query), purpose);
        if errors.is_empty() {
            if purpose == ListPurpose::Watch && options.begins_with_all(request) {
                options.initial_events = Some(InitialEvents::Send);
            }
            return Ok(options);
        }
        options.parse_selectors()?;
        Err(ApiError::invalid(
            Qualified::new("meta.k8s.io", "ListOptions"),
            "",
            &errors,
        ))
    }

    /// Returns the errors of the selectors: upstream reads these before it compares the options with each other.
    fn parse_selectors(&self) -> Result<(), ApiError> {
        Selector::parse(&self.label_selector)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        FieldSelector::parse(&self.field_selector)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(())
    }

    /// Returns whether a list shows exactly the requested version `asked`. It is 0 if the client
    /// accepts any version.
    pub fn is_exact(&self, asked: u64) -> bool {
        match self.version_match {
            VersionMatch::Exact => true,
            VersionMatch::Unset => self.limit > 0 && asked != 0,
            VersionMatch::NotOlderThan => false,
        }
    }

    /// Returns whether upstream reads a list of one object from its store and not from its cache. The store does not
    /// wait for a version, and does not say when to try again.
    pub fn reads_one_from_store(&self) -> bool {
        match self.version_match {
            VersionMatch::Exact => true,
            VersionMatch::Unset => self.limit > 0,
            VersionMatch::NotOlderThan => false,
        }
    }

    /// Returns the options of a list of one object, in which a limit does not make the version an exact one.
    pub fn of_one(mut self) -> Self {
        self.limit = 0;
        self
    }

    /// Returns the options of a list that is read in pages, as upstream reads a collection before it deletes it: a
    /// version is then the one of the list, not one that it must have reached.
    pub fn in_pages(mut self) -> Self {
        let begins = self.continuation.is_empty() && !matches!(&*self.resource_version, "" | "0");
        if begins && self.version_match == VersionMatch::Unset {
            self.version_match = VersionMatch::Exact;
        }
        self
    }

    /// Returns the most items of the first page; 0 means no limit. Upstream answers a list of "any
    /// version" from its cache, which has no pages.
    pub fn first_limit(&self) -> usize {
        match self.resource_version.as_str() {
            "0" => 0,
            _ => self.limit,
        }
    }

    /// Returns whether upstream takes a watch for one that has asked for the present objects, and for the
    /// bookmark that ends them. One that only the path names is none.
    fn begins_with_all(&self, request: &ResourceRequest) -> bool {
        self.initial_events.is_none()
            && matches!(self.resource_version.as_str(), "" | "0")
            && WATCH.read(&request.query) == Some(true)
    }

    fn check(&self, match_text: &str, purpose: ListPurpose) -> Complaints {
        let path = Path::new("resourceVersionMatch");
        let mut errors = Complaints::default();
        if purpose == ListPurpose::Watch {
            if self.initial_events.is_some() && match_text != "NotOlderThan" {
                let detail =
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(FieldError::forbidden(&path, detail));
            }
            let streams = self.initial_events.is_none() && match_text.is_empty();
            if streams
                && matches!(self.resource_version.as_str(), "" | "0")
                && !self.continuation.is_empty()
            {
                // Upstream checks such a watch as if it had requested the present objects first.
                let detail = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if !match_text.is_empty() {
                if self.initial_events.is_none() {
                    let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                    errors.push(FieldError::forbidden(&path, detail));
                }
                if match_text != "NotOlderThan" {
                    errors.push(FieldError::not_supported(
                        &path,
                        match_text,
                        &["NotOlderThan"],
                    ));
                }
                if !self.continuation.is_empty() {
                    let detail = "resourceVersionMatch is forbidden when continue is provided";
                    errors.push(FieldError::forbidden(&path, detail));
                }
            }
            return errors;
        }
        if !match_text.is_empty() {
            if self.resource_version.is_empty() {
                let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if !self.continuation.is_empty() {
                let detail = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if self.version_match == VersionMatch::Unset {
                let known = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported(&path, match_text, &known));
            }
            if self.version_match == VersionMatch::Exact && self.resource_version == "0" {
                let detail =
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
        if self.initial_events.is_some() {
            let detail = "sendInitialEvents is forbidden for list";
            errors.push(FieldError::forbidden(
                &Path::new("sendInitialEvents"),
                detail,
            ));
        }
        errors
    }
}

/// The purpose of list options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPurpose {
    /// A list or a deletecollection.
    List,
    /// A watch.
    Watch,
}

impl ListPurpose {
    /// Returns as what the options of a watch are checked: as upstream, as those of a list if the path
    /// says that it is a watch and the query does not.
    pub(crate) fn of_watch(request: &ResourceRequest) -> Self {
        match WATCH.read(&request.query) {
            Some(false) => Self::List,
            Some(true) | None => Self::Watch,
        }
    }
}

/// The treatment of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay without their owner.
    Orphan,
    /// They are deleted after their owner.
    Background,
    /// They are deleted before their owner.
    Foreground,
}

/// The options of delete and deletecollection.
#[derive(Clone, Debug)]
pub struct DeleteOptions {
    /// The choice whether the object is removed.
    pub persistence: Persistence,
    /// The requested grace period in seconds.
    pub grace_seconds: Option<i64>,
    /// The requested treatment of dependents.
    pub propagation: Option<Propagation>,
    /// The older form of that request.
    pub orphan_dependents: Option<bool>,
    /// The uid that the object must have.
    pub uid: Option<Str>,
    /// The version that the object must have.
    pub resource_version: Option<Str>,
    /// True if only an object that cannot be read is to be deleted.
    pub ignores_read_error: bool,
}

impl DeleteOptions {
    /// The option of an object that cannot be read.
    pub const IGNORE_READ_ERROR: &'static str = "ignoreStoreReadErrorWithClusterBreakingPotential";

    /// Returns the refusal of that option.
    pub fn read_error_refused(why: &str) -> FieldError {
        FieldError::invalid(&Path::new(Self::IGNORE_READ_ERROR), true, why)
    }

    /// Returns the error about options.
    pub fn refused(errors: &[FieldError]) -> ApiError {
        ApiError::invalid(Qualified::new("meta.k8s.io", "DeleteOptions"), "", errors)
    }

    /// Reads the options from a decoded `DeleteOptions` body, or from the query if there is none.
    ///
    /// # Errors
    /// Returns 400 or 422, as upstream does.
    pub fn parse(request: &ResourceRequest, body: Option<&Value>) -> Result<Self, ApiError> {
        let (mut errors, mut of_dry_run) = (Complaints::default(), Complaints::default());
        let mut options = match body {
            Some(body) => Self::of_body(body, &mut of_dry_run),
            None => Self::of_query(request, &mut of_dry_run)?,
        };
        let policy = match body {
            Some(body) => body.get("propagationPolicy").and_then(Value::as_str),
            None => PROPAGATION_POLICY.given(&request.query),
        };
        options.read_policy(policy, &mut errors);
        errors.extend(of_dry_run);
        if options.ignores_read_error {
            let others = [
                ("propagationPolicy", policy.is_some()),
                ("orphanDependents", options.orphan_dependents.is_some()),
                ("gracePeriodSeconds", options.grace_seconds.is_some()),
                (
                    "preconditions",
                    match body {
                        Some(body) => !body["preconditions"].is_null(),
                        None => options.uid.is_some() || options.resource_version.is_some(),
                    },
                ),
            ];
            for (other, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
                let why = format!("cannot be set together with .{other}");
                errors.push(Self::read_error_refused(&why));
            }
        }
        match errors.is_empty() {
            true => Ok(options),
            false => Err(Self::refused(&errors)),
        }
    }

    fn of_body(body: &Value, errors: &mut Complaints) -> Self {
        let text = |path: &[&str]| body.at(path).and_then(Value::as_str).map(Str::from);
        let wishes: Vec<&str> = body
            .items_at(&["dryRun"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        Self {
            persistence: dry_run_of(&wishes, errors),
            grace_seconds: body.int_at(&["gracePeriodSeconds"]),
            propagation: None,
            orphan_dependents: body.get("orphanDependents").and_then(Value::as_bool),
            uid: text(&["preconditions", "uid"]),
            resource_version: text(&["preconditions", "resourceVersion"]),
            ignores_read_error: body.bool_at(&[Self::IGNORE_READ_ERROR]),
        }
    }

    fn of_query(request: &ResourceRequest, errors: &mut Complaints) -> Result<Self, ApiError> {
        let given = |parameter: &Text| {
            let text = parameter.read(&request.query);
            (!text.is_empty()).then(|| Str::from(text))
        };
        Ok(Self {
            persistence: dry_run(request, errors),
            grace_seconds: GRACE_PERIOD_SECONDS.read(&request.query)?,
            propagation: None,
            orphan_dependents: ORPHAN_DEPENDENTS.read(&request.query),
            uid: given(&UID),
            resource_version: given(&RESOURCE_VERSION),
            ignores_read_error: IGNORE_STORE_READ_ERROR
                .read(&request.query)
                .unwrap_or(false),
        })
    }

    fn read_policy(&mut self, policy: Option<&str>, errors: &mut Complaints) {
        let Some(policy) = policy else { return };
        let path = Path::new("propagationPolicy");
        if self.orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(&path, policy, detail));
        }
        self.propagation = match policy {
            "Orphan" => Some(Propagation::Orphan),
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            _ => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(&path, policy, &known));
                None
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_manager_is_short_and_all_of_it_can_be_shown() {
        let errors = |manager: &str| {
            let mut errors = Complaints::default();
            check_field_manager(manager, &Path::new("fieldManager"), &mut errors);
            let texts = errors.iter().map(ToString::to_string);
            texts.collect::<Vec<_>>()
        };
        let longest = "x".repeat(128);
        for fine in ["", "kubectl client-side apply", "é😀", longest.as_str()] {
            assert!(errors(fine).is_empty(), "{fine:?}");
        }
        // A line feed, a space that is not ASCII's, one of no width, and a character for private use.
        for (manager, quoted, what) in [
            ("a\n", r"a\n", "U+000A (at position 1)"),
            ("é\u{a0}", r"é\u00a0", "U+00A0 (at position 2)"),
            ("\u{200b}", r"\u200b", "U+200B (at position 0)"),
            ("\u{f0000}", r"\U000f0000", "U+F0000 (at position 0)"),
        ] {
            let error =
                format!(r#"fieldManager: Invalid value: "{quoted}": invalid character {what}"#);
            assert_eq!(errors(manager), [error]);
        }
        let long = "fieldManager: Too long: may not be more than 128 bytes";
        assert_eq!(errors(&"x".repeat(129)), [long]);
    }
}
