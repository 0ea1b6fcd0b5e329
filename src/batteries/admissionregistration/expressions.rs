//! The expressions of admission policies and webhooks: what they may use, and whether they compile. This
//! module evaluates none.

use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_cel::{Environment, Overload, Type, WorkBudget, compile_within};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const REQUEST: &str = "kubernetes.AdmissionRequest";
const NAMESPACE: &str = "kubernetes.Namespace";
const VARIABLES: &str = "kubernetes.variables";
const OBJECT: &str = "Object";
const PATCH: &str = "JSONPatch";

/// What an expression may use beside the request, its objects and their namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uses {
    /// The parameters of a policy.
    pub params: bool,
    /// The authorizer.
    pub authorizer: bool,
    /// The types that mutations are made of.
    pub patches: bool,
}

impl Uses {
    /// What most expressions may use.
    pub const fn with_params(params: bool) -> Self {
        Self {
            params,
            authorizer: true,
            patches: false,
        }
    }
}

/// What an expression must make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// A decision.
    Bool,
    /// A message.
    Text,
    /// The value of an annotation; `null` for none.
    TextOrNull,
    /// The value of a variable.
    Anything,
    /// What is applied to the object.
    Object,
    /// The operations of a JSON patch.
    Patch,
}

impl Makes {
    fn types(self) -> Vec<Type> {
        match self {
            Self::Bool => vec![Type::Bool],
            Self::Text => vec![Type::String],
            Self::TextOrNull => vec![Type::String, Type::Null],
            Self::Anything => Vec::new(),
            Self::Object => vec![Type::Struct(OBJECT.into())],
            Self::Patch => vec![Type::list(Type::Struct(PATCH.into()))],
        }
    }
}

/// The reason why an expression is refused, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is wrong.
    Wrong(String),
    /// It is right, but no program can be made of it, for which upstream blames itself.
    Internal(String),
}

impl Refusal {
    /// Returns the complaint about the expression at `place`, of which it shows `shown`.
    pub fn complaint(self, place: &Path<'_>, shown: &str) -> FieldError {
        match self {
            Self::Wrong(why) => FieldError::invalid(place, shown, why),
            Self::Internal(why) => FieldError::internal(place, why),
        }
    }
}

/// Compiles the expressions of one policy or webhook.
#[derive(Debug)]
pub struct Compiler {
    /// What the expressions may take together.
    budget: WorkBudget,
    environments: BTreeMap<Uses, Environment>,
    /// The variables that a policy has defined; `None` if expressions know none.
    variables: Option<BTreeMap<String, Type>>,
}

impl Default for Compiler {
    fn default() -> Self {
        Self {
            budget: WorkBudget::for_definition(),
            environments: BTreeMap::new(),
            variables: None,
        }
    }
}

