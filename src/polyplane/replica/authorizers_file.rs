//! The file of `--authorization-config`: the authorizers that it names, which are others when it changes.
//!
//! As upstream a changed file may name other webhooks, and the types beside them stay: what decides by
//! objects of the plane is there from the start or not at all.

use crate::cli::authentication::webhook_server;
use crate::cli::limited_file;
use crate::replica::access::{always_allow, always_deny, node, rbac};
use crate::replica::followed_file::{FollowedFile, Follower, Refused};
use anyhow::Context;
use polyplane_delegated::authorization::{AuthorizationConfig, AuthorizerConfig, WebhookConfig};
use polyplane_delegated::webhook::AccessWebhook;
use polyplane_outbound::PlaneCaller;
use polyplane_registry::{ChainedAuthorizer, ReplaceableAuthorizers};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const FLAG: &str = "authorization-config";

/// The file, with the authorizers that it names.
pub struct AuthorizersFile {
    file: FollowedFile,
    caller: Arc<PlaneCaller>,
    /// The types beside webhooks that the file names, by upstream's names.
    types: BTreeSet<&'static str>,
    authorizers: Arc<ReplaceableAuthorizers>,
}

impl AuthorizersFile {
    /// Reads the file, and looks at it at intervals from now on for as long as somebody holds it. The
    /// authorizers in `first` decide before those of the file.
    ///
    /// # Errors
    /// Returns an error that names the file, and everything that is wrong with it.
    pub fn open(
        path: &Path,
        first: Vec<ChainedAuthorizer>,
        caller: &Arc<PlaneCaller>,
    ) -> anyhow::Result<Arc<Self>> {
        let shown = || path.display().to_string();
        let text = limited_file::read_config(path).with_context(shown)?;
        let config = AuthorizationConfig::parse(&text).with_context(shown)?;
        let types = types(&config);
        let named = authorizers(config, caller).with_context(shown)?;
        let opened = Arc::new(Self {
            file: FollowedFile::new(path, (FLAG, "authorization"), text),
            caller: Arc::clone(caller),
            types,
            authorizers: ReplaceableAuthorizers::new(first, named),
        });
        tokio::spawn(FollowedFile::follow(Arc::downgrade(&opened)));
        Ok(opened)
    }

    /// Returns the authorizers.
    pub fn authorizers(&self) -> &Arc<ReplaceableAuthorizers> {
        &self.authorizers
    }

    /// Checks that a changed file has the types that the first one has.
    fn check_types(&self, config: &AuthorizationConfig) -> Result<(), String> {
        let found = types(config);
        let missing: Vec<&str> = self.types.difference(&found).copied().collect();
        if !missing.is_empty() {
            return Err(format!("missing required types: [{}]", missing.join(" ")));
        }
        // Others need no state.
        let newer = found.difference(&self.types);
        let mut newer = newer.filter(|one| matches!(**one, "Node" | "RBAC"));
        match newer.next() {
            Some(one) => Err(format!(
                "authorizer type {one} is not allowed if it was not enabled at initial server startup"
            )),
            None => Ok(()),
        }
    }
}

impl Follower for AuthorizersFile {
    fn file(&self) -> &FollowedFile {
        &self.file
    }

    async fn replace(&self, text: &[u8]) -> Result<(), Refused> {
        let config = AuthorizationConfig::parse(text);
        let config = config.map_err(|error| Refused::Wrong(error.to_string()))?;
        self.check_types(&config).map_err(Refused::Wrong)?;
        let caller = Arc::clone(&self.caller);
        // It reads the kubeconfigs of webhooks.
        let made = tokio::task::spawn_blocking(move || authorizers(config, &caller));
        let made = made
            .await
            .map_err(|error| Refused::NotNow(error.to_string()))?;
        // A kubeconfig may be written later than the file that names it.
        let made = made.map_err(|error| Refused::NotNow(format!("{error:#}")))?;
        self.authorizers.replace(made);
        Ok(())
    }
}

fn types(config: &AuthorizationConfig) -> BTreeSet<&'static str> {
    let all = config.authorizers.iter();
    all.filter_map(|one| match one {
        AuthorizerConfig::AlwaysAllow => Some("AlwaysAllow"),
        AuthorizerConfig::AlwaysDeny => Some("AlwaysDeny"),
        AuthorizerConfig::Node => Some("Node"),
        AuthorizerConfig::Rbac => Some("RBAC"),
        AuthorizerConfig::Webhook(_) => None,
    })
    .collect()
}

/// Returns the authorizers of a configuration.
fn authorizers(
    config: AuthorizationConfig,
    caller: &Arc<PlaneCaller>,
) -> anyhow::Result<Vec<ChainedAuthorizer>> {
    let made = config.authorizers.into_iter().map(|one| match one {
        AuthorizerConfig::AlwaysAllow => Ok(always_allow()),
        AuthorizerConfig::AlwaysDeny => Ok(always_deny()),
        AuthorizerConfig::Node => Ok(node()),
        AuthorizerConfig::Rbac => Ok(rbac()),
        AuthorizerConfig::Webhook(webhook) => {
            let name = webhook.name.clone();
            let made = access_webhook(*webhook, caller);
            let made = made.with_context(|| format!("the webhook {name}"))?;
            Ok(ChainedAuthorizer::fixed(Arc::new(made)).counted_as("Webhook", &name))
        }
    });
    made.collect()
}

fn access_webhook(
    webhook: WebhookConfig,
    caller: &Arc<PlaneCaller>,
) -> anyhow::Result<AccessWebhook> {
    let server = webhook_server(&webhook.kubeconfig)?;
    let made = AccessWebhook::new(server, caller, webhook.version, webhook.lifetimes)?;
    Ok(made.configured(webhook.timeout, webhook.on_failure, webhook.conditions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_outbound::Caller;
    use std::fmt::Write as _;

    fn written(types: &[&str]) -> String {
        let mut text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n".to_owned();
        for one in types {
            let _ = writeln!(text, "- type: {one}\n  name: {}", one.to_lowercase());
        }
        text
    }

    #[tokio::test]
    async fn what_decides_by_objects_is_there_from_the_start_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("authorization.yaml");
        std::fs::write(&path, written(&["RBAC"])).expect("written");
        let caller = Caller::new(Vec::new()).of_operator();
        let file = AuthorizersFile::open(&path, Vec::new(), &caller).expect("sound");
        for (types, why) in [
            (&["AlwaysAllow"][..], "missing required types: [RBAC]"),
            (&["RBAC", "Node"], "authorizer type Node is not allowed"),
            (&["RBAC", "Nobody"], "Unsupported value"),
            (&[], "at least one authorization mode"),
        ] {
            match file.replace(written(types).as_bytes()).await {
                Err(Refused::Wrong(said)) => assert!(said.contains(why), "{said}"),
                Err(Refused::NotNow(said)) => panic!("{types:?}: {said}"),
                Ok(()) => panic!("{types:?} was taken"),
            }
        }
        let changed = written(&["AlwaysDeny", "RBAC"]);
        assert!(file.replace(changed.as_bytes()).await.is_ok());
    }
}
