//! The rules for values in the file that need more than one look.

use std::collections::BTreeSet;

use http::Uri;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_outbound::Trust;

use super::config::{IssuerConfig, JwtConfig, Mapping};
use super::expressions::Expression;

pub(super) fn check_issuer(
    issuer: &IssuerConfig,
    disallowed: &[&str],
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let url = path.child("url");
    if issuer.url.is_empty() {
        errors.push(FieldError::required(&url, ""));
    } else {
        if disallowed.contains(&issuer.url.as_str()) {
            let why = format!(
                "URL must not overlap with disallowed issuers: [{}]",
                disallowed.join(" ")
            );
            errors.push(FieldError::invalid(&url, issuer.url.as_str(), why));
        }
        check_url(&issuer.url, &url, errors);
    }
    if let Some(discovery) = &issuer.discovery_url {
        let url = path.child("discoveryURL");
        if issuer.url.trim_end_matches('/') == discovery.trim_end_matches('/') {
            let why = "discoveryURL must be different from URL";
            errors.push(FieldError::invalid(&url, discovery.as_str(), why));
        }
        check_url(discovery, &url, errors);
    }
    let pem = issuer.certificate_authority.as_ref().map(String::as_bytes);
    if let Err(error) = Trust::new(pem, None) {
        let path = path.child("certificateAuthority");
        errors.push(FieldError::invalid(&path, "<omitted>", error.to_string()));
    }
    check_audiences(&issuer.audiences, &path.child("audiences"), errors);
}

fn check_url(text: &str, path: &Path<'_>, errors: &mut Complaints) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(path, text, why));
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    if !fragment.is_empty() {
        wrong("URL must not contain a fragment");
    }
    let Ok(url) = before.parse::<Uri>() else {
        return wrong("it is no URL");
    };
    if url.scheme_str() != Some("https") {
        wrong("URL scheme must be https");
    }
    if url
        .authority()
        .is_some_and(|all| all.as_str().contains('@'))
    {
        wrong("URL must not contain a username or password");
    }
    if url.query().is_some_and(|query| !query.is_empty()) {
        wrong("URL must not contain a query");
    }
}

fn check_audiences(audiences: &[String], path: &Path<'_>, errors: &mut Complaints) {
    if audiences.is_empty() {
        let why = format!("at least one {path} is required");
        errors.push(FieldError::required(path, why));
    }
    let mut seen = BTreeSet::new();
    for (place, audience) in audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.push(FieldError::required(&path.index(place), ""));
        }
        if !seen.insert(audience) {
            errors.push(FieldError::duplicate(&path.index(place), audience.as_str()));
        }
    }
}

pub(super) fn check_match_policy(
    policy: &str,
    audiences: usize,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let why = match (audiences, policy) {
        (_, "MatchAny") | (0 | 1, "") => return,
        (0 | 1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
        _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
    };
    let path = path.child("audienceMatchPolicy");
    errors.push(FieldError::invalid(&path, policy, why));
}

pub(super) fn check_extra_key(key: &str, path: &Path<'_>, errors: &mut Complaints) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(path, key, why));
    let Some((domain, rest)) = key.split_once('/').filter(|(_, rest)| !rest.is_empty()) else {
        return match key.is_empty() {
            true => errors.push(FieldError::required(path, "")),
            false => wrong("must be a domain-prefixed path (such as \"acme.io/foo\")"),
        };
    };
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !label.is_empty()
            && label.bytes().all(|byte| inner(byte) || byte == b'-')
            && label.bytes().next().is_some_and(inner)
            && label.bytes().next_back().is_some_and(inner)
    };
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !domain.split('.').all(is_label) || !rest.bytes().all(is_path) {
        wrong("must be a domain-prefixed path (such as \"acme.io/foo\")");
    }
    if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
        wrong("must be lowercase");
    }
    let is_below = |of: &str| {
        domain == of
            || domain
                .strip_suffix(of)
                .is_some_and(|sub| sub.ends_with('.'))
    };
    if is_below("kubernetes.io") || is_below("k8s.io") {
        wrong("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
}

/// Complains if the username is the claim `email`, and no expression looks whether the issuer has
/// verified it.
pub(super) fn check_email(config: &JwtConfig, path: &Path<'_>, errors: &mut Complaints) {
    let Mapping::Expression(username) = &config.username else {
        return;
    };
    let rules = config.rules.iter().map(|rule| &rule.expression);
    let extra = config.extra.iter().map(|(_, expression)| expression);
    let is_verified = |expression: &Expression| expression.reads("email_verified");
    let mut all = rules.chain(extra).chain([username]);
    if username.reads("email") && !all.any(is_verified) {
        let why = "claims.email_verified must be used in claimMappings.username.expression or \
                   claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when \
                   claims.email is used in claimMappings.username.expression";
        let path = path.child("username");
        let path = path.child("expression");
        errors.push(FieldError::invalid(&path, username.text(), why));
    }
}
