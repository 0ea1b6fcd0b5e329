//! Questions to the authorizer. The answers are given with the authorizer; where one is missing the
//! evaluation stops with [`Fault::Need`], the caller asks and evaluates again.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::library::{Context, Library};
use crate::value::{Fault, Opaque, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        authorizer_path: path:(kubernetes.authorization.Authorizer, string) -> kubernetes.authorization.PathCheck
        authorizer_group: group:(kubernetes.authorization.Authorizer, string) -> kubernetes.authorization.GroupCheck
        authorizer_serviceaccount: serviceAccount:(kubernetes.authorization.Authorizer, string, string) -> kubernetes.authorization.Authorizer
        groupcheck_resource: resource:(kubernetes.authorization.GroupCheck, string) -> kubernetes.authorization.ResourceCheck
        resourcecheck_subresource: subresource:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.ResourceCheck
        resourcecheck_namespace: namespace:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.ResourceCheck
        resourcecheck_name: name:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.ResourceCheck
        authorizer_fieldselector: fieldSelector:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.ResourceCheck
        authorizer_labelselector: labelSelector:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.ResourceCheck
        pathcheck_check: check:(kubernetes.authorization.PathCheck, string) -> kubernetes.authorization.Decision
        resourcecheck_check: check:(kubernetes.authorization.ResourceCheck, string) -> kubernetes.authorization.Decision
        decision_errored: errored:(kubernetes.authorization.Decision) -> bool
        decision_error: error:(kubernetes.authorization.Decision) -> string
        decision_allowed: allowed:(kubernetes.authorization.Decision) -> bool
        decision_reason: reason:(kubernetes.authorization.Decision) -> string",
    runs: &[
        ("path", |_, args| step(args, Stage::Path)),
        ("group", |_, args| step(args, Stage::Group)),
        ("resource", |_, args| step(args, Stage::Resource)),
        ("serviceAccount", service_account),
        ("subresource", |_, args| {
            refine(args, |question, text| question.subresource = text)
        }),
        ("namespace", |_, args| {
            refine(args, |question, text| question.namespace = text)
        }),
        ("name", |_, args| {
            refine(args, |question, text| question.name = text)
        }),
        ("fieldSelector", |_, args| {
            refine(args, |question, text| question.field_selector = text)
        }),
        ("labelSelector", |_, args| {
            refine(args, |question, text| question.label_selector = text)
        }),
        ("check", check),
        ("errored", |_, args| {
            decision(args).map(|it| Value::Bool(it.error.is_some()))
        }),
        ("error", |_, args| {
            decision(args).map(|it| Value::text(it.error.clone().unwrap_or_default()))
        }),
        ("allowed", |_, args| {
            decision(args).map(|it| Value::Bool(it.allowed))
        }),
        ("reason", |_, args| {
            decision(args).map(|it| Value::text(it.reason.clone()))
        }),
    ],
    types: &[],
};

/// A question to the authorizer.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The namespace and name of the service account that is asked about; `None` for the user of
    /// the request.
    pub service_account: Option<(String, String)>,
    /// The verb.
    pub verb: String,
    /// The path, for questions about no resource; empty otherwise.
    pub path: String,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The field selector as written.
    pub field_selector: String,
    /// The label selector as written.
    pub label_selector: String,
}

/// An answer of the authorizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the authorizer allows it.
    pub allowed: bool,
    /// Its reason.
    pub reason: String,
    /// Its error, if it had one.
    pub error: Option<String>,
}

/// The answers that are known.
pub type Decisions = Arc<BTreeMap<Question, Decision>>;

/// How much of a question is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    User,
    Path,
    Group,
    Resource,
}

#[derive(Debug, Clone)]
struct Check {
    stage: Stage,
    question: Question,
    known: Decisions,
}

impl Opaque for Check {
    fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::User => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other: Option<&Self> = other.as_any().downcast_ref();
        other.is_some_and(|other| other.question == self.question)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opaque for Decision {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the authorizer for the user of a request.
#[must_use]
pub fn authorizer(known: Decisions) -> Value<'static> {
    made(Stage::User, Question::default(), known)
}

/// Returns the question about the resource of a request.
#[must_use]
pub fn resource_authorizer(question: Question, known: Decisions) -> Value<'static> {
    made(Stage::Resource, question, known)
}

fn made<'a>(stage: Stage, question: Question, known: Decisions) -> Value<'a> {
    Value::Opaque(Arc::new(Check {
        stage,
        question,
        known,
    }))
}

fn of<'v>(value: &'v Value<'_>, stage: Stage) -> Result<&'v Check, Fault> {
    let found: Option<&Check> = match value {
        Value::Opaque(value) => value.as_any().downcast_ref(),
        _ => None,
    };
    found
        .filter(|check| check.stage == stage)
        .ok_or_else(Fault::no_overload)
}

fn step<'a>(args: &[Value<'a>], next: Stage) -> Outcome<'a> {
    let [value, Value::String(text)] = args else {
        return Err(Fault::no_overload());
    };
    let before = if next == Stage::Resource {
        Stage::Group
    } else {
        Stage::User
    };
    let check = of(value, before)?;
    let mut question = check.question.clone();
    match next {
        Stage::Path => question.path = text.to_string(),
        Stage::Group => question.group = text.to_string(),
        Stage::Resource | Stage::User => question.resource = text.to_string(),
    }
    Ok(made(next, question, check.known.clone()))
}

fn service_account<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [value, Value::String(namespace), Value::String(name)] = args else {
        return Err(Fault::no_overload());
    };
    let check = of(value, Stage::User)?;
    let mut question = check.question.clone();
    question.service_account = Some((namespace.to_string(), name.to_string()));
    Ok(made(Stage::User, question, check.known.clone()))
}

fn refine<'a>(args: &[Value<'a>], set: fn(&mut Question, String)) -> Outcome<'a> {
    let [value, Value::String(text)] = args else {
        return Err(Fault::no_overload());
    };
    let check = of(value, Stage::Resource)?;
    let mut question = check.question.clone();
    set(&mut question, text.to_string());
    Ok(made(Stage::Resource, question, check.known.clone()))
}

fn check<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [value, Value::String(verb)] = args else {
        return Err(Fault::no_overload());
    };
    let check = of(value, Stage::Resource).or_else(|_| of(value, Stage::Path))?;
    let mut question = check.question.clone();
    question.verb = verb.to_string();
    match check.known.get(&question) {
        Some(decision) => Ok(Value::Opaque(Arc::new(decision.clone()))),
        None => Err(Fault::Need(Box::new(question))),
    }
}

fn decision<'v>(args: &'v [Value<'_>]) -> Result<&'v Decision, Fault> {
    let found = match args {
        [Value::Opaque(value)] => value.as_any().downcast_ref(),
        _ => None,
    };
    found.ok_or_else(Fault::no_overload)
}
