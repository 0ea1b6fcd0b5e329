//! Flow schemas, and which requests they match.

mod subjects;

use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, Attributes, SYSTEM_MASTERS, Subject as RequestSubject,
};
use subjects::{Subject, Subjects};

/// The item that, alone in its list, matches everything.
const ALL: &str = "*";
/// The precedence of a schema whose object names none.
const PRECEDENCE: i64 = 1000;

/// A flow schema.
#[derive(Debug)]
pub(super) struct FlowSchema {
    pub(super) name: Str,
    precedence: i64,
    /// The name of its priority level.
    pub(super) level: Str,
    pub(super) distinguisher: Distinguisher,
    rules: Box<[Rule]>,
    /// Which of the rules have which subjects.
    subjects: Subjects,
}

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    None,
    User,
    Namespace,
}

/// A request of one of its subjects matches a rule if it matches one of the rules about resources, or about
/// paths.
#[derive(Debug)]
struct Rule {
    resources: Box<[ResourceRule]>,
    paths: Box<[PathRule]>,
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Names,
    groups: Names,
    /// Plural names, with a subresource behind a slash.
    resources: Names,
    namespaces: Names,
    cluster_scope: bool,
}

#[derive(Debug)]
struct PathRule {
    verbs: Names,
    paths: Box<[Str]>,
}

#[derive(Debug)]
enum Names {
    All,
    Some(Box<[Str]>),
}

impl Names {
    fn of(rule: &Value, field: &str) -> Self {
        match &*texts(rule, field) {
            [only] if only == ALL => Self::All,
            names => Self::Some(names.into()),
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.iter().any(|one| one == name),
        }
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(_) if subresource.is_empty() => self.has(resource),
            Self::Some(names) => names.iter().any(|one| {
                let rest = one.strip_prefix(resource);
                rest.and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
            }),
        }
    }
}

fn texts(value: &Value, field: &str) -> Vec<Str> {
    let items = value.items_at(&[field]).iter();
    items.filter_map(Value::as_str).map(Str::from).collect()
}

impl FlowSchema {
    /// Reads a stored object. What it does not say matches nothing.
    pub(super) fn from_value(name: &str, object: &Value) -> Self {
        let rules = object.items_at(&["spec", "rules"]);
        let subjects = rules.iter().map(|rule| {
            let subjects = rule.items_at(&["subjects"]).iter();
            subjects.filter_map(Subject::from_value)
        });
        Self {
            name: name.into(),
            precedence: object
                .int_at(&["spec", "matchingPrecedence"])
                .unwrap_or(PRECEDENCE),
            level: object
                .str_at(&["spec", "priorityLevelConfiguration", "name"])
                .into(),
            distinguisher: match object.str_at(&["spec", "distinguisherMethod", "type"]) {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            subjects: Subjects::of_rules(subjects),
            rules: rules.iter().map(Rule::from_value).collect(),
        }
    }

    /// Returns the schema of administrators, for a plane that has not got its object.
    pub(super) fn exempt() -> Self {
        Self {
            name: super::EXEMPT.into(),
            precedence: 1,
            level: super::EXEMPT.into(),
            distinguisher: Distinguisher::None,
            rules: [Rule::everything()].into(),
            subjects: Subjects::of_groups(&[SYSTEM_MASTERS]),
        }
    }

    /// Returns the schema of everything else, for a plane that has not got its object.
    pub(super) fn catch_all() -> Self {
        Self {
            name: super::CATCH_ALL.into(),
            precedence: 10_000,
            level: super::CATCH_ALL.into(),
            distinguisher: Distinguisher::User,
            rules: [Rule::everything()].into(),
            subjects: Subjects::of_groups(&[ALL_UNAUTHENTICATED, ALL_AUTHENTICATED]),
        }
    }

    /// Returns what schemas are ordered by.
    pub(super) fn rank(&self) -> (i64, &str) {
        (self.precedence, &self.name)
    }

    pub(super) fn matches(&self, request: &Attributes<'_>) -> bool {
        let mut rules = self.subjects.rules_of(request.user);
        rules.any(|at| self.rules[at].matches(request))
    }
}

impl Rule {
    fn from_value(rule: &Value) -> Self {
        let items = |field: &str| rule.items_at(&[field]).iter();
        Self {
            resources: items("resourceRules")
                .map(ResourceRule::from_value)
                .collect(),
            paths: items("nonResourceRules")
                .map(PathRule::from_value)
                .collect(),
        }
    }

    fn everything() -> Self {
        Self {
            resources: [ResourceRule {
                verbs: Names::All,
                groups: Names::All,
                resources: Names::All,
                namespaces: Names::All,
                cluster_scope: true,
            }]
            .into(),
            paths: [PathRule {
                verbs: Names::All,
                paths: [ALL.into()].into(),
            }]
            .into(),
        }
    }

    fn matches(&self, request: &Attributes<'_>) -> bool {
        match request.subject {
            RequestSubject::Resource { .. } => {
                self.resources.iter().any(|rule| rule.matches(request))
            }
            RequestSubject::Path(path) => {
                let mut rules = self.paths.iter();
                rules.any(|rule| rule.matches(request.verb, path))
            }
        }
    }
}

impl ResourceRule {
    fn from_value(rule: &Value) -> Self {
        Self {
            verbs: Names::of(rule, "verbs"),
            groups: Names::of(rule, "apiGroups"),
            resources: Names::of(rule, "resources"),
            namespaces: Names::of(rule, "namespaces"),
            cluster_scope: rule.bool_at(&["clusterScope"]),
        }
    }

    fn matches(&self, request: &Attributes<'_>) -> bool {
        let RequestSubject::Resource {
            group,
            resource,
            subresource,
            namespace,
            ..
        } = request.subject
        else {
            return false;
        };
        self.verbs.has(request.verb)
            && self.resources.has_resource(resource, subresource)
            && self.groups.has(group)
            && match namespace {
                "" => self.cluster_scope,
                namespace => self.namespaces.has(namespace),
            }
    }
}

impl PathRule {
    fn from_value(rule: &Value) -> Self {
        Self {
            verbs: Names::of(rule, "verbs"),
            paths: texts(rule, "nonResourceURLs").into(),
        }
    }

    /// Returns whether the rule matches a path: one of its paths, or one below it. A star stands for
    /// what is below.
    fn matches(&self, verb: &str, path: &str) -> bool {
        let is_below = |of: &Str| {
            if of == ALL || of == path {
                return true;
            }
            let prefix = of.strip_suffix('*').unwrap_or(of);
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| prefix.ends_with('/') || rest.starts_with('/'))
        };
        self.verbs.has(verb) && self.paths.iter().any(is_below)
    }
}
