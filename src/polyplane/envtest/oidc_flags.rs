//! The flags `--oidc-*`: one issuer, in the words of before `--authentication-config`.

use crate::envtest::credentials::read_file;
use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use polyplane_apimachinery::{Value, json};
use polyplane_delegated::oidc::AuthenticationConfig;

/// The flags.
pub(super) const FLAGS: [&str; 9] = [
    "oidc-ca-file",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-issuer-url",
    "oidc-required-claim",
    "oidc-signing-algs",
    "oidc-username-claim",
    "oidc-username-prefix",
];

/// Returns whether a flag of them is given.
pub(super) fn are_given(flags: &Flags) -> bool {
    FLAGS.iter().any(|flag| flags.last(flag).is_some())
}

/// Reads what the flags say, as the configuration that says the same. `disallowed` are the issuers of
/// the server's own tokens.
pub(super) fn read(
    flags: &Flags,
    disallowed: &[&str],
    problems: &mut Problems,
) -> Option<AuthenticationConfig> {
    let (Some(url), Some(client)) = (flags.text("oidc-issuer-url"), flags.text("oidc-client-id"))
    else {
        problems.add(
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set",
        );
        return None;
    };
    let mut jwt = json!({"issuer": {"url": url, "audiences": [client]}});
    if let Some(file) = path(flags, "oidc-ca-file") {
        let text = read_file(&file).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| format!("{}: {error}", file.display()))
        });
        jwt.set(
            &["issuer", "certificateAuthority"],
            problems.value("oidc-ca-file", text)?,
        );
    }
    jwt.set(&["claimMappings"], mappings(flags, url));
    jwt.set(
        &["claimValidationRules"],
        Value::Array(required(flags, problems)),
    );
    let document = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [jwt],
    });
    let read = AuthenticationConfig::of(&document, disallowed);
    let mut config = problems.value("oidc-issuer-url", read)?;
    let mut algorithms = flags.list("oidc-signing-algs");
    if algorithms.is_empty() {
        algorithms.push("RS256".to_owned());
    }
    for jwt in &mut config.jwt {
        jwt.algorithms = Some(algorithms.clone());
    }
    Some(config)
}

/// Returns how names and groups come out of a token.
fn mappings(flags: &Flags, url: &str) -> Value {
    let claim = flags.text("oidc-username-claim").unwrap_or("sub");
    let prefix = match flags.text("oidc-username-prefix") {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        // An address is no other issuer's user.
        None if claim == "email" => String::new(),
        None => format!("{url}#"),
    };
    let mut mappings = json!({"username": {"claim": claim, "prefix": prefix}});
    if let Some(groups) = flags.text("oidc-groups-claim") {
        let prefix = flags.text("oidc-groups-prefix").unwrap_or("");
        mappings.set(&["groups"], json!({"claim": groups, "prefix": prefix}));
    }
    mappings
}

fn required(flags: &Flags, problems: &mut Problems) -> Vec<Value> {
    let mut rules = Vec::new();
    for pair in flags.all("oidc-required-claim") {
        match pair.split_once('=') {
            Some((claim, value)) => {
                let (claim, value) = (claim.trim(), value.trim());
                rules.push(json!({"claim": claim, "requiredValue": value}));
            }
            None => problems.add(format!(
                "--oidc-required-claim: malformed pair, expect string=string: {pair:?}"
            )),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::kube_apiserver;

    fn flags(arguments: &[&str]) -> Flags {
        let arguments = arguments.iter().map(|text| (*text).to_owned());
        kube_apiserver::FLAGS.parse(arguments).expect("flags")
    }

    #[test]
    fn names_are_told_apart_by_the_issuer_unless_they_are_addresses() {
        let url = "https://issuer.example.com";
        let username = |arguments: &[&str]| mappings(&flags(arguments), url)["username"].clone();
        let claim = |claim: &str, prefix: &str| json!({"claim": claim, "prefix": prefix});
        assert_eq!(username(&[]), claim("sub", "https://issuer.example.com#"));
        assert_eq!(
            username(&["--oidc-username-claim=email"]),
            claim("email", "")
        );
        assert_eq!(username(&["--oidc-username-prefix=-"]), claim("sub", ""));
        assert_eq!(
            username(&["--oidc-username-prefix=oidc:"]),
            claim("sub", "oidc:")
        );
        let groups = mappings(&flags(&["--oidc-groups-claim=roles"]), url);
        assert_eq!(groups["groups"], claim("roles", ""));
    }

    #[test]
    fn tokens_name_rs256_unless_the_flags_say_otherwise() {
        let base = [
            "--oidc-issuer-url=https://a.example.com",
            "--oidc-client-id=c",
        ];
        let algorithms = |more: &[&str]| {
            let mut problems = Problems::default();
            let read = read(&flags(&[&base, more].concat()), &[], &mut problems);
            read.expect("a configuration").jwt[0].algorithms.clone()
        };
        assert_eq!(algorithms(&[]), Some(vec!["RS256".to_owned()]));
        let two = algorithms(&["--oidc-signing-algs=ES256,RS384"]);
        assert_eq!(two, Some(vec!["ES256".to_owned(), "RS384".to_owned()]));
    }

    #[test]
    fn an_issuer_needs_a_client_and_a_claim_a_value() {
        for wrong in [
            &["--oidc-client-id=c"][..],
            &["--oidc-issuer-url=https://a.example.com"],
            &[
                "--oidc-issuer-url=http://a.example.com",
                "--oidc-client-id=c",
            ],
        ] {
            let mut problems = Problems::default();
            assert!(
                read(&flags(wrong), &[], &mut problems).is_none(),
                "{wrong:?}"
            );
        }
        let mut problems = Problems::default();
        assert!(required(&flags(&["--oidc-required-claim=a"]), &mut problems).is_empty());
        assert!(!problems.is_empty());
    }
}
