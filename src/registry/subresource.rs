//! Subresources that are not just another view of the whole object: scale, binding, eviction.

use crate::body::{self, Expected};
use crate::call::Call;
use crate::delete;
use crate::negotiate;
use crate::object::{VersionWish, plan_update};
use crate::options::{FieldValidation, WriteOptions};
use crate::parameters::DRY_RUN;
use crate::patch::{self, ReadPatch};
use crate::request::{ResourceRequest, Verb};
use crate::update::check_uid;
use crate::write::{self, Attempt, Plan, Unstored, Written};
use polyplane_apimachinery::field_error::{FieldError, Path, aggregate};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::DefId;
use polyplane_apimachinery::status::{ApiError, Cause, Qualified, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_plane::{Key, Snapshot};

/// After how long an eviction may be tried again whose budget nobody has looked at yet.
const OBSERVE_SECONDS: u32 = 10;
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// The request as if it named the object itself.
pub fn of_object(request: &ResourceRequest) -> ResourceRequest {
    ResourceRequest {
        subresource: None,
        ..request.clone()
    }
}

fn scale_definition(call: &Call<'_>) -> Result<DefId, ApiError> {
    let schemas = call.tenant.base.schemas();
    schemas
        .find(SCALE)
        .ok_or_else(|| ApiError::internal("the schema of Scale is missing"))
}

fn scale_kind<'a>(call: &Call<'a>, definition: DefId) -> Expected<'a> {
    Expected {
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        schemas: call.tenant.base.schemas(),
        definition,
    }
}

/// The Scale of an object, without kind and version.
pub fn scale_of(object: &Value) -> Value {
    let mut scale = Value::object();
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = object.at(&["metadata", field]) {
            scale.set(&["metadata", field], value.clone());
        }
    }
    let replicas = object.int_at(&["spec", "replicas"]).unwrap_or(0);
    let spec = if replicas == 0 {
        Value::object()
    } else {
        Value::Object(Map::from_iter([("replicas", replicas)]))
    };
    scale.set(&["spec"], spec);
    let selector = match object.at(&["spec", "selector"]) {
        Some(selector)
            if selector.get("matchLabels").is_some()
                || selector.get("matchExpressions").is_some() =>
        {
            Selector::from_label_selector(Some(selector))
                .map(|selector| selector.to_string())
                .unwrap_or_default()
        }
        Some(Value::Object(plain)) => plain
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
            .collect::<Vec<_>>()
            .join(","),
        _ => String::new(),
    };
    scale.set(
        &["status", "replicas"],
        object.int_at(&["status", "replicas"]).unwrap_or(0),
    );
    if !selector.is_empty() {
        scale.set(&["status", "selector"], selector);
    }
    scale
}

/// The JSON of a Scale.
///
/// # Errors
/// 500 if its schema is missing.
pub fn scale_json(call: &Call<'_>, object: &Value) -> Result<Vec<u8>, ApiError> {
    let body = call
        .tenant
        .base
        .schemas()
        .to_vec(scale_definition(call)?, &scale_of(object));
    let mut out = Vec::from(b"{\"kind\":\"Scale\",\"apiVersion\":\"autoscaling/v1\",");
    out.extend_from_slice(&body[1..]);
    Ok(out)
}

/// PUT and PATCH of a Scale: changes `spec.replicas` of the object.
///
/// # Errors
/// As upstream.
pub async fn write_scale(call: &Call<'_>) -> Result<Written, ApiError> {
    let name = call.name()?.clone();
    let definition = scale_definition(call)?;
    let (source, options) = if call.request.verb == Verb::Patch {
        let options = WriteOptions::parse(call.request, "PatchOptions")?;
        (
            ScaleSource::Patch(patch::read(call, options.field_validation)?),
            options,
        )
    } else {
        let options = WriteOptions::parse(call.request, "UpdateOptions")?;
        let syntax = negotiate::input(call.request)?;
        let expected = scale_kind(call, definition);
        let tree = body::decode(call, syntax, expected, options.field_validation)?;
        body::match_name(&tree, &name)?;
        (ScaleSource::Whole(tree), options)
    };
    let request = of_object(call.request);
    let inner = Call::new(call.tenant, &request, call.row, call.services);
    let mut attempt = Scale {
        call,
        inner: &inner,
        name,
        definition,
        source,
        options,
    };
    write::run(call, &mut attempt).await
}

