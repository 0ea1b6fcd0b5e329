//! Kubeconfig files as kubectl finds and reads them.

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::{Value, json, yaml};
use std::path::{Path, PathBuf};

/// The files of a kubeconfig; of things with the same name the first counts.
pub struct Kubeconfig {
    files: Vec<(PathBuf, Value)>,
}

/// The server and the user of one context.
pub struct Target {
    /// Scheme, host and port, and a path if the server is not at the root of its host; without
    /// the part that names a control plane.
    pub server: String,
    /// Certificates that sign the server's, PEM; none trusts nobody.
    pub ca: Vec<u8>,
    /// Client certificate and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Bearer token.
    pub token: Option<String>,
    /// The cluster's entry.
    cluster: Value,
    /// The user's name and entry.
    user_name: String,
    user: Value,
}

impl Target {
    /// A server that is known without a kubeconfig.
    pub fn of_server(server: String, ca: Vec<u8>, token: String) -> Self {
        Self {
            server,
            ca,
            identity: None,
            token: Some(token),
            cluster: Value::Null,
            user_name: String::new(),
            user: Value::Null,
        }
    }
}

impl Kubeconfig {
    /// Loads `file`, or what $KUBECONFIG names, or `~/.kube/config`.
    ///
    /// # Errors
    /// If nothing is found or a file is no kubeconfig.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let named = match file {
            Some(file) => vec![file.to_owned()],
            None => match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
                Some(list) => std::env::split_paths(&list)
                    .filter(|path| !path.as_os_str().is_empty())
                    .collect(),
                None => {
                    let home =
                        std::env::var_os("HOME").context("neither $KUBECONFIG nor $HOME is set")?;
                    vec![Path::new(&home).join(".kube/config")]
                }
            },
        };
        let mut files = Vec::new();
        for path in &named {
            if !path.exists() && (file.is_none() || named.len() > 1) {
                continue;
            }
            let bytes =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let parsed = yaml::parse(&bytes, &json::Limits::default());
            let parsed =
                parsed.map_err(|error| anyhow!("{} is no kubeconfig: {error}", path.display()))?;
            files.push((path.clone(), parsed.value));
        }
        if files.is_empty() {
            let list: Vec<String> = named
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(
                "no kubeconfig at {}; set KUBECONFIG to the file that `polyplane up` prints",
                list.join(", ")
            );
        }
        Ok(Self { files })
    }

    fn entry(&self, list: &str, name: &str, member: &str) -> Option<&Value> {
        let mut entries = self
            .files
            .iter()
            .flat_map(|(_, file)| file.items_at(&[list]));
        entries
            .find(|entry| entry.str_at(&["name"]) == name)?
            .get(member)
    }

    fn current(&self) -> &str {
        let mut names = self
            .files
            .iter()
            .map(|(_, file)| file.str_at(&["current-context"]));
        names.find(|name| !name.is_empty()).unwrap_or("")
    }

    /// The server and user of `context`, or of the current one.
    ///
    /// # Errors
    /// If the context or what it names is missing.
    pub fn target(&self, context: Option<&str>) -> anyhow::Result<Target> {
        let name = context.unwrap_or_else(|| self.current());
        if name.is_empty() {
            bail!("the kubeconfig has no current context; name one with --context");
        }
        let context = self.entry("contexts", name, "context");
        let context = context.with_context(|| format!("the kubeconfig has no context {name:?}"))?;
        let cluster_name = context.str_at(&["cluster"]);
        let cluster = self.entry("clusters", cluster_name, "cluster");
        let cluster =
            cluster.with_context(|| format!("the kubeconfig has no cluster {cluster_name:?}"))?;
        let user_name = context.str_at(&["user"]);
        let user = self.entry("users", user_name, "user");
        let user = user.with_context(|| format!("the kubeconfig has no user {user_name:?}"))?;
        if user.get("exec").is_some() || user.get("auth-provider").is_some() {
            bail!(
                "the user {user_name:?} gets its credentials from a program, which this plugin does not run"
            );
        }
        let certificate = self.data(user, "client-certificate")?;
        let key = self.data(user, "client-key")?;
        let token = user.str_at(&["token"]);
        Ok(Target {
            server: root_of(cluster.str_at(&["server"])),
            ca: self
                .data(cluster, "certificate-authority")?
                .unwrap_or_default(),
            identity: certificate.zip(key),
            token: (!token.is_empty()).then(|| token.to_owned()),
            cluster: cluster.clone(),
            user_name: user_name.to_owned(),
            user: user.clone(),
        })
    }

    /// Bytes that stand in a file or, as base64, in the entry itself.
    fn data(&self, entry: &Value, member: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let inline = entry.str_at(&[&format!("{member}-data")]).to_owned();
        if !inline.is_empty() {
            let decoded = STANDARD.decode(inline);
            return Ok(Some(
                decoded.with_context(|| format!("{member}-data is no base64"))?,
            ));
        }
        let file = entry.str_at(&[member]);
        if file.is_empty() {
            return Ok(None);
        }
        let folder = self
            .files
            .first()
            .and_then(|(path, _)| path.parent())
            .unwrap_or(Path::new("."));
        let path = folder.join(file);
        Ok(Some(std::fs::read(&path).with_context(|| {
            format!("cannot read {}", path.display())
        })?))
    }

    /// A kubeconfig that knows one plane of the target's server, with the target's user.
    ///
    /// # Errors
    /// If it cannot be written as text.
    pub fn for_plane(&self, target: &Target, plane: &str) -> anyhow::Result<String> {
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": plane, "cluster": (target.cluster_of(plane)?)}],
            "users": [{"name": (target.user_name.as_str()), "user": (target.user.clone())}],
            "contexts": [{"name": plane, "context": {"cluster": plane, "user": (target.user_name.as_str())}}],
            "current-context": plane
        });
        text_of(&file)
    }

    /// Makes a plane's context current, and first makes the context if it is missing. Returns the
    /// file that was changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn switch(&mut self, target: &Target, plane: &str) -> anyhow::Result<PathBuf> {
        let known = self.entry("contexts", plane, "context").is_some();
        let cluster = target.cluster_of(plane)?;
        let current = self
            .files
            .iter()
            .position(|(_, file)| !file.str_at(&["current-context"]).is_empty());
        let (path, file) = &mut self.files[current.unwrap_or(0)];
        if !known {
            let context = json!({"cluster": plane, "user": (target.user_name.as_str())});
            push(file, "clusters", json!({"name": plane, "cluster": cluster}));
            push(file, "contexts", json!({"name": plane, "context": context}));
        }
        file.set(&["current-context"], plane);
        polyplane_server::pki::write_private(path, text_of(file)?.as_bytes())?;
        Ok(path.clone())
    }
}

