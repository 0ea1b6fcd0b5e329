//! Whole objects as messages show them: as the JSON of upstream's internal types, which has Go's
//! names and all members.

use super::decode::Empties;
use super::{Definition, Field, InternalField, Presence, Schemas, Type};
use crate::field_error::Bad;
use crate::json;
use crate::value::{Map, Value};
use std::borrow::Cow;

impl Schemas {
    /// Writes the text of a [`Bad::Typed`]. Other bad values are not changed.
    pub fn show(&self, bad: &mut Bad) {
        let Bad::Typed { definition, value } = bad else {
            return;
        };
        let text = match value {
            Value::Array(items) => {
                let items = items.iter();
                let texts: Vec<_> = items
                    .map(|item| self.internal_text(definition, item))
                    .collect();
                format!("[{}]", texts.join(","))
            }
            value => self.internal_text(definition, value),
        };
        *bad = Bad::Shown(text.into());
    }

    /// Returns the JSON of a value as upstream's internal type of `definition`.
    pub fn internal_text(&self, definition: &str, value: &Value) -> String {
        let mut out = Vec::new();
        match self.find(definition) {
            Some(id) if !value.is_null() && self.get(id).shared => out = self.to_vec(id, value),
            Some(id) if !value.is_null() => write_object(self, self.get(id), value, &mut out),
            _ => json::write(value, &mut out),
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Returns the JSON of one field of upstream's internal type of `definition`.
    ///
    /// # Panics
    /// Panics if the schemas have no such field.
    pub fn internal_field_text(&self, definition: &str, field: &str, object: &Value) -> String {
        let id = self.find(definition);
        let field = id.and_then(|id| self.get(id).field(field));
        let field = field.expect("the schemas of a kind define its parts");
        let mut out = Vec::new();
        write_value(self, field, &field.ty, &object[&*field.name], &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Returns the JSON of the struct `embedded` in upstream's internal type of `definition`.
    ///
    /// # Panics
    /// Panics if the schemas have no such definition.
    pub fn internal_part_text(&self, definition: &str, embedded: &str, object: &Value) -> String {
        let id = self.find(definition);
        let definition = self.get(id.expect("the schemas of a kind define its parts"));
        let fields = definition.fields.iter();
        let part = fields.filter(|field| field.notes.embedded.as_deref() == Some(embedded));
        let mut out = vec![b'{'];
        for field in part {
            write_field(self, field, None, object, &mut out);
        }
        close(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

fn write_object(schemas: &Schemas, definition: &Definition, value: &Value, out: &mut Vec<u8>) {
    out.push(b'{');
    match &definition.internal {
        None => {
            for field in &definition.fields {
                write_field(schemas, field, None, value, out);
            }
        }
        Some(fields) => {
            for field in fields {
                match field {
                    InternalField::Published { place, zero } => {
                        let field = &definition.fields[*place];
                        write_field(schemas, field, zero.as_ref(), value, out);
                    }
                    InternalField::Added { go_name, zero } => {
                        write_name(go_name, out);
                        json::write(zero, out);
                        out.push(b',');
                    }
                }
            }
        }
    }
    close(out);
}

/// Ends an object whose members all have a comma behind them.
fn close(out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.push(b'}');
}

fn write_name(name: &str, out: &mut Vec<u8>) {
    json::write_string(name, out);
    out.push(b':');
}

/// Writes a member of `object` and a comma. `zero` replaces an absent value, if the internal type
/// has another zero value than the published one.
fn write_field(
    schemas: &Schemas,
    field: &Field,
    zero: Option<&Value>,
    object: &Value,
    out: &mut Vec<u8>,
) {
    let value = &object[field.name.as_str()];
    if field.name == "metadata" {
        // Metadata is embedded: its members are among the object's own, with their published names.
        let inner = written(schemas, &field.ty, &without_nulls(value));
        let inner = inner.get(1..inner.len().saturating_sub(1));
        let inner = without_zero_time(inner.unwrap_or_default());
        if inner.is_empty() {
            return;
        }
        out.extend(inner);
    } else {
        write_name(&go_name(field), out);
        match zero {
            Some(zero) if value.is_null() => json::write(zero, out),
            _ => write_value(schemas, field, &field.ty, value, out),
        }
    }
    out.push(b',');
}

/// Drops an unset creation time, which upstream writes as null in metadata only if a decoder has
/// set it so.
fn without_zero_time(inner: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(inner);
    let text = text
        .replace("\"creationTimestamp\":null,", "")
        .replace(",\"creationTimestamp\":null", "");
    if text == "\"creationTimestamp\":null" {
        Vec::new()
    } else {
        text.into_bytes()
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: Map = map.clone();
            map.retain(|_, member| !member.is_null());
            Value::Object(map)
        }
        _ => Value::object(),
    }
}

fn write_value(schemas: &Schemas, field: &Field, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::Ref(id), _) => {
            let definition = schemas.get(*id);
            if value.is_null() && field.presence == Presence::Pointer {
                out.extend(b"null");
            } else if definition.shared {
                out.extend(written(schemas, ty, value));
            } else {
                write_object(schemas, definition, value, out);
            }
        }
        (Type::List(item), Value::Array(items)) => {
            out.push(b'[');
            for (at, value) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(schemas, field, item, value, out);
            }
            out.push(b']');
        }
        (Type::Map(item), Value::Object(map)) => {
            out.push(b'{');
            for (at, (key, value)) in map.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                json::write_string(key, out);
                out.push(b':');
                write_value(schemas, field, item, value, out);
            }
            out.push(b'}');
        }
        (_, Value::Null) => json::write(&schemas.zero_of(field), out),
        (_, value) => json::write(value, out),
    }
}

fn written(schemas: &Schemas, ty: &Type, value: &Value) -> Vec<u8> {
    match (ty, value) {
        // A prepared object may have empty lists and maps that its published form leaves out.
        (Type::Ref(id), Value::Object(_)) => {
            let mut shown = value.clone();
            let decoded = schemas.decode_again(*id, &mut shown, Empties::Keep);
            schemas.to_vec(*id, if decoded.is_ok() { &shown } else { value })
        }
        (Type::Ref(id), _) => schemas.to_vec(*id, value),
        _ => json::to_vec(value),
    }
}

/// Returns Go's name of a field.
pub(super) fn go_name(field: &Field) -> Cow<'_, str> {
    if let Some(name) = &field.notes.go_name {
        return Cow::Borrowed(name);
    }
    let mut letters = field.name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    Cow::Owned(first.into_iter().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_error::{FieldError, Path};
    use crate::schema::decode::Beyond;
    use crate::schema::fixture::SCHEMAS;

    fn message(definition: &'static str, value: Value) -> String {
        let mut error =
            FieldError::invalid(&Path::new("x"), Bad::Typed { definition, value }, "no");
        SCHEMAS.show(&mut error.bad);
        error.to_string()
    }

    #[test]
    fn a_value_of_a_named_type_is_written_as_upstream_prints_it() {
        const TERM: &str = "io.k8s.api.core.v1.TopologySelectorLabelRequirement";
        const SELECTOR: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
        let term = json!({"key": "zone"});
        let cases = [
            (TERM, term.clone(), r#"{"Key":"zone","Values":null}"#),
            (TERM, Value::Null, "null"),
            (
                TERM,
                vec![term, json!({})].into(),
                r#"[{"Key":"zone","Values":null},{"Key":"","Values":null}]"#,
            ),
            (TERM, Vec::new().into(), "[]"),
            (
                SELECTOR,
                json!({"matchLabels": {"a": "b"}}),
                r#"{"matchLabels":{"a":"b"}}"#,
            ),
        ];
        for (definition, value, text) in cases {
            assert_eq!(
                message(definition, value),
                format!("x: Invalid value: {text}: no")
            );
        }
    }

    #[test]
    fn other_bad_values_stay_as_they_are() {
        for bad in [Bad::Omitted, Bad::from("a"), Bad::Json(Value::Null)] {
            let mut shown = bad.clone();
            SCHEMAS.show(&mut shown);
            assert_eq!(shown, bad);
        }
    }

    #[test]
    fn fields_that_only_the_internal_type_has_are_shown_empty() {
        let definition = "io.k8s.api.certificates.v1.PodCertificateRequestSpec";
        let spec = json!({"signerName": "a.b/c", "stubPKCS10Request": "AA=="});
        assert_eq!(
            SCHEMAS.internal_text(definition, &spec),
            r#"{"SignerName":"a.b/c","PodName":"","PodUID":"","ServiceAccountName":"","ServiceAccountUID":"","NodeName":"","NodeUID":"","MaxExpirationSeconds":null,"PKIXPublicKey":null,"ProofOfPossession":null,"StubPKCS10Request":"AA==","UnverifiedUserAnnotations":null}"#
        );
    }

    #[test]
    fn an_absent_value_is_the_zero_of_the_internal_type() {
        let definition = "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy";
        assert_eq!(
            SCHEMAS.internal_text(definition, &json!({})),
            r#"{"Partition":0,"MaxUnavailable":null}"#
        );
    }

    #[test]
    fn a_type_that_internal_types_share_keeps_its_published_form() {
        let definition = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}});
        let text = SCHEMAS.internal_text(definition, &spec);
        assert!(
            text.starts_with(r#"{"AccessModes":null,"Selector":{"matchLabels":{"a":"b"}},"#),
            "{text}"
        );
    }

    #[test]
    fn empty_lists_are_shown_but_where_a_shared_type_leaves_them_out() {
        let definition = "io.k8s.api.core.v1.PersistentVolumeClaim";
        let mut claim = json!({"spec": {
            "accessModes": [],
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": []}
        }});
        let id = SCHEMAS.find(definition).expect("claims are known");
        let decoded = SCHEMAS.decode_again(id, &mut claim, Empties::NullUnlessSaid);
        assert_eq!(decoded.expect("it fits").beyond, Beyond::Said);
        let spec = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
        let text = SCHEMAS.internal_text(spec, &claim["spec"]);
        assert!(
            text.starts_with(r#"{"AccessModes":[],"Selector":{"matchLabels":{"a":"b"}},"#),
            "{text}"
        );
    }

    #[test]
    fn what_claims_show_of_empty_lists_does_not_change_the_lists_of_claims() {
        let id = SCHEMAS
            .find("io.k8s.api.apps.v1.StatefulSet")
            .expect("stateful sets are known");
        let mut set = json!({"spec": {"volumeClaimTemplates": [{"spec": {"resources": {
            "requests": {"storage": "1Gi"},
            "limits": {}
        }}}]}});
        let decoded = SCHEMAS.decode_again(id, &mut set, Empties::NullUnlessSaid);
        assert_eq!(decoded.expect("it fits").beyond, Beyond::Nothing);
        let claims = &set["spec"]["volumeClaimTemplates"];
        let resources = &claims.as_array().expect("a list")[0]["spec"]["resources"];
        assert!(resources.get("limits").is_none(), "{set:?}");
    }

    #[test]
    fn an_embedded_struct_is_shown_alone() {
        let definition = "io.k8s.api.core.v1.PersistentVolumeSpec";
        let text = SCHEMAS.internal_part_text(definition, "PersistentVolumeSource", &json!({}));
        assert!(
            text.starts_with(r#"{"GCEPersistentDisk":null,"AWSElasticBlockStore":null,"#),
            "{text}"
        );
        assert!(text.ends_with(r#","CSI":null}"#), "{text}");
    }

    #[test]
    fn a_field_is_shown_alone() {
        let event = "io.k8s.api.core.v1.Event";
        let shown = |field: &str| SCHEMAS.internal_field_text(event, field, &json!({}));
        assert_eq!(shown("source"), r#"{"Component":"","Host":""}"#);
        assert_eq!(shown("related"), "null");
        assert_eq!(shown("count"), "0");
        assert_eq!(shown("eventTime"), "null");
        assert_eq!(shown("reportingComponent"), "\"\"");
    }
}