enum ScaleSource {
    Whole(Value),
    Patch(ReadPatch),
}

struct Scale<'a> {
    call: &'a Call<'a>,
    inner: &'a Call<'a>,
    name: Str,
    definition: DefId,
    source: ScaleSource,
    options: WriteOptions,
}

impl Attempt for Scale<'_> {
    fn key(&self) -> Key {
        self.inner.key(&self.name)
    }

    async fn plan(&mut self, cut: &Snapshot) -> Result<Plan, ApiError> {
        let call = self.call;
        let Some(existing) = cut.get(&self.key()) else {
            if call.request.verb == Verb::Update {
                return Err(call.not_found(&self.name));
            }
            let (group, resource) = call.qualified();
            return Err(ApiError::not_found(
                Qualified::new(&group, &resource),
                &self.name,
            ));
        };
        let mut object = call.stored_tree(&existing)?;
        let wished = match &self.source {
            ScaleSource::Whole(tree) => tree.clone(),
            ScaleSource::Patch(patch) => {
                let scale = || {
                    let mut scale = scale_of(&object);
                    scale.set(&["kind"], "Scale");
                    scale.set(&["apiVersion"], "autoscaling/v1");
                    scale
                };
                patch.apply(
                    call,
                    scale_kind(self.call, self.definition),
                    scale,
                    self.options.field_validation,
                )?
            }
        };
        check_uid(call, &wished, &existing)?;
        let replicas = wished.int_at(&["spec", "replicas"]).unwrap_or(0);
        if replicas < 0 {
            let path = Path::new("spec");
            let path = path.child("replicas");
            let detail = "must be greater than or equal to 0";
            let error = FieldError::invalid(&path, replicas, detail);
            return Err(ApiError::invalid(
                Qualified::new("autoscaling", "Scale"),
                &self.name,
                &[error],
            ));
        }
        object.set(&["spec", "replicas"], replicas);
        let version = wished.str_at(&["metadata", "resourceVersion"]).to_owned();
        if version.is_empty() {
            drop(object.remove(&["metadata", "resourceVersion"]));
        } else {
            object.set(&["metadata", "resourceVersion"], version);
        }
        plan_update(
            self.inner,
            cut,
            &existing,
            object,
            VersionWish::Any,
            self.options.persistence,
        )
    }
}

/// POST of a Binding: assigns a pod to a node.
///
/// # Errors
/// As upstream.
pub async fn bind(call: &Call<'_>) -> Result<Written, ApiError> {
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let schemas = call.tenant.base.schemas();
    let definition = schemas
        .find("io.k8s.api.core.v1.Binding")
        .ok_or_else(|| ApiError::internal("the schema of Binding is missing"))?;
    let expected = Expected {
        group: "",
        version: "v1",
        kind: "Binding",
        schemas,
        definition,
    };
    let syntax = negotiate::input(call.request)?;
    let mut binding = body::decode(call, syntax, expected, options.field_validation)?;
    body::match_path(call, &mut binding)?;
    let name = match &call.request.name {
        Some(name) => name.clone(),
        None => binding.str_at(&["metadata", "name"]).into(),
    };
    if name != binding.str_at(&["metadata", "name"]) {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let path = Path::new("target");
    let mut errors = Vec::new();
    let kind = binding.str_at(&["target", "kind"]);
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported(
            &path.child("kind"),
            kind,
            &["Node", "<empty>"],
        ));
    }
    let node = binding.str_at(&["target", "name"]);
    if node.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else if errors.is_empty() {
        let complaints = NameRule::DnsSubdomain.name(node).into_iter();
        errors.extend(
            complaints.map(|complaint| FieldError::invalid(&path.child("name"), node, complaint)),
        );
    }
    // Upstream passes these on as they are, without making them a complaint about the object.
    if let Some(text) = aggregate(&errors) {
        return Err(ApiError::new(Reason::Unknown, text));
    }
    let mut attempt = Bind {
        call,
        name,
        binding,
        options,
    };
    write::run(call, &mut attempt).await
}

