//! Subresources that are not just another view of the whole object: scale and binding.

mod custom_scale;

use crate::answer::negotiate;
use crate::kinds::custom::ScalePaths;
use crate::kinds::feature_gates::{BINDING_CLEARS_NOMINATION, BINDING_COPIES_LABELS};
use crate::kinds::table::Resource;
use crate::plan::fields;
use crate::plan::fields::ManagedKind;
use crate::plan::{
    ChangeRequest, Decoded, Defaulted, Interrupted, ObjectChange, Operation, Ownership, Present,
    Rules, Run, Target, admit_post,
};
use crate::request::Verb;
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::{Call, missing};
use crate::request::options::{self, WriteOptions};
use crate::verbs::apply::Configuration;
use crate::verbs::patch;
use crate::verbs::patch::ReadPatch;
use crate::verbs::update::{check_uid, precondition_failed};
use crate::write::{self, Written};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path, aggregate};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::DefId;
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Map, Value};
use polyplane_plane::Key;
use std::borrow::Cow;

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

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
        custom: None,
    }
}

/// Returns the Scale of an object of a kind, without kind and version.
///
/// # Errors
/// Returns 500 if the object of a custom kind has something else than numbers in the places of its
/// scale.
pub fn scale_of(row: &Resource, object: &Value) -> Result<Value, ApiError> {
    match row.custom.as_ref().and_then(|custom| custom.scale.as_ref()) {
        Some(paths) => custom_scale::of(object, paths).map(|(scale, _)| scale),
        None => Ok(built_in_scale(object)),
    }
}

fn built_in_scale(object: &Value) -> Value {
    let mut scale = scale_metadata(object);
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

/// Returns a Scale that has only metadata.
fn scale_metadata(object: &Value) -> Value {
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
    scale
}

/// Returns the JSON of a Scale.
///
/// # Errors
/// Returns 500 if its schema is missing.
pub fn scale_json(call: &Call<'_>, object: &Value) -> Result<Vec<u8>, ApiError> {
    let body = call
        .tenant
        .base
        .schemas()
        .to_vec(scale_definition(call)?, &scale_of(call.row, object)?);
    let mut out = Vec::from(b"{\"kind\":\"Scale\",\"apiVersion\":\"autoscaling/v1\",");
    out.extend_from_slice(&body[1..]);
    Ok(out)
}

/// Returns the JSON of the Scale that a client reads.
///
/// # Errors
/// Returns 500 if the object of a custom kind has no wanted number of replicas.
pub fn read_scale(call: &Call<'_>, object: &Value) -> Result<Vec<u8>, ApiError> {
    let custom = call.row.custom.as_ref();
    if let Some(paths) = custom.and_then(|custom| custom.scale.as_ref()) {
        let (_, replicas) = custom_scale::of(object, paths)?;
        if replicas == custom_scale::Replicas::Missing {
            return Err(ApiError::internal(format!(
                "the spec replicas field \".{}\" does not exist",
                paths.spec_replicas
            )));
        }
    }
    scale_json(call, object)
}

/// PUT and PATCH of a Scale: changes `spec.replicas` of the object.
///
/// # Errors
/// Returns upstream's errors.
pub async fn write_scale(call: &Call<'_>) -> Result<Written, ApiError> {
    let name = call.name()?.clone();
    let definition = scale_definition(call)?;
    let (source, options) = if call.request.verb == Verb::Patch {
        let options = WriteOptions::parse(call.request, "PatchOptions")?;
        let source = if options::is_apply(call.request) {
            ScaleSource::Apply(Configuration::read(call)?)
        } else {
            ScaleSource::Patch(patch::read(call, options.field_validation)?)
        };
        (source, options)
    } else {
        let options = WriteOptions::parse(call.request, "UpdateOptions")?;
        let syntax = negotiate::input(call.request)?;
        let expected = scale_kind(call, definition);
        let tree = body::decode(call, syntax, expected, options.field_validation);
        let mut tree = tree.map_err(|error| match call.row.custom {
            Some(_) => body::scale::unreadable(),
            None => error,
        })?;
        body::match_path(call, &mut tree)?;
        body::match_name(&tree, &name)?;
        (ScaleSource::Whole(tree), options)
    };
    let mut scale = Scale {
        request: ChangeRequest {
            call,
            name,
            options,
        },
        definition,
        source,
    };
    write::change(call, &mut scale).await
}

enum ScaleSource {
    Whole(Value),
    Patch(ReadPatch),
    Apply(Configuration),
}

struct Scale<'a> {
    request: ChangeRequest<'a>,
    definition: DefId,
    source: ScaleSource,
}

