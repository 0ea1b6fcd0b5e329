//! One quota: its limits, the objects that its scopes select, and what these take.

use super::IGNORED;
use super::extended::classes;
use super::usage::{
    DEVICES, IMPLICIT, Kind, ONE, Signature, beginning, beginning_of_specs, spec, thousandths,
};
use crate::pod_resources::quantity;
use bytes::Bytes;
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::quantity::{Format, Quantity};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Claim, IndexId, IndexValues, Prefix, Snapshot, Start};
use polyplane_registry::{Kinds, Resource, Scope as ResourceScope};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

static QUOTAS: LazyLock<Prefix> = LazyLock::new(|| Prefix::resource("", "resourcequotas"));

/// The resources that each container has to state if a quota limits them.
const STATED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

/// The resources of pods whose names have no variable part.
const OF_PODS: [&str; 11] = [
    "count/pods",
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// The ends of the resources of volume claims by storage class.
const BY_CLASS: [&str; 2] = [
    ".storageclass.storage.k8s.io/persistentvolumeclaims",
    ".storageclass.storage.k8s.io/requests.storage",
];

/// A quota, as its spec says.
pub(super) struct Quota {
    pub(super) name: Str,
    /// The bytes of the spec.
    spec: Bytes,
    hard: BTreeMap<Str, Quantity>,
    scopes: Arc<[Scope]>,
}

/// Where the usage of a resource is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// In the index.
    Index(Kind),
    /// In the index, for pods and for the claims to devices that count as the same resource.
    Extended,
    /// By the number of objects.
    Objects,
}

/// A condition on the objects that a quota counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Terminating,
    NotTerminating,
    BestEffort,
    NotBestEffort,
    CrossNamespacePodAffinity,
    /// On the priority class of pods or the attributes classes of claims.
    Class(Kind, ClassRule),
    /// One that this program does not know, which no object meets.
    Unknown,
}

/// A condition on the classes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClassRule {
    In(Vec<Str>),
    NotIn(Vec<Str>),
    Exists,
    DoesNotExist,
}

impl ClassRule {
    /// Returns the condition of an expression, unless its operator is unknown.
    pub(super) fn of(expression: &Value) -> Option<Self> {
        let values = expression.items_at(&["values"]).iter();
        let values = values.filter_map(|value| Some(value.as_str()?.into()));
        Some(match expression.str_at(&["operator"]) {
            "In" => Self::In(values.collect()),
            "NotIn" => Self::NotIn(values.collect()),
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => return None,
        })
    }

    fn holds(&self, class: Option<&Str>) -> bool {
        match self {
            Self::In(values) => class.is_some_and(|class| values.contains(class)),
            Self::NotIn(values) => class.is_none_or(|class| !values.contains(class)),
            Self::Exists => class.is_some(),
            Self::DoesNotExist => class.is_none(),
        }
    }
}

impl Scope {
    /// Returns the scope of this name; `rule` is that of a class.
    pub(super) fn of(name: &str, rule: Option<ClassRule>) -> Self {
        let class = |kind| rule.map_or(Self::Unknown, |rule| Self::Class(kind, rule));
        match name {
            "Terminating" => Self::Terminating,
            "NotTerminating" => Self::NotTerminating,
            "BestEffort" => Self::BestEffort,
            "NotBestEffort" => Self::NotBestEffort,
            "CrossNamespacePodAffinity" => Self::CrossNamespacePodAffinity,
            "PriorityClass" => class(Kind::Pods),
            "VolumeAttributesClass" => class(Kind::Claims),
            _ => Self::Unknown,
        }
    }

    /// Returns the name; of an unknown scope it is empty.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Terminating => "Terminating",
            Self::NotTerminating => "NotTerminating",
            Self::BestEffort => "BestEffort",
            Self::NotBestEffort => "NotBestEffort",
            Self::CrossNamespacePodAffinity => "CrossNamespacePodAffinity",
            Self::Class(Kind::Claims, _) => "VolumeAttributesClass",
            Self::Class(..) => "PriorityClass",
            Self::Unknown => "",
        }
    }

    /// Returns whether an object meets the condition.
    pub(super) fn selects(&self, kind: Kind, signature: &Signature) -> bool {
        let is_pod = kind == Kind::Pods;
        match self {
            Self::Terminating => is_pod && signature.is_terminating,
            Self::NotTerminating => is_pod && !signature.is_terminating,
            Self::BestEffort => is_pod && signature.is_best_effort,
            Self::NotBestEffort => is_pod && !signature.is_best_effort,
            Self::CrossNamespacePodAffinity => is_pod && signature.crosses_namespaces,
            Self::Class(of, rule) => {
                let classes = &signature.classes;
                let holds = match classes.as_slice() {
                    [] => rule.holds(None),
                    some => some.iter().any(|class| rule.holds(Some(class))),
                };
                *of == kind && holds
            }
            Self::Unknown => false,
        }
    }
}

