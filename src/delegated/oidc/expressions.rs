//! Expressions over the claims of a token, over the user whom they make, and over a question about access.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use polyplane_apimachinery::{Map, Value};
use polyplane_auth::UserInfo;
use polyplane_cel::{
    Ast, Elements, Environment, Expr, ExprId, Fields, Literal, Node, Program, Type,
    Value as CelValue,
};

/// Cost of one expression. Upstream has no limit for these expressions; this one is its limit for
/// expressions of one validation rule, so a token cannot make a server work for long.
const COST_MAX: u64 = 1_000_000;

/// What an expression is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpressionOf {
    /// The claims of a token, as `claims`.
    Claims,
    /// The user whom the claims make, as `user`.
    User,
}

static CLAIMS: LazyLock<Arc<Environment>> = LazyLock::new(|| {
    let mut environment = Environment::kubernetes();
    environment.declare("claims", Type::map(Type::String, Type::Dyn));
    Arc::new(environment)
});

static USER: LazyLock<Arc<Environment>> = LazyLock::new(|| {
    let mut environment = Environment::kubernetes();
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    environment.declare_struct("kubernetes.UserInfo", fields);
    environment.declare("user", Type::Struct("kubernetes.UserInfo".into()));
    Arc::new(environment)
});

static REQUEST: LazyLock<Arc<Environment>> = LazyLock::new(|| {
    let mut environment = Environment::kubernetes();
    let texts = || Type::list(Type::String);
    let of = |name: &str| Type::Struct(name.into());
    let mut declare = |name: &str, fields: &[(&str, Type)]| {
        let fields = fields.iter();
        let fields = fields.map(|(name, of)| (*name, of.clone()));
        environment.declare_struct(name, fields);
    };
    let requirement = "kubernetes.SelectorRequirement";
    let fields = [
        ("key", Type::String),
        ("operator", Type::String),
        ("values", texts()),
    ];
    declare(requirement, &fields);
    let selector = [
        ("rawSelector", Type::String),
        ("requirements", Type::list(of(requirement))),
    ];
    let (by_field, by_label) = (
        "kubernetes.FieldSelectorAttributes",
        "kubernetes.LabelSelectorAttributes",
    );
    declare(by_field, &selector);
    declare(by_label, &selector);
    let names = [
        "namespace",
        "verb",
        "group",
        "version",
        "resource",
        "subresource",
        "name",
    ];
    let mut resource: Vec<(&str, Type)> = names.map(|name| (name, Type::String)).into();
    resource.push(("fieldSelector", of(by_field)));
    resource.push(("labelSelector", of(by_label)));
    declare("kubernetes.ResourceAttributes", &resource);
    let path = [("path", Type::String), ("verb", Type::String)];
    declare("kubernetes.NonResourceAttributes", &path);
    let review = [
        ("resourceAttributes", of("kubernetes.ResourceAttributes")),
        (
            "nonResourceAttributes",
            of("kubernetes.NonResourceAttributes"),
        ),
        ("user", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
        ("uid", Type::String),
    ];
    declare("kubernetes.SubjectAccessReviewSpec", &review);
    environment.declare("request", of("kubernetes.SubjectAccessReviewSpec"));
    Arc::new(environment)
});

/// A compiled expression.
#[derive(Clone)]
pub(crate) struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    ast: Ast,
    program: Program,
}

impl fmt::Debug for Expression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Expression")
            .field(&self.0.text)
            .finish()
    }
}

impl Expression {
    /// Compiles an expression that returns a truth value.
    ///
    /// # Errors
    /// Returns upstream's complaint.
    pub(crate) fn condition(text: &str, of: ExpressionOf) -> Result<Self, String> {
        let environment = match of {
            ExpressionOf::Claims => &CLAIMS,
            ExpressionOf::User => &USER,
        };
        let (compiled, result) = compile(text, environment)?;
        match result {
            Type::Bool => Ok(compiled),
            _ => Err("must evaluate to bool".to_owned()),
        }
    }

    /// Compiles a condition over a question about access, which it knows as `request`.
    ///
    /// # Errors
    /// Returns upstream's complaint.
    pub(crate) fn match_condition(text: &str) -> Result<Self, String> {
        let (compiled, result) = compile(text, &REQUEST)?;
        match result {
            Type::Bool => Ok(compiled),
            other => Err(format!(
                "must evaluate to bool but got {}",
                other.declared_name()
            )),
        }
    }

