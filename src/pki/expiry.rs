//! Warnings about certificates of this server that end soon, before connections fail.
//!
//! There is no task: who uses a certificate looks at it. Certificates that this program issues itself are
//! replaced long before their end, so a warning about one says that it cannot be replaced.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::DAY;

/// How long before its end a certificate is reported. Less would leave an operator too little time.
const WARN_DAYS: u64 = 14;
/// Pause between two looks, and so between two warnings about one certificate.
const LOOK_EVERY: Duration = DAY;

/// The warnings about one certificate of this server.
pub(crate) struct ExpiryLog {
    /// What the certificate is for, in messages.
    purpose: &'static str,
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
    pub(crate) fn new(purpose: &'static str) -> Self {
        Self {
            purpose,
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
        let purpose = self.purpose;
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

    /// Warns about a chain that was just read or issued.
    pub(crate) fn look_anew(&self, chain: &[CertificateDer<'static>]) {
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
    fn a_certificate_is_looked_at_once_a_day_and_when_it_is_new() {
        let log = ExpiryLog::new("serving");
        log.look(&[]);
        let first = *log.looked.lock();
        assert!(first.is_some());
        log.look(&[]);
        assert_eq!(*log.looked.lock(), first);
        log.look_anew(&[]);
        assert!(*log.looked.lock() >= first);
    }
}