struct Bind<'a> {
    call: &'a Call<'a>,
    name: Str,
    binding: Value,
    options: WriteOptions,
}

impl Bind<'_> {
    fn refuse(&self, why: String) -> ApiError {
        ApiError::conflict(Qualified::new("", "pods/binding"), &self.name, why)
    }
}

impl Attempt for Bind<'_> {
    fn key(&self) -> Key {
        Key::new(
            "",
            "pods",
            Some(self.call.request.namespace.as_deref().unwrap_or("")),
            &self.name,
        )
    }

    async fn plan(&mut self, cut: &Snapshot) -> Result<Plan, ApiError> {
        let call = self.call;
        let pods = call
            .tenant
            .base
            .stored("", "pods")
            .ok_or_else(|| ApiError::internal("pods are not served here"))?;
        let Some(existing) = cut.get(&self.key()) else {
            return Err(ApiError::not_found(Qualified::new("", "pods"), &self.name));
        };
        let mut pod = write::unversioned_tree(&existing)?;
        if !pod.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
            return Err(self.refuse(format!(
                "pod {} is being deleted, cannot be assigned to a host",
                self.name
            )));
        }
        let node = pod.str_at(&["spec", "nodeName"]);
        if !node.is_empty() {
            return Err(self.refuse(format!(
                "pod {} is already assigned to node {node:?}",
                self.name
            )));
        }
        if !pod.items_at(&["spec", "schedulingGates"]).is_empty() {
            return Err(self.refuse(format!(
                "pod {} has non-empty .spec.schedulingGates",
                self.name
            )));
        }
        pod.set(
            &["spec", "nodeName"],
            self.binding.str_at(&["target", "name"]),
        );
        drop(pod.remove(&["status", "nominatedNodeName"]));
        for field in ["annotations", "labels"] {
            let given = self
                .binding
                .at(&["metadata", field])
                .and_then(Value::as_object);
            for (key, value) in given.into_iter().flat_map(Map::iter) {
                pod.set(&["metadata", field, key], value.clone());
            }
        }
        scheduled(&mut pod, call.environment.now());
        if self.options.persistence == crate::options::Persistence::DryRun {
            return Ok(Plan::Answer(Unstored::Tree(pod)));
        }
        let object = crate::object::new_object(call, pods, &pod);
        let claims = vec![polyplane_plane::Claim::At(self.key(), existing.stamp())];
        let operations = vec![polyplane_plane::Operation::Put {
            key: self.key(),
            object,
        }];
        Ok(Plan::Commit(polyplane_plane::Write {
            operations,
            claims,
            deadline: Some(call.request.deadline),
        }))
    }
}

