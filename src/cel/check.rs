//! Finds the types of an expression and chooses overloads by them; complaints are in upstream's words.

mod assign;
mod complaints;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ast::{Ast, Comprehension, Entry, Expr, ExprId, Field, Literal, is_optional};
use crate::environment::Environment;
use crate::source::{Complaints, Issues};
use crate::types::Type;

use assign::Substitutions;

/// The beginning of the names of the libraries' types that upstream declares as types with fields.
const OBJECT_PREFIX: &str = "kubernetes.";

/// An expression whose types are known.
#[derive(Debug, Clone)]
pub struct Checked {
    ast: Ast,
    types: BTreeMap<ExprId, Type>,
    overloads: BTreeMap<ExprId, Vec<Arc<str>>>,
    /// The variables whose names have dots, by the node of the last part.
    variables: BTreeMap<ExprId, Arc<str>>,
    /// The calls whose target is a receiver.
    members: BTreeSet<ExprId>,
    /// The names of types that have a type but no value: see [`Environment::name_schema_types`].
    undefined: BTreeMap<ExprId, Arc<str>>,
}

impl Checked {
    /// Returns the tree.
    #[must_use]
    pub fn ast(&self) -> &Ast {
        &self.ast
    }

    /// Returns the type of a node.
    #[must_use]
    pub fn type_of(&self, id: ExprId) -> &Type {
        self.types.get(&id).unwrap_or(&Type::Dyn)
    }

    /// Returns the type of the result.
    #[must_use]
    pub fn result(&self) -> &Type {
        self.type_of(self.ast.root())
    }

