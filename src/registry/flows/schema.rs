//! Flow schemas, and which requests they match.

use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, Attributes, SYSTEM_MASTERS, Subject as RequestSubject,
    UserInfo,
};

/// The item that, alone in its list, matches everything.
const ALL: &str = "*";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
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
}

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    None,
    User,
    Namespace,
}

/// A request matches a rule if it matches one of the subjects, and one of the rules about resources, or
/// about paths.
#[derive(Debug)]
struct Rule {
    subjects: Box<[Subject]>,
    resources: Box<[ResourceRule]>,
    paths: Box<[PathRule]>,
}

#[derive(Debug)]
enum Subject {
    User(Str),
    Group(Str),
    /// Namespace and name.
    ServiceAccount(Str, Str),
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
        let rules = object.items_at(&["spec", "rules"]).iter();
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
            rules: rules.map(Rule::from_value).collect(),
        }
    }

    /// Returns the schema of administrators, for a plane that has not got its object.
    pub(super) fn exempt() -> Self {
        Self {
            name: super::EXEMPT.into(),
            precedence: 1,
            level: super::EXEMPT.into(),
            distinguisher: Distinguisher::None,
            rules: [Rule::everything(&[SYSTEM_MASTERS])].into(),
        }
    }

    /// Returns the schema of everything else, for a plane that has not got its object.
    pub(super) fn catch_all() -> Self {
        Self {
            name: super::CATCH_ALL.into(),
            precedence: 10_000,
            level: super::CATCH_ALL.into(),
            distinguisher: Distinguisher::User,
            rules: [Rule::everything(&[ALL_UNAUTHENTICATED, ALL_AUTHENTICATED])].into(),
        }
    }

    /// Returns what schemas are ordered by.
    pub(super) fn rank(&self) -> (i64, &str) {
        (self.precedence, &self.name)
    }

    pub(super) fn matches(&self, request: &Attributes<'_>) -> bool {
        self.rules.iter().any(|rule| rule.matches(request))
    }
}

impl Rule {
    fn from_value(rule: &Value) -> Self {
        let items = |field: &str| rule.items_at(&[field]).iter();
        Self {
            subjects: items("subjects").filter_map(Subject::from_value).collect(),
            resources: items("resourceRules")
                .map(ResourceRule::from_value)
                .collect(),
            paths: items("nonResourceRules")
                .map(PathRule::from_value)
                .collect(),
        }
    }

    fn everything(groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| Subject::Group((*group).into()));
        Self {
            subjects: groups.collect(),
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
        if !self.subjects.iter().any(|subject| subject.is(request.user)) {
            return false;
        }
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

impl Subject {
    fn from_value(subject: &Value) -> Option<Self> {
        let name = |kind: &str| Some(subject.at(&[kind, "name"])?.as_str()?.into());
        match subject.str_at(&["kind"]) {
            "User" => name("user").map(Self::User),
            "Group" => name("group").map(Self::Group),
            "ServiceAccount" => {
                let namespace = subject.str_at(&["serviceAccount", "namespace"]).into();
                Some(Self::ServiceAccount(namespace, name("serviceAccount")?))
            }
            _ => None,
        }
    }

    /// Returns whether the subject is this user. The names of a user of another plane mean others here, so
    /// such a user is matched by `*` and by the groups that mean the same in every plane.
    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) | Self::Group(name) if name == ALL => true,
            Self::User(name) => !user.is_foreign && *name == user.name,
            Self::Group(name) => {
                let everywhere = [SYSTEM_MASTERS, ALL_AUTHENTICATED, ALL_UNAUTHENTICATED];
                let means_the_same = !user.is_foreign || everywhere.contains(&name.as_str());
                means_the_same && user.in_group(name)
            }
            Self::ServiceAccount(namespace, name) => {
                let account = user.name.strip_prefix(ACCOUNT_PREFIX);
                let rest = account.and_then(|rest| rest.strip_prefix(namespace.as_str()));
                let own = rest.and_then(|rest| rest.strip_prefix(':'));
                !user.is_foreign && own.is_some_and(|own| name == ALL || name == own)
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
