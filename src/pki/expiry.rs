//! The ends of the certificates that this server presents and trusts, for metrics, and warnings about those
//! that end soon, before connections fail.
//!
//! There is no task: who reads or issues a certificate records its end, and who uses one looks at it.
//! Certificates that this program issues itself are replaced long before their end, so a warning about one says
//! that it cannot be replaced.
//!
//! Invariant: the certificates of control planes are not recorded, so the number of ends is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::DAY;

/// How long before its end a certificate is reported. Less would leave an operator too little time.
const WARN_DAYS: u64 = 14;
/// Pause between two looks, and so between two warnings about one certificate.
const LOOK_EVERY: Duration = DAY;
/// Names of certificates that are recorded of one file, at most; the others count as [`OTHER`]. A bundle of
/// public CAs has hundreds, each of which would be a series of its own.
const NAMES_MAX: usize = 32;
/// The name of the certificates for whose names there is no room.
const OTHER: &str = "other";
/// Letters of a name that are recorded: those that X.509 allows a common name. A longer DNS name would make a
/// long label.
const NAME_LETTERS_MAX: usize = 64;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateUse {
    /// The server's own CA, which signs serving certificates and those of administrators.
    Ca,
    /// A CA of clients, beside the server's own.
    ClientCa,
    /// A CA of front proxies.
    FrontProxyCa,
    /// A CA of kubelets.
    KubeletCa,
    /// The client certificate for kubelets, and those that complete it.
    KubeletClient,
    /// The certificate for other replicas, and those that complete it.
    Peer,
    /// A CA of replicas among each other.
    PeerCa,
    /// The serving certificate, and those that complete it.
    Serving,
    /// A serving certificate for some names, and those that complete it.
    SniServing,
}

impl CertificateUse {
    /// Returns the use as metrics and messages name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::ClientCa => "client-ca",
            Self::FrontProxyCa => "front-proxy-ca",
            Self::KubeletCa => "kubelet-ca",
            Self::KubeletClient => "kubelet-client",
            Self::Peer => "peer",
            Self::PeerCa => "peer-ca",
            Self::Serving => "serving",
            Self::SniServing => "sni-serving",
        }
    }
}

/// The second since 1970 at which each certificate ends, by its use and its name. Of several with one name, the
/// first end.
pub type CertificateEnds = BTreeMap<(CertificateUse, String), i64>;

/// The same for certificates of one use, by their names.
type NamedEnds = BTreeMap<String, i64>;

/// The ends of the certificates in use. They are recorded when certificates are read or issued, so that metrics
/// parse none.
#[derive(Debug, Default)]
pub struct Expiries {
    /// The ends by name, by the use of the certificates and their place among those of one use.
    ends: Mutex<BTreeMap<(CertificateUse, usize), NamedEnds>>,
}

impl Expiries {
    /// Records the certificates that have a use from now on, in the place of the earlier ones.
    pub fn record(&self, used_as: CertificateUse, certificates: &[CertificateDer<'_>]) {
        self.record_at(used_as, 0, certificates);
    }

    /// Does the same as [`Self::record`] for the certificates in a PEM text. Damaged ones are left out.
    pub fn record_pem(&self, used_as: CertificateUse, pem: &[u8]) {
        let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
        let certificates: Vec<CertificateDer<'static>> = certificates.collect();
        self.record(used_as, &certificates);
    }

    fn record_at(
        &self,
        used_as: CertificateUse,
        place: usize,
        certificates: &[CertificateDer<'_>],
    ) {
        let ends = ends_by_name(certificates);
        self.ends.lock().insert((used_as, place), ends);
    }

    /// Adds all ends to `all`.
    pub fn add_to(&self, all: &mut CertificateEnds) {
        for ((used_as, _), by_name) in &*self.ends.lock() {
            for (name, end) in by_name {
                let known = all.entry((*used_as, name.clone())).or_insert(*end);
                *known = (*known).min(*end);
            }
        }
    }
}

/// Returns the first end of the certificates of each name. One that cannot be read is left out.
fn ends_by_name(certificates: &[CertificateDer<'_>]) -> NamedEnds {
    let mut ends = NamedEnds::new();
    for certificate in certificates {
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            continue;
        };
        let end = parsed.validity().not_after.timestamp();
        let name = name_of(&parsed);
        let has_room = ends.len() < NAMES_MAX || ends.contains_key(&name);
        let name = if has_room { name } else { OTHER.to_owned() };
        let known = ends.entry(name).or_insert(end);
        *known = end.min(*known);
    }
    ends
}

/// Returns the common name of a certificate, or else its first DNS name.
fn name_of(certificate: &X509Certificate<'_>) -> String {
    let common = certificate.subject().iter_common_name().next();
    let common = common.and_then(|name| name.as_str().ok());
    if let Some(name) = common.filter(|name| !name.is_empty()) {
        return shortened(name);
    }
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return String::new();
    };
    for name in &alternatives.value.general_names {
        if let GeneralName::DNSName(name) = name {
            return shortened(name);
        }
    }
    String::new()
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_LETTERS_MAX).collect()
}

