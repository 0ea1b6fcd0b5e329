//! What the flags of kube-apiserver mean here, checked. All problems are reported together.

use crate::audit::AuditSettings;
use crate::cli::admission as admission_file;
use crate::cli::audit::go_duration;
use crate::envtest::audit;
use crate::envtest::browsers;
use crate::envtest::credentials::{
    client_ca, delegated, front_proxy, issuer, named_serving, serving, tokens,
};
use crate::envtest::flags::Flags;
use crate::envtest::kubelets;
use crate::envtest::{
    authorizers, feature_gates, lifetimes, oidc_flags, runtime_config, service_ranges,
};
use crate::replica::access::Delegated;
use polyplane_admission::{AdmissionConfig, configured};
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::{AnonymousAccess, Authenticator, ClientCa, FrontProxy};
use polyplane_pki::NamedPair;
use polyplane_registry::service_ranges::ServiceRanges;
use polyplane_registry::settings::{Lifetimes, Privileged, WATCH_SECONDS_MIN};
use polyplane_registry::{Admission, Authority, KindTable};
use polyplane_server::{BrowserOptions, GOAWAY_CHANCE_MAX, NodeAccess};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The names of all admission plug-ins of upstream, in their order.
const PLUGINS: &str = include_str!("admission-plugins.txt");
/// Plug-ins of this program that upstream has off unless they are enabled.
const OFF: [&str; 1] = ["NodeRestriction"];
/// Requests in flight if nothing else limits them. Each takes memory.
pub const IN_FLIGHT_MAX: usize = 10_000;

/// The settings of the API server.
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The address that discovery and the service `kubernetes` name.
    pub advertise: IpAddr,
    /// The endpoints of etcd.
    pub etcd_servers: Vec<String>,
    /// The prefix of all keys in etcd.
    pub etcd_prefix: String,
    /// The CA of etcd's certificates, PEM file.
    pub etcd_ca: Option<PathBuf>,
    /// The client certificate for etcd and its key, PEM files.
    pub etcd_pair: Option<(PathBuf, PathBuf)>,
    /// The serving certificate and its key.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// The serving certificates for some names.
    pub named_serving: Vec<NamedPair>,
    /// The folder in which a serving certificate is found, or left if none is given.
    pub cert_dir: Option<PathBuf>,
    /// The CA of client certificates.
    pub clients: Option<(ClientCa, String)>,
    /// The front proxy, and the certificates of its CA.
    pub front_proxy: Option<(FrontProxy, String)>,
    /// The authenticators of tokens in a file.
    pub tokens: Vec<Arc<dyn Authenticator>>,
    /// Whether nodes may use bootstrap tokens.
    pub takes_bootstrap_tokens: bool,
    /// The issuer of service account tokens.
    pub issuer: Option<Arc<TokenIssuer>>,
    /// What issuers and webhooks decide about tokens.
    pub delegated: Delegated,
    /// Whether strangers are `system:anonymous`.
    pub anonymous: AnonymousAccess,
    /// Who decides on requests.
    pub authority: Authority,
    /// The admission plug-ins.
    pub admission: Vec<Arc<dyn Admission>>,
    /// The kinds that are served.
    pub kinds: Arc<KindTable>,
    /// The ranges of service addresses.
    pub service_ranges: ServiceRanges,
    /// The first and the last port of services on nodes.
    pub node_ports: (u16, u16),
    /// Requests in flight that may read, and that may write.
    pub in_flight_max: (usize, usize),
    /// The seconds after which a watch without a time-out of its own ends at the earliest.
    pub watch_seconds_min: u32,
    /// How long Events and the tokens of service accounts last.
    pub lifetimes: Lifetimes,
    /// Whether containers may be privileged.
    pub privileged: Privileged,
    /// Whether priority levels limit requests.
    pub has_priorities: bool,
    /// The audit.
    pub audit: AuditSettings,
    /// The way to nodes and pods.
    pub nodes: Option<NodeAccess>,
    /// What browsers get.
    pub browsers: BrowserOptions,
    /// The share of requests after which a client has to open a new connection.
    pub goaway_chance: f64,
    /// The version to show instead of the own one.
    pub version: Option<String>,
}