    /// Returns the overloads of a call that the types leave.
    #[must_use]
    pub fn overloads(&self, id: ExprId) -> &[Arc<str>] {
        self.overloads.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Returns the variable with dots in its name that a selection stands for.
    pub(crate) fn variable(&self, id: ExprId) -> Option<&Arc<str>> {
        self.variables.get(&id)
    }

    /// Returns whether the target of a call is its receiver and no namespace.
    pub(crate) fn is_member(&self, id: ExprId) -> bool {
        self.members.contains(&id)
    }

    /// Returns the name of a type for which upstream finds no value, if the node is one.
    pub(crate) fn undefined(&self, id: ExprId) -> Option<&Arc<str>> {
        self.undefined.get(&id)
    }

    /// Returns the overload of a call if the types leave only one.
    #[must_use]
    pub fn overload(&self, id: ExprId) -> Option<&str> {
        match self.overloads.get(&id)?.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// Checks the types of an expression.
///
/// # Errors
/// Returns the complaints, each with its position.
pub fn check(ast: Ast, environment: &Environment) -> Result<Checked, Issues> {
    let mut checker = Checker {
        ast: &ast,
        environment,
        types: BTreeMap::new(),
        overloads: BTreeMap::new(),
        variables: BTreeMap::new(),
        members: BTreeSet::new(),
        undefined: BTreeMap::new(),
        issues: Complaints::default(),
        substitutions: Substitutions::default(),
        scopes: Vec::new(),
        free: 0,
    };
    checker.check(ast.root());
    let found = std::mem::take(&mut checker.types);
    let types = found
        .into_iter()
        .map(|(id, found)| (id, checker.substitutions.apply(&found, true)))
        .collect();
    if checker.substitutions.is_too_large() {
        let text = "the types in the expression have too many parts: build smaller lists and maps";
        checker.issues.add_whole(text);
    }
    if !checker.issues.is_empty() {
        return Err(checker.issues.about(ast.source().clone()));
    }
    let overloads = std::mem::take(&mut checker.overloads);
    let variables = std::mem::take(&mut checker.variables);
    let members = std::mem::take(&mut checker.members);
    let undefined = std::mem::take(&mut checker.undefined);
    let checked = Checked {
        ast,
        types,
        overloads,
        variables,
        members,
        undefined,
    };
    if environment.validated {
        let issues = validate::issues(&checked);
        if !issues.is_empty() {
            return Err(issues.about(checked.ast.source().clone()));
        }
    }
    Ok(checked)
}

struct Checker<'a> {
    ast: &'a Ast,
    environment: &'a Environment,
    types: BTreeMap<ExprId, Type>,
    overloads: BTreeMap<ExprId, Vec<Arc<str>>>,
    variables: BTreeMap<ExprId, Arc<str>>,
    members: BTreeSet<ExprId>,
    undefined: BTreeMap<ExprId, Arc<str>>,
    issues: Complaints,
    substitutions: Substitutions,
    scopes: Vec<(Arc<str>, Type)>,
    free: usize,
}

impl<'a> Checker<'a> {
    /// Returns the type of a name that only schemas know, or complains.
    fn schema_type(&mut self, id: ExprId, name: &Arc<str>) -> Type {
        match self.environment.schema_type(name) {
            Some(of) => {
                self.undefined.insert(id, name.clone());
                Type::Type(Some(Arc::new(of)))
            }
            None => self.undeclared(id, name),
        }
    }

    fn new_variable(&mut self) -> Type {
        self.free += 1;
        Type::Param(format!("_var{}", self.free - 1).into())
    }

    fn type_of(&self, id: ExprId) -> Type {
        self.types.get(&id).cloned().unwrap_or(Type::Error)
    }

    /// Finds the type of a node and remembers it.
    fn check(&mut self, id: ExprId) -> Type {
        let ast = self.ast;
        let found = match ast.expr(id) {
            Expr::Unspecified => Type::Error,
            Expr::Literal(literal) => literal.type_of(),
            Expr::Ident(name) => match self.name(&[name]) {
                Some(found) => found,
                None => self.schema_type(id, name),
            },
            Expr::Select {
                operand,
                field,
                test_only,
            } => self.select(id, *operand, field, *test_only),
            Expr::Call {
                target,
                function,
                args,
            } => self.call(id, *target, function, args),
            Expr::List { elements, optional } => self.list(elements, optional),
            Expr::Map(entries) => self.map(entries),
            Expr::Struct { name, fields } => self.message(id, name, fields),
            Expr::Comprehension(fold) => self.comprehension(fold),
        };
        self.types.insert(id, found.clone());
        found
    }

    /// Looks up names between dots.
    fn name(&self, parts: &[&str]) -> Option<Type> {
        if let [only] = parts
            && let Some((_, found)) = self.scopes.iter().rfind(|scope| *scope.0 == **only)
        {
            return Some(found.clone());
        }
        let candidates = self.environment.candidates(&parts.join("."));
        candidates.iter().find_map(|name| {
            if let Some(at) = self.environment.by_name.get(name.as_str()) {
                return self.environment.variables.get(*at).map(|row| row.1.clone());
            }
            let found = self.environment.named_type(name)?;
            Some(Type::Type(Some(Arc::new(found))))
        })
    }

    fn qualified(&self, id: ExprId) -> Option<Vec<&'a str>> {
        match self.ast.expr(id) {
            Expr::Ident(name) => Some(vec![name]),
            Expr::Select {
                operand,
                field,
                test_only: false,
            } => {
                let mut parts = self.qualified(*operand)?;
                parts.push(field);
                Some(parts)
            }
            _ => None,
        }
    }

    fn is_local(&self, name: &str) -> bool {
        self.scopes.iter().any(|scope| *scope.0 == *name)
    }

    fn select(&mut self, id: ExprId, operand: ExprId, field: &str, test_only: bool) -> Type {
        if !test_only
            && let Some(parts) = self.qualified(id)
            && !self.is_local(parts[0])
            && let Some(found) = self.name(&parts)
        {
            self.variables.insert(id, parts.join(".").into());
            return found;
        }
        let found = self.field(id, operand, field, false);
        if test_only {
            return Type::Bool;
        }
        self.substitutions.apply(&found, false)
    }

    /// Finds the type of a field of an operand.
    fn field(&mut self, id: ExprId, operand: ExprId, field: &str, optional: bool) -> Type {
        let operand = self.check(operand);
        let operand = self.substitutions.apply(&operand, false);
        let (target, is_optional) = match operand.unwrapped() {
            Some(inner) => (inner.clone(), true),
            None => (operand.clone(), false),
        };
        let found = match &target {
            Type::Map(pair) => pair.1.clone(),
            Type::Struct(name) => match self.environment.field_type(name, field) {
                Some(found) => found,
                None => {
                    self.complain(id, format_args!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.substitutions.assign(&Type::Dyn, &target);
                Type::Dyn
            }
            // Upstream declares these as types with fields, and then does not find them.
            Type::Opaque(name, _) if name.starts_with(OBJECT_PREFIX) => {
                self.complain(id, format_args!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            Type::Dyn | Type::Any | Type::Error => Type::Dyn,
            other => {
                self.complain(
                    id,
                    format_args!("type '{other}' does not support field selection"),
                );
                Type::Dyn
            }
        };
        if is_optional || optional {
            Type::optional(found)
        } else {
            found
        }
    }

    fn call(
        &mut self,
        id: ExprId,
        target: Option<ExprId>,
        function: &str,
        args: &[ExprId],
    ) -> Type {
        if function == "_?._" {
            return self.optional_select(id, args);
        }
        let mut types: Vec<Type> = args.iter().map(|arg| self.check(*arg)).collect();
        let Some(target) = target else {
            return self.resolve(id, function, &types, args, false);
        };
        if let Some(mut parts) = self.qualified(target) {
            parts.push(function);
            let name = parts.join(".");
            if self.environment.function(&name).is_some() {
                return self.resolve(id, &name, &types, args, false);
            }
        }
        types.insert(0, self.check(target));
        self.members.insert(id);
        self.resolve(id, function, &types, args, true)
    }

    fn optional_select(&mut self, id: ExprId, args: &[ExprId]) -> Type {
        let [operand, field] = args else {
            self.complain(
                id,
                format_args!(
                    "unsupported optional field selection: incorrect signature. argument count: {}",
                    args.len()
                ),
            );
            return Type::Error;
        };
        let Expr::Literal(Literal::String(name)) = self.ast.expr(*field) else {
            self.complain(*field, format_args!("unsupported optional field selection"));
            return Type::Error;
        };
        self.types.insert(*field, Type::String);
        let found = self.field(id, *operand, name, true);
        self.overloads
            .insert(id, vec!["select_optional_field".into()]);
        self.substitutions.apply(&found, false)
    }

    /// Chooses the overloads that take such arguments.
    fn resolve(
        &mut self,
        id: ExprId,
        function: &str,
        types: &[Type],
        args: &[ExprId],
        member: bool,
    ) -> Type {
        let environment = self.environment;
        let Some((name, found)) = environment.function(function) else {
            return self.undeclared(id, function);
        };
        if ["_&&_", "_||_"].contains(&function) {
            return self.logical(id, function, types, args);
        }
        let (mut chosen, mut result): (Vec<Arc<str>>, Option<Type>) = (Vec::new(), None);
        for overload in found.overloads.iter().filter(|it| it.member == member) {
            let fresh = self.fresh(&overload.parameters, &overload.result);
            let (parameters, of) = fresh;
            if !self.substitutions.assign_all(types, &parameters) {
                continue;
            }
            chosen.push(overload.id.clone());
            let of = self.substitutions.apply(&of, false);
            result = Some(match result {
                Some(before) if before != Type::Dyn && before != of => Type::Dyn,
                Some(before) => before,
                None => of,
            });
        }
        let Some(result) = result else {
            self.no_overload(id, name, types, member);
            return Type::Error;
        };
        self.overloads.insert(id, chosen);
        result
    }

    fn logical(&mut self, id: ExprId, function: &str, types: &[Type], args: &[ExprId]) -> Type {
        let mut good = true;
        for (found, arg) in types.iter().zip(args) {
            if !self.substitutions.assign(found, &Type::Bool) {
                self.mismatch(*arg, &Type::Bool, found);
                good = false;
            }
        }
        if !good {
            return Type::Error;
        }
        let overload = if function == "_&&_" {
            "logical_and"
        } else {
            "logical_or"
        };
        self.overloads.insert(id, vec![overload.into()]);
        Type::Bool
    }

    /// Gives an overload's type parameters names of their own.
    fn fresh(&mut self, parameters: &[Type], result: &Type) -> (Vec<Type>, Type) {
        let mut names: BTreeMap<Arc<str>, Type> = BTreeMap::new();
        let mut renamed: Vec<Type> = Vec::with_capacity(parameters.len());
        for parameter in parameters {
            renamed.push(self.rename(parameter, &mut names));
        }
        let result = self.rename(result, &mut names);
        (renamed, result)
    }

    fn rename(&mut self, of: &Type, names: &mut BTreeMap<Arc<str>, Type>) -> Type {
        match of {
            Type::Param(name) => match names.get(name) {
                Some(found) => found.clone(),
                None => {
                    let made = self.new_variable();
                    names.insert(name.clone(), made.clone());
                    made
                }
            },
            Type::List(inner) => Type::list(self.rename(inner, names)),
            Type::Map(pair) => Type::map(self.rename(&pair.0, names), self.rename(&pair.1, names)),
            Type::Type(Some(inner)) => Type::Type(Some(Arc::new(self.rename(inner, names)))),
            Type::Opaque(name, inner) => {
                let inner = inner.iter().map(|it| self.rename(it, names)).collect();
                Type::Opaque(name.clone(), inner)
            }
            other => other.clone(),
        }
    }

    /// Returns the type of an optional element or value without its wrapping.
    fn unwrapped(&mut self, id: ExprId, found: Type) -> Type {
        match found.unwrapped() {
            Some(inner) => inner.clone(),
            None if found == Type::Dyn => found,
            None => {
                self.mismatch(id, &Type::optional(found.clone()), &found);
                found
            }
        }
    }

    /// Returns the more general of two types in one list or map.
    fn join(&mut self, before: Option<Type>, found: Type) -> Type {
        let Some(before) = before else {
            return found;
        };
        if self.substitutions.assign(&before, &found) {
            return assign::most_general(before, found);
        }
        Type::Dyn
    }

    fn list(&mut self, elements: &[ExprId], optional: &[u32]) -> Type {
        let mut joined = None;
        for (number, id) in elements.iter().enumerate() {
            let mut found = self.check(*id);
            if is_optional(optional, number) {
                found = self.unwrapped(*id, found);
            }
            joined = Some(self.join(joined, found));
        }
        Type::list(joined.unwrap_or_else(|| self.new_variable()))
    }

    fn map(&mut self, entries: &[Entry]) -> Type {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let key = self.check(entry.key);
            keys = Some(self.join(keys, key));
            let mut value = self.check(entry.value);
            if entry.optional {
                value = self.unwrapped(entry.value, value);
            }
            values = Some(self.join(values, value));
        }
        let keys = keys.unwrap_or_else(|| self.new_variable());
        let values = values.unwrap_or_else(|| self.new_variable());
        Type::map(keys, values)
    }

    fn message(&mut self, id: ExprId, name: &str, fields: &[Field]) -> Type {
        let candidates = self.environment.candidates(name);
        let known = candidates
            .iter()
            .find_map(|name| self.environment.named_type(name));
        let result = match known {
            None => return self.undeclared(id, name),
            Some(found @ Type::Struct(_)) => found,
            Some(other) => {
                self.complain(id, format_args!("'{other}' is not a message type"));
                Type::Error
            }
        };
        for field in fields {
            let mut found = self.check(field.value);
            if field.optional {
                found = self.unwrapped(field.value, found);
            }
            let Type::Struct(name) = &result else {
                continue;
            };
            let Some(declared) = self.environment.field_type(name, &field.name) else {
                let is_claimed = self.environment.claims_fields(name);
                if is_claimed && (found.is_dynamic() || matches!(found, Type::Param(_))) {
                    continue;
                }
                let name = &field.name;
                match is_claimed {
                    true => self.complain(
                        field.id,
                        format_args!(
                            "expected type of field '{name}' is '' but provided type is '{found}'"
                        ),
                    ),
                    false => self.complain(field.id, format_args!("undefined field '{name}'")),
                }
                continue;
            };
            if !self.substitutions.assign(&declared, &found) {
                self.complain(
                    field.id,
                    format_args!(
                        "expected type of field '{}' is '{declared}' but provided type is '{found}'",
                        field.name
                    ),
                );
            }
        }
        result
    }

    fn comprehension(&mut self, fold: &Comprehension) -> Type {
        let range = self.check(fold.range);
        let accumulated = self.check(fold.init);
        let range = self.substitutions.apply(&range, false);
        let two = fold.second.is_some();
        let (first, second) = match &range {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(pair) => (pair.0.clone(), pair.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.substitutions.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                self.complain(
                    fold.range,
                    format_args!(
                        "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                    ),
                );
                (Type::Error, Type::Error)
            }
        };
        let depth = self.scopes.len();
        let accumulator = fold.accumulator.clone();
        self.scopes.push((accumulator, accumulated.clone()));
        self.scopes.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.scopes.push((name.clone(), second));
        }
        self.check(fold.condition);
        self.assert(fold.condition, &Type::Bool);
        self.check(fold.step);
        self.assert(fold.step, &accumulated);
        self.scopes.truncate(depth + 1);
        let result = self.check(fold.result);
        self.scopes.truncate(depth);
        self.substitutions.apply(&result, false)
    }

    fn assert(&mut self, id: ExprId, expected: &Type) {
        let found = self.type_of(id);
        if !self.substitutions.assign(expected, &found) {
            self.mismatch(id, expected, &found);
        }
    }
}
