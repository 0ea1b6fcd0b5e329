//! Conditions on which a webhook is asked at all.

use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::{Attributes, Subject};

use super::access_review::requirements;
use crate::oidc::expressions::{Expression, View};

/// Expressions that must all hold. None of them holds for everything.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions(Vec<Expression>);

impl MatchConditions {
    pub(crate) fn new(conditions: Vec<Expression>) -> Self {
        Self(conditions)
    }

    /// Returns whether all conditions hold for a request. One that does not hold decides, even if others
    /// have no value.
    ///
    /// # Errors
    /// Returns why one of them has no value, if none is false.
    pub fn hold_for(&self, attributes: &Attributes<'_>) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = request(attributes);
        let view = View::of(&request);
        let mut failed = Vec::new();
        for condition in &self.0 {
            match condition.holds(&view) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => {
                    let text = condition.text();
                    failed.push(format!("expression '{text}' resulted in error: {why}"));
                }
            }
        }
        match failed.is_empty() {
            true => Ok(true),
            false => Err(failed.join("; ")),
        }
    }
}

/// Returns the review of a request as conditions see it: with all its texts, empty ones too.
fn request(attributes: &Attributes<'_>) -> Value {
    let texts =
        |texts: &[Str]| -> Vec<Value> { texts.iter().cloned().map(Value::string).collect() };
    let user = attributes.user;
    let extra = user.extra.iter();
    let extra: Map = extra
        .map(|(key, values)| (key.clone(), Value::Array(texts(values))))
        .collect();
    let mut request = Value::object();
    request.set(&["user"], user.name.clone());
    request.set(&["uid"], user.uid.clone());
    request.set(&["groups"], texts(&user.groups));
    request.set(&["extra"], extra);
    match attributes.subject {
        Subject::Path(path) => {
            request.set(&["nonResourceAttributes", "path"], path);
            request.set(&["nonResourceAttributes", "verb"], attributes.verb);
        }
        Subject::Resource {
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
            field_selector,
        } => {
            for (field, text) in [
                ("namespace", namespace),
                ("verb", attributes.verb),
                ("group", group),
                ("version", version),
                ("resource", resource),
                ("subresource", subresource),
                ("name", name),
            ] {
                request.set(&["resourceAttributes", field], text);
            }
            let requirements = requirements(field_selector);
            if !requirements.is_empty() {
                let path = ["resourceAttributes", "fieldSelector", "requirements"];
                request.set(&path, requirements);
            }
        }
    }
    request
}
