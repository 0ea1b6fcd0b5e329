//! Which values a function takes when the expression runs, and what upstream says of others.
//!
//! Most functions of upstream look for an overload that takes the values, and name the function and the types if there
//! is none. Operators and a few other functions look only at whether the type of the first value has the operation.
//! The rest leave it to their code.

use std::fmt::Write as _;

use crate::environment::Overload;
use crate::types::Type;
use crate::value::{Fault, List, Map, Relation, Value};

/// How a function refuses values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its code says what is wrong.
    Code,
    /// It names the operation that the type of the first value does not have.
    Operation(Operation),
    /// It names the types of the values.
    Types,
}

/// What a type may be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Compare,
    /// To multiply, or to divide.
    Scale,
    Remainder,
    Negate,
    Subtract,
    Size,
    Match,
    /// To be a list.
    List,
}

impl Refusal {
    /// Returns how a function of upstream refuses values.
    pub fn of(function: &str) -> Self {
        Self::Operation(match function {
            "_+_" => Operation::Add,
            "_<_" | "_<=_" | "_>_" | "_>=_" => Operation::Compare,
            "_*_" | "_/_" => Operation::Scale,
            "_%_" => Operation::Remainder,
            "-_" => Operation::Negate,
            "_-_" => Operation::Subtract,
            "size" => Operation::Size,
            "matches" => Operation::Match,
            "sort" | "@sortByAssociatedKeys" => Operation::List,
            "!_" | "@in" | "contains" | "startsWith" | "endsWith" | "distinct" | "flatten"
            | "cel.@mapInsert" => return Self::Code,
            _ => return Self::Types,
        })
    }
}

impl Operation {
    /// Returns the error if the type of the first value does not have the operation.
    pub fn refuse(self, function: &str, args: &[Value<'_>]) -> Option<Fault> {
        let first = args.first()?;
        if self.is_of(first) {
            return None;
        }
        // These types have functions of their own, and upstream looks for the operation among those.
        let has_functions = matches!(
            first,
            Value::Duration(_) | Value::String(_) | Value::Timestamp(_)
        );
        Some(match has_functions {
            true => Fault::no_overload(),
            false => Fault::error(format!("no such overload: {function}")),
        })
    }

    fn is_of(self, value: &Value<'_>) -> bool {
        match value {
            Value::Bool(_) => matches!(self, Self::Compare | Self::Negate),
            Value::Int(_) => !matches!(self, Self::Size | Self::Match | Self::List),
            Value::Uint(_) => !matches!(self, Self::Negate | Self::Size | Self::Match | Self::List),
            Value::Double(_) => matches!(
                self,
                Self::Add | Self::Compare | Self::Scale | Self::Negate | Self::Subtract
            ),
            Value::String(_) => {
                matches!(self, Self::Add | Self::Compare | Self::Size | Self::Match)
            }
            Value::Bytes(_) => matches!(self, Self::Add | Self::Compare | Self::Size),
            Value::Duration(_) => matches!(
                self,
                Self::Add | Self::Compare | Self::Negate | Self::Subtract
            ),
            Value::Timestamp(_) => matches!(self, Self::Add | Self::Compare | Self::Subtract),
            Value::List(_) => matches!(self, Self::Add | Self::Size | Self::List),
            Value::Map(_) => self == Self::Size,
            Value::Null | Value::Type(_) | Value::Optional(_) | Value::Opaque(_) => false,
        }
    }
}

/// Returns whether a value of this type may turn out to be of another one.
pub(crate) fn may_differ(of: &Type) -> bool {
    matches!(of, Type::Param(_) | Type::Wrapper(_))
        || of.is_dynamic()
        || of.parameters().into_iter().any(may_differ)
}

/// Returns the error if no overload takes the values.
pub(crate) fn refuse_types(
    function: &str,
    overloads: &[Overload],
    args: &[Value<'_>],
) -> Option<Fault> {
    let takes = |overload: &Overload| {
        let mut pairs = overload.parameters.iter().zip(args);
        overload.parameters.len() == args.len() && pairs.all(|(of, value)| is_of(of, value))
    };
    if overloads.iter().any(takes) {
        return None;
    }
    let mut text = format!("no such overload: {function}(");
    for (number, value) in args.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        // Writing to a text cannot fail.
        let _ = write!(text, "{comma}{}", value.type_name());
    }
    text.push(')');
    Some(Fault::error(text))
}

/// Returns whether a value is of a type. As upstream, the first elements stand for all of them.
fn is_of(of: &Type, value: &Value<'_>) -> bool {
    match (of, value) {
        (Type::Dyn | Type::Any | Type::Param(_), _) => true,
        (Type::List(element), Value::List(list)) => {
            list.at(0).is_none_or(|first| is_of(element, &first))
        }
        (Type::Map(pair), Value::Map(map)) => map
            .iter()
            .next()
            .is_none_or(|(key, value)| is_of(&pair.0, &key) && is_of(&pair.1, &value)),
        _ => of.name() == value.type_name(),
    }
}

/// Returns what is wrong with a value as the index of anything.
pub(crate) fn check_index(index: &Value<'_>) -> Result<(), String> {
    match index {
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_) => {
            Ok(())
        }
        other => Err(format!("invalid qualifier type: {}", code_type(other))),
    }
}

