//! `polyplane credentials`: the exec plug-in of kubeconfigs that renew themselves.
//!
//! A client such as kubectl runs it and gets a client certificate on standard output. The kubeconfig
//! holds the first certificate; the newest one is in a file of its own. From two thirds of its life on,
//! the server is asked for the next one, with the present one as the proof. The server decides what the
//! next one says.
//!
//! Invariant: a certificate that is valid is never replaced by nothing. If no server answers, the present
//! one is used until it expires, and the client is told to ask again soon.

use super::client::{Client, Refusal};
use super::config::Target;
use super::print::line;
use crate::cli::access::CredentialsOptions;
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::{digest_of, hex};
use polyplane_pki::{ClientKey, write_private};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The versions of the clients' protocol, which are the same here.
const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];
/// The variable in which a client says which cluster it wants a credential for.
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// The variable in which the kubeconfig holds the first credential.
const FIRST: &str = "POLYPLANE_CREDENTIAL";
/// The path below the plane's address to which renewals are sent.
const RENEWAL_PATH: &str = "/polyplane/credential";
/// Bytes of the longest file with a credential. One has about 3 000.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Seconds after which a client asks again if a due renewal failed. Less would run this program for
/// nearly every request.
const RETRY_SECONDS: i64 = 30;

/// A client certificate with its key, and when it is to be renewed.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldCredential {
    certificate: String,
    key: String,
    /// The second since 1970 in which it ends.
    ends: i64,
    /// The second from which on it is renewed; `None` if it cannot be.
    pub renew_at: Option<i64>,
}

impl HeldCredential {
    /// Reads what a server has issued for a private key.
    pub fn of(issued: &Value, key: &str) -> Self {
        let time = |name: &str| Timestamp::parse(issued.str_at(&["status", name])).ok();
        Self {
            certificate: issued.str_at(&["status", "certificate"]).to_owned(),
            key: key.to_owned(),
            ends: time("expirationTimestamp").map_or(i64::MAX, |time| time.seconds),
            renew_at: time("renewTimestamp").map(|time| time.seconds),
        }
    }

    fn read(text: &[u8]) -> Option<Self> {
        let value = json::parse(text, &json::Limits::default()).ok()?.value;
        let text = |name: &str| Some(value.str_at(&[name]).to_owned());
        let held = Self {
            certificate: text("certificate")?,
            key: text("key")?,
            ends: value.int_at(&["ends"])?,
            renew_at: value.int_at(&["renewAt"]),
        };
        (!held.certificate.is_empty() && !held.key.is_empty()).then_some(held)
    }

    fn to_json(&self) -> Vec<u8> {
        let mut value = json!({
            "certificate": (self.certificate.as_str()),
            "key": (self.key.as_str()),
            "ends": (self.ends)
        });
        if let Some(renew_at) = self.renew_at {
            value.set(&["renewAt"], renew_at);
        }
        json::to_vec(&value)
    }

    /// Returns the entry of a kubeconfig that begins with this credential and renews it.
    pub fn plug_in(&self) -> Value {
        let first = STANDARD.encode(self.to_json());
        json!({
            "apiVersion": (VERSIONS[0]),
            "command": "polyplane",
            "args": ["credentials"],
            "env": [{"name": FIRST, "value": (first)}],
            "installHint": "This kubeconfig renews itself with the program polyplane, which must be on PATH.",
            "interactiveMode": "Never",
            "provideClusterInfo": true
        })
    }

    fn is_due(&self, now: i64) -> bool {
        self.renew_at.is_some_and(|at| at <= now)
    }

    /// Returns what a client reads. It keeps the certificate until the time that is said there, so that
    /// is when it has to be renewed, not when it ends.
    fn answer(&self, version: &str, now: i64) -> Value {
        let until = match self.renew_at {
            Some(at) if at <= now => self.ends.min(now + RETRY_SECONDS),
            Some(at) => at,
            None => self.ends,
        };
        json!({
            "apiVersion": version,
            "kind": "ExecCredential",
            "status": {
                "clientCertificateData": (self.certificate.as_str()),
                "clientKeyData": (self.key.as_str()),
                "expirationTimestamp": (Timestamp::from_seconds(until).to_rfc3339())
            }
        })
    }
}

/// Prints a valid certificate, renewed if that is due.
///
/// # Errors
/// Returns the error as a message for the user.
pub fn run(options: &CredentialsOptions) -> anyhow::Result<()> {
    let info = std::env::var(EXEC_INFO).with_context(|| {
        format!("${EXEC_INFO} is not set: kubectl and other clients run this program by themselves, for \
                 kubeconfigs that `kubectl plane kubeconfig --renewable` makes")
    })?;
    let info = ExecInfo::read(&info)?;
    let first = std::env::var(FIRST).with_context(|| {
        format!("${FIRST} is not set: the kubeconfig's entry `exec` has lost its env")
    })?;
    let first = STANDARD.decode(first.trim()).ok();
    let first = first.as_deref().and_then(HeldCredential::read);
    let first = first.with_context(|| format!("${FIRST} holds no credential"))?;
    let folder = match &options.dir {
        Some(folder) => folder.clone(),
        None => default_folder()?,
    };
    let state = StateFile::new(&folder, &info.server, &first);
    let mut held = state.newest(&first);
    if held.is_due(seconds_now()) {
        held = state.renew(&first, &info)?;
    }
    let now = seconds_now();
    if held.ends <= now {
        bail!(
            "the certificate has expired at {} and cannot be renewed any more; ask for another kubeconfig",
            Timestamp::from_seconds(held.ends).to_rfc3339()
        );
    }
    let answer = json::to_vec(&held.answer(&info.version, now));
    Ok(line(std::str::from_utf8(&answer)?)?)
}

