//! The metrics of authentication and authorization, for all planes together.
//!
//! A request is counted once, at the replica that answers it, as the last attempt to answer it went.
//!
//! Invariant: no label is a user. Names are shown as one of a few classes, as upstream.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polyplane_auth::UserInfo;
use polyplane_registry::CheckedAccess;
use polyplane_registry::metrics::{Durations, Family, Labels, Observed, Samples, Sharded};

/// Upper bounds of the buckets: each is twice the one before.
const BOUNDS: [Duration; 15] = {
    let mut bounds = [Duration::from_millis(1); 15];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = Duration::from_millis(1 << at);
        at += 1;
    }
    bounds
};
/// Upper bounds of the buckets of times that certificates are still valid: upstream's, from half an hour to
/// a year.
const LEFT_BOUNDS: [Duration; 14] = {
    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;
    const SECONDS: [u64; 14] = [
        0,
        1800,
        HOUR,
        2 * HOUR,
        6 * HOUR,
        12 * HOUR,
        DAY,
        2 * DAY,
        4 * DAY,
        7 * DAY,
        30 * DAY,
        90 * DAY,
        180 * DAY,
        360 * DAY,
    ];
    let mut bounds = [Duration::ZERO; 14];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = Duration::from_secs(SECONDS[at]);
        at += 1;
    }
    bounds
};
const AUTHENTICATIONS: [&str; 3] = ["error", "failure", "success"];
const AUTHORIZATIONS: [&str; 4] = ["allowed", "denied", "error", "no-opinion"];
/// The names that upstream shows, the class of those that look like an address, and of all others.
const USERS: [&str; 7] = [
    "admin",
    "client",
    "email_id",
    "kube_proxy",
    "kubelet",
    "system:serviceaccount:kube-system:default",
    "other",
];
const EMAIL: usize = 2;
const OTHER: usize = USERS.len() - 1;

/// The outcome of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// The credentials of the request prove nobody.
    Error,
    /// The request has no credentials.
    Failure,
    /// The request proves a user of this class.
    Success(usize),
}

/// The outcome of authentication and authorization of one request, as far as it came.
#[derive(Debug, Default)]
pub(crate) struct AccessOutcome {
    proof: Option<(Proof, Duration)>,
    /// For how much longer the certificate is valid that proves the caller.
    certificate_left: Option<Duration>,
    access: Option<(CheckedAccess, Duration)>,
}

impl AccessOutcome {
    /// Returns whether an attempt to prove the caller has come to a result.
    pub(crate) fn has_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// Notes that the caller is proven.
    pub(crate) fn proven(&mut self, user: &UserInfo, took: Duration) {
        self.proof = Some((Proof::Success(class(&user.name)), took));
    }

    /// Notes for how much longer the certificate is valid that proves the caller, if its dates can be read.
    pub(crate) fn came_by_certificate(&mut self, left: Option<Duration>) {
        self.certificate_left = left;
    }

    /// Notes that the request has no credentials where it needs some.
    pub(crate) fn has_no_credentials(&mut self) {
        self.proof = Some((Proof::Failure, Duration::ZERO));
    }

    /// Notes that the credentials of the request prove nobody.
    pub(crate) fn is_refuted(&mut self, took: Duration) {
        self.proof = Some((Proof::Error, took));
    }

    /// Notes what the authorizers said about the request itself.
    pub(crate) fn checked(&mut self, outcome: CheckedAccess, took: Duration) {
        self.access = Some((outcome, took));
    }
}

/// Returns the class of a user's name.
fn class(name: &str) -> usize {
    match USERS[..OTHER].binary_search(&name) {
        Ok(EMAIL) | Err(_) => {
            if name.contains('@') {
                EMAIL
            } else {
                OTHER
            }
        }
        Ok(known) => known,
    }
}

type Took = Durations<{ BOUNDS.len() + 1 }>;

