//! The flow schemas and priority levels of a plane: the index of them that every cut carries, and which
//! of them a request belongs to.
//!
//! As with roles, the index is changed by the very write that changes an object, and the planes of one
//! layer share the index of its objects. What follows from the objects together is computed when the
//! first request asks.

mod schema;
#[cfg(test)]
mod tests;
mod width;

use crate::summary;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::Attributes;
use polyplane_fairness::levels::{Level, LevelKind, Levels, Queueing};
use polyplane_plane::{Key, Snapshot};
use schema::{Distinguisher, FlowSchema};
use std::sync::{Arc, LazyLock, OnceLock};

pub use width::seats_of_list;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// The level without limits, and the schema that leads to it. Both are always there.
const EXEMPT: &str = "exempt";
/// The level and the schema of requests that no other schema matches. Both are always there.
const CATCH_ALL: &str = "catch-all";
/// The shares of the level `catch-all`, if the plane has not got its object.
const CATCH_ALL_SHARES: u32 = 5;

/// The resources that the index reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowResource {
    /// `flowschemas`.
    Schema,
    /// `prioritylevelconfigurations`.
    Level,
}

impl FlowResource {
    /// Returns which of them a resource is; `None` for a resource that the index does not read.
    pub fn of(group: &str, resource: &str) -> Option<Self> {
        match resource {
            SCHEMAS if group == GROUP => Some(Self::Schema),
            LEVELS if group == GROUP => Some(Self::Level),
            _ => None,
        }
    }
}

/// The flow schemas and priority levels of one plane.
#[derive(Debug, Default)]
pub struct FlowIndex {
    /// In the order in which they are tried.
    schemas: Vec<Arc<FlowSchema>>,
    levels: Vec<Arc<Level>>,
    compiled: OnceLock<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    levels: Arc<Levels>,
    /// The classes of requests, in the order in which their schemas are tried.
    classes: Vec<Arc<FlowClass>>,
    catch_all: Arc<FlowClass>,
}

/// What a request is classified as: a flow schema and its priority level.
#[derive(Debug)]
pub struct FlowClass {
    schema: Arc<FlowSchema>,
    level: Arc<Level>,
    /// The keys of both objects.
    keys: [Key; 2],
}

impl FlowClass {
    fn new(schema: &Arc<FlowSchema>, level: &Arc<Level>) -> Arc<Self> {
        Arc::new(Self {
            keys: [
                Key::new(GROUP, SCHEMAS, None, &schema.name),
                Key::new(GROUP, LEVELS, None, &level.name),
            ],
            schema: Arc::clone(schema),
            level: Arc::clone(level),
        })
    }

    /// Returns the name of the flow schema.
    pub fn schema(&self) -> &str {
        &self.schema.name
    }

    /// Returns the priority level.
    pub fn level(&self) -> &Arc<Level> {
        &self.level
    }

    /// Returns what tells the flows of the schema apart: for a request of this user, in this namespace.
    pub fn distinguisher<'a>(&self, user: &'a str, namespace: &'a str) -> &'a str {
        match self.schema.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => user,
            Distinguisher::Namespace => namespace,
        }
    }

    /// Returns the uids of the flow schema and of the priority level, as of a cut; empty for an object
    /// that the plane has not got.
    pub fn uids(&self, cut: &Snapshot) -> [Str; 2] {
        self.keys
            .each_ref()
            .map(|key| uid(cut, key).unwrap_or_default())
    }
}

fn uid(cut: &Snapshot, key: &Key) -> Option<Str> {
    let body = cut.get(key)?.body();
    let parsed = json::parse(&body, &json::Limits::default()).ok()?;
    Some(parsed.value.str_at(&["metadata", "uid"]).into())
}

/// Returns the flow index of a cut. A plane that keeps none has what every plane has.
pub fn index_of(cut: &Snapshot) -> &FlowIndex {
    static NONE: LazyLock<FlowIndex> = LazyLock::new(FlowIndex::default);
    match summary::of(cut) {
        Some(summary) => &summary.flows,
        None => &NONE,
    }
}