/// What a client says about the credential that it wants.
struct ExecInfo {
    version: String,
    /// The address of the plane.
    server: String,
    ca: Vec<u8>,
}

impl ExecInfo {
    fn read(text: &str) -> anyhow::Result<Self> {
        let parsed = json::parse(text.as_bytes(), &json::Limits::default());
        let parsed = parsed.with_context(|| format!("${EXEC_INFO} is no JSON"))?;
        let info = parsed.value;
        let version = info.str_at(&["apiVersion"]);
        if info.str_at(&["kind"]) != "ExecCredential" || !VERSIONS.contains(&version) {
            bail!(
                "${EXEC_INFO} is {:?} of {version:?}; this program knows ExecCredential of {}",
                info.str_at(&["kind"]),
                VERSIONS.join(" and ")
            );
        }
        let server = info.str_at(&["spec", "cluster", "server"]);
        if server.is_empty() {
            bail!(
                "${EXEC_INFO} names no cluster; set provideClusterInfo: true in the kubeconfig's entry `exec`"
            );
        }
        let ca = info.str_at(&["spec", "cluster", "certificate-authority-data"]);
        let ca = STANDARD.decode(ca);
        Ok(Self {
            version: version.to_owned(),
            server: server.trim_end_matches('/').to_owned(),
            ca: ca.with_context(|| format!("the CA in ${EXEC_INFO} is not base64"))?,
        })
    }
}

/// The file with the newest certificate that came from a first one.
struct StateFile {
    folder: PathBuf,
    path: PathBuf,
}

impl StateFile {
    fn new(folder: &Path, server: &str, first: &HeldCredential) -> Self {
        let digest = digest_of(format!("{server}\n{}", first.certificate));
        let name = hex(&digest);
        Self {
            folder: folder.to_owned(),
            path: folder.join(format!("{name}.json")),
        }
    }

    /// Returns the certificate of the file, or else the first one. A file that cannot be read is as none:
    /// the first certificate may still be valid.
    fn newest(&self, first: &HeldCredential) -> HeldCredential {
        let mut bytes = Vec::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        let kept = read.ok().and_then(|_| HeldCredential::read(&bytes));
        kept.filter(|kept| kept.ends >= first.ends)
            .unwrap_or_else(|| first.clone())
    }

    /// Renews the newest certificate, unless another process has done so meanwhile. Returns the newest,
    /// which is the present one if the server does not answer.
    fn renew(&self, first: &HeldCredential, info: &ExecInfo) -> anyhow::Result<HeldCredential> {
        let shown = self.folder.display();
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        made.with_context(|| format!("cannot create {shown}; name another folder with --dir"))?;
        let lock = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.with_extension("lock"))
            .with_context(|| format!("cannot write to {shown}; name another folder with --dir"))?;
        // Released when the file is closed. Without it, each of several clients that run at once would
        // have a certificate made, of which one is kept.
        flock(&lock, FlockOperation::LockExclusive)
            .context("cannot lock the file of the credential")?;
        let held = self.newest(first);
        let now = seconds_now();
        if !held.is_due(now) || held.ends <= now {
            return Ok(held);
        }
        match next(&held, info) {
            Ok(renewed) => {
                write_private(&self.path, &renewed.to_json())?;
                Ok(renewed)
            }
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(Refusal::Status { code: 401, .. }) => bail!(
                    "the server does not accept this certificate any more: it was revoked, or its control \
                     plane is gone; ask for another kubeconfig"
                ),
                _ => {
                    super::print::progress(&format!(
                        "polyplane credentials: the certificate is not renewed yet: {error:#}\n"
                    ));
                    Ok(held)
                }
            },
        }
    }
}

/// Asks the server for the next certificate.
fn next(held: &HeldCredential, info: &ExecInfo) -> anyhow::Result<HeldCredential> {
    let key = ClientKey::generate().context("cannot make a key")?;
    let target = Target::of_plane_user(
        info.server.clone(),
        info.ca.clone(),
        &held.certificate,
        &held.key,
    );
    let wanted = json!({
        "kind": "Credential",
        "apiVersion": "polyplane.dev/v1alpha1",
        "spec": {"publicKey": (key.public.as_str())}
    });
    crate::process::once(async {
        let client = Client::new(&target)?;
        let issued = client.send("POST", RENEWAL_PATH, Some(&wanted)).await?;
        let renewed = HeldCredential::of(&issued, &key.private);
        if renewed.certificate.is_empty() || renewed.ends <= held.ends.min(seconds_now()) {
            bail!("the server answered without a certificate");
        }
        Ok(renewed)
    })
}

fn default_folder() -> anyhow::Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = match named("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(
            named("HOME").context("neither $XDG_CACHE_HOME nor $HOME is set; use --dir")?,
        )
        .join(".cache"),
    };
    Ok(cache.join("polyplane/credentials"))
}

fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