/// Flags that must not be ignored, because somebody relies on what they promise.
const REFUSED: [(&str, &str); 5] = [
    ("authorization-policy-file", "there is no ABAC here"),
    (
        "egress-selector-config-file",
        "there is no egress proxy here",
    ),
    (
        "encryption-provider-config",
        "objects are not encrypted here",
    ),
    ("etcd-servers-overrides", "all kinds are in one etcd here"),
    (
        "service-account-signing-endpoint",
        "give --service-account-signing-key-file",
    ),
];

/// Flags that [`Settings`] or the program read.
const MEANINGFUL: [&str; 53] = [
    "admission-control-config-file",
    "advertise-address",
    "allow-privileged",
    "anonymous-auth",
    "api-audiences",
    "authentication-config",
    "authentication-token-webhook-cache-ttl",
    "authentication-token-webhook-config-file",
    "authentication-token-webhook-version",
    "authorization-config",
    "authorization-mode",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "authorization-webhook-config-file",
    "authorization-webhook-version",
    "bind-address",
    "cert-dir",
    "client-ca-file",
    "disable-admission-plugins",
    "enable-admission-plugins",
    "enable-bootstrap-token-auth",
    "enable-priority-and-fairness",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-servers",
    "feature-gates",
    "goaway-chance",
    "help",
    "max-mutating-requests-inflight",
    "max-requests-inflight",
    "min-request-timeout",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-uid-headers",
    "requestheader-username-headers",
    "runtime-config",
    "secure-port",
    "service-account-issuer",
    "service-account-jwks-uri",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "service-node-port-range",
    "storage-backend",
    "tls-cert-file",
    "tls-sni-cert-key",
    "token-auth-file",
    "v",
    "version",
];

/// Returns whether a flag has a meaning here.
pub fn has_meaning(name: &str) -> bool {
    MEANINGFUL.contains(&name)
        || name == "tls-private-key-file"
        || audit::FLAGS.contains(&name)
        || browsers::FLAGS.contains(&name)
        || lifetimes::FLAGS.contains(&name)
        || oidc_flags::FLAGS.contains(&name)
        || kubelets::FLAGS.contains(&name)
        || REFUSED.iter().any(|(refused, _)| name == *refused)
}

/// The problems that were found.
#[derive(Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    pub(super) fn add(&mut self, problem: impl Display) {
        self.0.push(problem.to_string());
    }

    /// Returns whether none was found.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a result, or records its error.
    pub(super) fn value<T, E: Display>(&mut self, flag: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(format!("--{flag}: {error}"));
                None
            }
        }
    }

    pub(super) fn parsed<T: FromStr>(&mut self, flags: &Flags, flag: &str, default: T) -> T
    where
        T::Err: Display,
    {
        let Some(text) = flags.text(flag) else {
            return default;
        };
        let parsed = text.parse().map_err(|error| format!("{text:?}: {error}"));
        self.value(flag, parsed).unwrap_or(default)
    }

    /// Returns the value of a flag that Go reads as a duration.
    pub(super) fn duration(&mut self, flags: &Flags, flag: &str, default: Duration) -> Duration {
        self.read(flags, flag, go_duration).unwrap_or(default)
    }

    /// Returns the value of a flag; `None` if it is not given, or wrong.
    pub(super) fn read<T, E: Display>(
        &mut self,
        flags: &Flags,
        flag: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = flags.text(flag)?;
        self.value(flag, parse(text))
    }
}