impl Source {
    /// Returns the source of a resource that quotas limit, and the objects it belongs to: their
    /// plural name and group, as in `kubectl`; claims can take extended resources too. Quotas may
    /// have other names, which nothing counts.
    fn of(resource: &str) -> Option<(Self, &str)> {
        let kind = match resource {
            "count/persistentvolumeclaims" | "persistentvolumeclaims" | "requests.storage" => {
                Kind::Claims
            }
            "services.nodeports" | "services.loadbalancers" => Kind::Services,
            "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" | "services" => {
                return Some((Self::Objects, resource));
            }
            _ if is_extended(resource) => {
                return Some((Self::Extended, Kind::Pods.resource()));
            }
            _ if is_of_pods(resource) => Kind::Pods,
            _ if BY_CLASS.iter().any(|suffix| resource.ends_with(suffix)) => Kind::Claims,
            _ if resource.ends_with(DEVICES) => Kind::DeviceClaims,
            _ => return Some((Self::Objects, resource.strip_prefix("count/")?)),
        };
        Some((Self::Index(kind), kind.resource()))
    }

    /// Returns a quantity as the number that is compared.
    pub(super) fn amount(self, quantity: &Quantity) -> i128 {
        match self {
            Self::Index(_) | Self::Extended => i128::from(thousandths(quantity)),
            Self::Objects => i128::from(quantity.value()),
        }
    }

    /// Returns an amount as people read it, in the format of the limit.
    pub(super) fn shown(self, amount: i128, hard: &Quantity) -> Quantity {
        let clamped = |amount: i128| i64::try_from(amount).unwrap_or(i64::MAX);
        match self {
            Self::Objects => Quantity::new(clamped(amount), Format::DecimalSi),
            Self::Index(_) | Self::Extended if amount % i128::from(ONE) == 0 => {
                Quantity::new(clamped(amount / i128::from(ONE)), hard.format())
            }
            Self::Index(_) | Self::Extended => Quantity::from_milli(clamped(amount), hard.format()),
        }
    }
}

/// Returns whether only pods take a resource.
fn is_of_pods(resource: &str) -> bool {
    let name = resource.strip_prefix("requests.").unwrap_or(resource);
    OF_PODS.contains(&resource) || name.starts_with("hugepages-")
}

/// Returns whether a third party or a device class defines what is requested.
fn is_extended(resource: &str) -> bool {
    let name = resource.strip_prefix("requests.");
    name.is_some_and(|name| {
        let is_native = !name.contains('/') || name.contains("kubernetes.io/");
        !is_native || name.starts_with(IMPLICIT)
    })
}

impl Quota {
    /// Returns the quotas of a namespace, in the order of their names.
    ///
    /// # Errors
    /// Returns 500 if one cannot be read.
    pub(super) fn of_namespace(cut: &Snapshot, namespace: &str) -> Result<Vec<Self>, ApiError> {
        // Most planes have no quota at all, which takes no prefix of the namespace to see.
        if cut.count(&QUOTAS) == 0 {
            return Ok(Vec::new());
        }
        let prefix = QUOTAS.namespace(namespace);
        let quotas = cut.range(&prefix, Start::First).map(|object| {
            let bytes = Bytes::copy_from_slice(spec(&object.body()));
            let tree = parse(&bytes, &Limits::default());
            let tree = tree.map_err(|error| ApiError::internal(error.to_string()))?;
            Ok(Self::new(object.key().name(), &tree.value, bytes))
        });
        quotas.collect()
    }

    fn new(name: &str, tree: &Value, spec: Bytes) -> Self {
        let hard = tree["hard"].as_object().into_iter();
        let hard = hard.flat_map(|hard| hard.iter());
        let names = tree.items_at(&["scopes"]).iter();
        let plain = names.map(|name| {
            let name = name.as_str().unwrap_or("");
            Scope::of(name, Some(ClassRule::Exists))
        });
        let expressions = tree.items_at(&["scopeSelector", "matchExpressions"]).iter();
        let selected = expressions.map(|expression| {
            let name = expression.str_at(&["scopeName"]);
            Scope::of(name, ClassRule::of(expression))
        });
        Self {
            name: name.into(),
            spec,
            hard: hard
                .map(|(name, value)| (name.into(), quantity(value)))
                .collect(),
            scopes: plain.chain(selected).collect(),
        }
    }