/// Sets the PodScheduled condition to true.
fn scheduled(pod: &mut Value, now: i64) {
    let now = Timestamp::from_seconds(now).to_rfc3339();
    let mut condition = Value::object();
    condition.set(&["type"], "PodScheduled");
    condition.set(&["status"], "True");
    condition.set(&["lastProbeTime"], Value::Null);
    condition.set(&["lastTransitionTime"], now);
    let mut conditions = pod.items_at(&["status", "conditions"]).to_vec();
    match conditions
        .iter_mut()
        .find(|old| old.str_at(&["type"]) == "PodScheduled")
    {
        Some(old) => {
            if old.str_at(&["status"]) == "True"
                && let Some(since) = old.get("lastTransitionTime")
            {
                condition.set(&["lastTransitionTime"], since.clone());
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
    pod.set(&["status", "conditions"], conditions);
}

/// POST of an Eviction: deletes a pod if no disruption budget objects.
///
/// # Errors
/// 429 while a budget would be broken, else as a deletion.
pub async fn evict(call: &Call<'_>) -> Result<(), ApiError> {
    let name = call.name()?.clone();
    let schemas = call.tenant.base.schemas();
    let definition = schemas
        .find("io.k8s.api.policy.v1.Eviction")
        .ok_or_else(|| ApiError::internal("the schema of Eviction is missing"))?;
    let limits = polyplane_apimachinery::json::Limits::default();
    let named = polyplane_apimachinery::json::parse(&call.request.body, &limits);
    let old = named.is_ok_and(|parsed| parsed.value.str_at(&["apiVersion"]) == "policy/v1beta1");
    let version = if old { "v1beta1" } else { "v1" };
    let expected = Expected {
        group: "policy",
        version,
        kind: "Eviction",
        schemas,
        definition,
    };
    let syntax = negotiate::input(call.request)?;
    let eviction = body::decode(call, syntax, expected, FieldValidation::Ignore)?;
    let given = eviction.str_at(&["metadata", "name"]);
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    check_budgets(call, &name)?;
    let mut options = Value::object();
    if let Some(wished) = eviction.get("deleteOptions") {
        options = wished.clone();
    }
    let mut body = Vec::new();
    polyplane_apimachinery::json::write(&options, &mut body);
    let query = call.request.query.iter();
    let dry_run = query.filter(|(key, _)| key == DRY_RUN.row().name);
    let request = ResourceRequest {
        verb: Verb::Delete,
        subresource: None,
        body: if options.as_object().is_some_and(Map::is_empty) {
            bytes::Bytes::new()
        } else {
            body.into()
        },
        content_type: None,
        query: dry_run.cloned().collect(),
        ..call.request.clone()
    };
    let inner = Call::new(call.tenant, &request, call.row, call.services);
    delete::delete(&inner).await.map(|_| ())
}

/// Refuses if a disruption budget that selects the pod allows no disruption.
fn check_budgets(call: &Call<'_>, name: &str) -> Result<(), ApiError> {
    let cut = call.tenant.plane.accepted();
    let Some(pod) = cut.get(&call.key(name)) else {
        return Err(call.not_found(name));
    };
    let tree = call.stored_tree(&pod)?;
    let phase = tree.str_at(&["status", "phase"]);
    let exempt = matches!(phase, "Succeeded" | "Failed" | "Pending");
    if exempt || !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        return Ok(());
    }
    let prefix =
        polyplane_plane::Prefix::namespaced("policy", "poddisruptionbudgets", call.namespace());
    let mut budgets = Vec::new();
    for budget in cut.range(&prefix, polyplane_plane::Start::First) {
        let budget = call.stored_tree(&budget)?;
        let selector = Selector::from_label_selector(Some(&budget["spec"]["selector"]));
        if selector.is_ok_and(|selector| selector.matches_bytes(pod.labels_json())) {
            budgets.push(budget);
        }
    }
    match budgets.as_slice() {
        [] => Ok(()),
        [budget]
            if budget
                .int_at(&["status", "observedGeneration"])
                .unwrap_or(0)
                < budget.int_at(&["metadata", "generation"]).unwrap_or(0) =>
        {
            let name = budget.str_at(&["metadata", "name"]);
            let detail =
                format!("The disruption budget {name} is still being processed by the server.");
            Err(broken_budget(OBSERVE_SECONDS, detail))
        }
        [budget]
            if budget
                .int_at(&["status", "disruptionsAllowed"])
                .unwrap_or(0)
                > 0 =>
        {
            Ok(())
        }
        [budget] => {
            let detail = format!(
                "The disruption budget {} needs {} healthy pods and has {} currently",
                budget.str_at(&["metadata", "name"]),
                budget.int_at(&["status", "desiredHealthy"]).unwrap_or(0),
                budget.int_at(&["status", "currentHealthy"]).unwrap_or(0)
            );
            Err(broken_budget(0, detail))
        }
        _ => Err(ApiError::internal(
            "this pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

fn broken_budget(retry_after_seconds: u32, detail: String) -> ApiError {
    let refusal = "Cannot evict pod as it would violate the pod's disruption budget.";
    ApiError::too_many_requests(refusal, retry_after_seconds).with_cause(Cause {
        reason: "DisruptionBudget".into(),
        message: detail,
        field: String::new(),
    })
}
