//! The file: `AuthenticationConfiguration` of `apiserver.config.k8s.io`.

use std::collections::BTreeSet;

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, document};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::AnonymousAccess;

use super::expressions::{Expression, ExpressionOf};
use super::validation;

/// Versions of the kind, which have the same fields.
const KINDS: [(&str, &str); 3] = [
    ("AuthenticationConfiguration", "apiserver.config.k8s.io/v1"),
    (
        "AuthenticationConfiguration",
        "apiserver.config.k8s.io/v1beta1",
    ),
    (
        "AuthenticationConfiguration",
        "apiserver.config.k8s.io/v1alpha1",
    ),
];
const WANTED: &str = "AuthenticationConfiguration of apiserver.config.k8s.io/v1";
/// Issuers of one file, as upstream.
const ISSUERS_MAX: usize = 64;

/// The configuration of authentication.
#[derive(Clone, Debug)]
pub struct AuthenticationConfig {
    /// The issuers.
    pub jwt: Vec<JwtConfig>,
    /// Whether requests without credentials are `system:anonymous`; `None` if the file does not say.
    pub anonymous: Option<AnonymousAccess>,
}

/// One issuer, and what its tokens mean.
#[derive(Clone, Debug)]
pub struct JwtConfig {
    /// The issuer.
    pub issuer: IssuerConfig,
    /// The only signature algorithms that its tokens may name, of those that are accepted at all; all of
    /// them without it. A file does not say it.
    pub algorithms: Option<Vec<String>>,
    pub(super) required: Vec<(String, String)>,
    pub(super) rules: Vec<Rule>,
    pub(super) username: Mapping,
    pub(super) groups: Option<Mapping>,
    pub(super) uid: Option<Mapping>,
    pub(super) extra: Vec<(Str, Expression)>,
    pub(super) user_rules: Vec<Rule>,
}

/// Where an issuer is, and which of its tokens are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerConfig {
    /// The issuer in tokens.
    pub url: String,
    /// Where its configuration is, if not below `url`.
    pub discovery_url: Option<String>,
    /// The CAs that its servers are trusted by, PEM; those of the system without it.
    pub certificate_authority: Option<String>,
    /// A token must be for one of these.
    pub audiences: Vec<String>,
}

/// A condition, and what to say if it does not hold.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub expression: Expression,
    pub message: String,
}

/// How a value of the user comes out of a token.
#[derive(Clone, Debug)]
pub(super) enum Mapping {
    /// The claim of this name behind the prefix.
    Claim { name: String, prefix: String },
    /// What an expression returns.
    Expression(Expression),
}

impl AuthenticationConfig {
    /// Reads a file. `disallowed` are issuers that no entry may have, because the server's own tokens
    /// have them.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub fn parse(text: &[u8], disallowed: &[&str]) -> Result<Self, ConfigError> {
        Self::of(&document(text)?, disallowed)
    }

    /// Reads a parsed document.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub fn of(document: &Value, disallowed: &[&str]) -> Result<Self, ConfigError> {
        let root = Section::of_kind(document, &KINDS, WANTED)?;
        let fields = ["apiVersion", "kind", "jwt", "anonymous"];
        Self::read(&root, &fields, disallowed).map_err(ConfigError::Fields)
    }

    /// Reads the issuers of one control plane: an object with the field `jwt` alone, at `path`.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub fn of_plane(
        value: &Value,
        path: &Path<'_>,
        disallowed: &[&str],
    ) -> Result<Self, Complaints> {
        Self::read(&Section { value, path }, &["jwt"], disallowed)
    }

    fn read(root: &Section<'_>, fields: &[&str], disallowed: &[&str]) -> Result<Self, Complaints> {
        let mut errors = Complaints::default();
        root.only(fields, &mut errors);
        let list = root.path.child("jwt");
        let items = root.items("jwt", &mut errors);
        if items.len() > ISSUERS_MAX {
            errors.push(FieldError::too_many(&list, items.len(), ISSUERS_MAX));
        }
        let mut jwt: Vec<JwtConfig> = Vec::new();
        for (place, value) in items.iter().take(ISSUERS_MAX).enumerate() {
            let path = list.index(place);
            let section = Section { value, path: &path };
            let Some(read) = read_jwt(&section, disallowed, &mut errors) else {
                continue;
            };
            let same = |one: &&JwtConfig| one.issuer.url == read.issuer.url;
            if jwt.iter().find(same).is_some() {
                let path = path.child("issuer");
                let path = path.child("url");
                errors.push(FieldError::duplicate(&path, read.issuer.url.as_str()));
            }
            jwt.push(read);
        }
        check_discovery_urls(&jwt, &list, &mut errors);
        let anonymous = read_anonymous(root, &mut errors);
        match errors.is_empty() {
            true => Ok(Self { jwt, anonymous }),
            false => Err(errors),
        }
    }
}