impl Scale<'_> {
    fn custom_paths(&self) -> Option<&ScalePaths> {
        self.request.call.row.custom.as_ref()?.scale.as_ref()
    }

    /// Returns the scale that the write starts from.
    fn scale_before(&self, object: &Value) -> Result<Value, ApiError> {
        match self.custom_paths() {
            Some(paths) => custom_scale::before_change(object, paths),
            None => Ok(built_in_scale(object)),
        }
    }

    /// Returns the scale as admission sees it; one without replicas if there is none.
    fn shown_scale(&self, object: &Value) -> Value {
        let row = self.request.call.row;
        scale_of(row, object).unwrap_or_else(|_| scale_metadata(object))
    }
}

impl ObjectChange for Scale<'_> {
    fn request(&self) -> &ChangeRequest<'_> {
        &self.request
    }

    fn subject(&self) -> Expected<'_> {
        scale_kind(self.request.call, self.definition)
    }

    /// The rules are those of the scaled object, whose status and metadata do not change.
    fn rules(&self) -> Rules<'_> {
        Rules::OfKind("")
    }

    fn ownership(&self) -> Ownership {
        Ownership::OfVerb
    }

    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted> {
        let call = self.request.call;
        let Some(existing) = run.cut.get(&self.key()) else {
            return Err(call.not_found(&self.request.name).into());
        };
        let present = Present::read(run, call.row, existing)?;
        let scale = self.scale_before(present.tree())?;
        let live = fields::live_scale(run, scale, present.tree());
        let mut kind = ManagedKind::of_subresource(call, self.subject());
        let options = &self.request.options;
        let mut wished = match &self.source {
            ScaleSource::Whole(tree) => tree.clone(),
            ScaleSource::Patch(patch) => {
                let scale = |_| {
                    let mut scale = live.clone();
                    scale.set(&["kind"], "Scale");
                    scale.set(&["apiVersion"], "autoscaling/v1");
                    scale
                };
                let patched = patch.apply(call, self.subject(), scale, options.field_validation)?;
                let mut patched = patched.into_tree();
                body::match_path(call, &mut patched)?;
                body::match_name(&patched, &self.request.name)?;
                patched
            }
            ScaleSource::Apply(configuration) => {
                let mut applied = configuration.apply(run, kind, Some(&live), options)?;
                body::match_path(call, &mut applied)?;
                body::match_name(&applied, &self.request.name)?;
                let applied = self.default(call, Decoded::new(applied))?;
                return Ok((applied, Target::Present(present)));
            }
        };
        let name = fields::manager_name(call, &options.field_manager);
        fields::update(run, &mut kind, &name, Some(&live), &mut wished)?;
        let wished = self.default(call, Decoded::new(wished))?;
        Ok((wished, Target::Present(present)))
    }

    fn default(&self, _: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError> {
        Ok(decoded.without_defaults())
    }

    fn apply(
        &mut self,
        run: &mut Run<'_>,
        scale: Value,
        target: &Target,
    ) -> Result<Value, Interrupted> {
        let Target::Present(present) = target else {
            return Err(self.request.call.not_found(&self.request.name).into());
        };
        check_uid(&self.request, &scale, present.object())?;
        let replicas = scale.int_at(&["spec", "replicas"]).unwrap_or(0);
        // That of a custom object is checked with the object.
        if replicas < 0 && self.custom_paths().is_none() {
            let path = Path::new("spec");
            let path = path.child("replicas");
            let detail = "must be greater than or equal to 0";
            let error = FieldError::invalid(&path, replicas, detail);
            let what = Qualified::new("autoscaling", "Scale");
            return Err(ApiError::invalid(what, &self.request.name, &[error]).into());
        }
        let mut object = present.tree().clone();
        match self.custom_paths() {
            Some(paths) => custom_scale::put(&mut object, paths, replicas)?,
            None => object.set(&["spec", "replicas"], replicas),
        }
        fields::put_scale(run, &scale, &mut object)?;
        match scale.str_at(&["metadata", "resourceVersion"]) {
            "" => drop(object.remove(&["metadata", "resourceVersion"])),
            version => object.set(&["metadata", "resourceVersion"], version),
        }
        Ok(object)
    }

    fn present_subject<'v>(
        &self,
        _: &Run<'_>,
        present: &'v Present,
    ) -> (Operation, Option<Cow<'v, Value>>) {
        let old = self.scale_before(present.tree());
        let old = old.unwrap_or_else(|_| scale_metadata(present.tree()));
        (Operation::Update, Some(Cow::Owned(old)))
    }

    fn shown<'v>(&'v self, object: &'v Value) -> Cow<'v, Value> {
        Cow::Owned(self.shown_scale(object))
    }

    fn shown_present<'v>(&'v self, present: &'v Present) -> (Operation, Option<Cow<'v, Value>>) {
        let old = Cow::Owned(self.shown_scale(present.tree()));
        (Operation::Update, Some(old))
    }
}

