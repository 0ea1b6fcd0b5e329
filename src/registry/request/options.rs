//! Query parameters and option bodies, checked as upstream checks them.
//!
//! Owns the parsed form of what a client may say beside the object: list, get, write and delete
//! options, and which of them go together. How a single parameter is read stands in
//! [`crate::request::parameters`].

use crate::request::ResourceRequest;
use crate::request::parameters::{
    ALLOW_WATCH_BOOKMARKS, CONTINUE, DRY_RUN, FIELD_MANAGER, FIELD_SELECTOR, FIELD_VALIDATION,
    FORCE, GRACE_PERIOD_SECONDS, LABEL_SELECTOR, LIMIT, ORPHAN_DEPENDENTS, PROPAGATION_POLICY,
    RESOURCE_VERSION, RESOURCE_VERSION_MATCH, SEND_INITIAL_EVENTS, TIMEOUT_SECONDS,
};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Str, Value};

/// What happens to fields that a kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning.
    Warn,
    /// The request fails.
    Strict,
}

/// Whether a write is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It is.
    Store,
    /// Everything but storing is done.
    DryRun,
}

/// Options of create, update and patch.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Stored or not.
    pub persistence: Persistence,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
    /// Who writes, as the client names itself.
    pub field_manager: Str,
}

const FIELD_MANAGER_MAX: usize = 128;

impl WriteOptions {
    /// Reads the options of a `kind` such as `CreateOptions`.
    ///
    /// # Errors
    /// 422 naming every parameter that is out of range.
    pub fn parse(request: &ResourceRequest, kind: &str) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        if kind == "PatchOptions" && FORCE.read(&request.query).is_some() {
            let detail = "may not be specified for non-apply patch";
            errors.push(FieldError::forbidden(&Path::new("force"), detail));
        }
        let manager = FIELD_MANAGER.read(&request.query);
        check_field_manager(manager, &mut errors);
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

fn check_field_manager(manager: &str, errors: &mut Vec<FieldError>) {
    let path = Path::new("fieldManager");
    if manager.len() > FIELD_MANAGER_MAX {
        errors.push(FieldError::too_long(&path, FIELD_MANAGER_MAX));
    }
    for (at, letter) in manager.char_indices() {
        if letter.is_control() || (letter.is_whitespace() && letter != ' ') {
            let shown = if letter.is_control() {
                format!("U+{:04X}", u32::from(letter))
            } else {
                format!("U+{:04X} '{letter}'", u32::from(letter))
            };
            let detail = format!("invalid character {shown} (at position {at})");
            errors.push(FieldError::invalid(&path, manager, detail));
        }
    }
}

fn dry_run(request: &ResourceRequest, errors: &mut Vec<FieldError>) -> Persistence {
    let wishes: Vec<&str> = DRY_RUN.read(&request.query).collect();
    dry_run_of(&wishes, errors)
}

fn dry_run_of(wishes: &[&str], errors: &mut Vec<FieldError>) -> Persistence {
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

/// How a list or watch treats `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Nothing was said.
    Unset,
    /// Any state that is not older.
    NotOlderThan,
    /// Exactly this state.
    Exact,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Text of the label selector.
    pub label_selector: String,
    /// Text of the field selector.
    pub field_selector: String,
    /// Version the client knows; empty if none.
    pub resource_version: String,
    /// How that version is meant.
    pub version_match: VersionMatch,
    /// Most items of a page; 0 is no limit.
    pub limit: usize,
    /// Token of the next page.
    pub continuation: String,
    /// Seconds after which a watch ends; 0 and `None` leave it to the server.
    pub timeout_seconds: Option<i64>,
    /// Whether bookmarks are welcome.
    pub bookmarks: Bookmarks,
    /// Whether the watch begins with the present objects; `None` if not said.
    pub initial_events: Option<InitialEvents>,
}

/// Whether a watcher wants bookmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookmarks {
    /// It does.
    Welcome,
    /// It does not.
    Unwanted,
}

