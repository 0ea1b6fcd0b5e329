//! Which values are equal, and how numbers of different types compare.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Fault, List, Map, Value, relations};
use crate::budget::WorkBudget;

/// Units of work of a byte of a hidden field, which is written as JSON to be compared.
const HIDDEN_BYTE_WORK: u64 = 2;

impl Value<'_> {
    /// Returns whether two values are equal. Numbers of different types are equal if they are the
    /// same number; values of other different types never are. Values that take too much work are not equal.
    #[must_use]
    pub fn equals(&self, other: &Value<'_>) -> bool {
        self.equals_within(other, &WorkBudget::default())
    }

    /// Like [`Self::equals`], with a budget from which other work is taken too.
    pub(crate) fn equals_within(&self, other: &Value<'_>, budget: &WorkBudget) -> bool {
        self.equality(other, budget) == Ok(true)
    }

    /// Returns whether two values are equal, or why they cannot be compared: one of a library's type, and a list or
    /// an object of a schema, on the left, has an answer only for another of its type.
    pub(crate) fn equality(&self, other: &Value<'_>, budget: &WorkBudget) -> Result<bool, Fault> {
        let bytes = self.bytes().min(other.bytes());
        if budget.parts(1).is_err() || bytes > 0 && budget.read(bytes).is_err() {
            return Ok(false);
        }
        if let Some(why) = self.invalid() {
            return Err(Fault::error(why));
        }
        Ok(match (self, other) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(one), Value::Bool(two)) => one == two,
            (Self::String(one), Value::String(two)) => **one == **two,
            (Self::Bytes(one), Value::Bytes(two)) => **one == **two,
            (Self::Duration(one), Value::Duration(two)) => one == two,
            (Self::Timestamp(one), Value::Timestamp(two)) => one == two,
            (Self::Type(one), Value::Type(two)) => **one == **two,
            (Self::Optional(one), Value::Optional(two)) => match (one, two) {
                (Some(one), Some(two)) => return one.equality(two, budget),
                (None, None) => true,
                _ => false,
            },
            (Self::Opaque(one), Value::Opaque(two)) if one.type_name() == two.type_name() => {
                one.equals(&**two)
            }
            (_, Value::Null) => false,
            (Self::Opaque(_), _) => return Err(Fault::no_overload()),
            (Self::List(one), Value::List(two)) => return relations::equal(one, two, budget),
            (Self::Map(one), Value::Map(two)) => return one.equality(two, budget),
            (Self::List(List::Tree(one)), _) if one.is_typed() => return Err(Fault::no_overload()),
            (Self::Map(Map::Tree(one)), _) if one.is_typed() => return Err(Fault::no_overload()),
            _ => compare_numbers(self, other) == Some(Ordering::Equal),
        })
    }
}

impl<'a> Map<'a> {
    /// Like [`Value::equality`]. As upstream's, a map that the expression has made counts values that cannot be
    /// compared as equal, one of the caller's does not.
    fn equality(&self, other: &Map<'_>, budget: &WorkBudget) -> Result<bool, Fault> {
        if self.len() != other.len() {
            return Ok(false);
        }
        let is_made = matches!(self, Self::Owned(_));
        for (key, value) in self.iter() {
            let Some(found) = other.iter_get(&key) else {
                return Ok(false);
            };
            match value.equality(&found, budget) {
                Ok(true) => {}
                Err(fault) if is_made && !fault.is_final() => {}
                answer => return answer,
            }
        }
        Ok(self.hides_the_same(other, budget))
    }

    /// Returns whether the fields that both have and expressions cannot read are equal. What takes too much work is
    /// not.
    fn hides_the_same(&self, other: &Map<'_>, budget: &WorkBudget) -> bool {
        let (Self::Tree(one), Map::Tree(two)) = (self, other) else {
            return true;
        };
        // All fields are looked at, and the hidden ones are written.
        if budget.parts(one.len() + two.len()).is_err() {
            return false;
        }
        let (one, two) = (one.hidden(), two.hidden());
        let written = one.iter().chain(&two);
        let bytes: usize = written.map(|(name, value)| name.len() + value.len()).sum();
        if budget.work(HIDDEN_BYTE_WORK * bytes as u64).is_err() {
            return false;
        }
        let two: BTreeMap<&str, String> = two.into_iter().collect();
        one.iter()
            .all(|(name, value)| two.get(name).is_none_or(|other| other == value))
    }

    /// Looks a key up whose life is another than the map's.
    fn iter_get(&self, key: &Value<'_>) -> Option<Value<'a>> {
        match key {
            Value::String(name) => self.field(name),
            Value::Bool(value) => self.get(&Value::Bool(*value)),
            Value::Int(value) => self.get(&Value::Int(*value)),
            Value::Uint(value) => self.get(&Value::Uint(*value)),
            _ => None,
        }
    }
}

/// Compares two numbers by value. `None` if one is not a number, or not a number at all.
#[must_use]
pub(crate) fn compare_numbers(one: &Value<'_>, two: &Value<'_>) -> Option<Ordering> {
    let whole = |value: &Value<'_>| match value {
        Value::Int(value) => Some(i128::from(*value)),
        Value::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    match (one, two) {
        (Value::Double(one), Value::Double(two)) => one.partial_cmp(two),
        (Value::Double(one), other) => compare_double(*one, whole(other)?),
        (other, Value::Double(two)) => compare_double(*two, whole(other)?).map(Ordering::reverse),
        (one, two) => Some(whole(one)?.cmp(&whole(two)?)),
    }
}

/// Compares a double with a whole number of at most 65 bits, as upstream does: within the range
/// of the type by the nearest double.
fn compare_double(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "upstream compares the nearest double"
    )]
    let near = whole as f64;
    double.partial_cmp(&near)
}

