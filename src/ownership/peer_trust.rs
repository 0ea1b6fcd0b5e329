//! Whom a replica accepts as another one, as its member key says it: the CAs by which two replicas can be
//! compared without a connection.
//!
//! A connection decides, not this comparison: a record may be older than the files. Must not know
//! certificates: a CA is a hash here, whoever makes it.

use std::fmt;

/// The CAs of a replica's peer certificates, each named by a hash of its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerTrust {
    /// The CA that has issued the replica's own certificate, if it is known.
    pub issuer: Option<String>,
    /// The CAs whose certificates the replica accepts.
    pub trusted: Vec<String>,
}

/// Why two replicas do not accept each other's certificates. The first of them is the one that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mistrust {
    /// The first does not trust the issuer of the second.
    Theirs {
        issuer: String,
        trusted: Vec<String>,
    },
    /// The second does not trust the issuer of the first.
    Ours {
        issuer: String,
        trusted: Vec<String>,
    },
}

impl PeerTrust {
    /// Returns why this replica and another one do not accept each other's certificates; `None` if they
    /// do, or if that is not known.
    pub(crate) fn mistrust(&self, other: &Self) -> Option<Mistrust> {
        let refused = |issuer: &Option<String>, by: &Self| {
            let issuer = issuer.as_ref()?;
            let is_known = by.trusted.contains(issuer);
            (!is_known).then(|| (issuer.clone(), by.trusted.clone()))
        };
        if let Some((issuer, trusted)) = refused(&other.issuer, self) {
            return Some(Mistrust::Theirs { issuer, trusted });
        }
        let (issuer, trusted) = refused(&self.issuer, other)?;
        Some(Mistrust::Ours { issuer, trusted })
    }
}

impl fmt::Display for Mistrust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Theirs { issuer, trusted } => write!(
                formatter,
                "its certificate is issued by the CA {issuer}, and peer-ca.crt here has {}",
                list(trusted)
            ),
            Self::Ours { issuer, trusted } => write!(
                formatter,
                "the certificate of this replica is issued by the CA {issuer}, and peer-ca.crt there has {}",
                list(trusted)
            ),
        }
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(issuer: &str, trusted: &[&str]) -> PeerTrust {
        PeerTrust {
            issuer: Some(issuer.to_owned()),
            trusted: trusted.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn two_replicas_accept_each_other_if_each_trusts_the_others_issuer() {
        let (old, new) = (trust("a", &["a"]), trust("b", &["b"]));
        assert_eq!(old.mistrust(&old), None);
        let theirs = old.mistrust(&new).expect("another CA");
        let text = theirs.to_string();
        assert!(
            text.contains("the CA b, and peer-ca.crt here has a"),
            "{text}"
        );
        // One file has both CAs already, and the certificate of the other replica is of one of them.
        let both = trust("a", &["a", "b"]);
        let ours = both.mistrust(&new).expect("only one way");
        let text = ours.to_string();
        assert!(
            text.contains("the CA a, and peer-ca.crt there has b"),
            "{text}"
        );
    }

    #[test]
    fn the_steps_of_a_change_of_the_ca_with_an_overlap_never_part_two_replicas() {
        // First every file gets both CAs, then every certificate is issued anew, then the old CA goes.
        let steps = [
            trust("a", &["a"]),
            trust("a", &["a", "b"]),
            trust("b", &["a", "b"]),
            trust("b", &["b"]),
        ];
        for (one, next) in steps.iter().zip(&steps[1..]) {
            assert_eq!(one.mistrust(next), None);
            assert_eq!(next.mistrust(one), None);
        }
        assert!(steps[0].mistrust(&steps[2]).is_some());
    }

    #[test]
    fn an_issuer_that_is_not_known_parts_nobody() {
        let unknown = PeerTrust {
            issuer: None,
            ..trust("a", &["b"])
        };
        assert_eq!(unknown.mistrust(&trust("b", &["c"])), None);
    }
}
