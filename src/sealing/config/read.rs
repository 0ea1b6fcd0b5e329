//! Reading the file. An unknown field is an error, because somebody relies on it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, document, finished};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::time::parse_duration;
use zeroize::Zeroizing;

use super::{EncryptionConfig, FileKey, KmsProvider, WriteKey};
use crate::key_encryption_key::KeyEncryptionKey;
use crate::policy::{Rule, SealPolicy};

/// The kind of the file and its version.
const KIND: (&str, &str) = ("EncryptionConfiguration", "apiserver.config.k8s.io/v1");
/// The same, for messages.
const WANTED: &str = "EncryptionConfiguration of apiserver.config.k8s.io/v1";
/// Bytes of a secret of `aesgcm` and `aescbc`, as upstream.
const AES_SECRET_BYTES: [usize; 3] = [16, 24, 32];
/// Bytes of a secret of `secretbox`, as upstream.
const SECRETBOX_SECRET_BYTES: [usize; 1] = [32];
/// The time that a call of a key management service may take, as upstream.
const KMS_TIMEOUT: Duration = Duration::from_secs(3);
/// Resources without an API, which upstream refuses by name.
const WITHOUT_API: [&str; 3] = [
    "apiserveripinfo",
    "serviceipallocations",
    "servicenodeportallocations",
];

impl EncryptionConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let document = document(text)?;
        Section::of_kind(&document, &[KIND], WANTED)?;
        let mut reader = Reader::default();
        reader.document(&document);
        let read = Self {
            keys: reader.keys,
            kms: reader.kms,
            writes_by: reader.writes_by,
            policy: SealPolicy::new(reader.rules),
        };
        finished(read, reader.errors)
    }
}

/// What a provider does with new records.
enum Provider {
    /// It leaves them in clear.
    Identity,
    /// It is a key.
    Key(WriteKey),
    /// It is wrong, which was reported.
    Wrong,
}

#[derive(Default)]
struct Reader {
    errors: Complaints,
    keys: Vec<FileKey>,
    kms: Vec<KmsProvider>,
    rules: Vec<Rule>,
    writes_by: Option<WriteKey>,
}

impl Reader {
    fn document(&mut self, document: &Value) {
        self.only(document, &Path::NIL, &["apiVersion", "kind", "resources"]);
        let root = Path::new("resources");
        let lists = document.items_at(&["resources"]);
        if lists.is_empty() {
            let why = "at least one resources is required";
            self.errors.push(FieldError::required(&root, why));
        }
        for (at, list) in lists.iter().enumerate() {
            self.list(list, &root.index(at));
        }
    }

    /// Reads one list of resources with its providers.
    fn list(&mut self, list: &Value, path: &Path<'_>) {
        self.only(list, path, &["resources", "providers"]);
        let (resources, providers) = (path.child("resources"), path.child("providers"));
        let names = self.names(list.items_at(&["resources"]), &resources);
        let items = list.items_at(&["providers"]);
        if items.is_empty() {
            self.required(&providers);
        }
        let read: Vec<Provider> = items
            .iter()
            .enumerate()
            .map(|(at, provider)| self.provider(provider, &providers.index(at)))
            .collect();
        let first = read.into_iter().next().unwrap_or(Provider::Wrong);
        let is_sealed = matches!(first, Provider::Key(_));
        if let Provider::Key(key) = first {
            match &self.writes_by {
                Some(known) if *known != key => {
                    let why = "must be the first provider of every list that begins with a key: \
                               a control plane has one data key for all its resources";
                    let path = providers.index(0);
                    self.errors.push(FieldError::forbidden(&path, why));
                }
                _ => self.writes_by = Some(key),
            }
        }
        let rules = names.iter().map(|name| Rule::parse(name, is_sealed));
        self.rules.extend(rules);
    }

