//! The files with which flags say who may use the plane: certificates, keys and tokens. This module
//! reads them, and opens nothing else.

use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use crate::envtest::{oidc_flags, webhooks};
use crate::replica::access::Delegated;
use crate::replica::issuers_file::IssuersFile;
use polyplane_auth::service_account::issuer::{FormerKey, IssuerNames, TokenIssuer};
use polyplane_auth::{
    AnonymousAccess, Authenticator, ClientCa, FrontProxy, FrontProxyHeaders, key_files, token_file,
};
use polyplane_delegated::oidc::OperatorIssuers;
use polyplane_delegated::webhook::OwnIssuers;
use polyplane_outbound::Caller;
use polyplane_pki::NamedPair;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest file that a flag names, in bytes. Longer ones are none of certificates, keys and tokens.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// How long the keys that only verify are accepted: longer than any token lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Reads a file as a whole, if it is not too long for what flags name.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let opened = std::fs::File::open(path).map_err(|error| format!("open {shown}: {error}"))?;
    let mut bytes = Vec::new();
    let mut limited = std::io::Read::take(opened, FILE_BYTES_MAX + 1);
    std::io::Read::read_to_end(&mut limited, &mut bytes)
        .map_err(|error| format!("read {shown}: {error}"))?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(format!("{shown} is longer than {FILE_BYTES_MAX} bytes")),
        false => Ok(bytes),
    }
}

fn certificates(path: &Path) -> Result<(Vec<CertificateDer<'static>>, String), String> {
    let bytes = read_file(path)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match parsed {
        Ok(found) if !found.is_empty() => Ok((found, String::from_utf8_lossy(&bytes).into_owned())),
        Ok(_) | Err(_) => Err(format!(
            "data does not contain any valid RSA or ECDSA certificates: {}",
            path.display()
        )),
    }
}

/// Returns the files of the serving certificate and its key, if flags name them.
pub(super) fn serving(flags: &Flags, problems: &mut Problems) -> Option<(PathBuf, PathBuf)> {
    let (certificate, key) = (
        path(flags, "tls-cert-file"),
        path(flags, "tls-private-key-file"),
    );
    if certificate.is_some() != key.is_some() {
        problems.add("--tls-cert-file and --tls-private-key-file must be specified together");
    }
    certificate.zip(key)
}

/// Returns the serving certificates for some names.
pub(super) fn named_serving(flags: &Flags, problems: &mut Problems) -> Vec<NamedPair> {
    let flag = "tls-sni-cert-key";
    let pairs = flags.all(flag).iter().filter(|text| !text.is_empty());
    let pairs = pairs.map(|text| {
        named_pair(text)
            .map_err(|why| format!("invalid argument {text:?} for \"--{flag}\" flag: {why}"))
    });
    let mut read = Vec::new();
    for pair in pairs {
        match pair {
            Ok(pair) => read.push(pair),
            Err(why) => problems.add(why),
        }
    }
    read
}

/// Reads `certificate,key` or `certificate,key:name,name`.
fn named_pair(text: &str) -> Result<NamedPair, &'static str> {
    let (files, names) = match text.split_once(':') {
        Some((_, names)) if names.trim().is_empty() => {
            return Err("empty names list is not allowed");
        }
        Some((files, names)) => (
            files,
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        ),
        None => (text, Vec::new()),
    };
    let files: Vec<&str> = files.split(',').map(str::trim).collect();
    match files[..] {
        [certificate, key] => Ok(NamedPair {
            names,
            certificate: certificate.into(),
            key: key.into(),
        }),
        _ => Err("expected comma separated certificate and key file paths"),
    }
}

/// Reads the CA of client certificates.
pub(super) fn client_ca(flags: &Flags, problems: &mut Problems) -> Option<(ClientCa, String)> {
    let file = path(flags, "client-ca-file")?;
    let read = certificates(&file).and_then(|(roots, pem)| {
        let ca = ClientCa::new(&roots).map_err(|error| error.to_string())?;
        Ok((ca, pem))
    });
    problems.value("client-ca-file", read)
}

/// Reads who may name users in headers.
pub(super) fn front_proxy(flags: &Flags, problems: &mut Problems) -> Option<(FrontProxy, String)> {
    let file = path(flags, "requestheader-client-ca-file")?;
    let names = |flag: &str, default: &[&str]| {
        let given = flags.list(flag);
        let names = match given.is_empty() {
            true => default.iter().map(|&name| name.to_owned()).collect(),
            false => given,
        };
        names.iter().map(|name| name.to_ascii_lowercase()).collect()
    };
    let headers = FrontProxyHeaders {
        users: names("requestheader-username-headers", &["x-remote-user"]),
        uids: names("requestheader-uid-headers", &[]),
        groups: names("requestheader-group-headers", &["x-remote-group"]),
        extra_prefixes: names("requestheader-extra-headers-prefix", &["x-remote-extra-"]),
    };
    let allowed = flags.list("requestheader-allowed-names");
    let read = certificates(&file).and_then(|(roots, pem)| {
        let proxy = FrontProxy::new(&roots, allowed, headers).map_err(|error| error.to_string())?;
        Ok((proxy, pem))
    });
    problems.value("requestheader-client-ca-file", read)
}

