//! The flags of delegated authentication, by the names of kube-apiserver's. This module does not know
//! how tokens are judged.

use crate::cli::limited_file;
use crate::replica::access::{Delegated, first_authorizers, own_authorizers, webhook_of_flags};
use crate::replica::authorizers_file::AuthorizersFile;
use crate::replica::issuers_file::IssuersFile;
use anyhow::{Context, bail};
use clap::Args;
use polyplane_auth::{AnonymousAccess, Authenticator};
use polyplane_delegated::webhook::{
    AccessWebhook, OwnIssuers, ReviewVersion, TokenWebhook, WebhookServer,
};
use polyplane_outbound::{Allowed, Caller};
use polyplane_registry::ReplaceableAuthorizers;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options of authentication by others, of the root's users.
#[derive(Clone, Debug, Args)]
pub struct AuthenticationOptions {
    /// File with an AuthenticationConfiguration of apiserver.config.k8s.io/v1: the issuers of OpenID
    /// Connect whose tokens prove users of the root. In another control plane they are who its
    /// spec.access says. The file is read again when it changes.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_AUTHENTICATION_CONFIG")]
    pub authentication_config: Option<PathBuf>,
    /// Kubeconfig of a webhook that says by a TokenReview whom a token of the root's users proves. It
    /// never gets tokens of control planes or of issuers in --authentication-config.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_AUTHENTICATION_TOKEN_WEBHOOK_CONFIG_FILE"
    )]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of the TokenReview: v1 or v1beta1.
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "v1beta1",
        value_parser = ["v1", "v1beta1"],
        env = "POLYPLANE_AUTHENTICATION_TOKEN_WEBHOOK_VERSION"
    )]
    pub authentication_token_webhook_version: String,
    /// Kubeconfig of a webhook that decides by a SubjectAccessReview on what roles leave open in the root
    /// plane. It is not asked about other control planes, whose users may have the same names.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_AUTHORIZATION_WEBHOOK_CONFIG_FILE"
    )]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// Version of the SubjectAccessReview: v1 or v1beta1.
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "v1beta1",
        value_parser = ["v1", "v1beta1"],
        env = "POLYPLANE_AUTHORIZATION_WEBHOOK_VERSION"
    )]
    pub authorization_webhook_version: String,
    /// How long that webhook's answers that allow are kept.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = crate::plugin::access::duration,
        env = "POLYPLANE_AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL"
    )]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long that webhook's other answers are kept.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = crate::plugin::access::duration,
        env = "POLYPLANE_AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL"
    )]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
    /// File with an AuthorizationConfiguration of apiserver.config.k8s.io/v1: the authorizers of the root
    /// plane in their order, several webhooks among them. Masters of the server may do everything without
    /// being decided on. In other control planes roles and nodes decide, as without the file. The file is read
    /// again when it changes, and must go on to name the types that it names at the start.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_AUTHORIZATION_CONFIG",
        conflicts_with_all = [
            "authorization_webhook_config_file",
            "authorization_webhook_version",
            "authorization_webhook_cache_authorized_ttl",
            "authorization_webhook_cache_unauthorized_ttl",
        ]
    )]
    pub authorization_config: Option<PathBuf>,
    /// Addresses or hosts beside the public Internet that control planes may name, such as 10.0.0.0/8,
    /// 10.1.2.3 or issuer.corp.example: the issuers in their spec.authentication. Without it the network of
    /// this server is closed to them. Several are separated by commas.
    #[arg(
        long,
        value_name = "CIDR|HOST",
        value_delimiter = ',',
        env = "POLYPLANE_OUTBOUND_ALLOW"
    )]
    pub outbound_allow: Vec<Allowed>,
    /// How long answers of that webhook are kept, such as 30s or 2m.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "2m",
        value_parser = crate::plugin::access::duration,
        env = "POLYPLANE_AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL"
    )]
    pub authentication_token_webhook_cache_ttl: Duration,
}

