//! Rules between the fields of one object: unions, modes, fields that need or exclude each other.

use super::{Checker, Pair, Subject};
use crate::field_error::{FieldError, Path};
use crate::schema::tags::{Stage, Tag};
use crate::schema::{Definition, Field, Type};
use crate::value::{Map, Str, Value};

/// A set of fields of which exactly one must be set, or at most one.
struct Union<'s> {
    name: Str,
    stage: Stage,
    /// The names of the members as texts print them, and whether each is set now and was set
    /// before.
    members: Vec<(Str, bool, bool)>,
    /// The field that names the member which must be set.
    discriminator: Option<&'s Field>,
    /// The value of the discriminator for each member.
    values: Vec<Str>,
}

fn has(definition: &Definition, names: &[&str]) -> bool {
    let fits = |tag: &Tag| names.contains(&tag.name.as_str());
    definition
        .fields
        .iter()
        .any(|field| field.tags.iter().any(fits))
        || definition.tags.iter().any(fits)
}

/// A kind of rules that depend on more than one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schema) enum Relation {
    /// One of several fields must be set, or at most one.
    Unions,
    /// The value of one field decides which rules others have.
    Modes,
    /// Fields need or exclude each other.
    Dependents,
    /// At most one of several items of a list may be present.
    Items,
}

impl Definition {
    /// Returns the kinds of rules between fields that there are, in the order in which they are
    /// checked.
    pub(in crate::schema) fn relations(&self) -> Vec<Relation> {
        let of_tags: [(Relation, &[&str]); 4] = [
            (Relation::Unions, &["unionMember", "zeroOrOneOfMember"]),
            (Relation::Modes, &["ifMode"]),
            (
                Relation::Dependents,
                &["dependentRequired", "dependentForbidden"],
            ),
            (Relation::Items, &["item"]),
        ];
        let present = of_tags.iter().filter(|(_, names)| has(self, names));
        present.map(|(relation, _)| *relation).collect()
    }
}

fn subject(field: &Field) -> Subject<'_> {
    Subject {
        ty: &field.ty,
        presence: field.presence,
        field: Some(field),
    }
}