/// Returns a double as a signed number if it is one exactly.
pub(crate) fn exact_int(value: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
    let whole = (value.fract() == 0.0
        && (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&value))
    .then_some(value as i64);
    whole
}

/// Returns a double as an unsigned number if it is one exactly.
pub(crate) fn exact_uint(value: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    let whole = (value.fract() == 0.0 && (0.0..1.844_674_407_370_955_2e19).contains(&value))
        .then_some(value as u64);
    whole
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::budget::WorkBudget;
    use crate::check::check;
    use crate::environment::Environment;
    use crate::parse::parse;
    use crate::plan::Program;
    use crate::value::{Fields, Map, Node, Value};

    /// An object of which expressions can read nothing.
    #[derive(Debug)]
    struct Hiding(Vec<(String, String)>);

    impl Hiding {
        fn new(count: usize, value: &str) -> Self {
            let fields = (0..count).map(|at| (format!("f{at}"), value.to_owned()));
            Self(fields.collect())
        }
    }

    impl Fields for Hiding {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, _: &str) -> Option<Node<'_>> {
            None
        }

        fn at(&self, _: usize) -> Option<(&str, Node<'_>)> {
            None
        }

        fn hidden(&self) -> Vec<(&str, String)> {
            let fields = self.0.iter();
            let fields = fields.map(|(name, value)| (name.as_str(), value.clone()));
            fields.collect()
        }
    }

    #[test]
    fn hidden_fields_are_compared_and_take_the_budget() {
        let compare = |one: &Hiding, two: &Hiding, budget: &WorkBudget| {
            let (one, two) = (Value::Map(Map::Tree(one)), Value::Map(Map::Tree(two)));
            one.equals_within(&two, budget)
        };
        let (one, other) = (Hiding::new(1_000, "1"), Hiding::new(1_000, "2"));
        let budget = WorkBudget::default();
        assert!(compare(&one, &one, &budget));
        assert!(!compare(&one, &other, &budget));
        // A name that only one of them hides does not count.
        let renamed = (0..1_000).map(|at| (format!("g{at}"), "2".to_owned()));
        assert!(compare(&one, &Hiding(renamed.collect()), &budget));
        let large = Hiding::new(2, &"x".repeat(100_000));
        let small = WorkBudget::for_short_expression();
        let rounds = (0..1_000).take_while(|_| compare(&large, &large, &small));
        assert!(rounds.count() < 100 && small.is_spent());
    }

    fn outcome(text: &str) -> Result<bool, String> {
        let environment = Arc::new(Environment::kubernetes());
        let ast = parse(text, &environment.syntax).expect(text);
        let checked = check(ast, &environment).expect(text);
        let program = Program::checked(&checked, &environment);
        match program.evaluate(&[], 1_000_000).outcome {
            Ok(Value::Bool(found)) => Ok(found),
            Ok(other) => panic!("{text}: {other:?}"),
            Err(fault) => Err(fault.to_string()),
        }
    }

    #[test]
    fn values_of_libraries_are_compared_inside_lists_and_maps_as_upstream_does() {
        let fault = || Err("no such overload".to_owned());
        for (text, expected) in [
            ("quantity('1') == quantity('1000m')", Ok(true)),
            ("dyn(quantity('1')) == 1", fault()),
            ("dyn(quantity('1')) != 1", Ok(true)),
            ("dyn(quantity('1')) == dyn(null)", Ok(false)),
            ("1 == dyn(quantity('1'))", Ok(false)),
            // A list of the expression goes on behind what cannot be compared.
            ("[dyn(quantity('1'))] == [dyn(1)]", Ok(true)),
            ("[dyn(quantity('1'))] != [dyn(1)]", Ok(false)),
            ("[dyn(1)] == [dyn(quantity('1'))]", Ok(false)),
            ("[dyn(ip('::1')), dyn(1)] == [dyn(1), dyn(2)]", Ok(false)),
            ("{'a': dyn(quantity('1'))} == {'a': dyn(1)}", Ok(true)),
            (
                "optional.of(dyn(quantity('1'))) == optional.of(dyn(1))",
                fault(),
            ),
            ("dyn(quantity('1')) in [dyn(1)]", Ok(false)),
            // One list behind another looks on for elements that differ, and then fails; not so the result of a loop.
            (
                "[dyn(quantity('1'))] + [dyn(1)] == [dyn(1), dyn(1)]",
                fault(),
            ),
            (
                "[dyn(quantity('1'))] + [dyn(1)] == [dyn(1), dyn(2)]",
                Ok(false),
            ),
            (
                "[dyn(quantity('1'))] + [dyn(1)] != [dyn(1), dyn(1)]",
                Ok(true),
            ),
            ("[dyn(1), dyn(2)] == [dyn(1)] + [dyn(2.0)]", Ok(true)),
            ("[[1] + [2], [3]] == [[1, 2]] + [[3]]", Ok(true)),
            ("[dyn(quantity('1'))] + [] == [dyn(1)]", Ok(true)),
            (
                "[0, 1].map(x, dyn(quantity('1'))) == [dyn(1), dyn(1)]",
                Ok(true),
            ),
            ("[dyn(quantity('1'))] in [[dyn(1)]]", Ok(true)),
            ("[dyn(1)] in [[dyn(quantity('1'))]]", Ok(false)),
        ] {
            assert_eq!(outcome(text), expected, "{text}");
        }
    }
}
