//! Constant defaults of the data. Defaults that look at other fields belong to the kinds.

use super::{DefId, Definition, Presence, Schemas, Type};
use crate::value::{Map, Value};

impl Schemas {
    /// Gives absent fields their constant default, wherever their parent is present.
    ///
    /// Doing it twice is doing it once.
    pub fn apply_defaults(&self, id: DefId, value: &mut Value) {
        let definition = self.get(id);
        if let (true, Value::Object(members)) = (definition.defaulted, value) {
            self.default_object(definition, members);
        }
    }

    fn default_object(&self, definition: &Definition, members: &mut Map) {
        for field in &definition.fields {
            if let Some(default) = &field.default {
                let absent = match members.get(&field.name) {
                    None | Some(Value::Null) => true,
                    Some(value) => {
                        field.presence == Presence::Plain && self.is_zero(&field.ty, value)
                    }
                };
                if absent {
                    members.insert(field.name.clone(), default.clone());
                }
            }
            let nested = field
                .ty
                .definition()
                .is_some_and(|id| self.get(id).defaulted);
            if let Some(value) = nested.then(|| members.get_mut(&field.name)).flatten() {
                self.default_value(&field.ty, value);
            }
        }
    }

    fn default_value(&self, ty: &Type, value: &mut Value) {
        match (ty, value) {
            (
                Type::Ref(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id),
                value @ Value::Object(_),
            ) => {
                self.apply_defaults(*id, value);
            }
            (Type::Nullable(inner), value) => self.default_value(inner, value),
            (Type::List(item), Value::Array(items)) => {
                for value in items {
                    self.default_value(item, value);
                }
            }
            (Type::Map(item), Value::Object(members)) => {
                for (_, value) in members.iter_mut() {
                    self.default_value(item, value);
                }
            }
            (Type::SchemaOrArray(id), Value::Array(items)) => {
                for value in items {
                    self.apply_defaults(*id, value);
                }
            }
            (Type::SchemaOrArray(id), value @ Value::Object(_)) => self.apply_defaults(*id, value),
            _ => {}
        }
    }
}
