//! A kubeconfig that names a webhook: its current context.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::config::{ConfigError, document};
use polyplane_outbound::{ClientIdentity, PlaneCaller, Target, TargetError, Trust, TrustError};
use std::sync::Arc;

/// A webhook: where it is, whom to trust, and as whom to come.
pub struct WebhookServer {
    url: String,
    trust: Trust,
    authorization: Option<HeaderValue>,
}

/// The reason why a kubeconfig names no webhook.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The text is no document.
    #[error(transparent)]
    Document(#[from] ConfigError),
    /// The current context, its cluster or its user is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A field is there that cannot be followed.
    #[error("{0} cannot be used: {1}")]
    Field(&'static str, String),
    /// The certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// Reads a file that a kubeconfig names.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, String>;

impl WebhookServer {
    /// Reads a kubeconfig. `read` reads the files that it names.
    ///
    /// # Errors
    /// Returns what is missing, or cannot be followed.
    pub fn parse(text: &[u8], read: ReadFile<'_>) -> Result<Self, KubeconfigError> {
        let config = document(text)?;
        let current = config.str_at(&["current-context"]);
        let context = named(&config, "contexts", "context", current)?;
        let cluster = named(&config, "clusters", "cluster", context.str_at(&["cluster"]))?;
        refuse(
            cluster,
            &[
                (
                    "insecure-skip-tls-verify",
                    "a webhook without a proof of who it is may be anybody",
                ),
                ("proxy-url", "no proxy is used"),
            ],
        )?;
        let none = Value::object();
        let user = match context.str_at(&["user"]) {
            "" => &none,
            name => named(&config, "users", "user", name)?,
        };
        refuse(
            user,
            &[
                ("exec", "no programs are run for a credential"),
                ("auth-provider", "there are no such plug-ins"),
                ("as", "nobody is impersonated"),
            ],
        )?;
        let bundle = material(cluster, "certificate-authority", read)?;
        let certificate = material(user, "client-certificate", read)?;
        let key = material(user, "client-key", read)?;
        let identity = match (certificate, key) {
            (Some(certificate_pem), Some(key_pem)) => Some(ClientIdentity {
                certificate_pem,
                key_pem,
            }),
            (None, None) => None,
            _ => {
                return Err(KubeconfigError::Missing(
                    "the client's certificate or key".to_owned(),
                ));
            }
        };
        let trust = Trust::new(bundle.as_deref(), identity.as_ref())?;
        Ok(Self {
            url: cluster.str_at(&["server"]).to_owned(),
            trust: match cluster.str_at(&["tls-server-name"]) {
                "" => trust,
                name => trust.expecting(name)?,
            },
            authorization: authorization(user, read)?,
        })
    }

    /// Returns the webhook as a target, and the headers that say who comes. Nothing is connected yet.
    ///
    /// # Errors
    /// Returns an error if its URL is none that may be called.
    pub fn target(self, caller: &Arc<PlaneCaller>) -> Result<(Target, HeaderMap), TargetError> {
        let mut headers = HeaderMap::new();
        if let Some(authorization) = self.authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok((Target::new(caller, &self.url, &self.trust)?, headers))
    }
}

fn named<'c>(
    config: &'c Value,
    list: &str,
    what: &str,
    name: &str,
) -> Result<&'c Value, KubeconfigError> {
    let mut items = config.items_at(&[list]).iter();
    let found = items.find(|item| item.str_at(&["name"]) == name && !name.is_empty());
    // A user with a name alone has no credential, as for kubectl.
    let empty = |item: &'c Value| (what == "user").then(|| &item[what]);
    let found = found.and_then(|item| item.get(what).or_else(|| empty(item)));
    found.ok_or_else(|| KubeconfigError::Missing(format!("the {what} {name:?}")))
}

fn refuse(of: &Value, fields: &[(&'static str, &str)]) -> Result<(), KubeconfigError> {
    for (field, why) in fields {
        let is_set = |value: &Value| {
            !matches!(value, Value::Null | Value::Bool(false)) && value.as_str() != Some("")
        };
        if of.get(field).is_some_and(is_set) {
            return Err(KubeconfigError::Field(field, (*why).to_owned()));
        }
    }
    Ok(())
}

/// Returns what stands in a field in base 64, or in the file that another names.
fn material(
    of: &Value,
    field: &'static str,
    read: ReadFile<'_>,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    let wrong = |why: String| KubeconfigError::Field(field, why);
    let inline = of.str_at(&[&format!("{field}-data")]);
    if !inline.is_empty() {
        let decoded = BASE64_STANDARD
            .decode(inline)
            .map_err(|error| wrong(error.to_string()))?;
        return Ok(Some(decoded));
    }
    match of.str_at(&[field]) {
        "" => Ok(None),
        file => read(file).map(Some).map_err(wrong),
    }
}

fn authorization(user: &Value, read: ReadFile<'_>) -> Result<Option<HeaderValue>, KubeconfigError> {
    let wrong = |why: String| KubeconfigError::Field("token", why);
    let mut token = user.str_at(&["token"]).to_owned();
    let file = user.str_at(&["tokenFile"]);
    if token.is_empty() && !file.is_empty() {
        let bytes = read(file).map_err(wrong)?;
        token = String::from_utf8_lossy(&bytes).trim().to_owned();
    }
    let name = user.str_at(&["username"]);
    let text = match (token.is_empty(), name.is_empty()) {
        (false, _) => format!("Bearer {token}"),
        (true, false) => {
            let pair = format!("{name}:{}", user.str_at(&["password"]));
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        }
        (true, true) => return Ok(None),
    };
    let mut value =
        HeaderValue::from_str(&text).map_err(|_| wrong("it is not printable".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}
