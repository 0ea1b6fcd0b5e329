//! The policy: the first rule that matches a request says how much of it is recorded.

use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value, yaml};
use polyplane_auth::{Attributes, Subject};

use crate::event::Stage;

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    None,
    /// Who did what, and how it ended.
    Metadata,
    /// The body of the request too.
    Request,
    /// The body of the answer too.
    RequestResponse,
}

impl Level {
    const ALL: [Self; 4] = [
        Self::None,
        Self::Metadata,
        Self::Request,
        Self::RequestResponse,
    ];

    /// Returns the name in policies and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// What is recorded of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How much is recorded.
    pub level: Level,
    /// Whether bodies lack `metadata.managedFields`.
    pub omits_managed_fields: bool,
    omitted: Stages,
}

impl Plan {
    /// Returns whether events of a stage are recorded.
    #[must_use]
    pub fn records(&self, stage: Stage) -> bool {
        self.level != Level::None && !self.omitted.has(stage)
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stages(u8);

impl Stages {
    fn with(self, stage: Stage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
}

/// The reason why a text is no policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The text is neither YAML nor JSON.
    #[error("it is not YAML: {0}")]
    Text(String),
    /// The text is not an `audit.k8s.io/v1` Policy.
    #[error("it is not a Policy of audit.k8s.io/v1, but {kind:?} of {version:?}")]
    Kind {
        /// The kind in the text.
        kind: Str,
        /// The version in the text.
        version: Str,
    },
    /// The policy has no rules, so it would record nothing.
    #[error("it has no rules")]
    NoRules,
    /// A part of the policy is wrong.
    #[error("{path}: {problem}")]
    Part {
        /// Where the part is.
        path: String,
        /// The problem.
        problem: String,
    },
}

/// A policy of audit.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    plan: Plan,
    users: Vec<Str>,
    groups: Vec<Str>,
    verbs: Vec<Str>,
    namespaces: Vec<Str>,
    resources: Vec<GroupResources>,
    paths: Vec<Str>,
}

#[derive(Clone, Debug)]
struct GroupResources {
    group: Str,
    resources: Vec<Str>,
    names: Vec<Str>,
}

/// Kinds whose bodies hold credentials, as group and resource with its subresource. They are
/// recorded without bodies unless a rule names them.
const CREDENTIALS: [(&str, &str); 5] = [
    ("", "secrets"),
    ("", "serviceaccounts/token"),
    ("authentication.k8s.io", "tokenreviews"),
    ("polyplane.dev", "controlplanes/credentials"),
    ("polyplane.dev", "controlplanes/kubeconfig"),
];

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// Returns the first problem of the text.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let parsed = yaml::parse(text, &Limits::default());
        let policy = parsed
            .map_err(|error| PolicyError::Text(error.to_string()))?
            .value;
        let (kind, version) = (policy.str_at(&["kind"]), policy.str_at(&["apiVersion"]));
        if (kind, version) != ("Policy", "audit.k8s.io/v1") {
            return Err(PolicyError::Kind {
                kind: kind.into(),
                version: version.into(),
            });
        }
        let known = [
            "kind",
            "apiVersion",
            "metadata",
            "rules",
            "omitStages",
            "omitManagedFields",
        ];
        only(&policy, &known, "")?;
        let omitted = stages(&policy, "omitStages")?;
        let hides = policy.bool_at(&["omitManagedFields"]);
        let rules = policy.items_at(&["rules"]).iter().enumerate();
        let rules = rules.map(|(index, rule)| Rule::read(rule, index, omitted, hides));
        let rules = rules.collect::<Result<Vec<Rule>, _>>()?;
        if rules.is_empty() {
            return Err(PolicyError::NoRules);
        }
        Ok(Self { rules })
    }

    /// Returns what is recorded of a request: what the first matching rule says, or nothing.
    #[must_use]
    pub fn plan(&self, request: &Attributes<'_>) -> Plan {
        let nothing = Plan {
            level: Level::None,
            omits_managed_fields: false,
            omitted: Stages::default(),
        };
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(request)) else {
            return nothing;
        };
        let mut plan = rule.plan;
        if plan.level > Level::Metadata
            && holds_credentials(&request.subject)
            && !rule.names(request)
        {
            plan.level = Level::Metadata;
        }
        plan
    }
}

impl Rule {
    fn read(rule: &Value, index: usize, omitted: Stages, hides: bool) -> Result<Self, PolicyError> {
        let at = format!("rules[{index}]");
        let known = [
            "level",
            "users",
            "userGroups",
            "verbs",
            "namespaces",
            "resources",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ];
        only(rule, &known, &at)?;
        let level = rule.str_at(&["level"]);
        let level = Level::named(level).ok_or_else(|| {
            let names = Level::ALL.map(Level::name).join(", ");
            wrong(
                format!("{at}.level"),
                format!("{level:?} is none of {names}"),
            )
        })?;
        let resources = rule.items_at(&["resources"]).iter().enumerate();
        let resources = resources
            .map(|(place, one)| GroupResources::read(one, &format!("{at}.resources[{place}]")));
        let rule = Self {
            plan: Plan {
                level,
                omits_managed_fields: rule
                    .at(&["omitManagedFields"])
                    .and_then(Value::as_bool)
                    .unwrap_or(hides),
                omitted: omitted.and(stages(rule, "omitStages")?),
            },
            users: texts(rule, "users"),
            groups: texts(rule, "userGroups"),
            verbs: texts(rule, "verbs"),
            namespaces: texts(rule, "namespaces"),
            resources: resources.collect::<Result<_, _>>()?,
            paths: texts(rule, "nonResourceURLs"),
        };
        rule.check(&at)?;
        Ok(rule)
    }

