//! The webhooks that flags name: one for tokens, one for access. This module reads their files.

use crate::cli::authentication::webhook_server;
use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use polyplane_auth::{Authenticator, Authorizer};
use polyplane_delegated::webhook::{AccessWebhook, OwnIssuers, ReviewVersion, TokenWebhook};
use polyplane_outbound::PlaneCaller;
use std::sync::Arc;
use std::time::Duration;

/// Upstream's default times for which answers are kept.
const TOKENS: Duration = Duration::from_secs(120);
const ALLOWED: Duration = Duration::from_secs(300);
const REFUSED: Duration = Duration::from_secs(30);

/// Returns the authenticator by a webhook, if a flag names one.
pub(super) fn tokens(
    flags: &Flags,
    own_issuers: OwnIssuers,
    caller: &Arc<PlaneCaller>,
    problems: &mut Problems,
) -> Option<Arc<dyn Authenticator>> {
    let flag = "authentication-token-webhook-config-file";
    let file = path(flags, flag)?;
    let version = version(flags, "authentication-token-webhook-version", problems);
    let lifetime = problems.duration(flags, "authentication-token-webhook-cache-ttl", TOKENS);
    let named = match flags.list("api-audiences") {
        none if none.is_empty() => flags.all("service-account-issuer").to_vec(),
        named => named,
    };
    let audiences = named.into_iter().map(Into::into).collect();
    let server = webhook_server(&file).map_err(|error| format!("{error:#}"));
    let made = server.and_then(|server| {
        TokenWebhook::new(server, caller, version, audiences, lifetime, own_issuers)
            .map_err(|error| error.to_string())
    });
    problems.value(flag, made).map(|made| Arc::new(made) as _)
}

/// Returns the authorizer by a webhook for the mode `Webhook`.
pub(super) fn access(
    flags: &Flags,
    has_mode: bool,
    caller: &Arc<PlaneCaller>,
    problems: &mut Problems,
) -> Option<Arc<dyn Authorizer>> {
    let flag = "authorization-webhook-config-file";
    let file = match (path(flags, flag), has_mode) {
        (Some(file), true) => file,
        (None, true) => {
            problems.add("authorization-mode Webhook's authorization config file not passed");
            return None;
        }
        (Some(_), false) => {
            problems.add("cannot specify --authorization-webhook-config-file without mode Webhook");
            return None;
        }
        (None, false) => return None,
    };
    let version = version(flags, "authorization-webhook-version", problems);
    let allowed = "authorization-webhook-cache-authorized-ttl";
    let refused = "authorization-webhook-cache-unauthorized-ttl";
    let lifetimes = (
        problems.duration(flags, allowed, ALLOWED),
        problems.duration(flags, refused, REFUSED),
    );
    let server = webhook_server(&file).map_err(|error| format!("{error:#}"));
    let made = server.and_then(|server| {
        AccessWebhook::new(server, caller, version, lifetimes).map_err(|error| error.to_string())
    });
    problems.value(flag, made).map(|made| Arc::new(made) as _)
}

fn version(flags: &Flags, flag: &str, problems: &mut Problems) -> ReviewVersion {
    let Some(text) = flags.text(flag) else {
        return ReviewVersion::V1Beta1;
    };
    let version = ReviewVersion::named(text);
    let version = version.ok_or_else(|| format!("{text:?} is neither v1 nor v1beta1"));
    problems.value(flag, version).unwrap_or(ReviewVersion::V1)
}