#[derive(Debug, Default)]
struct Numbers {
    users: [AtomicU64; USERS.len()],
    authentications: [Took; AUTHENTICATIONS.len()],
    authorizations: [Took; AUTHORIZATIONS.len()],
    certificates: TimesLeft,
}

/// How long certificates are still valid, in seconds, by bucket.
#[derive(Debug, Default)]
struct TimesLeft {
    buckets: [AtomicU64; LEFT_BOUNDS.len() + 1],
    seconds: AtomicU64,
}

impl TimesLeft {
    fn observe(&self, left: Duration) {
        let bucket = LEFT_BOUNDS.partition_point(|bound| *bound < left);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.seconds.fetch_add(left.as_secs(), Ordering::Relaxed);
    }
}

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct AccessMetrics(Sharded<Numbers>);

impl AccessMetrics {
    /// Counts a request.
    pub(crate) fn count(&self, outcome: &AccessOutcome) {
        let numbers = self.0.own();
        if let Some((proof, took)) = outcome.proof {
            let result = match proof {
                Proof::Error => 0,
                Proof::Failure => 1,
                Proof::Success(user) => {
                    numbers.users[user].fetch_add(1, Ordering::Relaxed);
                    2
                }
            };
            numbers.authentications[result].observe(&BOUNDS, took);
        }
        if let Some(left) = outcome.certificate_left {
            numbers.certificates.observe(left);
        }
        if let Some((access, took)) = outcome.access {
            let result = match access {
                CheckedAccess::Allowed => 0,
                CheckedAccess::Denied => 1,
                CheckedAccess::Failed => 2,
                CheckedAccess::NoOpinion => 3,
            };
            numbers.authorizations[result].observe(&BOUNDS, took);
        }
    }

    /// Returns the metrics.
    pub(crate) fn families(&self) -> Vec<Family> {
        let users = (0..USERS.len()).map(|at| {
            let count = self.0.sum(|numbers| &numbers.users[at]);
            (labelled("username", USERS[at]), count)
        });
        let authentications: Vec<Observed> = (0..AUTHENTICATIONS.len())
            .map(|at| self.0.observed(|numbers| &numbers.authentications[at]))
            .collect();
        let authorizations: Vec<Observed> = (0..AUTHORIZATIONS.len())
            .map(|at| self.0.observed(|numbers| &numbers.authorizations[at]))
            .collect();
        vec![
            Family {
                name: "authenticated_user_requests",
                help: "Requests whose callers were proven, by a class of the user's name.",
                samples: Samples::Counters(users.filter(|(_, count)| *count > 0).collect()),
            },
            attempts(
                "authentication_attempts",
                "Requests whose callers were to be proven, by the result.",
                (&AUTHENTICATIONS, &authentications),
            ),
            durations(
                "authentication_duration_seconds",
                "Time until the caller of a request was proven or refused, by the result.",
                (&AUTHENTICATIONS, authentications),
            ),
            attempts(
                "authorization_attempts_total",
                "Requests on which authorizers had to decide, by the result.",
                (&AUTHORIZATIONS, &authorizations),
            ),
            durations(
                "authorization_duration_seconds",
                "Time that authorizers have taken to decide on a request, by the result.",
                (&AUTHORIZATIONS, authorizations),
            ),
            self.certificates(),
        ]
    }

    fn certificates(&self) -> Family {
        let buckets = (0..=LEFT_BOUNDS.len())
            .map(|at| self.0.sum(|numbers| &numbers.certificates.buckets[at]))
            .collect();
        let seconds = self.0.sum(|numbers| &numbers.certificates.seconds);
        let observed = Observed {
            buckets,
            seconds: seconds as f64,
        };
        Family {
            name: "apiserver_client_certificate_expiration_seconds",
            help: "For how much longer the certificates were valid that proved the callers of requests.",
            samples: Samples::Histograms {
                bounds: &LEFT_BOUNDS,
                samples: vec![(Labels::new(), observed)],
            },
        }
    }
}

fn labelled(name: &'static str, value: &'static str) -> Labels {
    vec![(name, Cow::Borrowed(value))]
}

