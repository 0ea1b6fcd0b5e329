//! The flags of authorization: modes, or a file.

use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use crate::envtest::webhooks;
use crate::replica::access::{Delegated, always_allow, always_deny, node, rbac, webhook_of_flags};
use crate::replica::authorizers_file::AuthorizersFile;
use polyplane_auth::{Authorizer, Masters};
use polyplane_ownership::ROOT;
use polyplane_registry::{Authority, ChainedAuthorizer};
use std::sync::Arc;

/// One authorizer of `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Allows everything.
    AlwaysAllow,
    /// Allows nothing.
    AlwaysDeny,
    /// Decides by roles.
    Rbac,
    /// Decides on what belongs to a node.
    Node,
    /// Asks a webhook.
    Webhook,
}

/// The flags that say together what `--authorization-config` says.
const AUTHORIZATION_FLAGS: [&str; 5] = [
    "authorization-mode",
    "authorization-webhook-config-file",
    "authorization-webhook-version",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
];

/// Returns who decides, and whether `--authorization-mode` has an authorizer among them that allows
/// everything. Members of system:masters may do everything in each mode, as upstream. Who may ask for the
/// server's health is said by roles.
pub(super) fn read(
    flags: &Flags,
    delegated: &mut Delegated,
    problems: &mut Problems,
) -> (Authority, bool) {
    let flag = "authorization-config";
    let masters = vec![ChainedAuthorizer::fixed(Arc::new(Masters))];
    let caller = delegated.outbound.of_operator();
    let Some(file) = path(flags, flag) else {
        let modes = modes(flags, problems);
        let webhook = webhooks::access(flags, modes.contains(&Mode::Webhook), &caller, problems);
        let chain = modes.iter().map(|mode| mode.authorizer(webhook.as_ref()));
        let chain = masters.into_iter().chain(chain);
        return (
            Authority::new(chain.collect()),
            modes.contains(&Mode::AlwaysAllow),
        );
    };
    let authority = Authority::new(masters.clone());
    if AUTHORIZATION_FLAGS
        .iter()
        .any(|flag| flags.last(flag).is_some())
    {
        problems.add(
            "--authorization-config can not be specified when --authorization-mode or \
             --authorization-webhook-* flags are defined",
        );
        return (authority, false);
    }
    let opened = AuthorizersFile::open(&file, masters, &caller);
    let opened = opened.map_err(|error| format!("{error:#}"));
    delegated.authorizers_file = problems.value(flag, opened);
    match &delegated.authorizers_file {
        Some(file) => (
            authority.with_plane(ROOT, Arc::clone(file.authorizers())),
            false,
        ),
        None => (authority, false),
    }
}

impl Mode {
    fn authorizer(self, webhook: Option<&Arc<dyn Authorizer>>) -> ChainedAuthorizer {
        match (self, webhook) {
            (Self::AlwaysAllow, _) => always_allow(),
            (Self::Rbac, _) => rbac(),
            (Self::Node, _) => node(),
            (Self::Webhook, Some(webhook)) => webhook_of_flags(Arc::clone(webhook)),
            (Self::AlwaysDeny | Self::Webhook, _) => always_deny(),
        }
    }
}

fn modes(flags: &Flags, problems: &mut Problems) -> Vec<Mode> {
    let named = flags.list("authorization-mode");
    if named.is_empty() {
        return vec![Mode::AlwaysAllow];
    }
    let mut modes = Vec::new();
    for name in named {
        modes.push(match name.as_str() {
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            "RBAC" => Mode::Rbac,
            "Node" => Mode::Node,
            "Webhook" => Mode::Webhook,
            "ABAC" => {
                problems.add(format!(
                    "--authorization-mode: {name} cannot be used here; use RBAC"
                ));
                continue;
            }
            _ => {
                problems.add(format!("authorization-mode {name:?} is not a valid mode"));
                continue;
            }
        });
    }
    modes
}