/// The record of the ends of one chain of this server, and the warnings about it.
pub(crate) struct ExpiryLog {
    used_as: CertificateUse,
    /// The chain's place among those of one use.
    place: usize,
    expiries: Arc<Expiries>,
    looked: Mutex<Option<Instant>>,
}

/// How much time a certificate has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Enough,
    Days(u64),
    Nothing,
}

impl ExpiryLog {
    pub(crate) fn new(used_as: CertificateUse, place: usize, expiries: &Arc<Expiries>) -> Self {
        Self {
            used_as,
            place,
            expiries: Arc::clone(expiries),
            looked: Mutex::new(None),
        }
    }

    /// Warns if one certificate of a chain in use ends soon. Looks once a day.
    pub(crate) fn look(&self, chain: &[CertificateDer<'static>]) {
        {
            let mut looked = self.looked.lock();
            if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return;
            }
            *looked = Some(Instant::now());
        }
        let purpose = self.used_as.as_str();
        match left(chain, SystemTime::now()) {
            Left::Enough => {}
            Left::Days(days) => tracing::warn!(
                days,
                "the {purpose} certificate, or one of its chain, expires soon: replace its files"
            ),
            Left::Nothing => tracing::error!(
                "the {purpose} certificate, or one of its chain, has expired: replace its files"
            ),
        }
    }

    /// Records a chain that was just read or issued, and warns about it.
    pub(crate) fn look_anew(&self, chain: &[CertificateDer<'static>]) {
        self.expiries.record_at(self.used_as, self.place, chain);
        *self.looked.lock() = None;
        self.look(chain);
    }
}

/// Returns how much time is left until the first certificate of a chain ends. One that cannot be read is
/// left out: a handshake reports it.
fn left(chain: &[CertificateDer<'static>], now: SystemTime) -> Left {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(parsed.validity().not_after.timestamp()).ok()
    });
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let Some(end) = ends.min() else {
        return Left::Enough;
    };
    match end.checked_sub(now) {
        None | Some(0) => Left::Nothing,
        Some(seconds) => match seconds / DAY.as_secs() {
            days if days < WARN_DAYS => Left::Days(days),
            _ => Left::Enough,
        },
    }
}

