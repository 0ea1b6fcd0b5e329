//! Kubeconfig files, found and read in the same way as by kubectl.

use super::credentials::HeldCredential;
use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::{Value, json, yaml};
use rustls_pki_types::CertificateDer;
use std::path::{Path, PathBuf};

/// The files of a kubeconfig. Of several entries with the same name the first one counts, as for
/// kubectl.
pub struct Kubeconfig {
    files: Vec<(PathBuf, Value)>,
}

/// The server and the user of one context.
pub struct Target {
    /// Scheme, host and port, and a path if the server is not at the root of its host, but without
    /// the part of the path that names a control plane.
    pub server: String,
    /// The certificates that sign the server's, PEM. With none of them, no server is trusted.
    pub ca: Vec<u8>,
    /// The client's certificate and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The bearer token.
    pub token: Option<String>,
    /// A certificate that is trusted itself, whoever signed it and whatever names it has.
    pub own_certificate: Option<CertificateDer<'static>>,
    /// The control plane that the context's server names, if it names one.
    pub plane: Option<String>,
    /// The cluster's entry.
    cluster: Value,
    /// The name of the user's entry.
    pub user_name: String,
    /// The user's entry.
    user: Value,
}

impl Target {
    /// Creates the target of a server that is known without a kubeconfig.
    pub fn of_server(server: String, ca: Vec<u8>, token: String) -> Self {
        Self {
            server,
            ca,
            identity: None,
            token: Some(token),
            own_certificate: None,
            plane: None,
            cluster: Value::Null,
            user_name: String::new(),
            user: Value::Null,
        }
    }
}

impl Target {
    /// Creates the target of a user of one plane, whose address `server` is.
    pub fn of_plane_user(server: String, ca: Vec<u8>, certificate: &str, key: &str) -> Self {
        let identity = (certificate.into(), key.into());
        Self {
            identity: Some(identity),
            token: None,
            ..Self::of_server(server, ca, String::new())
        }
    }
}

