//! Expressions over the claims of a token, and over the user whom they make.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use polyplane_apimachinery::{Map, Value};
use polyplane_auth::UserInfo;
use polyplane_cel::{
    Ast, Elements, Environment, Expr, ExprId, Fields, Literal, Node, Program, Type,
    Value as CelValue, check, parse,
};

/// Cost of one expression. Upstream has no limit for these expressions; this one is its limit for
/// expressions of one validation rule, so a token cannot make a server work for long.
const COST_MAX: u64 = 1_000_000;

/// What an expression is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpressionOf {
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
    let fields = fields.map(|(name, of)| (name.into(), of));
    environment.declare_struct("kubernetes.UserInfo", fields.into());
    environment.declare("user", Type::Struct("kubernetes.UserInfo".into()));
    Arc::new(environment)
});

/// A compiled expression.
#[derive(Clone)]
pub(super) struct Expression(Arc<Compiled>);

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
    pub(super) fn condition(text: &str, of: ExpressionOf) -> Result<Self, String> {
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

    /// Compiles an expression over claims that may return anything.
    ///
    /// # Errors
    /// Returns upstream's complaint.
    pub(super) fn value(text: &str) -> Result<Self, String> {
        compile(text, &CLAIMS).map(|(compiled, _)| compiled)
    }

    pub(super) fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns whether the expression reads a claim by its name.
    pub(super) fn reads(&self, claim: &str) -> bool {
        reads(&self.0.ast, self.0.ast.root(), claim)
    }

    /// Returns whether the condition holds.
    ///
    /// # Errors
    /// Returns why there is no value.
    pub(super) fn holds(&self, of: &View<'_>) -> Result<bool, String> {
        match self.evaluate(of)? {
            CelValue::Bool(holds) => Ok(holds),
            _ => Err("validation expression must return a boolean".to_owned()),
        }
    }

    /// Returns the text that the expression makes.
    ///
    /// # Errors
    /// Returns why there is no value, or that it is no text.
    pub(super) fn string(&self, of: &View<'_>) -> Result<String, String> {
        match self.evaluate(of)? {
            CelValue::String(text) => Ok(text.to_string()),
            _ => Err("expression must return a string".to_owned()),
        }
    }

    /// Returns the texts that the expression makes, without empty ones. `null` is none.
    ///
    /// # Errors
    /// Returns why there is no value, or that it is no list of texts.
    pub(super) fn strings(&self, of: &View<'_>) -> Result<Vec<String>, String> {
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
    let failed = |issues: &dyn fmt::Display| format!("compilation failed: {issues}");
    let ast = parse(text, &environment.syntax).map_err(|issues| failed(&issues))?;
    let checked = check(ast.clone(), environment).map_err(|issues| failed(&issues))?;
    let compiled = Compiled {
        text: text.to_owned(),
        ast,
        program: Program::checked(&checked, environment),
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
pub(super) enum View<'v> {
    Leaf(&'v Value),
    Text(&'v str),
    List(Items<'v>),
    Object(Members<'v>),
}

#[derive(Debug)]
pub(super) struct Items<'v>(Vec<View<'v>>);

#[derive(Debug)]
pub(super) struct Members<'v>(BTreeMap<&'v str, View<'v>>);

impl<'v> View<'v> {
    pub(super) fn of_claims(claims: &'v Map) -> Self {
        let members = claims.iter().map(|(name, value)| (name, Self::of(value)));
        Self::Object(Members(members.collect()))
    }

    fn of(value: &'v Value) -> Self {
        match value {
            Value::Array(items) => Self::List(Items(items.iter().map(Self::of).collect())),
            Value::Object(members) => Self::of_claims(members),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {
                Self::Leaf(value)
            }
        }
    }

    pub(super) fn of_user(user: &'v UserInfo) -> Self {
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