/// POST of a Binding: assigns a pod to a node.
///
/// # Errors
/// Returns upstream's errors.
pub async fn bind(call: &Call<'_>) -> Result<Written, ApiError> {
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let schemas = call.tenant.base.schemas();
    let definition = schemas
        .find("io.k8s.api.core.v1.Binding")
        .ok_or_else(|| ApiError::internal("the schema of Binding is missing"))?;
    let expected = binding_kind(call, definition);
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
    let mut errors = Complaints::default();
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
    // Upstream returns these errors as they are, without turning them into complaints about the
    // object.
    if let Some(text) = aggregate(&errors) {
        return Err(ApiError::new(Reason::Unknown, text));
    }
    let pods = call.tenant.base.stored("", "pods");
    let pods = pods.ok_or_else(|| ApiError::internal("pods are not served here"))?;
    let mut bind = Bind {
        request: ChangeRequest {
            call,
            name,
            options,
        },
        pods,
        definition,
        binding,
        admitted: None,
    };
    write::change(call, &mut bind).await
}

fn binding_kind<'a>(call: &Call<'a>, definition: DefId) -> Expected<'a> {
    Expected {
        group: "",
        version: "v1",
        kind: "Binding",
        schemas: call.tenant.base.schemas(),
        definition,
        custom: None,
    }
}

struct Bind<'a> {
    request: ChangeRequest<'a>,
    pods: &'a Resource,
    definition: DefId,
    binding: Value,
    /// The binding after mutating admission.
    admitted: Option<Value>,
}

impl Bind<'_> {
    fn refuse(&self, why: String) -> ApiError {
        ApiError::conflict(Qualified::new("", "pods/binding"), &self.request.name, why)
    }

    /// Returns an error if the pod is not the one that the binding names by uid and version.
    fn check_preconditions(&self, binding: &Value, present: &Present) -> Result<(), Interrupted> {
        let version = present.object().version();
        let version = version.map(|version| version.to_string());
        let uid = present.tree().str_at(&["metadata", "uid"]);
        let given = |field: &str| binding.str_at(&["metadata", field]);
        let fail = |what: &str, wished: &str, known: &str| {
            let why = precondition_failed(&self.request, self.pods, what, wished, known);
            Err(ApiError::conflict(Qualified::new("", "pods"), &self.request.name, why).into())
        };
        if !given("uid").is_empty() && given("uid") != uid {
            return fail("UID", given("uid"), uid);
        }
        match version {
            _ if given("resourceVersion").is_empty() => Ok(()),
            None => Err(Interrupted::VersionUnsettled),
            Some(version) if version == given("resourceVersion") => Ok(()),
            Some(version) => fail("ResourceVersion", given("resourceVersion"), &version),
        }
    }

    /// Returns an error if the pod cannot be assigned, or is assigned already.
    fn check(&self, pod: &Value) -> Result<(), ApiError> {
        let name = &self.request.name;
        if !pod.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
            return Err(self.refuse(format!(
                "pod {name} is being deleted, cannot be assigned to a host"
            )));
        }
        let node = pod.str_at(&["spec", "nodeName"]);
        if !node.is_empty() {
            return Err(self.refuse(format!("pod {name} is already assigned to node {node:?}")));
        }
        if !pod.items_at(&["spec", "schedulingGates"]).is_empty() {
            return Err(self.refuse(format!("pod {name} has non-empty .spec.schedulingGates")));
        }
        Ok(())
    }
}