impl Settings {
    /// Reads the settings of a command line, and the files that it names.
    ///
    /// # Errors
    /// Returns all problems, in the form in which the real program lists them.
    pub fn read(flags: &Flags) -> Result<Self, String> {
        let mut problems = Problems::default();
        for (name, why) in REFUSED {
            if flags.text(name).is_some() {
                problems.add(format!("--{name} cannot be used: {why}"));
            }
        }
        let bind = problems.parsed(flags, "bind-address", IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let port = problems.parsed(flags, "secure-port", 6443);
        let advertised = match bind.is_unspecified() {
            true => IpAddr::V4(Ipv4Addr::LOCALHOST),
            false => bind,
        };
        let advertise = problems.parsed(flags, "advertise-address", advertised);
        let etcd_servers = flags.list("etcd-servers");
        if etcd_servers.is_empty() {
            problems.add("--etcd-servers must be specified");
        }
        if flags
            .text("storage-backend")
            .is_some_and(|backend| backend != "etcd3")
        {
            problems.add(
                "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'",
            );
        }
        let gates = feature_gates::of_kinds(flags, &mut problems);
        let (mut delegated, anonymous) = delegated(flags, &mut problems);
        let (authority, allows_all) = authorizers::read(flags, &mut delegated, &mut problems);
        let settings = Self {
            listen: SocketAddr::new(bind, port),
            advertise,
            etcd_servers,
            etcd_prefix: flags.text("etcd-prefix").unwrap_or("/registry").to_owned(),
            etcd_ca: path(flags, "etcd-cafile"),
            etcd_pair: path(flags, "etcd-certfile").zip(path(flags, "etcd-keyfile")),
            serving: serving(flags, &mut problems),
            named_serving: named_serving(flags, &mut problems),
            cert_dir: path(flags, "cert-dir"),
            clients: client_ca(flags, &mut problems),
            front_proxy: front_proxy(flags, &mut problems),
            tokens: tokens(flags, &mut problems),
            takes_bootstrap_tokens: flags.switch("enable-bootstrap-token-auth", false),
            issuer: issuer(flags, advertise, port, &mut problems),
            delegated,
            anonymous: anonymous.unwrap_or_else(|| anonymous_access(flags, allows_all)),
            authority,
            admission: admission(flags, &mut problems),
            kinds: runtime_config::kinds(flags, &gates, &mut problems),
            service_ranges: service_ranges::read(flags, advertise, &mut problems),
            node_ports: node_ports(flags, &mut problems),
            in_flight_max: in_flight_max(flags, &mut problems),
            watch_seconds_min: problems.parsed(flags, "min-request-timeout", WATCH_SECONDS_MIN),
            lifetimes: lifetimes::read(flags, &mut problems),
            privileged: privileged(flags),
            has_priorities: flags.switch("enable-priority-and-fairness", true),
            audit: audit::settings(flags, &mut problems),
            nodes: kubelets::node_access(flags, &mut problems),
            browsers: browsers::read(flags, &mut problems),
            goaway_chance: goaway_chance(flags, &mut problems),
            version: version(flags, &mut problems),
        };
        match &problems.0[..] {
            [] => Ok(settings),
            [only] => Err(only.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

/// Returns whether containers may be privileged, which nobody may by default, as upstream.
fn privileged(flags: &Flags) -> Privileged {
    match flags.switch("allow-privileged", false) {
        true => Privileged::Allowed,
        false => Privileged::Forbidden,
    }
}

pub(super) fn path(flags: &Flags, name: &str) -> Option<PathBuf> {
    flags.text(name).map(PathBuf::from)
}

/// Returns where strangers are admitted. As upstream they are not if they could do everything.
fn anonymous_access(flags: &Flags, allows_all: bool) -> AnonymousAccess {
    let admitted = flags.switch("anonymous-auth", true);
    if admitted && allows_all {
        tracing::info!("--anonymous-auth is off, because --authorization-mode has AlwaysAllow");
        return AnonymousAccess::Nowhere;
    }
    match admitted {
        true => AnonymousAccess::Everywhere,
        false => AnonymousAccess::Nowhere,
    }
}

/// Returns the plug-ins that are on. What upstream has and this program has not is named in the log if
/// it was asked for.
fn admission(flags: &Flags, problems: &mut Problems) -> Vec<Arc<dyn Admission>> {
    let all: Vec<&str> = PLUGINS.lines().collect();
    let config = path(flags, admission_file::FLAG).and_then(|file| {
        let read = admission_file::read(&file).map_err(|error| format!("{error:#}"));
        problems.value(admission_file::FLAG, read)
    });
    let mut config: AdmissionConfig = config.unwrap_or_default();
    config.tolerations = lifetimes::tolerations(flags, problems);
    let own = configured(&config);
    let lists = ["enable-admission-plugins", "disable-admission-plugins"];
    let [enabled, disabled] = lists.map(|flag| {
        let names = flags.list(flag);
        for name in names.iter().filter(|name| !all.contains(&name.as_str())) {
            problems.add(format!("{flag} plugin {name:?} is unknown"));
        }
        names
    });
    // Part of the path of every write.
    let is_there =
        |name: &str| name == "NamespaceLifecycle" || own.iter().any(|one| one.name() == name);
    for name in enabled.iter().filter(|name| !is_there(name)) {
        tracing::warn!("--enable-admission-plugins: {name} is not there");
    }
    let is_on = |name: &str| {
        let is_enabled = !OFF.contains(&name) || enabled.iter().any(|one| one == name);
        is_enabled && !disabled.iter().any(|one| one == name)
    };
    own.into_iter()
        .filter(|plugin| is_on(plugin.name()))
        .collect()
}

fn goaway_chance(flags: &Flags, problems: &mut Problems) -> f64 {
    let chance = problems.parsed(flags, "goaway-chance", 0.0);
    if !(0.0..=GOAWAY_CHANCE_MAX).contains(&chance) {
        problems.add("--goaway-chance can not be less than 0 or greater than 0.02");
    }
    chance
}

/// Returns the limits of requests in flight. As upstream, 0 is no limit.
fn in_flight_max(flags: &Flags, problems: &mut Problems) -> (usize, usize) {
    let limit = |flag, default, problems: &mut Problems| match problems.parsed(flags, flag, default)
    {
        0 => IN_FLIGHT_MAX,
        limit => limit,
    };
    (
        limit("max-requests-inflight", 400, problems),
        limit("max-mutating-requests-inflight", 200, problems),
    )
}

fn node_ports(flags: &Flags, problems: &mut Problems) -> (u16, u16) {
    let default = (30_000, 32_767);
    let Some(text) = flags.text("service-node-port-range") else {
        return default;
    };
    let parsed = text.split_once('-').and_then(|(first, last)| {
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        (0 < first && first <= last).then_some((first, last))
    });
    let parsed = parsed.ok_or_else(|| format!("{text:?} is no range of ports such as 30000-32767"));
    problems
        .value("service-node-port-range", parsed)
        .unwrap_or(default)
}

/// Returns the version that `--version=v1.37.0-…` sets.
fn version(flags: &Flags, problems: &mut Problems) -> Option<String> {
    let given = flags.text("version").filter(|text| text.starts_with('v'))?;
    let own = super::kube_apiserver::VERSION;
    let rest = given.strip_prefix(own);
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '+'])) {
        return Some(given.to_owned());
    }
    problems.add(format!(
        "invalid argument {given:?} for \"--version\" flag: version {given:?} must match major/minor/patch of default version {own:?}"
    ));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::kube_apiserver;

    #[test]
    fn containers_may_be_privileged_only_if_a_flag_says_so() {
        let given = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|text| (*text).to_owned());
            let flags = kube_apiserver::FLAGS.parse(arguments).expect("flags");
            privileged(&flags)
        };
        assert_eq!(given(&[]), Privileged::Forbidden);
        assert_eq!(given(&["--allow-privileged=false"]), Privileged::Forbidden);
        assert_eq!(given(&["--allow-privileged"]), Privileged::Allowed);
    }
}
