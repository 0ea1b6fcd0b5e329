//! Names that cross the ring: replica, plane, zone, peer address. Each is checked once, here, and
//! is a shared string that is cheap to clone afterwards. Invariant: a value of these types follows
//! its rule.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

/// The reason why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty.
    #[error("a {role} must not be empty")]
    Empty {
        /// The kind of name that was expected, such as `plane id`.
        role: &'static str,
    },
    /// The text has more bytes than the role allows.
    #[error("a {role} has at most {bytes_max} bytes, this one has {bytes}")]
    TooLong {
        /// The kind of name that was expected, such as `plane id`.
        role: &'static str,
        /// Number of bytes in the text.
        bytes: usize,
        /// Number of bytes allowed.
        bytes_max: usize,
    },
    /// A character, or its position, breaks the role's rule.
    #[error("{text:?} is not a {role}: {rule}")]
    Malformed {
        /// The kind of name that was expected, such as `plane id`.
        role: &'static str,
        /// The text.
        text: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $role:literal, $bytes_max:literal, $rule:literal, $obeys:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                if text.is_empty() {
                    return Err(InvalidName::Empty { role: $role });
                }
                if text.len() > $bytes_max {
                    return Err(InvalidName::TooLong {
                        role: $role,
                        bytes: text.len(),
                        bytes_max: $bytes_max,
                    });
                }
                let obeys: fn(&str) -> bool = $obeys;
                if !obeys(text) {
                    return Err(InvalidName::Malformed {
                        role: $role,
                        text: text.into(),
                        rule: $rule,
                    });
                }
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// One server process of the ring, for as long as its name is used: `polyplane-0`.
    ReplicaId,
    "replica id",
    253,
    "lower case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    |text| text.split('.').all(is_label)
);

name!(
    /// One control plane, for ever: an id is never used again.
    PlaneId,
    "plane id",
    63,
    "lower case letters, digits and '-', beginning and ending with a letter or digit",
    is_label
);

name!(
    /// A failure domain of the machines.
    Zone,
    "zone",
    63,
    "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    |text| {
        let bytes = text.as_bytes();
        bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && ends_alphanumeric(bytes)
    }
);

name!(
    /// The address at which peers reach a replica: `host:port` or `[v6]:port`.
    PeerAddress,
    "peer address",
    259,
    "a host, a colon and a port between 1 and 65535",
    |text| match text.rsplit_once(':') {
        Some((host, port)) => {
            let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
            let bare = !host.is_empty() && !host.contains([':', '[', ']', '/', '@', ' ']);
            let digits = port.bytes().all(|b| b.is_ascii_digit());
            (bracketed || bare) && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        None => false,
    }
);

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes
        .iter()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && ends_alphanumeric(bytes)
}

fn ends_alphanumeric(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_name_takes_its_rule_and_nothing_else() {
        for good in ["polyplane-0", "a", "0.b-c.d"] {
            assert!(good.parse::<ReplicaId>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a..b", "a_b", "ü", "a b", "a/b"] {
            assert!(bad.parse::<ReplicaId>().is_err(), "{bad}");
        }
        assert!("a.b".parse::<PlaneId>().is_err());
        assert!("x".repeat(63).parse::<PlaneId>().is_ok());
        assert!("x".repeat(64).parse::<PlaneId>().is_err());
        assert!("Zone_1.a".parse::<Zone>().is_ok());
        for good in ["h:1", "10.0.0.1:7443", "[::1]:65535"] {
            assert!(good.parse::<PeerAddress>().is_ok(), "{good}");
        }
        for bad in [
            "h", "h:", ":1", "h:0", "h:65536", "h:+1", "::1:5", "[]:5", "u@h:5",
        ] {
            assert!(bad.parse::<PeerAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_names_the_role_and_the_rule() {
        let error = "A".parse::<PlaneId>().expect_err("upper case is refused");
        assert_eq!(
            error.to_string(),
            "\"A\" is not a plane id: lower case letters, digits and '-', beginning and ending with a letter or digit"
        );
    }
}
