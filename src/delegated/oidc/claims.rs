//! What the claims of a token mean: the user.

use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::{CREDENTIAL_ID, UserInfo};

use super::config::{JwtConfig, Mapping, Rule};
use super::expressions::View;
use super::token::TokenRefused;

/// Returns the user of a verified token.
pub(super) fn user_of(claims: &Map, config: &JwtConfig) -> Result<UserInfo, TokenRefused> {
    check_audience(claims, &config.issuer.audiences)?;
    user(claims, config).map_err(TokenRefused::Claims)
}

fn check_audience(claims: &Map, wanted: &[String]) -> Result<(), TokenRefused> {
    let is_wanted = |value: &Value| {
        value
            .as_str()
            .is_some_and(|one| wanted.iter().any(|own| own == one))
    };
    let matches = match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(is_wanted),
        Some(one) => is_wanted(one),
        None => false,
    };
    matches.then_some(()).ok_or(TokenRefused::Audience)
}

fn user(claims: &Map, config: &JwtConfig) -> Result<UserInfo, String> {
    let view = View::of_claims(claims);
    let mut user = UserInfo {
        name: username(claims, &view, &config.username)?.into(),
        groups: match &config.groups {
            Some(mapping) => groups(claims, &view, mapping)?,
            None => Vec::new(),
        },
        uid: match &config.uid {
            None => Str::default(),
            Some(Mapping::Claim { name, .. }) => text_claim(claims, name)?.into(),
            Some(Mapping::Expression(expression)) => expression.string(&view)?.into(),
        },
        ..UserInfo::default()
    };
    if let Some(id) = claims.get("jti").and_then(Value::as_str) {
        user.extra
            .push((CREDENTIAL_ID.into(), vec![format!("JTI={id}").into()]));
    }
    for (key, expression) in &config.extra {
        let values = expression.strings(&view)?;
        if !values.is_empty() {
            let values = values.into_iter().map(Str::from).collect();
            user.extra.push((key.clone(), values));
        }
    }
    user.extra.sort();
    for (claim, wanted) in &config.required {
        if text_claim(claims, claim)? != wanted {
            return Err(format!("the claim {claim} has not the required value"));
        }
    }
    check_rules(&config.rules, &view)?;
    if !config.user_rules.is_empty() {
        check_rules(&config.user_rules, &View::of_user(&user))?;
    }
    Ok(user.authenticated())
}

fn username(claims: &Map, view: &View<'_>, mapping: &Mapping) -> Result<String, String> {
    let (name, prefix) = match mapping {
        Mapping::Claim { name, prefix } => (name, prefix),
        Mapping::Expression(expression) => {
            let username = expression.string(view)?;
            return match username.is_empty() {
                true => Err("an expression made an empty username".to_owned()),
                false => Ok(username),
            };
        }
    };
    let text = text_claim(claims, name)?;
    if name == "email" {
        match claims.get("email_verified") {
            None | Some(Value::Bool(true)) => {}
            Some(_) => return Err("the issuer has not verified the email address".to_owned()),
        }
    }
    Ok(format!("{prefix}{text}"))
}

fn groups(claims: &Map, view: &View<'_>, mapping: &Mapping) -> Result<Vec<Str>, String> {
    let (name, prefix) = match mapping {
        Mapping::Claim { name, prefix } => (name, prefix),
        Mapping::Expression(expression) => {
            let groups = expression.strings(view)?.into_iter();
            return Ok(groups.map(Str::from).collect());
        }
    };
    let prefixed = |text: &str| Str::from(format!("{prefix}{text}"));
    let wrong = || format!("the claim {name} is neither a text nor a list of texts");
    match claims.get(name) {
        // Groups in another document, which distributed claims name, are not fetched: they would be
        // left out, and a rule may rest on them.
        None if claims
            .get("_claim_names")
            .is_some_and(|names| names.get(name).is_some()) =>
        {
            Err(format!(
                "the claim {name} is in another document, which is not fetched"
            ))
        }
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![prefixed(one)]),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(prefixed).ok_or_else(wrong))
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn text_claim<'c>(claims: &'c Map, name: &str) -> Result<&'c str, String> {
    let claim = claims
        .get(name)
        .ok_or_else(|| format!("there is no claim {name}"))?;
    claim
        .as_str()
        .ok_or_else(|| format!("the claim {name} is no text"))
}

fn check_rules(rules: &[Rule], view: &View<'_>) -> Result<(), String> {
    for rule in rules {
        if !rule.expression.holds(view)? {
            return Err(match rule.message.is_empty() {
                true => format!("validation expression '{}' failed", rule.expression.text()),
                false => rule.message.clone(),
            });
        }
    }
    Ok(())
}
