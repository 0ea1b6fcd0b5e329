//! Items of keyed lists that have none of their list's keys.
//!
//! Go writes most keys even if they are empty. A list whose keys are all left out when they are
//! empty may have items without identity, for which nobody can own fields.

use std::collections::HashSet;

use super::{DefId, Field, ListType, Omit, Schemas, Type};
use crate::value::{Str, Value};

impl Schemas {
    /// Finds the definitions whose objects may have items without keys.
    pub(super) fn seal_keys(&mut self, first: usize) {
        let has_such_list = |field: &Field| {
            let keys = self.omitted_keys(field);
            keys.is_some_and(|keys| !keys.is_empty())
        };
        let found: HashSet<Box<str>> = self.definitions[first..]
            .iter()
            .filter(|definition| definition.fields.iter().any(has_such_list))
            .map(|definition| definition.name.clone())
            .collect();
        self.seal_reach(
            first,
            |_| false,
            |definition| found.contains(&definition.name),
            |definition| &mut definition.keyless,
        );
    }

    /// Returns whether an object has an item without keys. Only parts that may have one are walked,
    /// which are none of most kinds.
    pub fn lacks_keys(&self, id: DefId, object: &Value) -> bool {
        let definition = self.get(id);
        let Some(members) = object.as_object().filter(|_| definition.keyless) else {
            return false;
        };
        members.iter().any(|(name, value)| {
            let field = definition.field(name);
            field.is_some_and(|field| self.field_lacks_keys(field, value))
        })
    }

    fn field_lacks_keys(&self, field: &Field, value: &Value) -> bool {
        let lacks_all = |item: &Value, keys: &[Str]| {
            let has = |key: &Str| item.get(key).is_some();
            item.as_object().is_some() && !keys.iter().any(has)
        };
        let keys = self.omitted_keys(field).filter(|keys| !keys.is_empty());
        let items = value.as_array().unwrap_or_default();
        keys.is_some_and(|keys| items.iter().any(|item| lacks_all(item, keys)))
            || self.type_lacks_keys(&field.ty, value)
    }

    fn type_lacks_keys(&self, ty: &Type, value: &Value) -> bool {
        match ty {
            Type::Ref(id) => self.lacks_keys(*id, value),
            Type::Nullable(inner) => self.type_lacks_keys(inner, value),
            Type::List(inner) => {
                let items = value.as_array().unwrap_or_default();
                items.iter().any(|item| self.type_lacks_keys(inner, item))
            }
            Type::Map(inner) => {
                let mut members = value.as_object().into_iter().flat_map(|all| all.iter());
                members.any(|(_, value)| self.type_lacks_keys(inner, value))
            }
            _ => false,
        }
    }

    /// Returns the keys of a list if each of them may be absent from an item.
    fn omitted_keys<'f>(&self, field: &'f Field) -> Option<&'f [Str]> {
        let ListType::Map(keys) = &field.list else {
            return None;
        };
        let item = self.get(field.ty.definition()?);
        let may_be_absent = |key: &Str| {
            let field = item.field(key);
            field.is_none_or(|field| {
                field.omit != Omit::Never
                    && field.default.is_none()
                    && field.notes.key_default.is_none()
            })
        };
        keys.iter().all(may_be_absent).then_some(keys)
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::fixture::{SCHEMAS, kind, tree};

    #[test]
    fn only_items_without_all_keys_are_found_and_only_where_keys_may_be_absent() {
        let id = kind("/v1/ServiceAccount").expect("a core kind");
        let lacks = |text: &str| SCHEMAS.lacks_keys(id, &tree(text));
        assert!(lacks(r#"{"secrets": [{"name": "a"}, {"namespace": "b"}]}"#));
        assert!(!lacks(r#"{"secrets": [{"name": "a"}]}"#));
        assert!(!lacks(r#"{"imagePullSecrets": [{}]}"#));
        let flagged = SCHEMAS.iter().filter(|(_, definition)| definition.keyless);
        let names: Vec<&str> = flagged
            .map(|(_, definition)| definition.short_name())
            .collect();
        let expected = [
            "ServiceAccount",
            "ServiceAccountList",
            "FlowSchema",
            "FlowSchemaList",
            "FlowSchemaStatus",
            "PriorityLevelConfiguration",
            "PriorityLevelConfigurationList",
            "PriorityLevelConfigurationStatus",
        ];
        assert_eq!(names, expected);
    }
}