/// Whether a watch begins with the objects that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialEvents {
    /// It does, and a bookmark ends them.
    Send,
    /// It does not.
    Skip,
}

impl ListOptions {
    /// Reads the options of a list or, if `watch`, of a watch.
    ///
    /// # Errors
    /// 400 for numbers that are none, 422 naming combinations that are forbidden.
    pub fn parse(request: &ResourceRequest, purpose: ListPurpose) -> Result<Self, ApiError> {
        let query = &request.query;
        let limit = LIMIT.read(query)?.unwrap_or(0);
        let timeout = TIMEOUT_SECONDS.read(query)?;
        let initial = SEND_INITIAL_EVENTS.read(query).map(|send| {
            if send {
                InitialEvents::Send
            } else {
                InitialEvents::Skip
            }
        });
        let options = Self {
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
            Ok(options)
        } else {
            Err(ApiError::invalid(
                Qualified::new("meta.k8s.io", "ListOptions"),
                "",
                &errors,
            ))
        }
    }

    /// Whether a list shows exactly the version that was asked for, which is not 0 if it was any.
    pub fn is_exact(&self, asked: u64) -> bool {
        match self.version_match {
            VersionMatch::Exact => true,
            VersionMatch::Unset => self.limit > 0 && asked != 0,
            VersionMatch::NotOlderThan => false,
        }
    }

    /// Most items of the first page; 0 is no limit. Upstream answers a list of "any version" from its
    /// cache, which knows no pages.
    pub fn first_limit(&self) -> usize {
        match self.resource_version.as_str() {
            "0" => 0,
            _ => self.limit,
        }
    }

    fn check(&self, match_text: &str, purpose: ListPurpose) -> Vec<FieldError> {
        let path = Path::new("resourceVersionMatch");
        let mut errors = Vec::new();
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
                // Such a watch begins with what is there, as if it had asked for that.
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

/// What list options are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPurpose {
    /// A list or a deletecollection.
    List,
    /// A watch.
    Watch,
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay, without their owner.
    Orphan,
    /// They go afterwards.
    Background,
    /// They go first.
    Foreground,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug)]
pub struct DeleteOptions {
    /// Removed or not.
    pub persistence: Persistence,
    /// Wished grace period in seconds.
    pub grace_seconds: Option<i64>,
    /// Wished treatment of dependents.
    pub propagation: Option<Propagation>,
    /// The old way to wish it.
    pub orphan_dependents: Option<bool>,
    /// The uid the client means.
    pub uid: Option<Str>,
    /// The version the client means.
    pub resource_version: Option<Str>,
}

impl DeleteOptions {
    /// Reads the options from a decoded `DeleteOptions` body, or from the query if there is none.
    ///
    /// # Errors
    /// 400 or 422 as upstream.
    pub fn parse(request: &ResourceRequest, body: Option<&Value>) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let mut options = match body {
            Some(body) => Self::of_body(body, &mut errors),
            None => Self::of_query(request, &mut errors)?,
        };
        let policy = match body {
            Some(body) => body.get("propagationPolicy").and_then(Value::as_str),
            None => PROPAGATION_POLICY.given(&request.query),
        };
        options.read_policy(policy, &mut errors);
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(ApiError::invalid(
                Qualified::new("meta.k8s.io", "DeleteOptions"),
                "",
                &errors,
            ))
        }
    }

    fn of_body(body: &Value, errors: &mut Vec<FieldError>) -> Self {
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
        }
    }

    fn of_query(request: &ResourceRequest, errors: &mut Vec<FieldError>) -> Result<Self, ApiError> {
        Ok(Self {
            persistence: dry_run(request, errors),
            grace_seconds: GRACE_PERIOD_SECONDS.read(&request.query)?,
            propagation: None,
            orphan_dependents: ORPHAN_DEPENDENTS.read(&request.query),
            uid: None,
            resource_version: None,
        })
    }

    fn read_policy(&mut self, policy: Option<&str>, errors: &mut Vec<FieldError>) {
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