/// Returns why one certificate of a chain is not valid at this time; `None` if all are. One that cannot be
/// read is left out: a handshake reports it.
pub(crate) fn invalidity(chain: &[CertificateDer<'static>], now: SystemTime) -> Option<String> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).ok()?;
    chain.iter().find_map(|certificate| {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let (name, validity) = (name_of(&parsed), parsed.validity());
        if now > validity.not_after.timestamp() {
            let end = validity.not_after;
            return Some(format!("the certificate {name:?} expired at {end}"));
        }
        let begin = validity.not_before;
        let is_early = now < begin.timestamp();
        is_early.then(|| format!("the certificate {name:?} is not valid before {begin}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LEAF_LIFETIME, Pki};

    #[test]
    fn a_certificate_is_reported_two_weeks_before_its_end() {
        let pki = Pki::in_memory(None).expect("made");
        let issued = pki.issue_serving(&["localhost".to_owned()]);
        let chain = issued.expect("issued").chain;
        let after = |time: Duration| left(&chain, SystemTime::now() + time);
        assert_eq!(after(Duration::ZERO), Left::Enough);
        assert_eq!(after(LEAF_LIFETIME - 20 * DAY), Left::Enough);
        let soon = after(LEAF_LIFETIME - 5 * DAY);
        assert!(matches!(soon, Left::Days(4..=5)), "{soon:?}");
        assert_eq!(after(LEAF_LIFETIME + DAY), Left::Nothing);
        assert_eq!(left(&[], SystemTime::now()), Left::Enough);
    }

    #[test]
    fn a_certificate_is_valid_from_its_begin_to_its_end() {
        let pki = Pki::in_memory(None).expect("made");
        let chain = pki.issue_client("jane", &[]).expect("issued").chain;
        let now = SystemTime::now();
        assert_eq!(invalidity(&chain, now), None);
        let late = invalidity(&chain, now + LEAF_LIFETIME + DAY).unwrap_or_default();
        assert!(late.contains("\"jane\" expired at"), "{late}");
        let early = invalidity(&chain, now - DAY).unwrap_or_default();
        assert!(early.contains("\"jane\" is not valid before"), "{early}");
        assert_eq!(invalidity(&[], now), None);
    }

    #[test]
    fn a_certificate_is_looked_at_once_a_day_and_when_it_is_new() {
        let log = ExpiryLog::new(CertificateUse::Serving, 0, &Arc::default());
        log.look(&[]);
        let first = *log.looked.lock();
        assert!(first.is_some());
        log.look(&[]);
        assert_eq!(*log.looked.lock(), first);
        log.look_anew(&[]);
        assert!(*log.looked.lock() >= first);
    }

    fn recorded(expiries: &Expiries) -> CertificateEnds {
        let mut ends = CertificateEnds::new();
        expiries.add_to(&mut ends);
        ends
    }

    fn now() -> i64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.expect("it is after 1970").as_secs();
        now.try_into().expect("it is soon")
    }

    #[test]
    fn the_ends_of_what_is_in_use_are_known_by_use_and_name() {
        let pki = Pki::in_memory(None).expect("made");
        let key = |used_as, name: &str| (used_as, name.to_owned());
        let ca = key(CertificateUse::Ca, "polyplane-ca");
        assert!(recorded(pki.expiries())[&ca] > now() + 3000 * 86_400);
        let issued = pki.issue_client("jane", &[]).expect("issued");
        let expiries = Expiries::default();
        let pem = issued.certificate_pem.as_bytes();
        expiries.record_pem(CertificateUse::KubeletClient, pem);
        let log = ExpiryLog::new(CertificateUse::SniServing, 1, &Arc::default());
        log.look_anew(&issued.chain);
        assert_eq!(recorded(&log.expiries).len(), 1);
        let end = recorded(&expiries)[&key(CertificateUse::KubeletClient, "jane")];
        let left = end - now();
        assert!((364 * 86_400..=365 * 86_400).contains(&left), "{left}");
        // What is read later takes the place of what was read before.
        expiries.record(
            CertificateUse::KubeletClient,
            std::slice::from_ref(pki.root()),
        );
        let names: Vec<_> = recorded(&expiries).into_keys().collect();
        assert_eq!(names, [key(CertificateUse::KubeletClient, "polyplane-ca")]);
    }

    #[test]
    fn of_certificates_with_one_name_the_first_end_counts_and_names_are_bounded() {
        let pki = Pki::in_memory(None).expect("made");
        let issued = pki.issue_client("polyplane-ca", &[]).expect("issued");
        let both = [pki.root().clone(), issued.chain[0].clone()];
        let ends = ends_by_name(&both);
        assert_eq!(ends.len(), 1);
        assert!(ends["polyplane-ca"] < now() + 366 * 86_400);
        let many = (0..NAMES_MAX + 9).map(|number| {
            let issued = pki.issue_client(&format!("client-{number}"), &[]);
            issued.expect("issued").chain[0].clone()
        });
        let many: Vec<_> = many.collect();
        let ends = ends_by_name(&many);
        assert_eq!(ends.len(), NAMES_MAX + 1);
        assert!(ends.contains_key(OTHER));
    }

    #[test]
    fn a_certificate_without_a_common_name_has_its_dns_name() {
        let key = crate::new_key().expect("made");
        let mut params = crate::base_params("", DAY);
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = format!("{}.example.com", "a".repeat(60));
        let dns = name.as_str().try_into().expect("a name");
        params.subject_alt_names = vec![rcgen::SanType::DnsName(dns)];
        let made = params.self_signed(&key).expect("signed");
        let ends = ends_by_name(std::slice::from_ref(made.der()));
        assert_eq!(ends.into_keys().collect::<Vec<_>>(), [&name[..64]]);
    }
}
