//! Declarative validation: the rules about fields that the data has.
//!
//! Owns the order of rules, and which unchanged parts are skipped on update. `rules` checks a
//! single rule on a single value. Checks that no rule can express are written by hand for each kind
//! and not known here.

mod identities;
mod lists;
mod rules;
#[cfg(test)]
mod tests;
mod unions;

pub(super) use unions::Relation;

use std::borrow::Cow;

use super::equality::settle;
use super::tags::{Stage, Tag};
use super::{DefId, Definition, Field, ListType, Presence, Schemas, Type};
use crate::complaints::Complaints;
use crate::field_error::{Bad, FieldError, Path};
use crate::value::{Map, Value};

/// The subject of validation: the type of a value, and whether absent differs from zero.
#[derive(Clone, Copy)]
struct Subject<'s> {
    ty: &'s Type,
    presence: Presence,
    /// The field that the value belongs to, also if it is an item of the field.
    field: Option<&'s Field>,
}

/// A value and its previous value.
#[derive(Clone, Copy)]
struct Pair<'v> {
    new: Option<&'v Value>,
    old: Option<&'v Value>,
    /// True if the value has a previous state, to which it belongs.
    correlated: bool,
}

impl Schemas {
    /// Returns the feature gates that rules of the data name, each with the definition that has the
    /// rule.
    pub fn gates(&self) -> Vec<(&str, String)> {
        let mut gates = Vec::new();
        for (_, definition) in self.iter() {
            let of_fields = definition.fields.iter().flat_map(|field| &field.tags);
            for tag in definition.tags.iter().chain(of_fields) {
                let mut next = Some(tag.clone());
                while let Some(tag) = next {
                    if is_gated(&tag) {
                        let gate = tag.argument("").unwrap_or_default();
                        gates.push((&*definition.name, gate.to_owned()));
                    }
                    next = tag.inner();
                }
            }
        }
        gates
    }

    /// Checks an object by the rules of the data. `old` is the object that an update replaces;
    /// `gate` returns whether a feature is on. Errors of rules that are not enforced yet are left
    /// out.
    pub fn validate(
        &self,
        id: DefId,
        value: &Value,
        old: Option<&Value>,
        gate: &dyn Fn(&str) -> bool,
    ) -> Complaints {
        let definition = self.get(id);
        if !definition.checked {
            return Complaints::default();
        }
        let mut checker = Checker {
            schemas: self,
            update: old.is_some(),
            gate,
            errors: Complaints::default(),
        };
        if let Value::Object(members) = value {
            checker.object(
                definition,
                members,
                old.and_then(Value::as_object),
                &Path::NIL,
            );
        }
        checker.errors
    }

    /// Returns a value of a type in the form in which texts show it: objects as JSON in the order
    /// of declaration, texts of a named type as JSON, others plainly. `field` is the field of the
    /// value, also if it is an item of the field.
    pub fn shown(&self, field: Option<&Field>, ty: &Type, value: &Value) -> Bad {
        let named = field.is_some_and(|field| field.notes.named.is_some());
        match (ty, value) {
            (Type::String, _) if named => Bad::Json(value.clone()),
            (_, Value::Object(_) | Value::Array(_)) => {
                let mut bytes = Vec::new();
                self.write_value(ty, value, &mut bytes);
                Bad::Shown(String::from_utf8_lossy(&bytes).into())
            }
            _ => Bad::Plain(value.clone()),
        }
    }
}

/// Returns true for a rule that applies only while a feature is on, or only while it is off.
fn is_gated(tag: &Tag) -> bool {
    matches!(tag.name.as_str(), "ifEnabled" | "ifDisabled")
}

struct Checker<'s, 'g> {
    schemas: &'s Schemas,
    update: bool,
    gate: &'g dyn Fn(&str) -> bool,
    errors: Complaints,
}

