//! The file: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`.
//!
//! What it means here. Each control plane has data keys, which the first provider's key wraps; data keys and
//! records are sealed by AES-256-GCM under keys that derive from another key, whatever the provider. So
//! `aesgcm`, `aescbc` and `secretbox` name keys and no cipher: a file that was written for kube-apiserver works, and a
//! secret is one key under any of these names. All lists
//! whose first provider is a key must have the same one. A list whose first provider is `identity`
//! leaves its resources in clear; keys behind it are still read with.
//!
//! Errors have upstream's texts where upstream has such an error. No text shows a secret.

mod read;

use std::sync::Arc;
use std::time::Duration;

use crate::key_encryption_key::{KeyEncryptionKey, KeyId};
use crate::policy::SealPolicy;

/// The configuration of encryption at rest.
#[derive(Clone, Debug)]
pub struct EncryptionConfig {
    /// The keys that stand in the file, each once.
    pub keys: Vec<FileKey>,
    /// The key management services, each once.
    pub kms: Vec<KmsProvider>,
    /// The key that wraps new data keys; `None` if everything new is in clear.
    pub writes_by: Option<WriteKey>,
    /// The resources that are sealed.
    pub policy: SealPolicy,
}

/// A key-encryption key that stands in the file.
#[derive(Clone, Debug)]
pub struct FileKey {
    /// The name in the file, for messages.
    pub name: String,
    /// The key.
    pub key: Arc<KeyEncryptionKey>,
}

/// A key management service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsProvider {
    /// The name in the file, which the store has beside what the service has wrapped.
    pub name: String,
    /// The path of its socket.
    pub socket: String,
    /// The time that one call may take.
    pub timeout: Duration,
}