impl Kubeconfig {
    /// Loads `file`, or else the files that $KUBECONFIG names, or else `~/.kube/config`.
    ///
    /// # Errors
    /// Returns an error if there is no file, or one is not a kubeconfig.
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
            let parsed = parsed
                .map_err(|error| anyhow!("{} is not a kubeconfig: {error}", path.display()))?;
            files.push((path.clone(), parsed.value));
        }
        if files.is_empty() {
            let list: Vec<String> = named
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(
                "there is no kubeconfig at {}; set KUBECONFIG to the file that `polyplane up` prints",
                list.join(", ")
            );
        }
        Ok(Self { files })
    }

    /// Returns an entry and the file that contains it.
    fn entry(&self, list: &str, name: &str, member: &str) -> Option<Entry<'_>> {
        let mut entries = self.files.iter().flat_map(|(path, file)| {
            let entries = file.items_at(&[list]);
            entries.iter().map(move |entry| (path.as_path(), entry))
        });
        let (file, entry) = entries.find(|(_, entry)| entry.str_at(&["name"]) == name)?;
        Some(Entry {
            file,
            value: entry.get(member)?,
        })
    }

    /// Returns the names of all contexts, for an error message.
    fn context_names(&self) -> String {
        let files = self.files.iter();
        let contexts = files.flat_map(|(_, file)| file.items_at(&["contexts"]));
        let names: Vec<&str> = contexts.map(|entry| entry.str_at(&["name"])).collect();
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        }
    }

    fn current(&self) -> &str {
        let mut names = self
            .files
            .iter()
            .map(|(_, file)| file.str_at(&["current-context"]));
        names.find(|name| !name.is_empty()).unwrap_or("")
    }

    /// Returns the server and user of `context`, or of the current one.
    ///
    /// # Errors
    /// Returns an error if the context, or an entry that it names, is missing.
    pub fn target(&self, context: Option<&str>) -> anyhow::Result<Target> {
        let name = context.unwrap_or_else(|| self.current());
        if name.is_empty() {
            bail!(
                "the kubeconfig has no current context; choose one with --context, or for all commands with `kubectl \
                 config use-context NAME` (it has: {})",
                self.context_names()
            );
        }
        let context = self.entry("contexts", name, "context");
        let context = context.with_context(|| {
            format!(
                "the kubeconfig has no context {name:?}; it has: {}",
                self.context_names()
            )
        })?;
        let context = context.value;
        let cluster_name = context.str_at(&["cluster"]);
        let cluster = self.entry("clusters", cluster_name, "cluster");
        let cluster = cluster.with_context(|| {
            format!("context {name:?}: the kubeconfig has no cluster {cluster_name:?}")
        })?;
        let user_name = context.str_at(&["user"]);
        let user = self.entry("users", user_name, "user");
        let user = user.with_context(|| {
            format!("context {name:?}: the kubeconfig has no user {user_name:?}")
        })?;
        if user.value.get("exec").is_some() || user.value.get("auth-provider").is_some() {
            bail!(
                "user {user_name:?} gets its credentials from a program, which this plugin does not run; use a \
                 context whose user has a token or a client certificate"
            );
        }
        if cluster.value.bool_at(&["insecure-skip-tls-verify"]) {
            bail!(
                "cluster {cluster_name:?}: this plugin does not support insecure-skip-tls-verify, because \
                 whoever answers would get the credentials; give the server's certificate-authority instead"
            );
        }
        let certificate = user.data("client-certificate")?;
        let key = user.data("client-key")?;
        let (server, plane) = split(cluster.value.str_at(&["server"]));
        Ok(Target {
            server: server.to_owned(),
            plane: plane.map(str::to_owned),
            ca: cluster.data("certificate-authority")?.unwrap_or_default(),
            identity: certificate.zip(key),
            token: user.token()?,
            own_certificate: None,
            cluster: cluster.value.clone(),
            user_name: user_name.to_owned(),
            user: user.value.clone(),
        })
    }

    /// Returns a kubeconfig for one plane of the target's server, with the credentials of the
    /// target's user. The result can be moved: it contains the files that the user's entry names.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig cannot be written as text.
    pub fn for_plane(&self, target: &Target, plane: &str) -> anyhow::Result<String> {
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": plane, "cluster": (target.cluster_of(plane)?)}],
            "users": [{"name": (target.user_name.as_str()), "user": (target.portable_user())}],
            "contexts": [{"name": plane, "context": {"cluster": plane, "user": (target.user_name.as_str())}}],
            "current-context": plane
        });
        text_of(&file)
    }

    /// Returns a kubeconfig for one plane of the target's server, with the credential of a user of
    /// that plane.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig cannot be written as text.
    pub fn for_user(
        &self,
        target: &Target,
        plane: &str,
        user: &UserKey<'_>,
    ) -> anyhow::Result<String> {
        let credential = match user.renewed {
            Some(held) => json!({"exec": (held.plug_in())}),
            None => json!({
                "client-certificate-data": (STANDARD.encode(user.certificate)),
                "client-key-data": (STANDARD.encode(user.key))
            }),
        };
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": plane, "cluster": (target.cluster_of(plane)?)}],
            "users": [{"name": (user.name), "user": credential}],
            "contexts": [{"name": plane, "context": {"cluster": plane, "user": (user.name)}}],
            "current-context": plane
        });
        text_of(&file)
    }

    /// Makes a plane's context current, and first adds the context if it is missing. Returns the
    /// file that was changed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
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
        polyplane_pki::write_private(path, text_of(file)?.as_bytes())?;
        Ok(path.clone())
    }

    /// Returns the current context if it is of this plane of the target's server.
    pub fn current_of(&self, target: &Target, plane: &str) -> Option<String> {
        let name = self.current();
        let context = self.entry("contexts", name, "context")?.value;
        let cluster = self.entry("clusters", context.str_at(&["cluster"]), "cluster")?;
        let (server, named) = split(cluster.value.str_at(&["server"]));
        (server == target.server && named == Some(plane)).then(|| name.to_owned())
    }

    /// Unsets the current context where a file says that it is this one. Returns the one that is current then;
    /// empty for none.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn unset(&mut self, context: &str) -> anyhow::Result<&str> {
        for (path, file) in &mut self.files {
            if file.str_at(&["current-context"]) == context {
                file.set(&["current-context"], "");
                polyplane_pki::write_private(path, text_of(file)?.as_bytes())?;
            }
        }
        Ok(self.current())
    }
}

/// The credential of a user of a plane.
pub struct UserKey<'a> {
    /// The user's name.
    pub name: &'a str,
    /// The certificate, PEM.
    pub certificate: &'a str,
    /// The certificate's key, PEM.
    pub key: &'a str,
    /// What the plug-in that renews the certificate begins with; `None` if nothing renews it.
    pub renewed: Option<&'a HeldCredential>,
}

/// An entry of a kubeconfig.
struct Entry<'a> {
    /// The file that contains the entry. Paths in the entry are relative to the folder of this
    /// file.
    file: &'a Path,
    value: &'a Value,
}

impl Entry<'_> {
    /// Returns the bytes of a member, which are in a file or, as base64, in the entry itself.
    fn data(&self, member: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let inline = self.value.str_at(&[&format!("{member}-data")]);
        if inline.is_empty() {
            return self.read(member);
        }
        let decoded = STANDARD.decode(inline);
        let decoded =
            decoded.with_context(|| format!("the kubeconfig's {member}-data is not base64"))?;
        Ok(Some(decoded))
    }

    /// Returns the token, which is in the entry or in a file.
    fn token(&self) -> anyhow::Result<Option<String>> {
        let inline = self.value.str_at(&["token"]);
        if !inline.is_empty() {
            return Ok(Some(inline.to_owned()));
        }
        let Some(bytes) = self.read("tokenFile")? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).context("the token in tokenFile is not text")?;
        Ok(Some(text.trim().to_owned()))
    }

    fn read(&self, member: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let path = self.value.str_at(&[member]);
        if path.is_empty() {
            return Ok(None);
        }
        let path = self.file.parent().unwrap_or(Path::new(".")).join(path);
        let bytes = std::fs::read(&path);
        let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(bytes))
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
    /// Returns the user's entry with the content of token, certificate and key instead of paths to
    /// files.
    fn portable_user(&self) -> Value {
        let mut user = self.user.clone();
        if let Some(token) = &self.token {
            drop(user.remove(&["tokenFile"]));
            user.set(&["token"], token.as_str());
        }
        if let Some((certificate, key)) = &self.identity {
            for (member, pem) in [("client-certificate", certificate), ("client-key", key)] {
                drop(user.remove(&[member]));
                user.set(&[&format!("{member}-data")], STANDARD.encode(pem));
            }
        }
        user
    }

    /// Returns the cluster's entry with the address of a plane. Certificates are included, so the
    /// entry is valid in any folder.
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

