//! POST of an Eviction: deletes a pod if no disruption budget objects.

use crate::body::{self, Expected};
use crate::call::Call;
use crate::delete::{self, Delete};
use crate::negotiate;
use crate::options::{DeleteOptions, FieldValidation};
use crate::parameters::DRY_RUN;
use crate::plan::{Deletion, Next, Present, Run, Stop};
use crate::request::{ResourceRequest, Verb};
use crate::write;
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::schema::DefId;
use polyplane_apimachinery::status::{ApiError, Cause};
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Key, Prefix, Start};

/// After how long an eviction may be tried again whose budget nobody has looked at yet.
const OBSERVE_SECONDS: u32 = 10;

/// Evicts the pod of the path.
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
    let kind = EvictionKind {
        version: if old { "v1beta1" } else { "v1" },
        definition,
    };
    let syntax = negotiate::input(call.request)?;
    let eviction = body::decode(call, syntax, kind.expected(call), FieldValidation::Ignore)?;
    let given = eviction.str_at(&["metadata", "name"]);
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let options = options(call, &eviction);
    let mut evict = Evict {
        call,
        delete: Delete::new(call, name.clone(), options),
        name,
        kind,
        eviction,
    };
    write::delete(call, &mut evict).await.map(|_| ())
}

/// Reads the options of the deletion that an eviction asks for.
fn options(call: &Call<'_>, eviction: &Value) -> Result<DeleteOptions, ApiError> {
    let mut body = Vec::new();
    if let Some(Value::Object(wished)) = eviction.get("deleteOptions")
        && !wished.is_empty()
    {
        polyplane_apimachinery::json::write(&eviction["deleteOptions"], &mut body);
    }
    let query = call.request.query.iter();
    let dry_run = query.filter(|(key, _)| key == DRY_RUN.row().name);
    let request = ResourceRequest {
        verb: Verb::Delete,
        subresource: None,
        body: body.into(),
        content_type: None,
        query: dry_run.cloned().collect(),
        ..call.request.clone()
    };
    delete::options(&call.part(&request))
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
        }
    }
}

struct Evict<'a> {
    call: &'a Call<'a>,
    delete: Delete<'a>,
    name: Str,
    kind: EvictionKind,
    eviction: Value,
}

impl Deletion for Evict<'_> {
    fn key(&self) -> Key {
        self.delete.key()
    }

    fn options(&self) -> Result<&DeleteOptions, ApiError> {
        self.delete.options()
    }

    fn find(&mut self, run: &mut Run<'_>) -> Result<Present, Stop> {
        check_budgets(run, &self.name)?;
        self.delete.find(run)
    }

    fn kind(&self) -> Expected<'_> {
        self.kind.expected(self.call)
    }

    fn subject(&self) -> Option<&Value> {
        Some(&self.eviction)
    }

    fn mark(&mut self, run: &Run<'_>, present: &Present) -> Result<Next, ApiError> {
        self.delete.mark(run, present)
    }
}

/// Refuses if a disruption budget that selects the pod allows no disruption.
fn check_budgets(run: &Run<'_>, name: &str) -> Result<(), ApiError> {
    let (call, cut) = (run.call, run.cut);
    let Some(pod) = cut.get(&call.key(name)) else {
        return Err(call.not_found(name));
    };
    let tree = call.stored_tree(&pod)?;
    let phase = tree.str_at(&["status", "phase"]);
    let exempt = matches!(phase, "Succeeded" | "Failed" | "Pending");
    if exempt || !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        return Ok(());
    }
    let prefix = Prefix::namespaced("policy", "poddisruptionbudgets", call.namespace());
    let mut budgets = Vec::new();
    for budget in cut.range(&prefix, Start::First) {
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
