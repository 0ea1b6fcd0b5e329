//! The flags that say how long things last: Events, the tokens of service accounts, and pods on nodes that
//! are not ready.

use crate::cli::lifetimes::{LifetimeOptions, event_seconds, token_seconds};
use crate::envtest::flags::Flags;
use crate::envtest::settings::Problems;
use polyplane_admission::TolerationSeconds;
use polyplane_registry::settings::Lifetimes;

/// The flags.
pub(super) const FLAGS: [&str; 5] = [
    "default-not-ready-toleration-seconds",
    "default-unreachable-toleration-seconds",
    "event-ttl",
    "service-account-extend-token-expiration",
    "service-account-max-token-expiration",
];

/// Reads how long pods stay on nodes that are not ready or cannot be reached.
pub(super) fn tolerations(flags: &Flags, problems: &mut Problems) -> TolerationSeconds {
    let default = TolerationSeconds::default();
    let [not_ready, unreachable, ..] = FLAGS;
    TolerationSeconds {
        not_ready: problems.parsed(flags, not_ready, default.not_ready),
        unreachable: problems.parsed(flags, unreachable, default.unreachable),
    }
}

/// Reads how long Events and tokens last.
pub(super) fn read(flags: &Flags, problems: &mut Problems) -> Lifetimes {
    let [_, _, events, extends, tokens] = FLAGS;
    let default = Lifetimes::default();
    let event_ttl = problems.read(flags, events, event_seconds);
    let options = LifetimeOptions {
        event_ttl: event_ttl.unwrap_or(default.event_seconds),
        service_account_max_token_expiration: problems.read(flags, tokens, token_seconds),
        service_account_extend_token_expiration: flags
            .switch(extends, default.are_pod_tokens_extended),
    };
    options.lifetimes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::kube_apiserver;

    fn given(arguments: &[&str]) -> (Lifetimes, bool) {
        let arguments = arguments.iter().map(|text| (*text).to_owned());
        let flags = kube_apiserver::FLAGS.parse(arguments).expect("flags");
        let mut problems = Problems::default();
        (read(&flags, &mut problems), problems.is_empty())
    }

    #[test]
    fn lifetimes_are_those_of_upstream_unless_flags_say_otherwise() {
        assert_eq!(given(&[]), (Lifetimes::default(), true));
        let (lifetimes, is_sound) = given(&[
            "--event-ttl=90m",
            "--service-account-max-token-expiration=2h0m0s",
            "--service-account-extend-token-expiration=false",
        ]);
        let expected = Lifetimes {
            event_seconds: 5400,
            token_seconds_max: Some(7200),
            are_pod_tokens_extended: false,
        };
        assert_eq!((lifetimes, is_sound), (expected, true));
        let none = given(&["--service-account-max-token-expiration=0"]);
        assert_eq!(none, (Lifetimes::default(), true));
        for wrong in [
            "--event-ttl=soon",
            "--event-ttl=2000000h",
            "--service-account-max-token-expiration=59m",
            "--service-account-max-token-expiration=1194000h",
        ] {
            assert!(!given(&[wrong]).1, "{wrong}");
        }
    }
}
