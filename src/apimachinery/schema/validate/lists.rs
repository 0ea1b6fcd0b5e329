//! Rules about lists: items that may occur only once, items that may not be added or removed, and
//! the matching of items with their previous values.

use super::identities::Identities;
use super::{Checker, Pair, Subject, each_value, identity};
use crate::complaints::Complaints;
use crate::field_error::{FieldError, Path};
use crate::schema::tags::{Stage, Tag};
use crate::schema::{ListType, Presence, Type};
use crate::value::Value;

impl<'s> Checker<'s, '_> {
    /// Checks the rules about the list as a whole.
    pub(super) fn list_rules(
        &mut self,
        tags: &[Tag],
        subject: Subject<'s>,
        pair: Pair<'_>,
        path: &Path<'_>,
    ) {
        let (Type::List(item), Some(Value::Array(items))) = (subject.ty, pair.new) else {
            return;
        };
        for tag in tags.iter().filter(|tag| tag.name == "item") {
            self.item_rule(tag, subject, pair, path);
        }
        if tags.iter().any(|tag| tag.name == "customUnique") {
            return;
        }
        let Some(kind) = identity(tags) else {
            return;
        };
        let declares = |tag: &&Tag| {
            matches!(tag.name.as_str(), "unique" | "listType") && tag.text() != "atomic"
        };
        let Some(stage) = tags.iter().find(declares).map(|tag| tag.stage) else {
            return;
        };
        if stage == Stage::Alpha {
            // Nothing would be reported.
            return;
        }
        let known = Identities::new(items, item, &kind);
        for (at, value) in items.iter().enumerate() {
            if known.find_before(at, self, value).is_some() {
                let bad = self.schemas.shown(subject.field, item, value);
                self.report(stage, FieldError::duplicate(&path.index(at), bad));
            }
        }
    }

    /// Returns true if two items are the same one.
    pub(super) fn matches(
        &self,
        item: &Type,
        kind: &ListType,
        left: &Value,
        right: &Value,
    ) -> bool {
        match kind {
            ListType::Atomic => false,
            ListType::Set => left == right,
            ListType::Map(keys) => {
                let Some(definition) = item.definition().map(|id| self.schemas.get(id)) else {
                    return false;
                };
                keys.iter().all(|key| {
                    let field = definition.field(key);
                    field.is_some_and(|field| self.schemas.alike_in(field, left, right))
                })
            }
        }
    }

    /// Reports items that were added or removed although that is forbidden.
    pub(super) fn item_changes(
        &self,
        tag: &Tag,
        tags: &[Tag],
        subject: Subject<'_>,
        pair: Pair<'_>,
        path: &Path<'_>,
    ) -> Complaints {
        let added = tag.text() == "NoAddItem";
        let (from, to) = if added {
            (pair.old, pair.new)
        } else {
            (pair.new, pair.old)
        };
        let detail = if added {
            "item may not be added"
        } else {
            "item may not be removed"
        };
        let mut errors = Complaints::default();
        match (subject.ty, to) {
            (Type::List(item), Some(Value::Array(items))) => {
                let Some(kind) = identity(tags) else {
                    return errors;
                };
                let others = from.and_then(Value::as_array).unwrap_or_default();
                let others = Identities::new(others, item, &kind);
                for (at, value) in items.iter().enumerate() {
                    if others.find(self, value).is_none() {
                        let place = path.index(at);
                        errors.push(FieldError::forbidden(
                            if added { &place } else { path },
                            detail,
                        ));
                    }
                }
            }
            (Type::Map(_), Some(Value::Object(members))) => {
                let others = from.and_then(Value::as_object);
                for key in members.keys() {
                    if !others.is_some_and(|others| others.contains_key(key)) {
                        errors.push(FieldError::forbidden(&path.key(key), detail));
                    }
                }
            }
            _ => {}
        }
        errors
    }

    /// Checks every item, together with its previous value where that can be found.
    pub(super) fn items(
        &mut self,
        tags: &[Tag],
        item: &'s Type,
        subject: Subject<'s>,
        pair: Pair<'_>,
        path: &Path<'_>,
    ) {
        let rules: Vec<Tag> = each_value(tags).collect();
        if rules.is_empty() && !self.reaches(item) {
            return;
        }
        let kind = identity(tags);
        let old = pair.old.and_then(Value::as_array).unwrap_or_default();
        let new = pair.new.and_then(Value::as_array).unwrap_or_default();
        let known = kind.as_ref();
        let known = known.map(|kind| Identities::new(old, item, kind));
        for (at, value) in new.iter().enumerate() {
            let before = known.as_ref().and_then(|known| known.find(self, value));
            let inside = Pair {
                new: Some(value),
                old: before,
                correlated: before.is_some(),
            };
            let (ty, presence) = match item {
                Type::Nullable(inner) => (inner.as_ref(), Presence::Pointer),
                plain => (plain, Presence::Plain),
            };
            let subject = Subject {
                ty,
                presence,
                field: subject.field,
            };
            if !self.unchanged(subject, inside) {
                self.value(&rules, subject, inside, &path.index(at));
            }
        }
    }

    /// Checks a rule for the one item that has certain values.
    fn item_rule(&mut self, tag: &Tag, subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        let (Some(inner), Type::List(item)) = (tag.inner(), subject.ty) else {
            return;
        };
        if inner.name == "zeroOrOneOfMember" {
            return;
        }
        let wanted = |value: &&Value| {
            tag.arguments
                .iter()
                .all(|(name, text)| match value.get(name) {
                    Some(Value::String(found)) => found == text,
                    Some(Value::Int(found)) => text.parse() == Ok(*found),
                    Some(Value::Bool(found)) => text.parse() == Ok(*found),
                    _ => text.is_empty(),
                })
        };
        let new = pair.new.and_then(Value::as_array).unwrap_or_default();
        let Some(at) = new.iter().position(|value| wanted(&value)) else {
            return;
        };
        let before = pair
            .old
            .and_then(Value::as_array)
            .unwrap_or_default()
            .iter()
            .find(wanted);
        let inside = Pair {
            new: Some(&new[at]),
            old: before,
            correlated: before.is_some(),
        };
        let subject = Subject {
            ty: item,
            presence: Presence::Plain,
            field: subject.field,
        };
        if self.unchanged(subject, inside) {
            return;
        }
        let tags = [inner];
        let place = path.index(at);
        if !self.ends_here(&tags[0], &tags, subject, inside, &place) {
            self.rule(&tags[0], subject, inside, &place);
        }
    }
}