fn push(file: &mut Value, list: &str, entry: Value) {
    let mut entries = file.items_at(&[list]).to_vec();
    entries.push(entry);
    file.set(&[list], entries);
}

fn text_of(file: &Value) -> anyhow::Result<String> {
    let mut out = Vec::new();
    yaml::write(file, &mut out);
    Ok(String::from_utf8(out)?)
}

impl Target {
    /// The cluster's entry with the address of a plane, and certificates that do not depend on
    /// where the file lies.
    fn cluster_of(&self, plane: &str) -> anyhow::Result<Value> {
        let mut cluster = self.cluster.clone();
        let server = if plane == "root" {
            self.server.clone()
        } else {
            format!("{}/clusters/{plane}", self.server)
        };
        cluster.set(&["server"], server);
        if !self.ca.is_empty() {
            drop(cluster.remove(&["certificate-authority"]));
            cluster.set(&["certificate-authority-data"], STANDARD.encode(&self.ca));
        }
        Ok(cluster)
    }
}

/// The address of the server without the part that names a control plane.
fn root_of(server: &str) -> String {
    let server = server.trim_end_matches('/');
    let end = server
        .rfind("/clusters/")
        .filter(|at| !server[at + "/clusters/".len()..].contains('/'));
    server[..end.unwrap_or(server.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_plane_leads_to_its_server() {
        assert_eq!(root_of("https://h:1/clusters/team-a"), "https://h:1");
        assert_eq!(root_of("https://h:1/"), "https://h:1");
        assert_eq!(root_of("https://h:1/base/clusters/a/"), "https://h:1/base");
        assert_eq!(
            root_of("https://h:1/clusters/a/b"),
            "https://h:1/clusters/a/b"
        );
    }
}