    /// Compiles an expression over claims that may return anything.
    ///
    /// # Errors
    /// Returns upstream's complaint.
    pub(crate) fn value(text: &str) -> Result<Self, String> {
        compile(text, &CLAIMS).map(|(compiled, _)| compiled)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns whether the expression reads a claim by its name.
    pub(crate) fn reads(&self, claim: &str) -> bool {
        reads(&self.0.ast, self.0.ast.root(), claim)
    }

    /// Returns whether the condition holds.
    ///
    /// # Errors
    /// Returns why there is no value.
    pub(crate) fn holds(&self, of: &View<'_>) -> Result<bool, String> {
        match self.evaluate(of)? {
            CelValue::Bool(holds) => Ok(holds),
            _ => Err("validation expression must return a boolean".to_owned()),
        }
    }

    /// Returns the text that the expression makes.
    ///
    /// # Errors
    /// Returns why there is no value, or that it is no text.
    pub(crate) fn string(&self, of: &View<'_>) -> Result<String, String> {
        match self.evaluate(of)? {
            CelValue::String(text) => Ok(text.to_string()),
            _ => Err("expression must return a string".to_owned()),
        }
    }

    /// Returns the texts that the expression makes, without empty ones. `null` is none.
    ///
    /// # Errors
    /// Returns why there is no value, or that it is no list of texts.
    pub(crate) fn strings(&self, of: &View<'_>) -> Result<Vec<String>, String> {
        let wrong = || "expression must return a string or a list of strings".to_owned();
        let mut texts = Vec::new();
        match self.evaluate(of)? {
            CelValue::Null => {}
            CelValue::String(text) => texts.push(text.to_string()),
            CelValue::List(list) => {
                for item in list.iter() {
                    match item {
                        CelValue::String(text) => texts.push(text.to_string()),
                        _ => return Err(wrong()),
                    }
                }
            }
            _ => return Err(wrong()),
        }
        texts.retain(|text| !text.is_empty());
        Ok(texts)
    }

    fn evaluate<'a>(&'a self, of: &'a View<'_>) -> Result<CelValue<'a>, String> {
        let variables = [CelValue::from(of.node())];
        let evaluated = self.0.program.evaluate(&variables, COST_MAX);
        evaluated.outcome.map_err(|fault| fault.to_string())
    }
}

fn compile(text: &str, environment: &Arc<Environment>) -> Result<(Expression, Type), String> {
    let checked = polyplane_cel::compile(text, environment)?;
    let program = Program::checked(&checked, environment);
    if let Some(why) = program.broken() {
        return Err(format!("program instantiation failed: {why}"));
    }
    let compiled = Compiled {
        text: text.to_owned(),
        ast: checked.ast().clone(),
        program,
    };
    Ok((Expression(Arc::new(compiled)), checked.result().clone()))
}

fn reads(ast: &Ast, id: ExprId, claim: &str) -> bool {
    let is_claims = |id| matches!(ast.expr(id), Expr::Ident(name) if &**name == "claims");
    let is_it = match ast.expr(id) {
        Expr::Select { operand, field, .. } => &**field == claim && is_claims(*operand),
        Expr::Call {
            target: None,
            function,
            args,
        } if &**function == "_?._" => match &args[..] {
            [operand, field] => {
                let field = ast.expr(*field);
                let named =
                    matches!(field, Expr::Literal(Literal::String(name)) if &**name == claim);
                named && is_claims(*operand)
            }
            _ => false,
        },
        _ => false,
    };
    is_it
        || ast
            .children(id)
            .into_iter()
            .any(|child| reads(ast, child, claim))
}

/// A tree in the form that expressions read.
#[derive(Debug)]
pub(crate) enum View<'v> {
    Leaf(&'v Value),
    Text(&'v str),
    List(Items<'v>),
    Object(Members<'v>),
}

#[derive(Debug)]
pub(crate) struct Items<'v>(Vec<View<'v>>);

#[derive(Debug)]
pub(crate) struct Members<'v>(BTreeMap<&'v str, View<'v>>);

impl<'v> View<'v> {
    pub(crate) fn of_claims(claims: &'v Map) -> Self {
        let members = claims.iter().map(|(name, value)| (name, Self::of(value)));
        Self::Object(Members(members.collect()))
    }

    pub(crate) fn of(value: &'v Value) -> Self {
        match value {
            Value::Array(items) => Self::List(Items(items.iter().map(Self::of).collect())),
            Value::Object(members) => Self::of_claims(members),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {
                Self::Leaf(value)
            }
        }
    }

    pub(crate) fn of_user(user: &'v UserInfo) -> Self {
        let list = |texts: &'v [polyplane_apimachinery::Str]| {
            Self::List(Items(texts.iter().map(|text| Self::Text(text)).collect()))
        };
        let extra = user
            .extra
            .iter()
            .map(|(key, values)| (&**key, list(values)));
        let members = [
            ("username", Self::Text(&user.name)),
            ("uid", Self::Text(&user.uid)),
            ("groups", list(&user.groups)),
            ("extra", Self::Object(Members(extra.collect()))),
        ];
        Self::Object(Members(members.into()))
    }

    fn node(&self) -> Node<'_> {
        match self {
            Self::Text(text) => Node::String(text),
            Self::List(items) => Node::List(items),
            Self::Object(members) => Node::Map(members),
            Self::Leaf(Value::Bool(value)) => Node::Bool(*value),
            Self::Leaf(Value::Int(value)) => Node::Int(*value),
            Self::Leaf(Value::Float(value)) => Node::Double(*value),
            Self::Leaf(Value::String(text)) => Node::String(text),
            Self::Leaf(Value::Null | Value::Array(_) | Value::Object(_)) => Node::Null,
        }
    }
}

impl Fields for Members<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, name: &str) -> Option<Node<'_>> {
        self.0.get(name).map(View::node)
    }

    fn at(&self, index: usize) -> Option<(&str, Node<'_>)> {
        let (name, view) = self.0.iter().nth(index)?;
        Some((name, view.node()))
    }
}

impl Elements for Items<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn at(&self, index: usize) -> Option<Node<'_>> {
        self.0.get(index).map(View::node)
    }
}