/// Returns the name that the type of a value has in upstream's code, which stands in some errors.
pub(crate) fn code_type(value: &Value<'_>) -> String {
    let name = match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Duration(_) => "types.Duration",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        Value::Map(Map::Tree(_)) => "*common.unstructuredMap",
        Value::Map(Map::Owned(_)) => "*types.baseMap",
        Value::List(List::Owned(_)) => "*types.baseList",
        Value::List(list) => match (list.relation(), list) {
            (Relation::Ordered, List::Tree(_)) => "*common.unstructuredList",
            (Relation::Ordered, _) => "*types.concatList",
            (Relation::Set, _) => "*common.unstructuredSetList",
            (Relation::Keyed(_), _) => "*common.unstructuredMapList",
        },
        Value::Opaque(value) => match value.type_name() {
            "string" => "types.String",
            "kubernetes.NamedFormat" => "cel.Format",
            name => {
                let short = name.rsplit('.').next().unwrap_or(name);
                return format!("cel.{short}");
            }
        },
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::check::check;
    use crate::environment::Environment;
    use crate::parse::parse;
    use crate::plan::Program;

    fn fault(text: &str) -> String {
        let environment = Arc::new(Environment::kubernetes());
        let ast = parse(text, &environment.syntax).expect(text);
        let checked = check(ast, &environment).expect(text);
        let program = Program::checked(&checked, &environment);
        match program.evaluate(&[], 1_000_000).outcome {
            Ok(value) => format!("{value:?}"),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn values_are_refused_in_the_words_of_upstream() {
        for (text, expected) in [
            // Operators name themselves, unless the first value's type has functions of its own.
            ("dyn(null) + 1", "no such overload: _+_"),
            ("dyn(1.5) % 2", "no such overload: _%_"),
            ("dyn('a') * 2", "no such overload"),
            ("dyn(1) + 'a'", "no such overload"),
            ("dyn([1]) < 1", "no such overload: _<_"),
            ("dyn(true) < double('NaN')", "no such overload"),
            ("dyn(1) < double('NaN')", "NaN values cannot be ordered"),
            ("double('NaN') < dyn('a')", "NaN values cannot be ordered"),
            ("-dyn('a')", "no such overload"),
            ("-dyn(1u)", "no such overload: -_"),
            ("-dyn(true)", "no such overload"),
            ("!dyn(1)", "no such overload"),
            ("size(dyn(1))", "no such overload: size"),
            (
                "dyn(1).matches(dyn('a') + 'b')",
                "no such overload: matches",
            ),
            ("dyn(1).matches('a')", "no such overload"),
            ("dyn(1).sort()", "no such overload: sort"),
            ("dyn(1).contains('a')", "no such overload"),
            // Functions name the types.
            ("dyn(1).charAt(0)", "no such overload: charAt(int, int)"),
            (
                "'a'.replace('b', dyn(duration('1s')))",
                "no such overload: replace(string, string, google.protobuf.Duration)",
            ),
            (
                "dyn(quantity('1')).getHours()",
                "no such overload: getHours(kubernetes.Quantity)",
            ),
            ("duration(dyn(1))", "no such overload: duration(int)"),
            ("bool(dyn(1.5))", "no such overload: bool(double)"),
            ("dyn(1).optMap(x, x)", "no such overload: hasValue(int)"),
            // The first element stands for all.
            ("[dyn(1), dyn('a')].join()", "no such overload: join(list)"),
            ("[dyn('a'), dyn(1)].join()", "join: invalid input: 1"),
            ("[dyn(null)].max()", "no such overload: max(list)"),
            ("[dyn(1), dyn('a')].max()", "Int(1)"),
            ("[dyn(1), dyn('a')].sum()", "no such overload"),
            (
                "dyn({'a': 1}).flatten()",
                "no such overload: map(dyn, dyn).flatten()",
            ),
            (
                "dyn(1).flatten(dyn(2))",
                "no such overload: int.flatten(int)",
            ),
            (
                "[1].flatten(dyn('a'))",
                "internal error: interface conversion: ref.Val is types.String, not types.Int",
            ),
        ] {
            assert_eq!(fault(text), expected, "{text}");
        }
    }
}
