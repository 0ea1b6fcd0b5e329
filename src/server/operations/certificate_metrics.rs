//! When the certificates end that the server presents and trusts, as a metric.
//!
//! This module reads what was recorded when the certificates were read or issued: a request for metrics parses
//! none.

use std::sync::Arc;

use polyplane_pki::{CertificateEnds, Expiries};

use crate::operations::exposition::{Exposition, Kind};

/// Writes the ends of all certificates.
pub(crate) fn expose(expiries: &[Arc<Expiries>], out: &mut Exposition) {
    let mut ends = CertificateEnds::new();
    for recorded in expiries {
        recorded.add_to(&mut ends);
    }
    let name = "polyplane_certificate_expiry_timestamp_seconds";
    let help =
        "When the certificates end that this replica presents and trusts, by their use and name.";
    out.family(name, Kind::Gauge, help);
    for ((used_as, certificate), end) in &ends {
        let labels = [("name", certificate.as_str()), ("use", used_as.as_str())];
        out.sample(name, &labels, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_pki::{CertificateUse, Pki};

    #[test]
    fn each_use_of_a_certificate_is_a_series_with_the_time_of_its_end() {
        let pki = Pki::in_memory(None).expect("made");
        let issued = pki.issue_client("kubelet-client", &[]).expect("issued");
        let own = Arc::<Expiries>::default();
        own.record(CertificateUse::KubeletClient, &issued.chain);
        let mut out = Exposition::default();
        expose(&[Arc::clone(pki.expiries()), own], &mut out);
        let text = out.into_text();
        let end_of = |labels: &str| {
            let series = format!("\npolyplane_certificate_expiry_timestamp_seconds{{{labels}}} ");
            let (_, rest) = text.split_once(&series)?;
            rest.lines().next()?.parse::<i64>().ok()
        };
        let ca = end_of("name=\"polyplane-ca\",use=\"ca\"").expect("shown");
        let client = end_of("name=\"kubelet-client\",use=\"kubelet-client\"").expect("shown");
        assert!(client < ca, "{text}");
        assert_eq!(text.matches("# TYPE").count(), 1);
    }
}