    /// Claims that a namespace has no quotas but these, with just these specs.
    pub(super) fn no_others(index: IndexId, namespace: &str, quotas: &[Self]) -> Claim {
        let known: Vec<Bytes> = quotas.iter().map(|quota| quota.spec.clone()).collect();
        let is_unknown = move |spec: &[u8]| !known.iter().any(|known| known == spec);
        Claim::Room {
            index,
            values: IndexValues::selected(beginning_of_specs(namespace), is_unknown),
            add: 0,
            max: 0,
        }
    }

    /// Claims that the namespace still has a quota with this spec.
    pub(super) fn stays(&self, index: IndexId, namespace: &str) -> Claim {
        let wanted = self.spec.clone();
        Claim::Taken {
            index,
            values: IndexValues::selected(beginning_of_specs(namespace), move |spec: &[u8]| {
                spec == wanted
            }),
        }
    }

    /// Returns the conditions on the objects that the quota counts.
    pub(super) fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    pub(super) fn has_no_scopes(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Returns whether the quota counts an object.
    pub(super) fn matches(&self, kind: Kind, signature: &Signature) -> bool {
        self.scopes
            .iter()
            .all(|scope| scope.selects(kind, signature))
    }

    /// Returns the limits that objects of a resource can reach.
    pub(super) fn limits_on(
        &self,
        qualified: &str,
    ) -> impl Iterator<Item = (&Str, Source, &Quantity)> {
        self.hard.iter().filter_map(move |(resource, hard)| {
            let (source, objects) = Source::of(resource)?;
            let is_claimed =
                source == Source::Extended && qualified == Kind::DeviceClaims.resource();
            (objects == qualified || is_claimed).then_some((resource, source, hard))
        })
    }

    /// Returns what the containers of a pod have to state and do not.
    pub(super) fn missing(&self, pod: &Value) -> Option<String> {
        let of_whole_pod = &pod["spec"]["resources"];
        let states = |list: &str| {
            of_whole_pod[list]
                .as_object()
                .is_some_and(|list| !list.is_empty())
        };
        if states("requests") || states("limits") {
            return None;
        }
        let limited = STATED.iter().filter(|name| self.hard.contains_key(**name));
        let missing: Vec<String> = limited
            .filter_map(|name| {
                let (list, resource) = match name.split_once('.') {
                    Some((list, resource)) => (list, resource),
                    None => ("requests", *name),
                };
                let mut lacking: Vec<&str> = ["containers", "initContainers"]
                    .iter()
                    .flat_map(|containers| pod.items_at(&["spec", containers]))
                    .filter(|container| container.at(&["resources", list, resource]).is_none())
                    .map(|container| container.str_at(&["name"]))
                    .collect();
                lacking.sort_unstable();
                lacking.dedup();
                (!lacking.is_empty()).then(|| format!("{name} for: {}", lacking.join(",")))
            })
            .collect();
        let mut missing = missing;
        missing.sort_unstable();
        (!missing.is_empty()).then(|| format!("must specify {}", missing.join("; ")))
    }
}

/// The usage of a namespace at one moment.
pub(super) struct Total<'a> {
    pub(super) index: IndexId,
    pub(super) cut: &'a Snapshot,
    pub(super) namespace: &'a str,
    /// Seconds since 1970.
    pub(super) now: i64,
}