fn check_discovery_urls(jwt: &[JwtConfig], list: &Path<'_>, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    for (place, one) in jwt.iter().enumerate() {
        let url = one.issuer.discovery_url.as_deref();
        if let Some(url) = url.filter(|url| !seen.insert(url.to_owned())) {
            let path = list.index(place);
            let path = path.child("issuer");
            errors.push(FieldError::duplicate(&path.child("discoveryURL"), url));
        }
    }
}

fn read_anonymous(root: &Section<'_>, errors: &mut Complaints) -> Option<AnonymousAccess> {
    let value = root
        .value
        .get("anonymous")
        .filter(|value| !value.is_null())?;
    let path = Path::new("anonymous");
    let section = Section { value, path: &path };
    section.only(&["enabled", "conditions"], errors);
    let mut paths = Vec::new();
    for (at, condition) in section.items("conditions", errors).iter().enumerate() {
        let list = path.child("conditions");
        let place = list.index(at);
        let condition = Section {
            value: condition,
            path: &place,
        };
        condition.only(&["path"], errors);
        paths.push(condition.value.str_at(&["path"]).to_owned());
    }
    let is_enabled = value.bool_at(&["enabled"]);
    if !is_enabled && !paths.is_empty() {
        let why = "enabled should be set to true when conditions are defined";
        let shown = value["conditions"].clone();
        errors.push(FieldError::invalid(&path.child("conditions"), shown, why));
    }
    Some(match (is_enabled, paths.is_empty()) {
        (false, _) => AnonymousAccess::Nowhere,
        (true, true) => AnonymousAccess::Everywhere,
        (true, false) => AnonymousAccess::On(paths),
    })
}

fn read_jwt(
    section: &Section<'_>,
    disallowed: &[&str],
    errors: &mut Complaints,
) -> Option<JwtConfig> {
    let fields = [
        "issuer",
        "claimValidationRules",
        "claimMappings",
        "userValidationRules",
    ];
    section.only(&fields, errors);
    let before = errors.len();
    let issuer = read_issuer(section, disallowed, errors);
    let (required, rules) = read_claim_rules(section, errors);
    let path = section.path.child("claimMappings");
    let mappings = Section {
        value: &section.value["claimMappings"],
        path: &path,
    };
    mappings.only(&["username", "groups", "uid", "extra"], errors);
    let username = read_mapping(&mappings, "username", errors);
    if username.is_none() && errors.len() == before {
        let path = path.child("username");
        errors.push(FieldError::required(
            &path,
            "claim or expression is required",
        ));
    }
    let groups = read_mapping(&mappings, "groups", errors);
    let uid = read_mapping(&mappings, "uid", errors);
    let extra = read_extra(&mappings, errors);
    let user_rules = read_user_rules(section, errors);
    let read = JwtConfig {
        issuer,
        algorithms: None,
        required,
        rules,
        username: username?,
        groups,
        uid,
        extra,
        user_rules,
    };
    validation::check_email(&read, &path, errors);
    (errors.len() == before).then_some(read)
}

fn read_issuer(
    section: &Section<'_>,
    disallowed: &[&str],
    errors: &mut Complaints,
) -> IssuerConfig {
    let path = section.path.child("issuer");
    let issuer = Section {
        value: &section.value["issuer"],
        path: &path,
    };
    let fields = [
        "url",
        "discoveryURL",
        "certificateAuthority",
        "audiences",
        "audienceMatchPolicy",
        "egressSelectorType",
    ];
    issuer.only(&fields, errors);
    let audiences = issuer.items("audiences", errors).iter();
    let audiences = audiences.map(|one| one.as_str().unwrap_or("").to_owned());
    let text = |name: &str, errors: &mut Complaints| {
        Some(issuer.text(name, errors)).filter(|text| !text.is_empty())
    };
    let read = IssuerConfig {
        audiences: audiences.collect(),
        url: issuer.text("url", errors),
        discovery_url: text("discoveryURL", errors),
        certificate_authority: text("certificateAuthority", errors),
    };
    validation::check_issuer(&read, disallowed, &path, errors);
    let policy = issuer.text("audienceMatchPolicy", errors);
    validation::check_match_policy(&policy, read.audiences.len(), &path, errors);
    if text("egressSelectorType", errors).is_some() {
        let why = "there is no egress proxy here";
        errors.push(FieldError::forbidden(
            &path.child("egressSelectorType"),
            why,
        ));
    }
    read
}

type Required = Vec<(String, String)>;