impl<'s> Checker<'s, '_> {
    /// Checks all rules that depend on more than one field.
    pub(super) fn between_fields(
        &mut self,
        definition: &'s Definition,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        for relation in &definition.related {
            match relation {
                Relation::Unions => {
                    self.unions(definition, "unionMember", new, old, path);
                    self.unions(definition, "zeroOrOneOfMember", new, old, path);
                }
                Relation::Modes => self.modes(definition, new, old, path),
                Relation::Dependents => self.dependents(definition, new, old, path),
                Relation::Items => self.item_unions(definition, new, old, path),
            }
        }
    }

    fn item_unions(
        &mut self,
        definition: &'s Definition,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        for field in &definition.fields {
            let member = |tag: &Tag| {
                tag.name == "item"
                    && tag
                        .inner()
                        .is_some_and(|tag| tag.name == "zeroOrOneOfMember")
            };
            if field.tags.iter().any(member) {
                self.item_union(field, new, old, path);
            }
        }
    }

    fn unions(
        &mut self,
        definition: &'s Definition,
        kind: &str,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        let mut unions: Vec<Union<'s>> = Vec::new();
        for field in &definition.fields {
            for tag in field.tags.iter().filter(|tag| tag.name == kind) {
                let name = tag
                    .argument("union")
                    .or(tag.argument(""))
                    .unwrap_or_default();
                let set = |map: &Map| self.is_set(subject(field), map.get(&field.name));
                let member = (field.name.clone(), set(new), old.is_some_and(set));
                let at = unions
                    .iter()
                    .position(|union| union.name == name)
                    .unwrap_or_else(|| {
                        unions.push(Union {
                            name: name.into(),
                            stage: tag.stage,
                            members: Vec::new(),
                            discriminator: discriminator(definition, name),
                            values: Vec::new(),
                        });
                        unions.len() - 1
                    });
                unions[at].members.push(member);
                unions[at].values.push(member_value(tag, field));
            }
        }
        for union in unions {
            match union.discriminator {
                Some(field) => self.discriminated(&union, field, new, old, path),
                None => self.union(&union, kind, old.is_some(), path),
            }
        }
    }

    fn union(&mut self, union: &Union<'_>, kind: &str, correlated: bool, path: &Path<'_>) {
        let changed = union.members.iter().any(|(_, is, was)| is != was);
        if self.update && correlated && !changed {
            return;
        }
        let quoted: Vec<String> = union
            .members
            .iter()
            .map(|(name, ..)| format!("`{name}`"))
            .collect();
        let set: Vec<&str> = union
            .members
            .iter()
            .filter(|(_, is, _)| *is)
            .map(|(name, ..)| name.as_str())
            .collect();
        let all = quoted.join(", ");
        let words = if kind == "unionMember" {
            "exactly"
        } else {
            "at most"
        };
        if set.len() > 1 {
            let bad = format!("{{{}}}", set.join(", "));
            let detail = format!("must specify {words} one of: {all}");
            self.report(union.stage, FieldError::invalid(path, bad, detail));
        }
        if set.is_empty() && kind == "unionMember" {
            self.report(
                union.stage,
                FieldError::invalid(path, "", format!("must specify one of: {all}")),
            );
        }
    }

    fn discriminated(
        &mut self,
        union: &Union<'_>,
        field: &Field,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        let choice = |map: &Map| {
            map.get(&field.name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let chosen = choice(new);
        let changed = old.is_none_or(|old| choice(old) != chosen)
            || union.members.iter().any(|(_, is, was)| is != was);
        if self.update && old.is_some() && !changed {
            return;
        }
        for ((name, set, _), value) in union.members.iter().zip(&union.values) {
            let rule = match (*set, *value == chosen) {
                (true, false) => "may only be specified",
                (false, true) => "must be specified",
                _ => continue,
            };
            let detail = format!(
                "{rule} when `{}` is {}",
                field.name,
                crate::quote::quote(value)
            );
            self.report(
                union.stage,
                FieldError::invalid(&path.child(name), "", detail),
            );
        }
    }

    /// Checks the fields whose rules depend on the value of a mode.
    fn modes(&mut self, definition: &'s Definition, new: &Map, old: Option<&Map>, path: &Path<'_>) {
        let mut fields: Vec<&Field> = definition
            .fields
            .iter()
            .filter(|field| field.tags.iter().any(|tag| tag.name == "ifMode"))
            .collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        for field in fields {
            let rules: Vec<&Tag> = field
                .tags
                .iter()
                .filter(|tag| tag.name == "ifMode")
                .collect();
            let group = |tag: &Tag| tag.argument("modality").unwrap_or_default().to_owned();
            let Some(mode) = definition.fields.iter().find(|other| {
                let same =
                    |tag: &Tag| tag.name == "modeDiscriminator" && group_of(tag) == group(rules[0]);
                other.tags.iter().any(same)
            }) else {
                continue;
            };
            let choice = |map: &Map| {
                map.get(&mode.name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let chosen = choice(new);
            let pair = Pair {
                new: new.get(&field.name),
                old: old.and_then(|old| old.get(&field.name)),
                correlated: old.is_some(),
            };
            if old.is_some_and(|old| choice(old) == chosen) && self.unchanged(subject(field), pair)
            {
                continue;
            }
            let child = path.child(&field.name);
            let applies = |tag: &&&Tag| tag.argument("mode").or(tag.argument("")) == Some(&chosen);
            let chosen_rules: Vec<Tag> = rules
                .iter()
                .filter(applies)
                .filter_map(|tag| tag.inner())
                .collect();
            if chosen_rules.is_empty() {
                if self.is_set(subject(field), pair.new) {
                    self.report(rules[0].stage, FieldError::forbidden(&child, ""));
                }
                continue;
            }
            for tag in &chosen_rules {
                if self.ends_here(tag, &chosen_rules, subject(field), pair, &child) {
                    break;
                }
                self.rule(tag, subject(field), pair, &child);
            }
        }
    }

    fn dependents(
        &mut self,
        definition: &'s Definition,
        new: &Map,
        old: Option<&Map>,
        path: &Path<'_>,
    ) {
        for field in &definition.fields {
            for tag in &field.tags {
                let required = match tag.name.as_str() {
                    "dependentRequired" => true,
                    "dependentForbidden" => false,
                    _ => continue,
                };
                let Some(other) = definition.field(tag.argument("").unwrap_or_default()) else {
                    continue;
                };
                let set =
                    |field: &Field, map: &Map| self.is_set(subject(field), map.get(&field.name));
                let state = |map: &Map| (set(field, map), set(other, map));
                let (trigger, dependent) = state(new);
                if self.update && old.is_some_and(|old| state(old) == (trigger, dependent))
                    || !trigger
                {
                    continue;
                }
                let child = path.child(&other.name);
                let error = match (required, dependent) {
                    (true, false) => FieldError::required(
                        &child,
                        format!("must be set when {} is set", field.name),
                    ),
                    (false, true) => FieldError::forbidden(
                        &child,
                        format!("may not be set when {} is set", field.name),
                    ),
                    _ => continue,
                };
                self.report(tag.stage, error);
            }
        }
    }

    /// Checks the items of a list of which at most one may be present.
    fn item_union(&mut self, field: &'s Field, new: &Map, old: Option<&Map>, path: &Path<'_>) {
        let Type::List(_) = &field.ty else {
            return;
        };
        let mut union = Union {
            name: Str::default(),
            stage: Stage::Stable,
            members: Vec::new(),
            discriminator: None,
            values: Vec::new(),
        };
        for tag in field.tags.iter().filter(|tag| tag.name == "item") {
            if tag
                .inner()
                .is_none_or(|inner| inner.name != "zeroOrOneOfMember")
            {
                continue;
            }
            union.stage = tag.stage;
            let found = |map: &Map| {
                let items = map
                    .get(&field.name)
                    .and_then(Value::as_array)
                    .unwrap_or_default();
                items.iter().any(|item| {
                    tag.arguments
                        .iter()
                        .all(|(key, value)| item.str_at(&[key]) == value)
                })
            };
            let selector: Vec<String> = tag
                .arguments
                .iter()
                .map(|(key, value)| format!("\"{key}\": \"{value}\""))
                .collect();
            let name = format!("{}[{{{}}}]", field.name, selector.join(", "));
            union
                .members
                .push((name.into(), found(new), old.is_some_and(found)));
        }
        let pair = Pair {
            new: new.get(&field.name),
            old: old.and_then(|old| old.get(&field.name)),
            correlated: old.is_some(),
        };
        if !self.unchanged(subject(field), pair) {
            let had = pair.old.and_then(Value::as_array).is_some();
            self.union(&union, "zeroOrOneOfMember", had, &path.child(&field.name));
        }
    }
}

fn group_of(tag: &Tag) -> String {
    tag.argument("name")
        .or(tag.argument(""))
        .unwrap_or_default()
        .to_owned()
}

fn discriminator<'s>(definition: &'s Definition, union: &str) -> Option<&'s Field> {
    let names = |tag: &Tag| {
        tag.name == "unionDiscriminator"
            && tag
                .argument("union")
                .or(tag.argument(""))
                .unwrap_or_default()
                == union
    };
    definition
        .fields
        .iter()
        .find(|field| field.tags.iter().any(names))
}

/// Returns the value of the discriminator that selects a member.
fn member_value(tag: &Tag, field: &Field) -> Str {
    match tag.argument("memberName") {
        Some(name) => name.into(),
        None => {
            let mut name = String::from(field.name.as_str());
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            name.into()
        }
    }
}