/// Reads the tokens in a file.
pub(super) fn tokens(flags: &Flags, problems: &mut Problems) -> Vec<Arc<dyn Authenticator>> {
    let Some(file) = path(flags, "token-auth-file") else {
        return Vec::new();
    };
    let parsed = read_file(&file).and_then(|bytes| {
        let text = String::from_utf8_lossy(&bytes);
        let parsed = token_file::parse(&text);
        parsed.map_err(|error| format!("token file '{}' {error}", file.display()))
    });
    let tokens = problems.value("token-auth-file", parsed);
    tokens
        .into_iter()
        .map(|tokens| Arc::new(tokens) as _)
        .collect()
}

/// Reads who proves users by tokens of others, and where strangers are admitted if the file says it.
pub(super) fn delegated(
    flags: &Flags,
    problems: &mut Problems,
) -> (Delegated, Option<AnonymousAccess>) {
    let mut made = Delegated::default();
    let own = flags.all("service-account-issuer").to_vec();
    let file = issuers_file(flags, &own, &made.outbound, problems);
    let anonymous = file.as_ref().and_then(|file| file.anonymous().cloned());
    if anonymous.is_some() && flags.text("anonymous-auth").is_some() {
        problems.add(
            "--anonymous-auth flag cannot be set when anonymous field is configured in \
             authentication configuration file",
        );
    }
    let named = match &file {
        Some(file) => Some(Arc::clone(file.issuers())),
        None => issuers_of_flags(flags, &own, &made.outbound, problems),
    };
    made.bearer.extend(named.clone().map(|named| named as _));
    made.issuers_file = file;
    made.issuers.clone_from(&named);
    let own = OwnIssuers { fixed: own, named };
    let webhook = webhooks::tokens(flags, own, &made.outbound.of_operator(), problems);
    made.bearer.extend(webhook);
    (made, anonymous)
}

fn issuers_file(
    flags: &Flags,
    own: &[String],
    caller: &Arc<Caller>,
    problems: &mut Problems,
) -> Option<Arc<IssuersFile>> {
    let file = path(flags, "authentication-config")?;
    if oidc_flags::are_given(flags) {
        problems.add("authentication-config file and oidc-* flags are mutually exclusive");
        return None;
    }
    let opened = IssuersFile::open(&file, own, caller).map_err(|error| format!("{error:#}"));
    problems.value("authentication-config", opened)
}

fn issuers_of_flags(
    flags: &Flags,
    own: &[String],
    caller: &Arc<Caller>,
    problems: &mut Problems,
) -> Option<Arc<OperatorIssuers>> {
    if path(flags, "authentication-config").is_some() || !oidc_flags::are_given(flags) {
        return None;
    }
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let config = oidc_flags::read(flags, &own, problems)?;
    let made = OperatorIssuers::new(config.jwt, &caller.of_operator());
    let made = problems.value("oidc-ca-file", made).map(Arc::new)?;
    // It ends by the deadlines of its calls.
    tokio::spawn({
        let made = Arc::clone(&made);
        async move { made.visit().await }
    });
    Some(made)
}

/// Reads the keys of service account tokens. Both flags are required, as upstream.
pub(super) fn issuer(
    flags: &Flags,
    advertise: IpAddr,
    port: u16,
    problems: &mut Problems,
) -> Option<Arc<TokenIssuer>> {
    let issuers = flags.all("service-account-issuer").iter();
    let issuers: Vec<&String> = issuers.filter(|name| !name.is_empty()).collect();
    let Some(signing) =
        path(flags, "service-account-signing-key-file").filter(|_| !issuers.is_empty())
    else {
        problems.add(
            "--service-account-signing-key-file and --service-account-issuer are required flags",
        );
        return None;
    };
    let key = read_file(&signing).and_then(|pem| {
        let key = key_files::signing_key(&pem);
        key.map_err(|error| format!("{}: {error}", signing.display()))
    });
    let key = problems.value("service-account-signing-key-file", key)?;
    let mut former = Vec::new();
    for file in flags.all("service-account-key-file") {
        let keys = read_file(Path::new(file)).and_then(|pem| {
            let keys = key_files::verifying_keys(&pem);
            keys.map_err(|error| format!("{file}: {error}"))
        });
        let keys = problems
            .value("service-account-key-file", keys)
            .unwrap_or_default();
        let others = keys
            .into_iter()
            .filter(|other| other.id() != key.public().id());
        let until = SystemTime::now() + FOR_EVER;
        former.extend(others.map(|key| FormerKey { key, until }));
    }
    let issuers: Vec<_> = issuers
        .into_iter()
        .map(|name| name.as_str().into())
        .collect();
    let audiences: Vec<_> = flags
        .list("api-audiences")
        .into_iter()
        .map(Into::into)
        .collect();
    let host = SocketAddr::new(advertise, port);
    let key_set_url = match flags.text("service-account-jwks-uri") {
        Some(url) => url.to_owned(),
        None => format!("https://{host}/openid/v1/jwks"),
    };
    let names = IssuerNames {
        audiences: if audiences.is_empty() {
            issuers.clone()
        } else {
            audiences
        },
        issuers,
        key_set_url: key_set_url.into(),
    };
    let issuer = TokenIssuer::named(polyplane_ownership::ROOT, names, key, former);
    Some(Arc::new(issuer))
}