impl Total<'_> {
    /// Returns the values of the index that a quota counts.
    fn values(&self, quota: &Quota, kind: Kind, resource: &str) -> IndexValues {
        let (scopes, now) = (Arc::clone(&quota.scopes), self.now);
        let is_living = resource != "count/pods";
        IndexValues::selected(
            beginning(self.namespace, kind, resource),
            move |signature: &[u8]| {
                let Some(signature) = Signature::decode(signature) else {
                    return false;
                };
                let has_ended = is_living && signature.has_ended(now);
                !has_ended && scopes.iter().all(|scope| scope.selects(kind, &signature))
            },
        )
    }

    /// Returns the values of the index with what pods and claims take of an extended resource.
    fn extended_values(&self, quota: &Quota, resource: &str) -> IndexValues {
        let classes = classes(self.cut, resource);
        if classes.is_empty() || !quota.has_no_scopes() {
            return self.values(quota, Kind::Pods, resource);
        }
        // The values of pods and of claims have only the namespace in common.
        let common = self.namespace.len() + 1;
        let rest =
            |kind, resource: &str| beginning(self.namespace, kind, resource)[common..].to_vec();
        let of_pods = rest(Kind::Pods, resource);
        let of_claims = classes.iter();
        let of_claims =
            of_claims.map(|class| rest(Kind::DeviceClaims, &format!("{class}{DEVICES}")));
        let of_claims: Vec<Vec<u8>> = of_claims.collect();
        let now = self.now;
        let namespace = beginning(self.namespace, Kind::Pods, "")[..common].to_vec();
        IndexValues::selected(namespace, move |rest: &[u8]| {
            let of_pod = rest.strip_prefix(of_pods.as_slice());
            let of_pod = of_pod.and_then(Signature::decode);
            of_pod.is_some_and(|signature| !signature.has_ended(now))
                || of_claims.iter().any(|claims| rest.starts_with(claims))
        })
    }

    fn objects(&self, (group, resource): (&str, &str)) -> Prefix {
        Prefix::namespaced(group, resource, self.namespace)
    }

    /// Returns what the objects that a quota counts take of a resource, including what counts twice.
    /// `storage` is where objects are stored that are counted by number.
    pub(super) fn of(
        &self,
        quota: &Quota,
        source: &Source,
        resource: &str,
        storage: (&str, &str),
    ) -> i128 {
        match source {
            Source::Index(kind) => {
                let values = self.values(quota, *kind, resource);
                self.cut.index_total(self.index, &values)
            }
            Source::Extended => {
                let values = self.extended_values(quota, resource);
                self.cut.index_total(self.index, &values)
            }
            Source::Objects if !quota.has_no_scopes() => 0,
            Source::Objects => {
                let count = self.cut.count(&self.objects(storage));
                i128::try_from(count).unwrap_or(i128::MAX)
            }
        }
    }

    /// Claims that there is room for what a write adds.
    pub(super) fn claim(
        &self,
        quota: &Quota,
        source: &Source,
        resource: &str,
        (storage, add, max): ((&str, &str), i128, i128),
    ) -> Claim {
        let values = match source {
            Source::Index(kind) => self.values(quota, *kind, resource),
            Source::Extended => self.extended_values(quota, resource),
            Source::Objects => {
                return Claim::Below {
                    prefix: self.objects(storage),
                    count: u64::try_from(max).unwrap_or(0),
                };
            }
        };
        Claim::Room {
            index: self.index,
            values,
            add,
            max,
        }
    }
}

/// Returns the kind of objects that have this plural name and group, if a quota can count them.
fn counted<'a>(kinds: &'a Kinds, qualified: &str) -> Option<&'a Arc<Resource>> {
    let is_counted = |row: &&Arc<Resource>| {
        let verbs = ["create", "list", "watch", "delete"];
        row.qualified == qualified
            && row.scope == ResourceScope::Namespaced
            && verbs.iter().all(|verb| row.allows(verb))
    };
    let mut rows = kinds.resources();
    rows.find(is_counted)
        .filter(|_| !IGNORED.contains(&qualified))
}

/// Returns the status of a quota: its limits, and what the objects of its namespace take at `now`,
/// in seconds since 1970. Limits on what nothing counts have no usage.
pub(crate) fn status(
    cut: &Snapshot,
    index: IndexId,
    kinds: &Kinds,
    (quota, now): (&Value, i64),
) -> Value {
    let metadata = &quota["metadata"];
    let parsed = Quota::new(metadata.str_at(&["name"]), &quota["spec"], Bytes::new());
    let total = Total {
        index,
        cut,
        namespace: metadata.str_at(&["namespace"]),
        now,
    };
    let mut used = Value::object();
    for (resource, hard) in &parsed.hard {
        let source = Source::of(resource);
        let row = source.and_then(|(_, objects)| counted(kinds, objects));
        let (Some((source, _)), Some(row)) = (source, row) else {
            continue;
        };
        let storage = (row.storage.group.as_str(), row.storage.resource.as_str());
        let amount = total.of(&parsed, &source, resource, storage);
        let (twice, _) = total.counted_twice(&parsed, source, resource);
        used.set(&[resource], source.shown(amount - twice, hard).to_string());
    }
    let mut status = Value::object();
    status.set(&["hard"], quota["spec"]["hard"].clone());
    status.set(&["used"], used);
    status
}