/// Returns the address of the server without the part that names a control plane, and that name.
fn split(server: &str) -> (&str, Option<&str>) {
    let server = server.trim_end_matches('/');
    match server.rsplit_once("/clusters/") {
        Some((root, plane)) if !plane.contains('/') => (root, Some(plane)),
        Some(_) | None => (server, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_plane_leads_to_its_server() {
        for (given, server, plane) in [
            ("https://h:1/clusters/team-a", "https://h:1", Some("team-a")),
            ("https://h:1/", "https://h:1", None),
            (
                "https://h:1/base/clusters/a/",
                "https://h:1/base",
                Some("a"),
            ),
            ("https://h:1/clusters/a/b", "https://h:1/clusters/a/b", None),
        ] {
            assert_eq!(split(given), (server, plane));
        }
    }

    fn one_cluster(cluster: Value) -> Kubeconfig {
        let file = json!({
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}]
        });
        Kubeconfig {
            files: vec![(PathBuf::from("config"), file)],
        }
    }

    #[test]
    fn a_context_names_its_plane_and_a_server_that_is_not_verified_is_refused() {
        let secure = json!({"server": "https://h:1/clusters/team-a"});
        let target = one_cluster(secure).target(None).expect("a target");
        assert_eq!(target.plane.as_deref(), Some("team-a"));
        let insecure = json!({"server": "https://h:1", "insecure-skip-tls-verify": true});
        let refused = one_cluster(insecure).target(None).err();
        let said = refused.expect("it is refused").to_string();
        assert!(
            said.contains("does not support insecure-skip-tls-verify"),
            "{said}"
        );
    }

    #[test]
    fn the_context_of_a_deleted_plane_is_current_no_more_and_stays_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = one_cluster(json!({"server": "https://h:1/clusters/team-a"}));
        config.files[0].0 = folder.path().join("config");
        let target = |server: &str| Target::of_server(server.to_owned(), Vec::new(), String::new());
        let here = target("https://h:1");
        for (target, plane) in [(&here, "team-b"), (&target("https://h:2"), "team-a")] {
            assert_eq!(config.current_of(target, plane), None);
        }
        assert_eq!(config.current_of(&here, "team-a").as_deref(), Some("a"));
        assert_eq!(config.unset("b").expect("nothing to write"), "a");
        assert_eq!(config.unset("a").expect("written"), "");
        let written = std::fs::read(folder.path().join("config")).expect("written");
        let written = yaml::parse(&written, &json::Limits::default()).expect("YAML");
        assert_eq!(written.value.str_at(&["current-context"]), "");
        assert_eq!(written.value.items_at(&["contexts"]).len(), 1);
    }

    #[test]
    fn files_lie_beside_the_kubeconfig_that_names_them_and_travel_with_a_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(&path, text).expect("written");
            path
        };
        let contexts = write(
            "one/config",
            "current-context: here\ncontexts: [{name: here, context: {cluster: c, user: u}}]\n",
        );
        let entries = write(
            "two/config",
            "clusters: [{name: c, cluster: {server: 'https://h:1', certificate-authority: ca}}]\n\
             users: [{name: u, user: {tokenFile: token, client-certificate: crt, client-key: key}}]\n",
        );
        for (name, text) in [
            ("ca", "CA"),
            ("token", "t0ken\n"),
            ("crt", "CRT"),
            ("key", "KEY"),
        ] {
            write(&format!("two/{name}"), text);
        }
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path).expect("there");
            let parsed = yaml::parse(&bytes, &json::Limits::default()).expect("YAML");
            (path, parsed.value)
        };
        let config = Kubeconfig {
            files: vec![read(contexts), read(entries)],
        };
        let target = config.target(None).expect("a target");
        assert_eq!(target.ca, b"CA");
        assert_eq!(target.token.as_deref(), Some("t0ken"));
        assert_eq!(target.identity, Some((b"CRT".to_vec(), b"KEY".to_vec())));
        let copy = config.for_plane(&target, "123").expect("a kubeconfig");
        let copy = yaml::parse(copy.as_bytes(), &json::Limits::default()).expect("YAML");
        assert_eq!(copy.value.str_at(&["current-context"]), "123");
        let user = copy.value.items_at(&["users"])[0].get("user").cloned();
        let expected = json!({
            "client-certificate-data": (STANDARD.encode("CRT")),
            "client-key-data": (STANDARD.encode("KEY")),
            "token": "t0ken"
        });
        assert_eq!(user, Some(expected));
    }
}
