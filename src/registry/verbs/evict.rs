//! POST of an Eviction: deleting a pod if its disruption budget allows that.
//!
//! One commit counts the disruption in the budget and marks the pod as disrupted, or removes it.

use crate::answer::negotiate;
use crate::plan::{Interrupted, ObjectDeletion, ObjectFate, Present, Run, admit_post};
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{DeleteOptions, Persistence, WriteOptions};
use crate::request::parameters::DRY_RUN;
use crate::request::{ResourceRequest, Verb};
use crate::strategy::{Allocation, Companion, CompanionChange};
use crate::verbs::delete;
use crate::verbs::delete::Delete;
use crate::verbs::scale_and_binding::set_condition;
use crate::write;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::schema::DefId;
use polyplane_apimachinery::status::{ApiError, Cause, Qualified, Reason};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Claim, Key, ObjectRef, Prefix, Start};

/// `Retry-After`, in seconds, of an eviction whose budget the disruption controller has not
/// computed yet.
const OBSERVE_SECONDS: u32 = 10;
/// Number of evicted pods of a budget that its controller may leave unconfirmed. More mean that no
/// controller is running.
const DISRUPTED_MAX: usize = 2000;

/// Evicts the pod of the path.
///
/// # Errors
/// Returns 429 while the budget forbids it, else the errors of a deletion.
pub async fn evict(call: &Call<'_>) -> Result<(), ApiError> {
    let name = call.name()?.clone();
    let schemas = call.tenant.base.schemas();
    let definition = schemas
        .find("io.k8s.api.policy.v1.Eviction")
        .ok_or_else(|| ApiError::internal("the schema of Eviction is missing"))?;
    let named = json::parse(&call.request.body, &json::Limits::default());
    let old = named.is_ok_and(|parsed| parsed.value.str_at(&["apiVersion"]) == "policy/v1beta1");
    let kind = EvictionKind {
        version: if old { "v1beta1" } else { "v1" },
        definition,
    };
    let syntax = negotiate::input(call.request)?;
    let validation = WriteOptions::parse(call.request, "CreateOptions")?.field_validation;
    let mut eviction = body::decode(call, syntax, kind.expected(call), validation)?;
    body::match_path(call, &mut eviction)?;
    if eviction.str_at(&["metadata", "name"]) != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    if eviction.bool_at(&["deleteOptions", DeleteOptions::IGNORE_READ_ERROR]) {
        let path = Path::new("deleteOptions");
        let detail = "can not be set for pod eviction, try after removing the option";
        let error =
            FieldError::invalid(&path.child(DeleteOptions::IGNORE_READ_ERROR), true, detail);
        let what = Qualified::new("policy", "Eviction");
        return Err(ApiError::invalid(what, &name, &[error]));
    }
    let options = options(call, &eviction)?;
    let mut evict = Evict {
        call,
        delete: Delete::new(call, name.clone(), options),
        name,
        kind,
        eviction,
        counted: None,
    };
    drop(write::delete(call, &mut evict).await?);
    if evict.delete.has_to_remove() {
        delete::unless_gone(write::delete(call, &mut evict).await)?;
    }
    Ok(())
}

/// Reads the options of the deletion in an eviction. A dry run may be requested in the query or in
/// the body. An error in the options is returned inside, because it is reported only once the
/// budget allows the eviction.
fn options(call: &Call<'_>, eviction: &Value) -> Result<Result<DeleteOptions, ApiError>, ApiError> {
    let mut wished = eviction["deleteOptions"].clone();
    let asked: Vec<&str> = DRY_RUN.read(&call.request.query).collect();
    let inside = eviction.items_at(&["deleteOptions", "dryRun"]);
    let inside: Vec<&str> = inside.iter().filter_map(Value::as_str).collect();
    if !asked.is_empty() && !inside.is_empty() && asked != inside {
        let (asked, inside) = (asked.join(" "), inside.join(" "));
        let text = format!(
            "Non-matching dry-run options in request and content: [{asked}] and [{inside}]"
        );
        return Err(ApiError::new(Reason::Unknown, text));
    }
    if !asked.is_empty() {
        let asked: Vec<Value> = asked.into_iter().map(Value::string).collect();
        wished.set(&["dryRun"], asked);
    }
    let is_empty = wished.as_object().is_none_or(|wished| wished.is_empty());
    let body = if is_empty {
        Vec::new()
    } else {
        json::to_vec(&wished)
    };
    let request = ResourceRequest {
        verb: Verb::Delete,
        subresource: None,
        body: body.into(),
        content_type: None,
        query: Vec::new(),
        ..call.request.clone()
    };
    Ok(delete::options(&call.part(&request)))
}