/// Returns how many durations there are of each result. Each attempt has one.
fn attempts(
    name: &'static str,
    help: &'static str,
    (results, observed): (&[&'static str], &[Observed]),
) -> Family {
    let counts = observed.iter().map(Observed::count);
    let samples = results.iter().zip(counts).filter(|(_, count)| *count > 0);
    let samples = samples.map(|(result, count)| (labelled("result", result), count));
    Family {
        name,
        help,
        samples: Samples::Counters(samples.collect()),
    }
}

fn durations(
    name: &'static str,
    help: &'static str,
    (results, observed): (&[&'static str], Vec<Observed>),
) -> Family {
    let samples = results.iter().zip(observed);
    let samples = samples.filter(|(_, observed)| observed.count() > 0);
    let samples = samples.map(|(result, observed)| (labelled("result", result), observed));
    Family {
        name,
        help,
        samples: Samples::Histograms {
            bounds: &BOUNDS,
            samples: samples.collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::exposition::Exposition;

    #[test]
    fn names_of_users_are_shown_as_few_classes() {
        assert!(USERS[..OTHER].is_sorted());
        for (name, class_of) in [
            ("admin", "admin"),
            ("client", "client"),
            ("kube_proxy", "kube_proxy"),
            ("kubelet", "kubelet"),
            (
                "system:serviceaccount:kube-system:default",
                "system:serviceaccount:kube-system:default",
            ),
            ("jane@example.com", "email_id"),
            ("@", "email_id"),
            ("admin@", "email_id"),
            // A name may be that of a class.
            ("email_id", "other"),
            ("other", "other"),
            ("Admin", "other"),
            ("", "other"),
            ("system:anonymous", "other"),
            ("system:serviceaccount:default:default", "other"),
        ] {
            assert_eq!(USERS[class(name)], class_of, "{name}");
        }
    }

    #[test]
    fn bounds_are_those_of_upstream() {
        let bounds: Vec<String> = BOUNDS
            .iter()
            .map(|bound| bound.as_secs_f64().to_string())
            .collect();
        let text = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 \
                    8.192 16.384";
        assert_eq!(bounds.join(" "), text);
    }

    #[test]
    fn a_request_is_counted_as_far_as_it_came() {
        let metrics = AccessMetrics::default();
        let mut stranger = AccessOutcome::default();
        stranger.has_no_credentials();
        let mut unknown = AccessOutcome::default();
        unknown.is_refuted(Duration::from_millis(2));
        let mut refused = AccessOutcome::default();
        refused.proven(&UserInfo::new("jane", &[]), Duration::from_millis(3));
        refused.checked(CheckedAccess::NoOpinion, Duration::from_secs(60));
        for outcome in [
            &stranger,
            &stranger,
            &unknown,
            &refused,
            &AccessOutcome::default(),
        ] {
            metrics.count(outcome);
        }
        let mut out = Exposition::default();
        out.families(&metrics.families());
        let text = out.into_text();
        let has = |line: &str| assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        has(r#"authenticated_user_requests{username="other"} 1"#);
        has(r#"authentication_attempts{result="error"} 1"#);
        has(r#"authentication_attempts{result="failure"} 2"#);
        has(r#"authentication_attempts{result="success"} 1"#);
        has(r#"authentication_duration_seconds_bucket{result="error",le="0.001"} 0"#);
        has(r#"authentication_duration_seconds_bucket{result="error",le="0.002"} 1"#);
        has(r#"authentication_duration_seconds_sum{result="error"} 0.002"#);
        has(r#"authentication_duration_seconds_bucket{result="success",le="0.004"} 1"#);
        has(r#"authorization_attempts_total{result="no-opinion"} 1"#);
        has(r#"authorization_duration_seconds_bucket{result="no-opinion",le="16.384"} 0"#);
        has(r#"authorization_duration_seconds_bucket{result="no-opinion",le="+Inf"} 1"#);
        assert!(!text.contains("allowed"), "{text}");
    }
}