    /// Reads the names of resources.
    fn names(&mut self, items: &[Value], path: &Path<'_>) -> Vec<String> {
        if items.is_empty() {
            self.required(path);
        }
        let mut names = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let path = path.index(at);
            match item.as_str() {
                Some(name) => {
                    if let Some(why) = wrong_name(name) {
                        self.errors.push(FieldError::invalid(&path, name, why));
                    }
                    names.push(name.to_owned());
                }
                None => {
                    self.errors
                        .push(FieldError::invalid(&path, item.clone(), "must be a string"))
                }
            }
        }
        let shown = || Value::Array(names.iter().map(Value::string).collect());
        let distinct: BTreeSet<&String> = names.iter().collect();
        if distinct.len() < names.len() {
            let why = "the same resource cannot be specified multiple times";
            self.errors.push(FieldError::invalid(path, shown(), why));
        }
        let overlaps = |name: &&&String| {
            let (resource, group) = name.split_once('.').unwrap_or((name, ""));
            let in_group = |other: &&&String| other.split_once('.').map_or("", |(_, g)| g) == group;
            match (resource, group) {
                ("*", "*") => distinct.len() > 1,
                ("*", _) => distinct.iter().filter(in_group).count() > 1,
                _ => false,
            }
        };
        if distinct.iter().any(|name| overlaps(&name)) {
            let why = "using overlapping resources such as 'secrets' and '*.' in the same resource \
                       list is not allowed as they will be masked";
            self.errors.push(FieldError::invalid(path, shown(), why));
        }
        names
    }

    fn provider(&mut self, provider: &Value, path: &Path<'_>) -> Provider {
        let kinds = ["kms", "aesgcm", "aescbc", "secretbox", "identity"];
        self.only(provider, path, &kinds);
        let given: Vec<&str> = kinds
            .into_iter()
            .filter(|kind| !provider[*kind].is_null())
            .collect();
        match given[..] {
            [] => {
                let why = "provider does not contain any of the expected providers: KMS, AESGCM, \
                           AESCBC, Secretbox, Identity";
                self.errors.push(FieldError::required(path, why));
                Provider::Wrong
            }
            ["identity"] => {
                self.only(&provider["identity"], &path.child("identity"), &[]);
                Provider::Identity
            }
            ["kms"] => self.kms(&provider["kms"], &path.child("kms")),
            [kind @ ("aesgcm" | "aescbc")] => {
                self.file_keys(&provider[kind], &AES_SECRET_BYTES, &path.child(kind))
            }
            ["secretbox"] => {
                let path = path.child("secretbox");
                self.file_keys(&provider["secretbox"], &SECRETBOX_SECRET_BYTES, &path)
            }
            _ => {
                let why = "more than one provider specified in a single element, should split into \
                           different list elements";
                self.errors.push(FieldError::forbidden(path, why));
                Provider::Wrong
            }
        }
    }

    /// Reads the keys of a provider, whose secrets have one of these lengths; its first one writes.
    fn file_keys(&mut self, provider: &Value, lengths: &[usize], path: &Path<'_>) -> Provider {
        self.only(provider, path, &["keys"]);
        let path = path.child("keys");
        let items = provider.items_at(&["keys"]);
        if items.is_empty() {
            let why = "at least one keys is required";
            self.errors.push(FieldError::required(&path, why));
        }
        let mut first = None;
        for (at, item) in items.iter().enumerate() {
            if let Some(key) = self.file_key(item, lengths, &path.index(at)) {
                let id = key.key.id();
                first.get_or_insert(WriteKey::File(id));
                if !self.keys.iter().any(|known| known.key.id() == id) {
                    self.keys.push(key);
                }
            }
        }
        first.map_or(Provider::Wrong, Provider::Key)
    }

    fn file_key(&mut self, item: &Value, lengths: &[usize], path: &Path<'_>) -> Option<FileKey> {
        self.only(item, path, &["name", "secret"]);
        let name = item.str_at(&["name"]);
        if name.is_empty() {
            let why = "name is a mandatory field for a key";
            self.errors
                .push(FieldError::required(&path.child("name"), why));
        }
        let (text, path) = (item.str_at(&["secret"]), path.child("secret"));
        if text.is_empty() {
            let why = "secret is a mandatory field for a key";
            self.errors.push(FieldError::required(&path, why));
            return None;
        }
        let Ok(secret) = STANDARD.decode(text).map(Zeroizing::new) else {
            let why = "secrets must be base64 encoded";
            self.errors
                .push(FieldError::invalid(&path, "REDACTED", why));
            return None;
        };
        if !lengths.contains(&secret.len()) {
            let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            let why = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                lengths.join(" ")
            );
            self.errors
                .push(FieldError::invalid(&path, "REDACTED", why));
            return None;
        }
        Some(FileKey {
            name: name.to_owned(),
            key: Arc::new(KeyEncryptionKey::new(&secret)),
        })
    }

    fn kms(&mut self, kms: &Value, path: &Path<'_>) -> Provider {
        let fields = ["apiVersion", "name", "endpoint", "timeout", "cachesize"];
        self.only(kms, path, &fields);
        let before = self.errors.len();
        let name = kms.str_at(&["name"]).to_owned();
        self.kms_name(&name, &path.child("name"));
        let version = kms.str_at(&["apiVersion"]);
        if version != "v2" {
            let shown = if version.is_empty() { "v1" } else { version };
            let why =
                format!("unsupported apiVersion {shown} for KMS provider, only v2 is supported");
            let path = path.child("apiVersion");
            self.errors.push(FieldError::invalid(&path, version, why));
        }
        if !kms["cachesize"].is_null() {
            let (path, given) = (path.child("cachesize"), kms["cachesize"].clone());
            let why = "cachesize is not supported in v2";
            self.errors.push(FieldError::invalid(&path, given, why));
        }
        let timeout = self.timeout(&kms["timeout"], &path.child("timeout"));
        let socket = self.socket(kms.str_at(&["endpoint"]), &path.child("endpoint"));
        if self.errors.len() > before {
            return Provider::Wrong;
        }
        self.kms.push(KmsProvider {
            name: name.clone(),
            socket,
            timeout,
        });
        Provider::Key(WriteKey::Kms(name))
    }

    fn kms_name(&mut self, name: &str, path: &Path<'_>) {
        if name.is_empty() {
            let why = "name is a mandatory field for a provider";
            self.errors.push(FieldError::required(path, why));
        }
        if name.contains(':') {
            let why = format!("invalid KMS provider name {name}, must not contain ':'");
            self.errors.push(FieldError::invalid(path, name, why));
        }
        if self.kms.iter().any(|known| known.name == name) {
            let why = format!("duplicate KMS provider name {name}, names must be unique");
            self.errors.push(FieldError::invalid(path, name, why));
        }
    }

    fn timeout(&mut self, given: &Value, path: &Path<'_>) -> Duration {
        if given.is_null() {
            return KMS_TIMEOUT;
        }
        let nanoseconds = given.as_str().and_then(|text| parse_duration(text).ok());
        let nanoseconds = nanoseconds.and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
        match nanoseconds {
            Some(nanoseconds) if nanoseconds > 0 => Duration::from_nanos(nanoseconds),
            _ => {
                let why = "timeout should be a positive value";
                self.errors
                    .push(FieldError::invalid(path, given.clone(), why));
                KMS_TIMEOUT
            }
        }
    }

    /// Returns the path of the socket.
    fn socket(&mut self, endpoint: &str, path: &Path<'_>) -> String {
        if endpoint.is_empty() {
            let why = "endpoint is a mandatory field for a kms";
            self.errors.push(FieldError::invalid(path, "", why));
            return String::new();
        }
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", ""));
        if scheme != "unix" {
            let why =
                format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
            self.errors.push(FieldError::invalid(path, endpoint, why));
        } else if !rest.starts_with('/') || rest.starts_with("/@") {
            let why = "must name the path of a socket, as unix:///run/kms.sock";
            self.errors.push(FieldError::invalid(path, endpoint, why));
        }
        rest.to_owned()
    }

    /// Complains about fields that do not exist.
    fn only(&mut self, value: &Value, path: &Path<'_>, fields: &[&str]) {
        match value {
            Value::Object(members) => {
                for name in members.keys().filter(|name| !fields.contains(name)) {
                    let path = path.child(name);
                    let why = "there is no such field";
                    self.errors.push(FieldError::forbidden(&path, why));
                }
            }
            // Not shown: a secret may stand in the wrong place.
            _ => self
                .errors
                .push(FieldError::forbidden(path, "must be an object")),
        }
    }

    fn required(&mut self, path: &Path<'_>) {
        let why = format!("at least one {path} is required");
        self.errors.push(FieldError::required(path, why));
    }
}

/// Returns why a resource cannot stand in a list.
fn wrong_name(name: &str) -> Option<&'static str> {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    if name.to_lowercase() != name {
        return Some("resource name should not contain capital letters");
    }
    if name == "*" {
        return Some(
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        );
    }
    if WITHOUT_API.contains(&name) {
        return Some("resources which do not have REST API/s cannot be encrypted");
    }
    match group {
        "events.k8s.io" => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' \
             instead in the config file",
        ),
        "extensions" => {
            Some("'extensions' group has been removed and cannot be used for encryption")
        }
        "*" if resource != "*" => {
            Some("encrypting the same resource across groups is not supported")
        }
        _ => None,
    }
}
