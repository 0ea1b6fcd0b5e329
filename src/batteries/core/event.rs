//! Events, as the core group and as `events.k8s.io` serve them. They are stored in the form of the
//! core group and expire.

use crate::shared::object_metadata;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Str, Value, names};
use polyplane_registry::settings::Lifetimes;
use polyplane_registry::strategy::{Context, Strategy, age};

/// Most bytes of an action, a reason and the name of a reporter, as upstream limits them.
const WORD_BYTES_MAX: usize = 128;
/// Most bytes of a note, as upstream limits them.
const NOTE_BYTES_MAX: usize = 1024;

/// Fields with different names: in `events.k8s.io`, and as stored.
const RENAMED: [(&str, &str); 7] = [
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
];

/// Fields that an update through `events.k8s.io` may not change: as stored, and as messages name
/// them.
const FIXED: [(&str, &str); 13] = [
    ("involvedObject", "involvedObject"),
    ("reason", "reason"),
    ("message", "message"),
    ("source", "source"),
    ("firstTimestamp", "firstTimestamp"),
    ("lastTimestamp", "lastTimestamp"),
    ("count", "count"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];
const STORED: &str = "io.k8s.api.core.v1.Event";

/// Behaviour of Events in one of their groups.
#[derive(Debug)]
pub enum Event {
    /// The core group, which accepts nearly everything.
    Core,
    /// The group `events.k8s.io`.
    Events,
}

impl Strategy for Event {
    fn validates_metadata_last(&self) -> bool {
        matches!(self, Self::Core)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = self.validate_always(object);
        if let Self::Events = self {
            errors.extend(object_metadata::validate_finalizers(object));
            errors.extend(validate_new(object));
        }
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = self.validate_always(object);
        if let Self::Events = self {
            errors.extend(object_metadata::validate_update(object, old));
            if object["series"] != old["series"] {
                validate_series(object, &mut errors);
            }
            errors.extend(validate_fixed(context.schemas, object, old));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let when = |field: &str| object.str_at(&[field]);
        let first = match when("firstTimestamp") {
            "" => age(when("eventTime"), now),
            time => age(time, now),
        };
        let mut last = match when("lastTimestamp") {
            "" => first.clone(),
            time => age(time, now),
        };
        let mut count = object.int_at(&["count"]).unwrap_or(0);
        if let Some(series) = object.get("series").filter(|series| !series.is_null()) {
            last = age(series.str_at(&["lastObservedTime"]), now);
            count = series.int_at(&["count"]).unwrap_or(0);
        } else if count == 0 {
            count = 1;
        }
        let about = &object["involvedObject"];
        let mut target = about.str_at(&["kind"]).to_lowercase();
        if !about.str_at(&["name"]).is_empty() {
            target = format!("{target}/{}", about.str_at(&["name"]));
        }
        vec![
            last,
            object.str_at(&["type"]).into(),
            object.str_at(&["reason"]).into(),
            target.into(),
            about.str_at(&["fieldPath"]).into(),
            source_text(object).into(),
            object.str_at(&["message"]).trim().into(),
            first,
            count.into(),
            object.str_at(&["metadata", "name"]).into(),
        ]
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let (head, rest) = name
            .split_once('.')
            .map_or((name, None), |(head, rest)| (head, Some(rest)));
        let head = match self {
            Self::Core => head,
            Self::Events => stored_name(head),
        };
        let value = match (head, rest) {
            ("source", None) => match object.str_at(&["source", "component"]) {
                component if component.is_empty() => object.str_at(&["reportingComponent"]),
                component => component,
            },
            (head, None) => object.str_at(&[head]),
            (head, Some(rest)) => object.str_at(&[head, rest]),
        };
        Some(Str::from(&*value))
    }

    fn to_stored(&self, _: &str, object: Value) -> Value {
        rename(object, |name| {
            RENAMED
                .iter()
                .find(|(served, _)| *served == name)
                .map(|pair| pair.1)
        })
    }

    fn to_served(&self, _: &str, object: Value) -> Value {
        let mut object = rename(object, |name| {
            RENAMED
                .iter()
                .find(|(_, stored)| *stored == name)
                .map(|pair| pair.0)
        });
        if matches!(self, Self::Events) {
            // This group leaves out fields that the core group writes empty.
            for field in ["reportingController", "reportingInstance"] {
                if object.str_at(&[field]).is_empty() {
                    drop(object.remove(&[field]));
                }
            }
            // And it writes a count that the core group leaves out.
            if object["series"].as_object().is_some() && object["series"].get("count").is_none() {
                object.set(&["series", "count"], 0i64);
            }
        }
        object
    }

    fn lifetime(&self, lifetimes: &Lifetimes) -> Option<i64> {
        Some(i64::from(lifetimes.event_seconds)).filter(|seconds| *seconds > 0)
    }
}

impl Event {
    /// Validates an Event of either group.
    fn validate_always(&self, object: &Value) -> Complaints {
        let mut errors = Complaints::default();
        let involved = Path::new("involvedObject");
        let path = involved.child("namespace");
        let about = object.str_at(&["involvedObject", "namespace"]);
        let namespace = object.str_at(&["metadata", "namespace"]);
        let detail = "does not match event.namespace";
        if object.str_at(&["eventTime"]).is_empty() {
            let fits = match about {
                "" => matches!(namespace, "" | "default"),
                about => about == namespace,
            };
            if !fits {
                errors.push(FieldError::invalid(&path, about, detail));
            }
            return errors;
        }
        if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
            errors.push(FieldError::invalid(&path, about, detail));
        }
        let controller = match self {
            Self::Core => Path::new("reportingComponent"),
            Self::Events => Path::new("reportingController"),
        };
        let name = object.str_at(&["reportingComponent"]);
        if name.is_empty() {
            errors.push(FieldError::required(&controller, ""));
        }
        for detail in names::qualified_name(name) {
            errors.push(FieldError::invalid(&controller, name, detail));
        }
        for field in ["reportingInstance", "action", "reason"] {
            if object.str_at(&[field]).is_empty() {
                errors.push(FieldError::required(&Path::new(field), ""));
            }
            errors.extend(validate_length(object, field, WORD_BYTES_MAX));
        }
        errors.extend(validate_length(object, "message", NOTE_BYTES_MAX));
        errors
    }
}

fn validate_length(object: &Value, field: &str, bytes_max: usize) -> Option<FieldError> {
    let detail = format!("can have at most {bytes_max} characters");
    (object.str_at(&[field]).len() > bytes_max)
        .then(|| FieldError::invalid(&Path::new(field), "", detail))
}

/// Validates a new Event of `events.k8s.io`.
fn validate_new(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    validate_series(object, &mut errors);
    if object.str_at(&["eventTime"]).is_empty() {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let kind = object.str_at(&["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        let detail = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid(&Path::new("type"), "", detail));
    }
    let source = &object["source"];
    let set = [
        (
            "firstTimestamp",
            !object.str_at(&["firstTimestamp"]).is_empty(),
        ),
        (
            "lastTimestamp",
            !object.str_at(&["lastTimestamp"]).is_empty(),
        ),
        ("count", object.int_at(&["count"]).unwrap_or(0) != 0),
        (
            "source",
            ["component", "host"]
                .iter()
                .any(|part| !source.str_at(&[part]).is_empty()),
        ),
    ];
    for (field, _) in set.iter().filter(|(_, set)| *set) {
        errors.push(FieldError::invalid(
            &Path::new(field),
            "",
            "needs to be unset",
        ));
    }
    errors
}

fn validate_series(object: &Value, errors: &mut Complaints) {
    let Some(series) = object.get("series").filter(|series| !series.is_null()) else {
        return;
    };
    if series.int_at(&["count"]).unwrap_or(0) < 2 {
        let detail = "should be at least 2";
        errors.push(FieldError::invalid(&Path::new("series.count"), "", detail));
    }
    if series.str_at(&["lastObservedTime"]).is_empty() {
        errors.push(FieldError::required(
            &Path::new("series.lastObservedTime"),
            "",
        ));
    }
}

fn validate_fixed(schemas: &Schemas, object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    for (stored, named) in FIXED {
        if object[stored] == old[stored] {
            continue;
        }
        let (now, then) = (
            text_of(schemas, stored, object),
            text_of(schemas, stored, old),
        );
        if now != then {
            let bad = Bad::Shown(now.into());
            errors.push(FieldError::invalid(
                &Path::new(named),
                bad,
                "field is immutable",
            ));
        }
    }
    errors
}

/// Returns a field as messages show it.
fn text_of(schemas: &Schemas, name: &str, object: &Value) -> String {
    match object[name].as_str() {
        Some(text) => Bad::from(text).to_string(),
        None => schemas.internal_field_text(STORED, name, object),
    }
}

fn stored_name(served: &str) -> &str {
    RENAMED
        .iter()
        .find(|(name, _)| *name == served)
        .map_or(served, |(_, stored)| stored)
}

fn rename(object: Value, renamed: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(members) = object else {
        return object;
    };
    let members = members
        .into_iter()
        .map(|(name, value)| match renamed(&name) {
            Some(other) => (Str::from(other), value),
            None => (name, value),
        });
    Value::Object(members.collect())
}

/// Returns the reporter of the event: component and instance.
fn source_text(object: &Value) -> String {
    let first = |old: &str, new: &str| -> String {
        let old = object.str_at(&["source", old]);
        if old.is_empty() {
            object.str_at(&[new]).to_owned()
        } else {
            old.to_owned()
        }
    };
    let component = first("component", "reportingComponent");
    let instance = first("host", "reportingInstance");
    if instance.is_empty() {
        component
    } else {
        format!("{component}, {instance}")
    }
}