impl AuthenticationOptions {
    /// Reads the files, and asks whether the issuers are there.
    ///
    /// # Errors
    /// Returns an error that names the flag whose file cannot be used.
    pub fn open(&self) -> anyhow::Result<Delegated> {
        let caller = Caller::new(self.outbound_allow.clone());
        let mut bearer: Vec<Arc<dyn Authenticator>> = Vec::new();
        let issuers_file = self.issuers_file(&caller)?;
        let named = issuers_file.as_ref().map(|file| Arc::clone(file.issuers()));
        bearer.extend(named.clone().map(|named| named as _));
        if let Some(file) = &self.authentication_token_webhook_config_file {
            let flag = "--authentication-token-webhook-config-file";
            let version = ReviewVersion::named(&self.authentication_token_webhook_version);
            let webhook = TokenWebhook::new(
                webhook_server(file).context(flag)?,
                &caller.of_operator(),
                version.unwrap_or(ReviewVersion::V1Beta1),
                Vec::new(),
                self.authentication_token_webhook_cache_ttl,
                OwnIssuers {
                    fixed: Vec::new(),
                    named: named.clone(),
                },
            );
            bearer.push(Arc::new(webhook.context(flag)?));
        }
        let authorizers_file = self.authorizers_file(&caller)?;
        let access = match &authorizers_file {
            Some(file) => Some(Arc::clone(file.authorizers())),
            None => self.access(&caller)?,
        };
        Ok(Delegated {
            bearer,
            issuers_file,
            issuers: named,
            access,
            authorizers_file,
            outbound: caller,
        })
    }

    fn issuers_file(&self, caller: &Arc<Caller>) -> anyhow::Result<Option<Arc<IssuersFile>>> {
        let Some(file) = &self.authentication_config else {
            return Ok(None);
        };
        let flag = "--authentication-config";
        let opened = IssuersFile::open(file, &[], caller).context(flag)?;
        if !matches!(opened.anonymous(), None | Some(AnonymousAccess::Nowhere)) {
            bail!(
                "{flag}: {}: anonymous.enabled: strangers may see health and version here, and nothing else",
                file.display()
            );
        }
        Ok(Some(opened))
    }

    fn authorizers_file(
        &self,
        caller: &Arc<Caller>,
    ) -> anyhow::Result<Option<Arc<AuthorizersFile>>> {
        let Some(file) = &self.authorization_config else {
            return Ok(None);
        };
        let opened = AuthorizersFile::open(file, first_authorizers(), &caller.of_operator());
        opened.context("--authorization-config").map(Some)
    }

    /// Returns what decides in the root plane in the place of nodes and roles alone, by the flags of a
    /// webhook.
    fn access(&self, caller: &Arc<Caller>) -> anyhow::Result<Option<Arc<ReplaceableAuthorizers>>> {
        let Some(file) = &self.authorization_webhook_config_file else {
            return Ok(None);
        };
        let flag = "--authorization-webhook-config-file";
        let version = ReviewVersion::named(&self.authorization_webhook_version);
        let lifetimes = (
            self.authorization_webhook_cache_authorized_ttl,
            self.authorization_webhook_cache_unauthorized_ttl,
        );
        let webhook = AccessWebhook::new(
            webhook_server(file).context(flag)?,
            &caller.of_operator(),
            version.unwrap_or(ReviewVersion::V1Beta1),
            lifetimes,
        );
        let mut chain = own_authorizers();
        chain.push(webhook_of_flags(Arc::new(webhook.context(flag)?)));
        Ok(Some(ReplaceableAuthorizers::new(
            first_authorizers(),
            chain,
        )))
    }
}

/// Reads the kubeconfig of a webhook. Files that it names are relative to its folder.
///
/// # Errors
/// Returns an error that names the file.
pub fn webhook_server(file: &Path) -> anyhow::Result<WebhookServer> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let read_named =
        |name: &str| read(&folder.join(name)).map_err(|error| format!("{name}: {error:#}"));
    let shown = || file.display().to_string();
    let text = read(file).with_context(shown)?;
    WebhookServer::parse(&text, &read_named).with_context(shown)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    limited_file::read_config(file)
}