/// The kind of an eviction in one of its versions.
#[derive(Clone, Copy)]
struct EvictionKind {
    version: &'static str,
    definition: DefId,
}

impl EvictionKind {
    fn expected<'a>(self, call: &Call<'a>) -> Expected<'a> {
        Expected {
            group: "policy",
            version: self.version,
            kind: "Eviction",
            schemas: call.tenant.base.schemas(),
            definition: self.definition,
            custom: None,
        }
    }
}

struct Evict<'a> {
    call: &'a Call<'a>,
    delete: Delete<'a>,
    name: Str,
    kind: EvictionKind,
    eviction: Value,
    /// The budget that counts the disruption, with its tree after that.
    counted: Option<(ObjectRef, Value)>,
}

impl ObjectDeletion for Evict<'_> {
    fn key(&self) -> Key {
        self.delete.key()
    }

    fn options(&self) -> Result<&DeleteOptions, ApiError> {
        self.delete.options()
    }

    fn find(&mut self, run: &mut Run<'_>) -> Result<Present, Interrupted> {
        let call = self.call;
        admit_post(run, &self.name)?;
        let Some(pod) = run.cut.get(&self.key()) else {
            return Err(call.not_found(&self.name).into());
        };
        let tree = call.stored_tree(&pod)?;
        self.counted = disruption(run, &self.name, &pod, &tree)?;
        self.delete.find(run)
    }

    fn kind(&self) -> Expected<'_> {
        self.kind.expected(self.call)
    }

    fn subject(&self) -> Option<&Value> {
        Some(&self.eviction)
    }

    fn mark(&mut self, run: &Run<'_>, present: &Present) -> Result<ObjectFate, ApiError> {
        let next = self.delete.mark(run, present)?;
        if self.options()?.persistence == Persistence::DryRun {
            return Ok(next);
        }
        let mut pod = match next {
            ObjectFate::Removed => return Ok(ObjectFate::Removed),
            ObjectFate::Stored(pod) => pod,
            ObjectFate::Unchanged => present.tree().clone(),
        };
        let now = run.time();
        set_condition(&mut pod, disrupted(), &now);
        Ok(ObjectFate::Stored(pod))
    }

    fn along(&mut self) -> Allocation {
        let mut allocation = Allocation::default();
        if let Some((budget, tree)) = self.counted.take() {
            let key = budget.key();
            let claim = Claim::At(key.clone(), budget.stamp());
            allocation.claims.push(claim);
            allocation.companions.push(Companion {
                group: key.group().into(),
                resource: key.resource().into(),
                namespace: key.namespace().map(Str::from),
                name: key.name().into(),
                manager: "kube-apiserver",
                change: CompanionChange::Replace(tree),
            });
        }
        allocation
    }
}

