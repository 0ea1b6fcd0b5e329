//! The kubeconfig that `up` keeps beside its data: a context for the root and one for each plane.

use crate::replica::plane_directory::PlaneDirectory;
use polyplane_apimachinery::{json, yaml};
use polyplane_pki::kubeconfig::{Kubeconfig, UserCredential};
use polyplane_pki::{Identity, Pki};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Planes that get a context, at most; `kubectl plane use` adds one for any other plane. More would
/// make each write of the file slow.
const CONTEXTS_MAX: usize = 200;
/// Pause between two writes. Without it, many new planes would cost one write each.
const REST: Duration = Duration::from_millis(100);

/// Writes the kubeconfig whenever planes come or go.
pub struct Contexts {
    /// The kubeconfig file.
    pub path: PathBuf,
    /// Scheme, host and port of the server.
    pub server: String,
    /// The CA of the server.
    pub pki: Arc<Pki>,
    /// The administrator's certificate and key.
    pub identity: Identity,
    /// The directory of planes.
    pub directory: Arc<PlaneDirectory>,
}

impl Contexts {
    /// Writes the file now. Keeps the current context if the user has changed it. If there is none of that name,
    /// `otherwise` becomes the current one; empty for none.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, otherwise: &str) -> anyhow::Result<()> {
        let names = self.directory.names(CONTEXTS_MAX);
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let before = std::fs::read_to_string(&self.path).unwrap_or_default();
        let chosen = current_context(&before);
        let is_known = |name: &&str| *name == "root" || names.contains(name);
        let known = chosen.as_deref().filter(is_known);
        let config = Kubeconfig {
            server: &self.server,
            root_pem: self.pki.root_pem(),
            user: UserCredential::Certificate(&self.identity),
            planes: &names,
            current: known.unwrap_or(otherwise),
        };
        if config.render() != before {
            config.write(&self.path)?;
        }
        Ok(())
    }

    /// Keeps the file up to date until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut changes = self.directory.rows.changes();
        loop {
            tokio::select! {
                // First: a stopping server writes nothing more.
                biased;
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() {
                    return;
                }
            }
            // No other context: what the user meant for a plane that is gone must not be done in the root.
            if let Err(error) = self.write("") {
                tracing::warn!("the kubeconfig is out of date: {error:#}");
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// Returns the current context of a kubeconfig. The text is parsed as YAML, because kubectl may
/// have written it.
fn current_context(text: &str) -> Option<String> {
    let parsed = yaml::parse(text.as_bytes(), &json::Limits::default()).ok()?;
    let name = parsed.value.str_at(&["current-context"]);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_is_found_in_any_yaml() {
        for (text, name) in [
            ("current-context: team-a\n", Some("team-a")),
            ("current-context: \"123\"\n", Some("123")),
            ("{current-context: 'null', kind: Config}", Some("null")),
            ("a: |\n  current-context: no\n", None),
            ("", None),
        ] {
            assert_eq!(current_context(text).as_deref(), name, "{text}");
        }
    }
}