impl FlowIndex {
    /// Returns the index with an object in place of the one that was stored under `name`, or without it.
    pub fn with(&self, resource: FlowResource, name: &str, object: Option<&Value>) -> Self {
        let (mut schemas, mut levels) = (self.schemas.clone(), self.levels.clone());
        match resource {
            FlowResource::Schema => {
                schemas.retain(|schema| *schema.name != *name);
                if let Some(object) = object {
                    let schema = FlowSchema::from_value(name, object);
                    let at = schemas.partition_point(|other| other.rank() < schema.rank());
                    schemas.insert(at, Arc::new(schema));
                }
            }
            FlowResource::Level => {
                levels.retain(|level| *level.name != *name);
                levels.extend(object.and_then(|object| level(name, object)).map(Arc::new));
            }
        }
        Self {
            schemas,
            levels,
            compiled: OnceLock::new(),
        }
    }

    /// Returns the priority levels, those included that are always there.
    pub fn levels(&self) -> &Arc<Levels> {
        &self.compiled().levels
    }

    /// Returns the class of a request: that of the first flow schema that matches it.
    pub fn classify(&self, request: &Attributes<'_>) -> &Arc<FlowClass> {
        let compiled = self.compiled();
        let mut classes = compiled.classes.iter();
        let found = classes.find(|class| class.schema.matches(request));
        found.unwrap_or(&compiled.catch_all)
    }

    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| self.compile())
    }

    fn compile(&self) -> Compiled {
        let mut levels = self.levels.clone();
        let stored = Levels::new(levels.clone());
        for (name, shares, kind) in [
            (EXEMPT, 0, LevelKind::Exempt),
            (CATCH_ALL, CATCH_ALL_SHARES, LevelKind::Reject),
        ] {
            if stored.get(name).is_none() {
                levels.push(Arc::new(Level {
                    name: name.into(),
                    kind,
                    shares,
                    lendable_percent: 0,
                    borrowing_percent: None,
                }));
            }
        }
        let all = Levels::new(levels);
        // A schema whose level does not exist matches nothing.
        let of_schema = |schema: &Arc<FlowSchema>| {
            let level = stored.get(&schema.level)?;
            Some(FlowClass::new(schema, level))
        };
        let mut classes: Vec<_> = self.schemas.iter().filter_map(of_schema).collect();
        let has = |classes: &[Arc<FlowClass>], name: &str| {
            classes.iter().any(|class| *class.schema.name == *name)
        };
        let imagined = |schema: FlowSchema| {
            let level = all.get(&schema.level)?;
            Some(FlowClass::new(&Arc::new(schema), level))
        };
        if !has(&classes, EXEMPT)
            && let Some(exempt) = imagined(FlowSchema::exempt())
        {
            classes.insert(0, exempt);
        }
        if !has(&classes, CATCH_ALL) {
            classes.extend(imagined(FlowSchema::catch_all()));
        }
        let mut found = classes.iter();
        let catch_all = found.find(|class| *class.schema.name == *CATCH_ALL);
        let catch_all = catch_all.expect("it was added above");
        Compiled {
            catch_all: Arc::clone(catch_all),
            classes,
            levels: Arc::new(all),
        }
    }
}

/// Reads a priority level. Returns `None` for one that contradicts itself, which then does not count.
fn level(name: &str, object: &Value) -> Option<Level> {
    let spec = object.get("spec")?;
    let is_exempt = spec.str_at(&["type"]) == "Exempt";
    if is_exempt != (name == EXEMPT) {
        return None;
    }
    let part = spec.get(if is_exempt { "exempt" } else { "limited" })?;
    let number = |field: &str| {
        let number = part.int_at(&[field])?;
        u32::try_from(number.max(0)).ok()
    };
    let kind = match part.str_at(&["limitResponse", "type"]) {
        _ if is_exempt => LevelKind::Exempt,
        "Reject" => LevelKind::Reject,
        "Queue" => {
            let queuing = part.at(&["limitResponse", "queuing"])?;
            let number = |field: &str| {
                let number = queuing.int_at(&[field])?;
                u32::try_from(number).ok().filter(|number| *number > 0)
            };
            LevelKind::Queue(Queueing {
                queues: number("queues")?,
                hand_size: number("handSize")?,
                length_max: number("queueLengthLimit")?,
            })
        }
        _ => return None,
    };
    Some(Level {
        name: name.into(),
        kind,
        shares: number("nominalConcurrencyShares").unwrap_or(0),
        lendable_percent: number("lendablePercent").unwrap_or(0),
        borrowing_percent: number("borrowingLimitPercent"),
    })
}
