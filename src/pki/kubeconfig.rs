//! Kubeconfig files, which contain the address of a plane and a credential for it.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::{Value, json, yaml};

use crate::{Identity, Pki, PkiError, write_private};

/// The context of the root plane.
const ROOT: &str = "root";
/// The name of the only user.
const USER: &str = "admin";

/// The credential of the user of a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub enum UserCredential<'a> {
    /// A client certificate.
    Certificate(&'a Identity),
    /// A bearer token.
    Token(&'a str),
}

/// A kubeconfig with one user, the root plane and any number of planes.
#[derive(Clone, Copy, Debug)]
pub struct Kubeconfig<'a> {
    /// The address of the server without a path, `https://127.0.0.1:6443`.
    pub server: &'a str,
    /// The CA certificate as PEM text.
    pub root_pem: &'a str,
    /// The credential of the only user.
    pub user: UserCredential<'a>,
    /// Planes beside the root, by name; each gets a context of its name.
    pub planes: &'a [&'a str],
    /// The context that is current; the root's is `root`.
    pub current: &'a str,
}

impl Kubeconfig<'_> {
    /// Returns the text of the file. A YAML writer makes the text, because names of planes may look
    /// like numbers or booleans (`123`, `null`, `1e3`) and need quotes then.
    pub fn render(&self) -> String {
        let certificate = STANDARD.encode(self.root_pem);
        let names = || std::iter::once(ROOT).chain(self.planes.iter().copied());
        let clusters: Vec<Value> = names()
            .map(|name| {
                let server = match name {
                    ROOT => self.server.to_owned(),
                    plane => plane_url(self.server, plane),
                };
                json!({
                    "name": name,
                    "cluster": {"certificate-authority-data": (certificate.as_str()), "server": server}
                })
            })
            .collect();
        let contexts: Vec<Value> = names()
            .map(|name| json!({"name": name, "context": {"cluster": name, "user": USER}}))
            .collect();
        let user = match self.user {
            UserCredential::Certificate(identity) => json!({
                "client-certificate-data": (STANDARD.encode(&identity.certificate_pem)),
                "client-key-data": (STANDARD.encode(&identity.key_pem))
            }),
            UserCredential::Token(token) => json!({"token": token}),
        };
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "clusters": clusters,
            "contexts": contexts,
            "users": [{"name": USER, "user": user}],
            "current-context": (self.current)
        });
        let mut out = Vec::with_capacity(4096 + self.planes.len() * (certificate.len() + 256));
        yaml::write(&file, &mut out);
        String::from_utf8(out).expect("YAML is text")
    }

    /// Writes the file so that only its owner can read it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        write_private(path, self.render().as_bytes())
    }
}

/// Returns the URL of the plane `name` at the server `server`.
pub fn plane_url(server: &str, name: &str) -> String {
    format!("{}/clusters/{name}", server.trim_end_matches('/'))
}

/// Returns the administrator's kubeconfig of a server.
pub fn admin<'a>(
    pki: &'a Pki,
    server: &'a str,
    identity: &'a Identity,
    planes: &'a [&'a str],
) -> Kubeconfig<'a> {
    Kubeconfig {
        server,
        root_pem: pki.root_pem(),
        user: UserCredential::Certificate(identity),
        planes,
        current: "root",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plane_has_a_context_and_the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let config = Kubeconfig {
            server: "https://127.0.0.1:6443/",
            root_pem: "PEM",
            user: UserCredential::Token("t0ken"),
            planes: &["team-a"],
            current: "team-a",
        };
        let text = config.render();
        assert!(
            text.contains("    server: https://127.0.0.1:6443/clusters/team-a\n  name: team-a")
        );
        assert!(text.contains("    cluster: team-a\n    user: admin\n  name: team-a\n"));
        assert!(text.contains("current-context: team-a\n"));
        assert!(text.ends_with("    token: t0ken\n"));
        let path = folder.path().join("kubeconfig");
        config.write(&path).expect("written");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Names of planes, tokens and hosts that YAML does not read as text if they have no quotes.
    #[test]
    fn names_that_look_like_numbers_or_booleans_stay_text() {
        let names = [
            "123",
            "0123",
            "0x1f",
            "0o7",
            "0b1",
            "1e3",
            "null",
            "true",
            "false",
            "yes",
            "no",
            "on",
            "off",
            "y",
            "n",
            "2026-11-22",
            "1-1",
            "nan",
            "inf",
        ];
        for token in ["123", "null", "- a: #b", "*c", "0x1"] {
            let config = Kubeconfig {
                server: "https://127.0.0.1:6443",
                root_pem: "PEM",
                user: UserCredential::Token(token),
                planes: &names,
                current: "null",
            };
            let text = config.render();
            let read = yaml::parse(text.as_bytes(), &json::Limits::default());
            let read = read.expect("a kubeconfig").value;
            for list in ["clusters", "contexts"] {
                let items = read.items_at(&[list]);
                let found: Vec<&str> = items.iter().map(|item| item.str_at(&["name"])).collect();
                assert_eq!(found[1..], names, "{list} in {text}");
            }
            for (item, name) in read.items_at(&["contexts"])[1..].iter().zip(names) {
                assert_eq!(item.str_at(&["context", "cluster"]), name);
            }
            assert_eq!(read.str_at(&["current-context"]), "null");
            assert_eq!(
                read.items_at(&["users"])[0].str_at(&["user", "token"]),
                token
            );
            // Readers of YAML 1.1, such as kubectl's, know more such words than those of 1.2.
            for name in &names[..16] {
                let quoted = text.contains(&format!("name: \"{name}\"\n"));
                assert!(quoted, "{name} stands without quotes in {text}");
            }
        }
    }
}