fn read_claim_rules(section: &Section<'_>, errors: &mut Complaints) -> (Required, Vec<Rule>) {
    let list = section.path.child("claimValidationRules");
    let (mut required, mut rules) = (Required::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (place, value) in section
        .items("claimValidationRules", errors)
        .iter()
        .enumerate()
    {
        let path = list.index(place);
        let rule = Section { value, path: &path };
        rule.only(&["claim", "requiredValue", "expression", "message"], errors);
        let [claim, wanted, expression, message] =
            ["claim", "requiredValue", "expression", "message"].map(|name| rule.text(name, errors));
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => {
                let why = "claim and expression can't both be set";
                errors.push(FieldError::invalid(&path, claim, why));
            }
            (true, true) => {
                let why = "claim or expression is required";
                errors.push(FieldError::required(&path, why));
            }
            (false, true) => {
                if !message.is_empty() {
                    let why = "may not be specified when claim is set";
                    errors.push(FieldError::invalid(&path.child("message"), message, why));
                }
                if required.iter().any(|(known, _)| *known == claim) {
                    errors.push(FieldError::duplicate(&path.child("claim"), claim.as_str()));
                }
                required.push((claim, wanted));
            }
            (true, false) => {
                let child = path.child("expression");
                if !wanted.is_empty() {
                    let why = "may not be specified when expression is set";
                    errors.push(FieldError::invalid(
                        &path.child("requiredValue"),
                        wanted,
                        why,
                    ));
                }
                if !seen.insert(expression.clone()) {
                    errors.push(FieldError::duplicate(&child, expression.as_str()));
                    continue;
                }
                let compiled = Expression::condition(&expression, ExpressionOf::Claims);
                rules.extend(compiled_at(compiled, &expression, &child, errors).map(
                    |expression| Rule {
                        expression,
                        message,
                    },
                ));
            }
        }
    }
    (required, rules)
}

fn read_user_rules(section: &Section<'_>, errors: &mut Complaints) -> Vec<Rule> {
    let list = section.path.child("userValidationRules");
    let mut rules = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, value) in section
        .items("userValidationRules", errors)
        .iter()
        .enumerate()
    {
        let path = list.index(place);
        let rule = Section { value, path: &path };
        rule.only(&["expression", "message"], errors);
        let (expression, message) = (
            rule.text("expression", errors),
            rule.text("message", errors),
        );
        let child = path.child("expression");
        if expression.is_empty() {
            errors.push(FieldError::required(&child, ""));
        } else if !seen.insert(expression.clone()) {
            errors.push(FieldError::duplicate(&child, expression.as_str()));
        } else {
            let compiled = Expression::condition(&expression, ExpressionOf::User);
            let compiled = compiled_at(compiled, &expression, &child, errors);
            rules.extend(compiled.map(|expression| Rule {
                expression,
                message,
            }));
        }
    }
    rules
}

fn compiled_at(
    compiled: Result<Expression, String>,
    text: &str,
    path: &Path<'_>,
    errors: &mut Complaints,
) -> Option<Expression> {
    compiled
        .map_err(|why| errors.push(FieldError::invalid(path, text, why)))
        .ok()
}

fn read_mapping(mappings: &Section<'_>, name: &str, errors: &mut Complaints) -> Option<Mapping> {
    let path = mappings.path.child(name);
    let mapping = Section {
        value: &mappings.value[name],
        path: &path,
    };
    let has_prefix = name != "uid";
    match has_prefix {
        true => mapping.only(&["claim", "prefix", "expression"], errors),
        false => mapping.only(&["claim", "expression"], errors),
    }
    let (claim, expression) = (
        mapping.text("claim", errors),
        mapping.text("expression", errors),
    );
    let prefix = mapping
        .value
        .get("prefix")
        .filter(|prefix| !prefix.is_null());
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => {
            let why = "claim and expression can't both be set";
            errors.push(FieldError::invalid(&path, "", why));
            None
        }
        (true, true) => None,
        (true, false) => {
            if let Some(prefix) = prefix {
                let why = "may not be specified when expression is set";
                errors.push(FieldError::invalid(
                    &path.child("prefix"),
                    prefix.clone(),
                    why,
                ));
            }
            let compiled = Expression::value(&expression);
            let compiled = compiled_at(compiled, &expression, &path.child("expression"), errors);
            compiled.map(Mapping::Expression)
        }
        (false, true) => {
            if prefix.is_none() && has_prefix {
                let why = "prefix is required when claim is set. It can be set to an empty string to \
                           disable prefixing";
                errors.push(FieldError::required(&path.child("prefix"), why));
            }
            let prefix = mapping.text("prefix", errors);
            Some(Mapping::Claim {
                name: claim,
                prefix,
            })
        }
    }
}

fn read_extra(mappings: &Section<'_>, errors: &mut Complaints) -> Vec<(Str, Expression)> {
    let list = mappings.path.child("extra");
    let mut extra: Vec<(Str, Expression)> = Vec::new();
    for (place, value) in mappings.items("extra", errors).iter().enumerate() {
        let path = list.index(place);
        let entry = Section { value, path: &path };
        entry.only(&["key", "valueExpression"], errors);
        let (key, text) = (
            entry.text("key", errors),
            entry.text("valueExpression", errors),
        );
        validation::check_extra_key(&key, &path.child("key"), errors);
        if extra.iter().any(|(known, _)| *known == key.as_str()) {
            errors.push(FieldError::duplicate(&path.child("key"), key.as_str()));
            continue;
        }
        let path = path.child("valueExpression");
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let compiled = compiled_at(Expression::value(&text), &text, &path, errors);
        extra.extend(compiled.map(|expression| (key.as_str().into(), expression)));
    }
    extra
}