impl<'s> Checker<'s, '_> {
    fn report(&mut self, stage: Stage, error: FieldError) {
        if stage != Stage::Alpha {
            self.errors.push(error);
        }
    }

    fn report_all(&mut self, stage: Stage, errors: Complaints) {
        if stage != Stage::Alpha {
            self.errors.extend(errors);
        }
    }

    /// Checks an object: the rules between its fields, then each field that an update has changed.
    fn object(
        &mut self,
        definition: &'s Definition,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        self.between_fields(definition, new, old, path);
        for field in &definition.fields {
            let nested = field
                .ty
                .definition()
                .is_some_and(|id| self.schemas.get(id).checked);
            if field.tags.is_empty() && !nested {
                continue;
            }
            let pair = Pair {
                new: new.get(&field.name),
                old: old.and_then(|old| old.get(&field.name)),
                correlated: old.is_some(),
            };
            let subject = Subject {
                ty: &field.ty,
                presence: field.presence,
                field: Some(field),
            };
            if self.unchanged(subject, pair) {
                continue;
            }
            self.value(&field.tags, subject, pair, &path.child(&field.name));
        }
    }

    /// Returns true if an update does not change the value.
    fn unchanged(&self, subject: Subject<'_>, pair: Pair<'_>) -> bool {
        self.update
            && pair.correlated
            && self
                .schemas
                .same(subject.ty, subject.presence, pair.new, pair.old)
    }

    /// Returns true if the value counts as set: a present pointer, a list or map with items, or a
    /// value other than zero.
    fn is_set(&self, subject: Subject<'_>, value: Option<&Value>) -> bool {
        match settle(subject.ty, value) {
            None => false,
            Some(value) => {
                subject.presence == Presence::Pointer || !self.schemas.is_zero(subject.ty, value)
            }
        }
    }

    /// Checks one value by tags and by the rules of its type.
    fn value(&mut self, tags: &[Tag], subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        if self.errors.is_full() {
            return;
        }
        let tags = self.active(tags);
        let mut stop = false;
        for tag in tags.iter() {
            stop |= self.ends_here(tag, &tags, subject, pair, path);
        }
        if stop {
            return;
        }
        for tag in tags.iter() {
            self.rule(tag, subject, pair, path);
        }
        self.list_rules(&tags, subject, pair, path);
        if !tags.iter().any(|tag| tag.name == "opaqueType") {
            self.descend(&tags, subject, pair, path);
        }
    }

    /// Returns the rules that apply: rules behind gates are unwrapped or left out.
    fn active<'t>(&self, tags: &'t [Tag]) -> Cow<'t, [Tag]> {
        if !tags.iter().any(is_gated) {
            return Cow::Borrowed(tags);
        }
        let unwrap = |tag: &Tag| {
            if !is_gated(tag) {
                return Some(tag.clone());
            }
            let on = (self.gate)(tag.argument("").unwrap_or_default());
            (on == (tag.name == "ifEnabled"))
                .then(|| tag.inner())
                .flatten()
        };
        Cow::Owned(tags.iter().filter_map(unwrap).collect())
    }

    /// Checks a rule that can end the checks of a value, such as `required`. Returns true if it
    /// does.
    fn ends_here(
        &mut self,
        tag: &Tag,
        tags: &[Tag],
        subject: Subject<'_>,
        pair: Pair<'_>,
        path: &Path<'_>,
    ) -> bool {
        let error = match tag.name.as_str() {
            "optional" => return !self.is_set(subject, pair.new),
            "required" if !self.is_set(subject, pair.new) => FieldError::required(path, ""),
            "forbidden" if self.is_set(subject, pair.new) => FieldError::forbidden(path, ""),
            "forbidden" => return true,
            "immutable" if self.update => {
                FieldError::invalid(path, Value::Null, "field is immutable")
            }
            "maxItems" | "maxProperties" => {
                let most = rules::bound(tag);
                match count(pair.new) {
                    items if items > most => FieldError::too_many(path, items, most),
                    _ => return false,
                }
            }
            "update" => {
                let errors = self.update_rule(tag, tags, subject, pair, path);
                let stop = !errors.is_empty();
                self.report_all(tag.stage, errors);
                return stop;
            }
            _ => return false,
        };
        self.report(tag.stage, error);
        true
    }

    /// Checks a rule about the changes that an update may make.
    fn update_rule(
        &self,
        tag: &Tag,
        tags: &[Tag],
        subject: Subject<'_>,
        pair: Pair<'_>,
        path: &Path<'_>,
    ) -> Complaints {
        if !self.update {
            return Complaints::default();
        }
        let plain = subject.presence == Presence::Plain;
        if !pair.correlated && plain && !subject.ty.is_collection() {
            return Complaints::default();
        }
        let (was, is) = (
            self.is_set(subject, pair.old),
            self.is_set(subject, pair.new),
        );
        let structure = plain && matches!(subject.ty, Type::Ref(_));
        let complaint = match tag.text() {
            "NoSet" if !was && is && !structure => "field cannot be set once created",
            "NoUnset" if was && !is && !structure => "field cannot be cleared once set",
            "NoModify" if structure || was && is => "field cannot be modified once set",
            "NoAddItem" | "NoRemoveItem" => {
                return self.item_changes(tag, tags, subject, pair, path);
            }
            _ => return Complaints::default(),
        };
        Complaints::from([FieldError::invalid(path, Value::Null, complaint)])
    }

    /// Checks a rule about the value itself.
    fn rule(&mut self, tag: &Tag, subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        match tag.name.as_str() {
            "subfield" => self.subfield(tag, subject, pair, path),
            "eachKey" => self.each_key(tag, subject, pair, path),
            "monotonic" => {
                let (new, old) = (
                    pair.new.and_then(Value::as_int),
                    pair.old.and_then(Value::as_int),
                );
                if let (true, Some(new), Some(old)) = (self.update && new < old, new, old) {
                    let detail = format!("may not be decreased from {old}");
                    self.report(tag.stage, FieldError::invalid(path, new, detail));
                }
            }
            _ => {
                let zero;
                let value = match (pair.new.filter(|value| !value.is_null()), subject.presence) {
                    (Some(value), _) => value,
                    (None, Presence::Plain) => {
                        zero = self.schemas.zero(subject.ty);
                        &zero
                    }
                    (None, Presence::Pointer) => return,
                };
                let named = subject
                    .field
                    .is_some_and(|field| field.notes.named.is_some());
                let allowed = subject
                    .field
                    .and_then(|field| field.notes.values.as_deref());
                let style = if named {
                    rules::Style::Named
                } else {
                    rules::Style::Plain
                };
                self.report_all(tag.stage, rules::check(tag, value, style, allowed, path));
            }
        }
    }

    fn subfield(&mut self, tag: &Tag, subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        let (Some(inner), Some(id)) = (tag.inner(), subject.ty.definition()) else {
            return;
        };
        let Some(field) = self
            .schemas
            .get(id)
            .field(tag.argument("").unwrap_or_default())
        else {
            return;
        };
        let inside = Pair {
            new: pair.new.and_then(|value| value.get(&field.name)),
            old: pair.old.and_then(|value| value.get(&field.name)),
            correlated: pair.correlated && pair.old.is_some(),
        };
        let subject = Subject {
            ty: &field.ty,
            presence: field.presence,
            field: Some(field),
        };
        if self.unchanged(subject, inside) {
            return;
        }
        // Rules of the subfield that would end its own checks end this check, silently.
        let child = path.child(&field.name);
        let held = std::mem::take(&mut self.errors);
        let stop = inner.name != "optional"
            && field
                .tags
                .iter()
                .any(|other| self.ends_here(other, &field.tags, subject, inside, &child));
        self.errors = held;
        if !stop {
            let tags = [inner];
            if !self.ends_here(&tags[0], &tags, subject, inside, &child) {
                self.rule(&tags[0], subject, inside, &child);
            }
        }
    }

    fn each_key(&mut self, tag: &Tag, subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        let (Some(inner), Some(Value::Object(members))) = (tag.inner(), pair.new) else {
            return;
        };
        let old = pair.old.and_then(Value::as_object);
        for key in members.keys() {
            if self.update && old.is_some_and(|old| old.contains_key(key)) {
                continue;
            }
            let named = subject
                .field
                .is_some_and(|field| field.notes.named.is_some());
            let style = if named {
                rules::Style::Named
            } else {
                rules::Style::Plain
            };
            self.report_all(
                inner.stage,
                rules::check(&inner, &Value::from(key), style, None, path),
            );
        }
    }

    /// Checks the parts of the value.
    fn descend(&mut self, tags: &[Tag], subject: Subject<'s>, pair: Pair<'_>, path: &Path<'_>) {
        match (subject.ty, pair.new) {
            (Type::Ref(id), new) => {
                let definition = self.schemas.get(*id);
                if !definition.checked {
                    return;
                }
                let empty = Map::new();
                let new = match new {
                    Some(Value::Object(members)) => members,
                    _ if subject.presence == Presence::Pointer => return,
                    _ => definition.zero().as_object().unwrap_or(&empty),
                };
                let old = pair.old.and_then(Value::as_object);
                self.object(definition, new, old, path);
            }
            (Type::List(item), Some(Value::Array(_))) => {
                self.items(tags, item, subject, pair, path)
            }
            (Type::Map(item), Some(Value::Object(members))) => {
                let rules: Vec<Tag> = each_value(tags).collect();
                if rules.is_empty() && !self.reaches(item) {
                    return;
                }
                for (key, value) in members.iter() {
                    let old = pair.old.and_then(|old| old.get(key));
                    let inside = Pair {
                        new: Some(value),
                        old,
                        correlated: old.is_some(),
                    };
                    let subject = Subject {
                        ty: item,
                        presence: Presence::Plain,
                        field: subject.field,
                    };
                    if !self.unchanged(subject, inside) {
                        self.value(&rules, subject, inside, &path.key(key));
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns true if there are rules somewhere in a type.
    fn reaches(&self, ty: &Type) -> bool {
        ty.definition()
            .is_some_and(|id| self.schemas.get(id).checked)
    }
}

/// Returns the rules for every item of a list or map.
fn each_value(tags: &[Tag]) -> impl Iterator<Item = Tag> {
    tags.iter()
        .filter(|tag| tag.name == "eachVal")
        .filter_map(Tag::inner)
}

/// Returns the number of items.
fn count(value: Option<&Value>) -> usize {
    match value {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(members)) => members.len(),
        _ => 0,
    }
}

/// Returns how the tags of a list identify its items.
fn identity(tags: &[Tag]) -> Option<ListType> {
    let text = |name: &str| tags.iter().find(|tag| tag.name == name).map(Tag::text);
    match text("unique").or(text("listType")) {
        Some("set") => Some(ListType::Set),
        Some("map") => {
            let keys = tags
                .iter()
                .filter(|tag| tag.name == "listMapKey")
                .map(|tag| tag.text().into());
            Some(ListType::Map(keys.collect()))
        }
        _ => None,
    }
}
