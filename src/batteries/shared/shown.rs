//! How texts show whole objects: as the JSON of their published type, or as that of upstream's
//! internal type, whose members carry Go's names and are all written.

use crate::catalog;
use polyplane_apimachinery::field_error::Bad;
use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::{Definition, Field, Schemas, Type};
use polyplane_apimachinery::{Map, Value};

/// `value` as upstream shows it where it complains about the published type `definition`.
pub fn published(definition: &str, value: &Value) -> Bad {
    let schemas = catalog::schemas();
    match schemas.find(definition) {
        Some(id) if !value.is_null() => schemas.shown(None, &Type::Ref(id), value),
        _ => Bad::Json(value.clone()),
    }
}

/// A label selector as texts show it.
pub fn selector(value: &Value) -> Bad {
    published("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", value)
}

/// `value` as upstream shows it where it complains about the internal twin of `definition`.
pub fn internal(definition: &str, value: &Value) -> Bad {
    Bad::Shown(internal_text(definition, value).into())
}

/// A list of internal objects.
pub fn internal_list(definition: &str, values: &[Value]) -> Bad {
    let texts: Vec<String> = values
        .iter()
        .map(|value| internal_text(definition, value))
        .collect();
    Bad::Shown(format!("[{}]", texts.join(",")).into())
}

/// The JSON of the internal twin of `definition`.
pub fn internal_text(definition: &str, value: &Value) -> String {
    let schemas = catalog::schemas();
    let mut out = Vec::new();
    match schemas.find(definition) {
        Some(id) if !value.is_null() && is_published(schemas.get(id)) => {
            out = schemas.to_vec(id, value);
        }
        Some(id) if !value.is_null() => write_object(&schemas, schemas.get(id), value, &mut out),
        _ => json::write(value, &mut out),
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Types of the machinery have the same JSON everywhere.
fn is_published(definition: &Definition) -> bool {
    definition.name.starts_with("io.k8s.apimachinery.")
}

fn write_object(schemas: &Schemas, definition: &Definition, value: &Value, out: &mut Vec<u8>) {
    out.push(b'{');
    let start = out.len();
    for field in &definition.fields {
        if out.len() > start {
            out.push(b',');
        }
        let member = &value[field.name.as_str()];
        if field.name == "metadata" {
            // Metadata is embedded: its members stand among the object's own, by published names.
            let inner = written(schemas, &field.ty, &without_nulls(member));
            let inner = without_zero_time(
                inner
                    .get(1..inner.len().saturating_sub(1))
                    .unwrap_or_default(),
            );
            if inner.is_empty() {
                if out.len() > start {
                    out.pop();
                }
            } else {
                out.extend(inner);
            }
            continue;
        }
        json::write_string(&go_name(&definition.name, &field.name), out);
        out.push(b':');
        write_member(schemas, field, &field.ty, member, out);
    }
    out.push(b'}');
}

/// Metadata writes an unset creation time as null only where a decoder left it there.
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

fn write_member(schemas: &Schemas, field: &Field, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::Ref(id), _) => {
            let definition = schemas.get(*id);
            if value.is_null()
                && field.presence == polyplane_apimachinery::schema::Presence::Pointer
            {
                out.extend(b"null");
            } else if is_published(definition) {
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
                write_member(schemas, field, item, value, out);
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
                write_member(schemas, field, item, value, out);
            }
            out.push(b'}');
        }
        (_, Value::Null) => json::write(&schemas.zero_of(field), out),
        (_, value) => json::write(value, out),
    }
}

fn written(schemas: &Schemas, ty: &Type, value: &Value) -> Vec<u8> {
    match ty {
        Type::Ref(id) => schemas.to_vec(*id, value),
        _ => json::to_vec(value),
    }
}

/// Members whose Go names are not just their JSON names with a capital.
const GO_NAMES: [(&str, &str); 60] = [
    ("apiGroup", "APIGroup"),
    ("apiGroups", "APIGroups"),
    ("apiServerID", "APIServerID"),
    ("apiVersion", "APIVersion"),
    ("apiVersions", "APIVersions"),
    ("awsElasticBlockStore", "AWSElasticBlockStore"),
    ("caBundle", "CABundle"),
    ("cel", "CEL"),
    ("cephfs", "CephFS"),
    ("chapAuthDiscovery", "DiscoveryCHAPAuth"),
    ("chapAuthSession", "SessionCHAPAuth"),
    ("cidr", "CIDR"),
    ("cidrs", "CIDRs"),
    ("csi", "CSI"),
    ("diskURI", "DataDiskURI"),
    ("dnsConfig", "DNSConfig"),
    ("dnsPolicy", "DNSPolicy"),
    ("fc", "FC"),
    ("fsGroup", "FSGroup"),
    ("fsGroupChangePolicy", "FSGroupChangePolicy"),
    ("fsGroupPolicy", "FSGroupPolicy"),
    ("fsType", "FSType"),
    ("gcePersistentDisk", "GCEPersistentDisk"),
    ("gid", "GID"),
    ("gmsaCredentialSpec", "GMSACredentialSpec"),
    ("gmsaCredentialSpecName", "GMSACredentialSpecName"),
    ("grpc", "GRPC"),
    ("http", "HTTP"),
    ("httpGet", "HTTPGet"),
    ("httpHeaders", "HTTPHeaders"),
    ("ip", "IP"),
    ("ipBlock", "IPBlock"),
    ("ipFamilies", "IPFamilies"),
    ("ipFamilyPolicy", "IPFamilyPolicy"),
    ("ipMode", "IPMode"),
    ("ips", "IPs"),
    ("iqn", "IQN"),
    ("iscsi", "ISCSI"),
    ("iscsiInterface", "ISCSIInterface"),
    ("jsonPatch", "JSONPatch"),
    ("lastState", "LastTerminationState"),
    ("nfs", "NFS"),
    ("os", "OS"),
    ("osImage", "OSImage"),
    ("pdName", "PDName"),
    ("pkixPublicKey", "PKIXPublicKey"),
    ("qosClass", "QOSClass"),
    ("rbd", "RBD"),
    ("seLinuxChangePolicy", "SELinuxChangePolicy"),
    ("seLinuxMount", "SELinuxMount"),
    ("seLinuxOptions", "SELinuxOptions"),
    ("sslEnabled", "SSLEnabled"),
    ("storageos", "StorageOS"),
    ("tcpSocket", "TCPSocket"),
    ("tls", "TLS"),
    ("ttlSecondsAfterFinished", "TTLSecondsAfterFinished"),
    ("tty", "TTY"),
    ("uid", "UID"),
    ("url", "URL"),
    ("wwids", "WWIDs"),
];

/// The Go name behind the JSON name of a field of `definition`.
fn go_name(definition: &str, name: &str) -> String {
    if name == "serviceAccount" && definition.ends_with(".PodSpec") {
        return "DeprecatedServiceAccount".to_owned();
    }
    if let Ok(at) = GO_NAMES.binary_search_by_key(&name, |(json, _)| *json) {
        return GO_NAMES[at].1.to_owned();
    }
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
        .unwrap_or_default()
}