impl Compiler {
    /// Returns a compiler of expressions that know `variables`, those of [`Self::define`].
    pub fn with_variables() -> Self {
        Self {
            variables: Some(BTreeMap::new()),
            ..Self::default()
        }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// Returns upstream's complaint.
    pub fn compile(&mut self, text: &str, uses: Uses, makes: Makes) -> Result<Type, Refusal> {
        self.environment(uses);
        let environment = &self.environments[&uses];
        let checked = compile_within(text, environment, &self.budget).map_err(Refusal::Wrong)?;
        let (made, wanted) = (checked.result(), makes.types());
        if !wanted.is_empty() && !wanted.contains(made) {
            let names: Vec<String> = wanted.iter().map(Type::declared_name).collect();
            let made = made.declared_name();
            return Err(Refusal::Wrong(match &names[..] {
                [only] => format!("must evaluate to {only} but got {made}"),
                _ => format!(
                    "must evaluate to one of [{}] but got {made}",
                    names.join(" ")
                ),
            }));
        }
        let constants = checked.check_constants(self.environment(uses));
        constants.map_err(Refusal::Internal)?;
        Ok(made.clone())
    }

    /// Compiles an expression, and lets those after it use its value by a name.
    ///
    /// # Errors
    /// Returns upstream's complaint. The name can be used all the same, so that each mistake is told once.
    pub fn define(&mut self, name: &str, text: &str, uses: Uses) -> Result<(), Refusal> {
        let made = self.compile(text, uses, Makes::Anything);
        let of = made.as_ref().map_or(Type::Dyn, of_variable);
        for environment in self.environments.values_mut() {
            environment.declare_field(VARIABLES, name, of.clone());
        }
        let variables = self.variables.get_or_insert_default();
        variables.insert(name.to_owned(), of);
        made.map(drop)
    }

    fn environment(&mut self, uses: Uses) -> &Environment {
        let variables = &self.variables;
        self.environments.entry(uses).or_insert_with(|| {
            let mut environment = BASE.clone();
            if let Some(variables) = variables {
                let fields = variables.iter();
                let fields = fields.map(|(name, of)| (name.as_str(), of.clone()));
                environment.declare_struct(VARIABLES, fields);
                environment.declare("variables", Type::Struct(VARIABLES.into()));
            }
            uses.declare(&mut environment);
            environment
        })
    }
}

impl Uses {
    fn declare(self, environment: &mut Environment) {
        let authorization = |name: &str| {
            let name = format!("kubernetes.authorization.{name}");
            Type::Opaque(name.as_str().into(), [].into())
        };
        if self.params {
            environment.declare("params", Type::Dyn);
        }
        if self.authorizer {
            environment.declare("authorizer", authorization("Authorizer"));
            environment.declare("authorizer.requestResource", authorization("ResourceCheck"));
        }
        if self.patches {
            environment.declare_open_struct(OBJECT);
            let operation = [
                ("op", Type::String),
                ("path", Type::String),
                ("from", Type::String),
                ("value", Type::Dyn),
            ];
            environment.declare_struct(PATCH, operation);
            environment.claim_fields(PATCH);
            let escape = Overload {
                id: "string_jsonpatch_escapeKey_string".into(),
                member: false,
                parameters: vec![Type::String],
                result: Type::String,
            };
            environment.declare_function("jsonpatch.escapeKey", escape);
        }
    }
}

/// Returns the type that a variable has for the expressions that use it: upstream forgets those of libraries
/// and of objects.
fn of_variable(made: &Type) -> Type {
    match made {
        Type::List(element) => Type::list(of_variable(element)),
        Type::Map(pair) => Type::map(of_variable(&pair.0), of_variable(&pair.1)),
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint => made.clone(),
        _ => Type::Dyn,
    }
}

/// What all these expressions may use.
static BASE: LazyLock<Environment> = LazyLock::new(|| {
    let mut environment = Environment::for_new_expressions();
    environment.name_schema_types();
    environment.declare("object", Type::Dyn);
    environment.declare("oldObject", Type::Dyn);
    declare_namespace(&mut environment);
    environment.declare("namespaceObject", Type::Struct(NAMESPACE.into()));
    declare_request(&mut environment);
    environment.declare("request", Type::Struct(REQUEST.into()));
    environment
});

fn declare_request(environment: &mut Environment) {
    let (kind, resource) = (
        "kubernetes.GroupVersionKind",
        "kubernetes.GroupVersionResource",
    );
    let user = "kubernetes.UserInfo";
    for (name, last) in [(kind, "kind"), (resource, "resource")] {
        let fields = ["group", "version", last].map(|name| (name, Type::String));
        environment.declare_struct(name, fields);
    }
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    environment.declare_struct(user, fields);
    let of = |name: &str| Type::Struct(name.into());
    let fields = [
        ("kind", of(kind)),
        ("resource", of(resource)),
        ("subResource", Type::String),
        ("requestKind", of(kind)),
        ("requestResource", of(resource)),
        ("requestSubResource", Type::String),
        ("name", Type::String),
        ("namespace", Type::String),
        ("operation", Type::String),
        ("userInfo", of(user)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ];
    environment.declare_struct(REQUEST, fields);
}

fn declare_namespace(environment: &mut Environment) {
    let part = |name: &str| format!("{NAMESPACE}{name}");
    let (metadata, spec, status, condition) = (
        part("Metadata"),
        part("Spec"),
        part("Status"),
        part("Condition"),
    );
    let (texts, named) = (
        || Type::list(Type::String),
        || Type::map(Type::String, Type::String),
    );
    let fields = [
        ("name", Type::String),
        ("generateName", Type::String),
        ("namespace", Type::String),
        ("labels", named()),
        ("annotations", named()),
        ("UID", Type::String),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("resourceVersion", Type::String),
        ("finalizers", texts()),
    ];
    environment.declare_struct(&*metadata, fields);
    environment.declare_struct(&*spec, [("finalizers", texts())]);
    let fields = [
        ("status", Type::String),
        ("type", Type::String),
        ("lastTransitionTime", Type::Timestamp),
        ("message", Type::String),
        ("reason", Type::String),
    ];
    environment.declare_struct(&*condition, fields);
    let of = |name: &str| Type::Struct(name.into());
    let fields = [
        ("conditions", Type::list(of(&condition))),
        ("phase", Type::String),
    ];
    environment.declare_struct(&*status, fields);
    let fields = [
        ("metadata", of(&metadata)),
        ("spec", of(&spec)),
        ("status", of(&status)),
    ];
    environment.declare_struct(NAMESPACE, fields);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::vectors;

    /// The variables that were defined before upstream was asked.
    const DEFINED: [(&str, &str); 9] = [
        ("replicas", "1"),
        ("names", "['a']"),
        ("labels", "{'a': 'b'}"),
        ("size", "quantity('1')"),
        ("user", "request.userInfo"),
        ("anything", "object.spec"),
        ("broken", "1 +"),
        ("foo", "'text'"),
        ("bar", "variables.foo"),
    ];

    #[test]
    fn policies_are_judged_as_by_upstream() {
        let mut compiler = Compiler::with_variables();
        let of_variables = Uses::with_params(false);
        for (name, text) in DEFINED {
            // One of them is wrong, and complains.
            let _ = compiler.define(name, text, of_variables);
        }
        let with_params = Uses::with_params(true);
        let with_patches = Uses {
            patches: true,
            ..with_params
        };
        let without_authorizer = Uses {
            authorizer: false,
            ..with_params
        };
        vectors::compare("admission", |scope, text| {
            let found = match scope {
                "webhook" => Compiler::default().compile(text, of_variables, Makes::Bool),
                "validation" => compiler.compile(text, with_params, Makes::Bool),
                "message" => compiler.compile(text, without_authorizer, Makes::Text),
                "annotation" => compiler.compile(text, with_params, Makes::TextOrNull),
                "variable" => compiler.compile(text, of_variables, Makes::Anything),
                "apply" => compiler.compile(text, with_patches, Makes::Object),
                _ => compiler.compile(text, with_patches, Makes::Patch),
            };
            let names = found.map(|made| made.declared_name());
            names.map_err(|(Refusal::Wrong(why) | Refusal::Internal(why))| why)
        });
    }

    #[test]
    fn programs_that_cannot_be_made_are_errors_of_their_own() {
        let place = Path::new("expression");
        for (text, reason) in [
            ("'a'.find('a{1001}') == ''", "InternalError"),
            ("'a'.find('[') == ''", "InternalError"),
            ("'a'", "FieldValueInvalid"),
            ("1 +", "FieldValueInvalid"),
        ] {
            let uses = Uses::with_params(false);
            let found = Compiler::default().compile(text, uses, Makes::Bool);
            let found = found.map_err(|why| why.complaint(&place, text));
            let reason_of = |error: FieldError| error.kind.reason();
            assert_eq!(found.map_err(reason_of), Err(reason), "{text}");
        }
    }
}