/// Checks the pod's budget. Returns it as it is after the disruption, if the disruption counts.
fn disruption(
    run: &Run<'_>,
    name: &str,
    pod: &ObjectRef,
    tree: &Value,
) -> Result<Option<(ObjectRef, Value)>, ApiError> {
    let ends = matches!(
        tree.str_at(&["status", "phase"]),
        "Succeeded" | "Failed" | "Pending"
    );
    if ends || !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        return Ok(None);
    }
    let mut budgets = budgets_of(run, pod)?;
    if budgets.len() > 1 {
        return Err(ApiError::new(
            Reason::Unknown,
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let Some((budget, mut after)) = budgets.pop() else {
        return Ok(None);
    };
    if !is_ready(tree) && spares_unhealthy(&after) {
        return Ok(None);
    }
    check_budget(&after)?;
    let now = run.time();
    count(&mut after, name, &now);
    Ok(Some((budget, after)))
}

/// Returns the budgets that select a pod.
fn budgets_of(run: &Run<'_>, pod: &ObjectRef) -> Result<Vec<(ObjectRef, Value)>, ApiError> {
    let namespace = run.call.namespace();
    let prefix = Prefix::namespaced("policy", "poddisruptionbudgets", namespace);
    let mut budgets = Vec::new();
    for budget in run.cut.range(&prefix, Start::First) {
        let tree = run.call.stored_tree(&budget)?;
        let selector = Selector::from_label_selector(Some(&tree["spec"]["selector"]));
        if selector.is_ok_and(|selector| selector.matches_bytes(pod.labels_json())) {
            budgets.push((budget, tree));
        }
    }
    Ok(budgets)
}

fn number(budget: &Value, field: &str) -> i64 {
    budget.int_at(&["status", field]).unwrap_or(0)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.items_at(&["status", "conditions"]);
    let ready = conditions
        .iter()
        .find(|one| one.str_at(&["type"]) == "Ready");
    ready.is_some_and(|one| one.str_at(&["status"]) == "True")
}

/// Returns true if the budget lets a pod that is not ready be evicted without counting it.
fn spares_unhealthy(budget: &Value) -> bool {
    let desired = number(budget, "desiredHealthy");
    budget.str_at(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow"
        || number(budget, "currentHealthy") >= desired && desired > 0
}

/// Returns an error if the budget allows no disruption now.
fn check_budget(budget: &Value) -> Result<(), ApiError> {
    let name = budget.str_at(&["metadata", "name"]);
    let generation = budget.int_at(&["metadata", "generation"]).unwrap_or(0);
    let allowed = number(budget, "disruptionsAllowed");
    let pods = budget.at(&["status", "disruptedPods"]);
    let pods = pods.and_then(Value::as_object).map_or(0, |pods| pods.len());
    let forbidden = |why: &str, detail: &str| {
        let what = Qualified::new("policy", "poddisruptionbudget");
        let text = format!(
            "The disruption budget {name} does not allow evicting pods currently: {detail}"
        );
        Err(ApiError::forbidden(what, name, why).with_cause(cause(text)))
    };
    if number(budget, "observedGeneration") < generation {
        return Err(unobserved(name));
    }
    if allowed < 0 {
        let why = "pdb disruptions allowed is negative";
        return forbidden(why, why);
    }
    if pods > DISRUPTED_MAX {
        return forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            "too many pending evictions not confirmed by PDB controller",
        );
    }
    if allowed > 0 {
        return Ok(());
    }
    Err(broken(0, exhausted(budget, name)))
}

/// Returns why a budget allows no disruption.
fn exhausted(budget: &Value, name: &str) -> String {
    let conditions = budget.items_at(&["status", "conditions"]);
    let refusal = conditions
        .iter()
        .find(|one| one.str_at(&["type"]) == "DisruptionAllowed")
        .filter(|one| one.str_at(&["status"]) == "False" && !one.str_at(&["message"]).is_empty());
    let currently = format!("The disruption budget {name} does not allow evicting pods currently");
    let (desired, current) = (
        number(budget, "desiredHealthy"),
        number(budget, "currentHealthy"),
    );
    let said = |one: &Value| {
        (
            one.str_at(&["reason"]).to_owned(),
            one.str_at(&["message"]).to_owned(),
        )
    };
    match refusal.map(said) {
        // The budget's numbers are invalid if its controller could not update them.
        Some((reason, message)) if reason == "SyncFailed" => {
            format!("{currently} because it failed sync: {message}")
        }
        _ if current <= desired => {
            format!(
                "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
            )
        }
        Some((reason, message)) => format!("{currently} ({reason}): {message}"),
        None => currently,
    }
}

fn unobserved(name: &str) -> ApiError {
    let detail = format!("The disruption budget {name} is still being processed by the server.");
    broken(OBSERVE_SECONDS, detail)
}

fn broken(retry_after_seconds: u32, detail: String) -> ApiError {
    let refusal = "Cannot evict pod as it would violate the pod's disruption budget.";
    ApiError::too_many_requests(refusal, retry_after_seconds).with_cause(cause(detail))
}

fn cause(message: String) -> Cause {
    Cause {
        reason: "DisruptionBudget".into(),
        message,
        field: String::new(),
    }
}

/// Counts a disruption. The disruption controller counts the pod as unavailable from now on.
fn count(budget: &mut Value, pod: &str, now: &str) {
    let left = number(budget, "disruptionsAllowed") - 1;
    budget.set(&["status", "disruptionsAllowed"], left);
    budget.set(&["status", "disruptedPods", pod], now);
    if left == 0 {
        let mut condition = Value::object();
        condition.set(&["type"], "DisruptionAllowed");
        condition.set(&["status"], "False");
        condition.set(&["reason"], "InsufficientPods");
        condition.set(&["message"], "");
        condition.set(
            &["observedGeneration"],
            number(budget, "observedGeneration"),
        );
        set_condition(budget, condition, now);
    }
}

/// Returns the condition of a pod that is evicted.
fn disrupted() -> Value {
    let mut condition = Value::object();
    condition.set(&["type"], "DisruptionTarget");
    condition.set(&["status"], "True");
    condition.set(&["reason"], "EvictionByEvictionAPI");
    condition.set(&["message"], "Eviction API: evicting");
    condition.set(&["lastProbeTime"], Value::Null);
    condition
}
