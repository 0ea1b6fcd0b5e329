//! Equality of values as upstream sees it when it decides whether an update changes them.
//!
//! Absent, null, zero and empty are equal unless the field distinguishes them, and quantities are
//! equal if their amounts are. Times need no rule: canonical ones have one text for each instant.

use super::{DefId, Field, Presence, Schemas, Type, Unknown};
use crate::quantity::Quantity;
use crate::value::Value;

impl Schemas {
    /// Returns true if two values of a definition are equivalent.
    pub fn alike(&self, id: DefId, left: &Value, right: &Value) -> bool {
        self.are_alike(&Type::Ref(id), left, right)
    }

    /// Returns true if the parts of two objects at a chain of fields are equivalent.
    pub fn alike_at(&self, id: DefId, path: &[&str], left: &Value, right: &Value) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return self.alike(id, left, right);
        };
        let Some(field) = self.get(id).field(first) else {
            return left.at(path) == right.at(path);
        };
        match field.ty.definition() {
            Some(inner) if !rest.is_empty() => {
                self.alike_at(inner, rest, &left[*first], &right[*first])
            }
            _ => self.alike_in(field, left, right),
        }
    }

    /// Returns true if a field of one object is equivalent to that of another.
    pub fn alike_in(&self, field: &Field, left: &Value, right: &Value) -> bool {
        let (left, right) = (left.get(&field.name), right.get(&field.name));
        self.same(&field.ty, field.presence, left, right)
    }

    /// Returns true if two values that may be absent are equivalent.
    pub(super) fn same(
        &self,
        ty: &Type,
        presence: Presence,
        left: Option<&Value>,
        right: Option<&Value>,
    ) -> bool {
        match (settle(ty, left), settle(ty, right)) {
            (None, None) => true,
            (Some(left), Some(right)) => self.are_alike(ty, left, right),
            (Some(only), None) | (None, Some(only)) => {
                presence == Presence::Plain && self.is_zero(ty, only)
            }
        }
    }

    fn are_alike(&self, ty: &Type, left: &Value, right: &Value) -> bool {
        if left == right {
            return true;
        }
        match (ty, left, right) {
            (Type::Ref(id), Value::Object(_), Value::Object(_)) => {
                let definition = self.get(*id);
                let mut fields = definition.fields.iter();
                definition.unknown == Unknown::Drop
                    && fields.all(|field| self.alike_in(field, left, right))
            }
            (Type::List(item), Value::Array(left), Value::Array(right)) => {
                let mut pairs = left.iter().zip(right);
                left.len() == right.len()
                    && pairs.all(|(left, right)| self.are_alike(item, left, right))
            }
            (Type::Map(item), Value::Object(left), Value::Object(right)) => {
                let mut pairs = left.iter().zip(right.iter());
                left.len() == right.len()
                    && pairs
                        .all(|((a, left), (b, right))| a == b && self.are_alike(item, left, right))
            }
            (Type::Nullable(inner), left, right) => self.are_alike(inner, left, right),
            (Type::Quantity, Value::String(left), Value::String(right)) => {
                let amounts = (Quantity::parse(left), Quantity::parse(right));
                matches!(amounts, (Ok(left), Ok(right)) if left == right)
            }
            _ => false,
        }
    }
}

/// Returns the value, unless it counts as absent.
pub(super) fn settle<'v>(ty: &Type, value: Option<&'v Value>) -> Option<&'v Value> {
    let value = value.filter(|value| !value.is_null())?;
    let empty = match (ty, value) {
        (Type::List(_), Value::Array(items)) => items.is_empty(),
        (Type::Map(_), Value::Object(members)) => members.is_empty(),
        _ => false,
    };
    (!empty).then_some(value)
}

#[cfg(test)]
mod tests {
    use crate::json;
    use crate::schema::fixture::SCHEMAS;
    use crate::value::Value;

    fn alike(left: &Value, right: &Value) -> bool {
        let pod = SCHEMAS.find("io.k8s.api.core.v1.PodSpec");
        SCHEMAS.alike(pod.expect("it is generated"), left, right)
    }

    #[test]
    fn amounts_are_equal_however_they_are_written() {
        let pod = |size: &str, cpu: &str, divisor: &str| {
            json!({
                "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": size}}],
                "containers": [{
                    "name": "main",
                    "resources": {"limits": {"cpu": cpu}},
                    "env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"divisor": divisor}}}],
                }],
            })
        };
        let old = pod("1Gi", "1", "1m");
        assert!(alike(&old, &pod("1073741824", "1000m", "0.001")));
        assert!(!alike(&old, &pod("1G", "1", "1m")));
        assert!(!alike(&old, &pod("1Gi", "2", "1m")));
        assert!(!alike(&old, &pod("1Gi", "1", "1")));
    }

    #[test]
    fn parts_are_compared_by_their_own_schemas() {
        let claim = SCHEMAS.find("io.k8s.api.resource.v1.ResourceClaim");
        let claim = claim.expect("it is generated");
        let allocated = |memory: &str| {
            let result = json!({"driver": "d", "consumedCapacity": {"memory": memory}});
            json!({"status": {"allocation": {"devices": {"results": [result]}}}})
        };
        let old = allocated("1Gi");
        let alike = |path: &[&str], new: &Value| SCHEMAS.alike_at(claim, path, &old, new);
        let path = ["status", "allocation"];
        assert!(alike(&path, &allocated("1073741824")));
        assert!(!alike(&path, &allocated("2Gi")));
        assert!(!alike(&path, &json!({})));
        assert!(alike(&["status", "reservedFor"], &json!({})));
    }

    #[test]
    fn what_is_empty_equals_what_is_absent_unless_it_is_a_pointer() {
        let none = json!({"containers": [{"name": "main"}]});
        let empty =
            json!({"overhead": {}, "volumes": [], "containers": [{"name": "main", "env": []}]});
        assert!(alike(&none, &empty));
        let pointer = json!({"affinity": {}, "containers": [{"name": "main"}]});
        assert!(!alike(&none, &pointer));
    }
}
