//! Which type a value of another type may be given to, and what type parameters stand for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::types::Type;

/// Most parts of a type. A map from a value to the same value has a type twice as large, so that without a limit a
/// short chain of them takes all time and memory.
const PARTS_MAX: usize = 1_000;
/// Most parts of all types of an expression together, which are not shared: about a hundred megabytes.
const ALL_PARTS_MAX: usize = 2_000_000;

/// What is known of type parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct Substitutions {
    found: BTreeMap<Arc<str>, Type>,
    /// What the present assignment has replaced, to be put back if it fails. A copy of all would make the check of
    /// a long expression take the square of its length.
    replaced: Vec<(Arc<str>, Option<Type>)>,
    is_too_large: Cell<bool>,
    /// The parts of all types that were made.
    parts: Cell<usize>,
}

impl Substitutions {
    /// Replaces type parameters by what they stand for; unknown ones by `dyn` if `to_dyn`.
    pub fn apply(&self, of: &Type, to_dyn: bool) -> Type {
        if self.is_too_large() {
            return Type::Error;
        }
        let mut left = PARTS_MAX;
        let made = self.applied(of, to_dyn, &mut left);
        let all = self.parts.get() + (PARTS_MAX - left);
        self.parts.set(all);
        if all > ALL_PARTS_MAX {
            self.is_too_large.set(true);
        }
        made
    }

    /// Returns whether a type, or all of them, had too many parts.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large.get()
    }

    /// Like [`Self::apply`], for a part of a type that may have `left` parts.
    fn applied(&self, of: &Type, to_dyn: bool, left: &mut usize) -> Type {
        let Some(fewer) = left.checked_sub(1) else {
            self.is_too_large.set(true);
            return Type::Error;
        };
        *left = fewer;
        match of {
            Type::Param(name) => match self.found.get(name) {
                Some(found) => self.applied(found, to_dyn, left),
                None if to_dyn => Type::Dyn,
                None => of.clone(),
            },
            Type::List(inner) => Type::list(self.applied(inner, to_dyn, left)),
            Type::Map(pair) => {
                let key = self.applied(&pair.0, to_dyn, left);
                Type::map(key, self.applied(&pair.1, to_dyn, left))
            }
            Type::Type(Some(inner)) => {
                Type::Type(Some(Arc::new(self.applied(inner, to_dyn, left))))
            }
            Type::Opaque(name, inner) => {
                let inner = inner.iter().map(|it| self.applied(it, to_dyn, left));
                Type::Opaque(name.clone(), inner.collect())
            }
            other => other.clone(),
        }
    }

    /// Returns whether two types agree, and remembers what that says of type parameters.
    pub fn assign(&mut self, one: &Type, two: &Type) -> bool {
        self.try_all(|tried| tried.agree(one, two))
    }

    /// Forgets what an attempt has said of type parameters if it fails.
    fn try_all(&mut self, attempt: impl FnOnce(&mut Self) -> bool) -> bool {
        self.replaced.clear();
        let agree = attempt(self);
        if !agree {
            while let Some((name, before)) = self.replaced.pop() {
                match before {
                    Some(before) => self.found.insert(name, before),
                    None => self.found.remove(&name),
                };
            }
        }
        agree
    }

    fn set(&mut self, name: &Arc<str>, of: Type) {
        let before = self.found.insert(Arc::clone(name), of);
        self.replaced.push((Arc::clone(name), before));
    }

    /// Like [`Self::assign`], for all arguments of a call at once.
    pub fn assign_all(&mut self, ones: &[Type], twos: &[Type]) -> bool {
        if ones.len() != twos.len() {
            return false;
        }
        self.try_all(|tried| {
            let mut pairs = ones.iter().zip(twos);
            pairs.all(|(one, two)| tried.agree(one, two))
        })
    }

    fn agree(&mut self, one: &Type, two: &Type) -> bool {
        if let Type::Param(name) = two {
            match self.stands_for(one, two, name) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Param(name) = one {
            return self.stands_for(two, one, name).0;
        }
        if one.is_dynamic() || two.is_dynamic() {
            return true;
        }
        match (one, two) {
            (Type::Null, other) | (other, Type::Null) => is_nullable(other),
            (Type::Wrapper(one), Type::Wrapper(two)) => one == two,
            (Type::Wrapper(inner), other) | (other, Type::Wrapper(inner)) => **inner == *other,
            (Type::Type(_), Type::Type(_)) => true,
            (one, two) if has_parts(one) => pairs(one, two)
                .is_some_and(|mut pairs| pairs.all(|(one, two)| self.agree(one, two))),
            (one, two) => one == two,
        }
    }

    /// Returns whether the parameter `two` can stand for `one`, and whether it stood for something.
    fn stands_for(&mut self, one: &Type, two: &Type, name: &Arc<str>) -> (bool, bool) {
        if one == two {
            return (true, true);
        }
        if let Some(known) = self.found.get(name).cloned() {
            if *one == known {
                return (true, true);
            }
            if self.agree(one, &known) {
                let general = most_general(one.clone(), known);
                if self.is_free_in(two, &general) {
                    self.set(name, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_free_in(two, one) {
            self.set(name, one.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Returns whether a parameter does not occur in a type.
    fn is_free_in(&self, parameter: &Type, within: &Type) -> bool {
        if parameter == within {
            return false;
        }
        match within {
            Type::Param(name) => match self.found.get(name) {
                Some(found) => self.is_free_in(parameter, found),
                None => true,
            },
            other => other
                .parameters()
                .iter()
                .all(|inner| self.is_free_in(parameter, inner)),
        }
    }
}

/// Returns whether types of this form agree if their parameters do.
const fn has_parts(of: &Type) -> bool {
    matches!(of, Type::List(_) | Type::Map(_) | Type::Opaque(..))
}

/// Returns the parameters of two types of one form, pair by pair.
fn pairs<'t>(one: &'t Type, two: &'t Type) -> Option<impl Iterator<Item = (&'t Type, &'t Type)>> {
    let is_same_form = match (one, two) {
        (Type::List(_), Type::List(_)) | (Type::Map(_), Type::Map(_)) => true,
        (Type::Opaque(one, ones), Type::Opaque(two, twos)) => {
            one == two && ones.len() == twos.len()
        }
        _ => false,
    };
    is_same_form.then(|| one.parameters().into_iter().zip(two.parameters()))
}

fn is_nullable(of: &Type) -> bool {
    matches!(
        of,
        Type::Null
            | Type::Wrapper(_)
            | Type::Opaque(..)
            | Type::Struct(_)
            | Type::Duration
            | Type::Timestamp
    )
}

/// Returns the more general of two types that agree.
pub(super) fn most_general(one: Type, two: Type) -> Type {
    if is_less_specific(&one, &two) {
        one
    } else {
        two
    }
}

fn is_less_specific(one: &Type, two: &Type) -> bool {
    if matches!(one, Type::Dyn | Type::Any | Type::Param(_)) {
        return true;
    }
    if matches!(two, Type::Dyn | Type::Any | Type::Param(_)) {
        return false;
    }
    match (one, two) {
        (Type::Type(_), Type::Type(_)) => true,
        (one, two) if has_parts(one) => pairs(one, two)
            .is_some_and(|mut pairs| pairs.all(|(one, two)| is_less_specific(one, two))),
        (one, two) => one == two,
    }
}
