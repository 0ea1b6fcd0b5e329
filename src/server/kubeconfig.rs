//! Kubeconfig files: how a client is told where a plane is and who it is there.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::pki::{Identity, Pki, PkiError, write_private};

/// How the user of a kubeconfig proves who it is.
#[derive(Clone, Copy, Debug)]
pub enum UserCredential<'a> {
    /// By a client certificate.
    Certificate(&'a Identity),
    /// By a bearer token.
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
    /// The file's text. Names of planes are DNS labels, so nothing in it needs quotes.
    pub fn render(&self) -> String {
        let certificate = STANDARD.encode(self.root_pem);
        let mut out = String::with_capacity(4096 + self.planes.len() * (certificate.len() + 256));
        out.push_str("apiVersion: v1\nkind: Config\npreferences: {}\nclusters:\n");
        self.cluster(&mut out, "root", self.server, &certificate);
        for plane in self.planes {
            let server = plane_url(self.server, plane);
            self.cluster(&mut out, plane, &server, &certificate);
        }
        out.push_str("contexts:\n");
        for name in std::iter::once(&"root").chain(self.planes) {
            out.push_str("- context:\n    cluster: ");
            out.push_str(name);
            out.push_str("\n    user: admin\n  name: ");
            out.push_str(name);
            out.push('\n');
        }
        out.push_str("current-context: ");
        out.push_str(self.current);
        out.push_str("\nusers:\n- name: admin\n  user:\n");
        match self.user {
            UserCredential::Certificate(identity) => {
                out.push_str("    client-certificate-data: ");
                out.push_str(&STANDARD.encode(&identity.certificate_pem));
                out.push_str("\n    client-key-data: ");
                out.push_str(&STANDARD.encode(&identity.key_pem));
            }
            UserCredential::Token(token) => {
                out.push_str("    token: ");
                out.push_str(token);
            }
        }
        out.push('\n');
        out
    }

    fn cluster(&self, out: &mut String, name: &str, server: &str, certificate: &str) {
        out.push_str("- cluster:\n    certificate-authority-data: ");
        out.push_str(certificate);
        out.push_str("\n    server: ");
        out.push_str(server);
        out.push_str("\n  name: ");
        out.push_str(name);
        out.push('\n');
    }

    /// Writes the file so that only its owner can read it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        write_private(path, self.render().as_bytes())
    }
}

/// Where the plane `name` is served by the server at `server`.
pub fn plane_url(server: &str, name: &str) -> String {
    format!("{}/clusters/{name}", server.trim_end_matches('/'))
}

/// The administrator's kubeconfig of a server.
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
}