impl ObjectChange for Bind<'_> {
    fn request(&self) -> &ChangeRequest<'_> {
        &self.request
    }

    fn key(&self) -> Key {
        let namespace = self.request.call.request.namespace.as_deref().unwrap_or("");
        Key::new("", "pods", Some(namespace), &self.request.name)
    }

    fn subject(&self) -> Expected<'_> {
        binding_kind(self.request.call, self.definition)
    }

    fn row(&self) -> &Resource {
        self.pods
    }

    fn rules(&self) -> Rules<'_> {
        Rules::OfVerb
    }

    /// A binding changes its pod, but nobody owns that change.
    fn ownership(&self) -> Ownership {
        Ownership::OfVerb
    }

    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted> {
        admit_post(run, &self.request.name)?;
        let Some(existing) = run.cut.get(&self.key()) else {
            return Err(missing(Qualified::new("", "pods"), &self.request.name).into());
        };
        let present = Present::read(run, self.pods, existing)?;
        let binding = Decoded::new(self.binding.clone()).without_defaults();
        Ok((binding, Target::Present(present)))
    }

    fn default(&self, _: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError> {
        Ok(decoded.without_defaults())
    }

    fn apply(
        &mut self,
        run: &mut Run<'_>,
        binding: Value,
        target: &Target,
    ) -> Result<Value, Interrupted> {
        let Target::Present(present) = target else {
            return Err(missing(Qualified::new("", "pods"), &self.request.name).into());
        };
        self.check_preconditions(&binding, present)?;
        let mut pod = present.tree().clone();
        self.check(&pod)?;
        pod.set(&["spec", "nodeName"], binding.str_at(&["target", "name"]));
        let features = &self.pods.features;
        if features.enabled(BINDING_CLEARS_NOMINATION) {
            drop(pod.remove(&["status", "nominatedNodeName"]));
        }
        let labels = features.enabled(BINDING_COPIES_LABELS).then_some("labels");
        for field in labels.into_iter().chain(["annotations"]) {
            let given = binding.at(&["metadata", field]).and_then(Value::as_object);
            for (key, value) in given.into_iter().flat_map(Map::iter) {
                pod.set(&["metadata", field, key], value.clone());
            }
        }
        self.pods.strategy.forget_old_forms(&mut pod);
        scheduled(&mut pod, run.now);
        self.admitted = Some(binding);
        Ok(pod)
    }

    fn present_subject<'v>(
        &self,
        _: &Run<'_>,
        _: &'v Present,
    ) -> (Operation, Option<Cow<'v, Value>>) {
        (Operation::Create, None)
    }

    fn shown<'v>(&'v self, _: &'v Value) -> Cow<'v, Value> {
        Cow::Borrowed(self.admitted.as_ref().unwrap_or(&self.binding))
    }

    fn shown_present<'v>(&'v self, _: &'v Present) -> (Operation, Option<Cow<'v, Value>>) {
        (Operation::Create, None)
    }
}

/// Sets the PodScheduled condition to true.
fn scheduled(pod: &mut Value, now: i64) {
    let mut condition = Value::object();
    condition.set(&["type"], "PodScheduled");
    condition.set(&["status"], "True");
    condition.set(&["lastProbeTime"], Value::Null);
    set_condition(pod, condition, &Timestamp::from_seconds(now).to_rfc3339());
}

/// Replaces the condition of the same type. The time of the last transition is kept if the status
/// is.
pub(crate) fn set_condition(object: &mut Value, mut condition: Value, now: &str) {
    let mut conditions = object.items_at(&["status", "conditions"]).to_vec();
    let kind = condition.str_at(&["type"]);
    let present = conditions
        .iter_mut()
        .find(|one| one.str_at(&["type"]) == kind);
    let since = present
        .as_ref()
        .filter(|one| one.str_at(&["status"]) == condition.str_at(&["status"]))
        .and_then(|one| one.get("lastTransitionTime"))
        .cloned();
    let since = since.unwrap_or_else(|| now.into());
    match present {
        Some(present) => {
            condition.set(&["lastTransitionTime"], since);
            *present = condition;
        }
        None => {
            condition.set(&["lastTransitionTime"], since);
            conditions.push(condition);
        }
    }
    object.set(&["status", "conditions"], conditions);
}