/// The key that wraps new data keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteKey {
    /// The key of the file with this id.
    File(KeyId),
    /// The newest key that the service of this name has wrapped.
    Kms(String),
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::config::ConfigError;

    use super::*;
    use crate::KEY_BYTES;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
    /// 32 bytes of the number 7, and of 8.
    const SEVEN: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    const EIGHT: &str = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=";

    fn parse(rest: &str) -> Result<EncryptionConfig, String> {
        let text = format!("{HEAD}{rest}");
        EncryptionConfig::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn gcm(name: &str, secret: &str) -> String {
        format!("{{aesgcm: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
    }

    fn list(resources: &str, providers: &[&str]) -> String {
        format!(
            "- {{resources: [{resources}], providers: [{}]}}\n",
            providers.join(", ")
        )
    }

    #[test]
    fn the_first_provider_writes_and_all_read() {
        let (one, two) = (gcm("one", SEVEN), gcm("two", EIGHT));
        let lists = [
            list("'events'", &["{identity: {}}"]),
            list("'secrets', 'configmaps'", &[&one, &two, "{identity: {}}"]),
            list("'*.*'", &[&one]),
        ];
        let config = parse(&format!("resources:\n{}", lists.concat())).expect("it is right");
        let names: Vec<&str> = config.keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let seven = KeyEncryptionKey::new(&[7; KEY_BYTES]);
        assert_eq!(config.writes_by, Some(WriteKey::File(seven.id())));
        assert!(config.policy.seals("", "secrets") && config.policy.seals("apps", "deployments"));
        assert!(!config.policy.seals("", "events"));
        let reading = list("'*.*'", &["{identity: {}}", &one]);
        let reading = parse(&format!("resources:\n{reading}")).expect("it is right");
        assert_eq!(reading.writes_by, None);
        assert!(reading.keys.len() == 1 && !reading.policy.seals("", "secrets"));
        assert!(!format!("{config:?}").contains("BwcH"));
    }

    #[test]
    fn a_secret_is_one_key_under_the_name_of_any_cipher() {
        let seven = KeyEncryptionKey::new(&[7; KEY_BYTES]);
        for kind in ["aesgcm", "aescbc", "secretbox"] {
            let provider = gcm("one", SEVEN).replace("aesgcm", kind);
            let config = parse(&format!("resources:\n{}", list("secrets", &[&provider])));
            let config = config.expect("it is right");
            assert_eq!(config.writes_by, Some(WriteKey::File(seven.id())), "{kind}");
        }
    }

    #[test]
    fn a_kms_is_a_socket_with_a_time() {
        let kms = "{kms: {apiVersion: v2, name: vault, endpoint: 'unix:///run/kms.sock'}}";
        let config = parse(&format!("resources:\n{}", list("secrets", &[kms])));
        let config = config.expect("it is right");
        assert_eq!(config.writes_by, Some(WriteKey::Kms("vault".into())));
        assert_eq!(
            config.kms,
            [KmsProvider {
                name: "vault".into(),
                socket: "/run/kms.sock".into(),
                timeout: Duration::from_secs(3),
            }]
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_shown() {
        let (one, two) = (gcm("one", SEVEN), gcm("two", EIGHT));
        let of = |providers: &[&str]| format!("resources:\n{}", list("secrets", providers));
        let kms = |fields: &str| of(&[&format!("{{kms: {{{fields}}}}}")]);
        for (text, wanted) in [
            (
                "resources: []".to_owned(),
                "resources: Required value: at least one resources is required",
            ),
            (
                of(&[]),
                "resources[0].providers: Required value: at least one resources[0].providers is required",
            ),
            (
                of(&["{}"]),
                "does not contain any of the expected providers",
            ),
            (
                of(&["{identity: {}, aesgcm: {keys: []}}"]),
                "more than one provider specified in a single element",
            ),
            (
                of(&["{aesgcm: {keys: []}}"]),
                "aesgcm.keys: Required value: at least one keys is required",
            ),
            (
                of(&["{aesgcm: {keys: [{secret: c2hvcnQ=}]}}"]),
                "name is a mandatory field for a key",
            ),
            (
                of(&[&gcm("a", "c2hvcnQ=")]),
                "secret is not of the expected length, got 5, expected one of [16 24 32]",
            ),
            (
                of(&[&gcm("a", "'%%%'")]),
                "Invalid value: \"REDACTED\": secrets must be base64 encoded",
            ),
            (
                of(&["{aescbc: {keys: [{name: a, secret: c2hvcnQ=}]}}"]),
                "aescbc.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 5, expected one of [16 24 32]",
            ),
            (
                of(&["{secretbox: {keys: [{name: a, secret: BwcHBwcHBwcHBwcHBwcHBw==}]}}"]),
                "secret is not of the expected length, got 16, expected one of [32]",
            ),
            (
                of(&["{secretbox: {}}"]),
                "secretbox.keys: Required value: at least one keys is required",
            ),
            (
                kms("name: a, endpoint: 'unix:///s'"),
                "only v2 is supported",
            ),
            (
                kms("apiVersion: v1, name: a, endpoint: 'unix:///s'"),
                "only v2 is supported",
            ),
            (
                kms("apiVersion: v2, name: 'a:b', endpoint: 'unix:///s'"),
                "invalid KMS provider name a:b, must not contain ':'",
            ),
            (
                kms("apiVersion: v2, name: a, endpoint: 'tcp://h:1'"),
                "unsupported scheme \"tcp\" for KMS provider, only unix is supported",
            ),
            (
                kms("apiVersion: v2, name: a"),
                "endpoint is a mandatory field for a kms",
            ),
            (
                kms("apiVersion: v2, name: a, endpoint: 'unix:///s', timeout: 0s"),
                "timeout should be a positive value",
            ),
            (
                kms("apiVersion: v2, name: a, endpoint: 'unix:///s', cachesize: 5"),
                "cachesize is not supported in v2",
            ),
            (
                of(&[&one]).replace("secrets", "'*'"),
                "use '*.' to encrypt all the resources from core API group",
            ),
            (
                of(&[&one]).replace("secrets", "Secrets"),
                "resource name should not contain capital letters",
            ),
            (
                of(&[&one]).replace("secrets", "secrets, '*.'"),
                "overlapping resources",
            ),
            (
                of(&[&one]).replace("secrets", "secrets, secrets"),
                "the same resource cannot be specified multiple times",
            ),
            (
                of(&[&one]).replace("secrets", "'secrets.*'"),
                "across groups is not supported",
            ),
            (
                of(&[&one]).replace("secrets", "events.events.k8s.io"),
                "Use 'events' instead",
            ),
            (
                format!(
                    "resources:\n{}{}",
                    list("secrets", &[&one]),
                    list("configmaps", &[&two])
                ),
                "one data key",
            ),
            (
                of(&[&one]).replace("providers", "provider"),
                "there is no such field",
            ),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(
                !error.contains("BwcH") && !error.contains("c2hvcnQ"),
                "{error}"
            );
        }
        let other = EncryptionConfig::parse(b"kind: Secret\napiVersion: v1\n");
        assert!(matches!(other, Err(ConfigError::Kind { .. })), "{other:?}");
    }
}
