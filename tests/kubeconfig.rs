//! Reads the parts of a kubeconfig that describe a server and the client's credentials.
//!
//! This module owns the file format. It does not know which requests are sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use base64::Engine;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

/// The caller of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The user of the kubeconfig's context.
    Admin,
    /// A caller without a client certificate and without a token.
    Anonymous,
}

/// The protocols that a connection offers in its TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Only HTTP/2.
    Http2,
    /// Only HTTP/1.1.
    Http1,
}

/// A client certificate with its key.
#[derive(Debug)]
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// One server as a kubeconfig context names it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Host name or address, without port.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The text before every path, without a slash at its end; empty for a server at the root.
    pub base_path: String,
    /// The bearer token of the context's user, if it has one.
    pub token: Option<String>,
    roots: Arc<RootCertStore>,
    identity: Option<Arc<Identity>>,
    server_name: String,
}

impl Endpoint {
    /// Reads the file `path` and its context `context`, or its current context.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or lacks something that a connection needs.
    pub fn from_kubeconfig(path: &Path, context: Option<&str>) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
        let config: Value = serde_saphyr::from_str(&text)
            .with_context(|| format!("{} is not YAML", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let name = match context {
            Some(name) => name.to_owned(),
            None => text_at(&config, "current-context").context("no current-context")?,
        };
        let context = named(&config, "contexts", "context", &name)?;
        let cluster_name = text_at(context, "cluster").context("the context names no cluster")?;
        let user_name = text_at(context, "user").context("the context names no user")?;
        let cluster = named(&config, "clusters", "cluster", &cluster_name)?;
        let user = named(&config, "users", "user", &user_name)?;

        let server = text_at(cluster, "server").context("the cluster names no server")?;
        let (host, port, base_path) = split_url(&server)?;
        let mut roots = RootCertStore::empty();
        let authority = bytes_at(cluster, "certificate-authority", folder)?
            .context("the cluster names no certificate authority")?;
        for certificate in CertificateDer::pem_slice_iter(&authority) {
            roots.add(certificate.context("bad certificate authority")?)?;
        }
        let token = match text_at(user, "token") {
            Some(token) => Some(token),
            None => bytes_at(user, "tokenFile", folder)?
                .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()),
        };
        Ok(Self {
            server_name: text_at(cluster, "tls-server-name").unwrap_or_else(|| host.clone()),
            host,
            port,
            base_path,
            token,
            roots: Arc::new(roots),
            identity: identity(user, folder)?,
        })
    }

    /// Returns the same server with another path before every request.
    pub fn at_base_path(&self, base_path: &str) -> Self {
        Self {
            base_path: base_path.trim_end_matches('/').to_owned(),
            ..self.clone()
        }
    }

    /// Returns the same server for a caller with this token, or for nobody.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            identity: None,
            ..self.clone()
        }
    }

    /// Returns the same server for another user.
    pub fn for_user(&self, user: &Self) -> Self {
        Self {
            token: user.token.clone(),
            identity: user.identity.clone(),
            ..self.clone()
        }
    }

    /// Returns the same server for a client that shows no certificate.
    pub fn without_certificate(&self) -> Self {
        Self {
            identity: None,
            ..self.clone()
        }
    }

    /// Returns the client's own certificate, DER.
    pub fn certificate(&self) -> Option<&[u8]> {
        let identity = self.identity.as_ref()?;
        identity.chain.first().map(|leaf| &**leaf)
    }

    /// Returns the name that the server's certificate must have.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig's host is neither a name nor an address.
    pub fn server_name(&self) -> Result<ServerName<'static>> {
        ServerName::try_from(self.server_name.clone()).context("bad server name")
    }

    /// Returns the TLS settings of a connection for `caller`.
    ///
    /// # Errors
    /// Returns an error if the client certificate does not fit its key.
    pub fn tls(&self, caller: Caller, protocol: Protocol) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots));
        let mut config = match (caller, &self.identity) {
            (Caller::Admin, Some(identity)) => {
                builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = match protocol {
            Protocol::Http2 => vec![b"h2".to_vec()],
            Protocol::Http1 => vec![b"http/1.1".to_vec()],
        };
        Ok(Arc::new(config))
    }
}

fn identity(user: &Value, folder: &Path) -> Result<Option<Arc<Identity>>> {
    let chain = bytes_at(user, "client-certificate", folder)?;
    let key = bytes_at(user, "client-key", folder)?;
    let (Some(chain), Some(key)) = (chain, key) else {
        return Ok(None);
    };
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&key).context("bad client key")?;
    Ok(Some(Arc::new(Identity { chain, key })))
}

fn named<'a>(config: &'a Value, list: &str, field: &str, name: &str) -> Result<&'a Value> {
    config[list]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["name"] == name)
        .map(|entry| &entry[field])
        .with_context(|| format!("the kubeconfig has no entry {name:?} in {list}"))
}

fn text_at(value: &Value, field: &str) -> Option<String> {
    value[field]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// Returns the bytes of `<field>-data`, or of the file that `field` names.
fn bytes_at(value: &Value, field: &str, folder: &Path) -> Result<Option<Vec<u8>>> {
    if let Some(data) = text_at(value, &format!("{field}-data")) {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data.as_bytes())
            .with_context(|| format!("{field}-data is not base64"))?;
        return Ok(Some(bytes));
    }
    let Some(path) = text_at(value, field) else {
        return Ok(None);
    };
    let path = folder.join(PathBuf::from(path));
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Some(bytes))
}

fn split_url(url: &str) -> Result<(String, u16, String)> {
    let uri: http::Uri = url.parse().with_context(|| format!("bad server {url:?}"))?;
    if uri.scheme_str() != Some("https") {
        bail!("the server {url:?} is not https");
    }
    let host = uri.host().context("the server has no host")?;
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let path = uri.path().trim_end_matches('/').to_owned();
    Ok((host, uri.port_u16().unwrap_or(443), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_url_is_split_into_host_port_and_base_path() {
        let (host, port, path) = split_url("https://127.0.0.1:6443/clusters/a/").expect("valid");
        assert_eq!(
            (host.as_str(), port, path.as_str()),
            ("127.0.0.1", 6443, "/clusters/a")
        );
        let (host, port, path) = split_url("https://[::1]").expect("valid");
        assert_eq!((host.as_str(), port, path.as_str()), ("::1", 443, ""));
        assert!(split_url("http://127.0.0.1:80").is_err());
    }

    #[test]
    fn a_missing_context_is_named_in_the_error() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, "current-context: a\ncontexts: []\n").expect("write");
        let error = Endpoint::from_kubeconfig(&file, None).expect_err("no such context");
        assert!(error.to_string().contains("\"a\""), "{error}");
    }
}