    fn check(&self, at: &str) -> Result<(), PolicyError> {
        let is_resource = !self.resources.is_empty() || !self.namespaces.is_empty();
        if is_resource && !self.paths.is_empty() {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            return Err(wrong(format!("{at}.nonResourceURLs"), why.to_owned()));
        }
        for (place, path) in self.paths.iter().enumerate() {
            let at = format!("{at}.nonResourceURLs[{place}]");
            let stem = path.strip_suffix('*').unwrap_or(path);
            if path == "*" {
                continue;
            }
            if !path.starts_with('/') {
                return Err(wrong(at, format!("{path:?} must begin with a '/'")));
            }
            if stem.contains('*') {
                let why = format!("{path:?} may have a '*' only at its end");
                return Err(wrong(at, why));
            }
        }
        Ok(())
    }

    fn matches(&self, request: &Attributes<'_>) -> bool {
        let has = |list: &[Str], text: &str| list.iter().any(|one| one == text);
        let user = request.user;
        if !self.users.is_empty() && !has(&self.users, &user.name) {
            return false;
        }
        if !self.groups.is_empty() && !user.groups.iter().any(|group| has(&self.groups, group)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, request.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.matches_resource(&request.subject);
        }
        if self.paths.is_empty() {
            return true;
        }
        let Subject::Path(path) = request.subject else {
            return false;
        };
        self.paths.iter().any(|one| {
            let prefix = one.strip_suffix('*');
            one == path || prefix.is_some_and(|prefix| path.starts_with(prefix))
        })
    }

    fn matches_resource(&self, subject: &Subject<'_>) -> bool {
        let Subject::Resource { namespace, .. } = *subject else {
            return false;
        };
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|one| one == namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|one| one.matches(subject))
    }

    /// Returns whether the rule names the resource of a request, not only by a wildcard.
    fn names(&self, request: &Attributes<'_>) -> bool {
        let Subject::Resource {
            group,
            resource,
            subresource,
            ..
        } = request.subject
        else {
            return false;
        };
        let full = full_name(resource, subresource);
        self.resources
            .iter()
            .filter(|one| one.group == group)
            .any(|one| one.resources.iter().any(|name| *name == full))
    }
}

impl GroupResources {
    fn read(value: &Value, at: &str) -> Result<Self, PolicyError> {
        only(value, &["group", "resources", "resourceNames"], at)?;
        let read = Self {
            group: value.str_at(&["group"]).into(),
            resources: texts(value, "resources"),
            names: texts(value, "resourceNames"),
        };
        if read.group.contains('/') {
            let why = format!("{:?} names a version; give the group alone", read.group);
            return Err(wrong(format!("{at}.group"), why));
        }
        if !read.names.is_empty() && read.resources.is_empty() {
            let why = "using resourceNames requires at least one resource".to_owned();
            return Err(wrong(format!("{at}.resourceNames"), why));
        }
        Ok(read)
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        let Subject::Resource {
            group,
            resource,
            subresource,
            name,
            ..
        } = *subject
        else {
            return false;
        };
        if self.group != "*" && self.group != group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.names.is_empty() && !self.names.iter().any(|one| one == name) {
            return false;
        }
        self.resources.iter().any(|one| {
            if one == "*" || one.strip_suffix("/*") == Some(resource) {
                return true;
            }
            match one.split_once('/') {
                Some(("*", wanted)) => !subresource.is_empty() && wanted == subresource,
                Some((of, wanted)) => of == resource && wanted == subresource,
                None => subresource.is_empty() && one == resource,
            }
        })
    }
}

fn holds_credentials(subject: &Subject<'_>) -> bool {
    let Subject::Resource {
        group,
        resource,
        subresource,
        ..
    } = *subject
    else {
        return false;
    };
    CREDENTIALS.iter().any(|(of, name)| {
        let (kind, sub) = name.split_once('/').unwrap_or((name, subresource));
        *of == group && kind == resource && sub == subresource
    })
}

fn full_name(resource: &str, subresource: &str) -> String {
    match subresource {
        "" => resource.to_owned(),
        _ => format!("{resource}/{subresource}"),
    }
}

fn texts(value: &Value, field: &str) -> Vec<Str> {
    let items = value.items_at(&[field]).iter();
    items.filter_map(Value::as_str).map(Str::from).collect()
}

fn stages(value: &Value, field: &str) -> Result<Stages, PolicyError> {
    let mut set = Stages::default();
    for name in texts(value, field) {
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name);
        let stage = stage.ok_or_else(|| {
            let names = Stage::ALL.map(Stage::name).join(", ");
            wrong(field.to_owned(), format!("{name:?} is none of {names}"))
        })?;
        set = set.with(stage);
    }
    Ok(set)
}

/// Complains about a field that no policy has: a misspelt one would record less than was meant.
fn only(value: &Value, known: &[&str], at: &str) -> Result<(), PolicyError> {
    let Some(fields) = value.as_object() else {
        return Err(wrong(at.to_owned(), "it must be an object".to_owned()));
    };
    for (name, _) in fields.iter() {
        if !known.contains(&name) {
            let path = if at.is_empty() {
                json::to_string(&Value::string(name))
            } else {
                at.to_owned()
            };
            return Err(wrong(path, format!("unknown field {name:?}")));
        }
    }
    Ok(())
}

fn wrong(path: String, problem: String) -> PolicyError {
    PolicyError::Part { path, problem }
}

#[cfg(test)]
mod tests;
