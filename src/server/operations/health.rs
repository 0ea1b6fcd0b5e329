//! `/livez`, `/readyz` and `/healthz`, in the format of upstream.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::backend::{CheckScope, HealthCheck};
use crate::operations::drain::Drain;
use crate::operations::exposition::{Exposition, Kind};

/// One of the three health paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Livez,
    Readyz,
    Healthz,
}

impl Endpoint {
    const ALL: [Self; 3] = [Self::Livez, Self::Readyz, Self::Healthz];

    /// Returns the endpoint of a path, and the name of the check if the path names one.
    pub(crate) fn of(path: &str) -> Option<(Self, Option<&str>)> {
        for endpoint in Self::ALL {
            let Some(rest) = path
                .strip_prefix('/')
                .and_then(|path| path.strip_prefix(endpoint.name()))
            else {
                continue;
            };
            return match rest.strip_prefix('/') {
                None if rest.is_empty() => Some((endpoint, None)),
                Some(check) if !check.is_empty() => Some((endpoint, Some(check))),
                _ => None,
            };
        }
        None
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
            Self::Healthz => "healthz",
        }
    }

    fn shows(self, scope: CheckScope) -> bool {
        match scope {
            CheckScope::Live | CheckScope::Start => true,
            CheckScope::Ready => self != Self::Livez,
            CheckScope::ReadyOnly => self == Self::Readyz,
        }
    }
}

/// The answer of a health path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// All checks passed.
    Well(String),
    /// A check failed. The text ends with a newline, as upstream's does.
    Unwell(String),
    /// No check has this name.
    Unknown,
}

/// A check, and how it went.
struct CountedCheck {
    check: HealthCheck,
    /// For each endpoint.
    results: [Results; Endpoint::ALL.len()],
}

/// How a check of one endpoint went.
#[derive(Debug, Default)]
struct Results {
    passed: AtomicU64,
    failed: AtomicU64,
    passes: AtomicBool,
}

impl CountedCheck {
    fn run(&self, endpoint: Endpoint) -> Result<(), String> {
        let result = match (endpoint, self.check.scope) {
            (Endpoint::Livez, CheckScope::Start) => Ok(()),
            _ => (self.check.check)(),
        };
        let results = &self.results[endpoint as usize];
        let counter = match result {
            Ok(()) => &results.passed,
            Err(_) => &results.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        results.passes.store(result.is_ok(), Ordering::Relaxed);
        result
    }
}

/// The checks of a server: its own and those of the layers behind it.
pub(crate) struct Checks {
    checks: Vec<CountedCheck>,
}

impl Checks {
    pub(crate) fn new(behind: Vec<HealthCheck>, drain: Arc<Drain>) -> Self {
        let mut checks = vec![HealthCheck {
            name: "ping",
            scope: CheckScope::Live,
            check: Arc::new(|| Ok(())),
        }];
        checks.extend(behind);
        checks.push(HealthCheck {
            name: "shutdown",
            scope: CheckScope::Ready,
            check: Arc::new(move || {
                if drain.is_ready() {
                    Ok(())
                } else {
                    Err("process is shutting down".to_owned())
                }
            }),
        });
        let counted = |check| CountedCheck {
            check,
            results: Default::default(),
        };
        Self {
            checks: checks.into_iter().map(counted).collect(),
        }
    }

    /// Writes how the checks went that were asked for.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = self.checks.iter().flat_map(|counted| {
            let results = Endpoint::ALL.into_iter().zip(&counted.results);
            results.map(|(endpoint, results)| (counted.check.name, endpoint.name(), results))
        });
        let run: Vec<_> = all
            .filter(|(_, _, results)| load(&results.passed) + load(&results.failed) > 0)
            .collect();
        let name = "kubernetes_healthcheck";
        out.family(name, Kind::Gauge, "Whether a check passed the last time.");
        for (check, endpoint, results) in &run {
            let passes = u8::from(results.passes.load(Ordering::Relaxed));
            out.sample(name, &[("name", check), ("type", endpoint)], passes);
        }
        let name = "kubernetes_healthchecks_total";
        out.family(name, Kind::Counter, "How often a check passed and failed.");
        for (check, endpoint, results) in &run {
            for (status, counter) in [("error", &results.failed), ("success", &results.passed)] {
                let labels = [("name", *check), ("status", status), ("type", *endpoint)];
                if load(counter) > 0 {
                    out.sample(name, &labels, load(counter));
                }
            }
        }
    }

    /// Returns the paths of all checks, for the list of paths.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for endpoint in [Endpoint::Healthz, Endpoint::Livez, Endpoint::Readyz] {
            paths.push(format!("/{}", endpoint.name()));
            let checks = self.checks.iter().map(|counted| &counted.check);
            let shown = checks.filter(|check| endpoint.shows(check.scope));
            paths.extend(shown.map(|check| format!("/{}/{}", endpoint.name(), check.name)));
        }
        paths
    }

    /// Runs one check.
    pub(crate) fn one(&self, endpoint: Endpoint, name: &str) -> Health {
        let found = self.checks.iter().find(|counted| {
            let check = &counted.check;
            check.name == name && endpoint.shows(check.scope)
        });
        match found.map(|counted| counted.run(endpoint)) {
            None => Health::Unknown,
            Some(Ok(())) => Health::Well("ok".to_owned()),
            Some(Err(why)) => Health::Unwell(format!("internal server error: {why}\n")),
        }
    }

    /// Runs all checks of an endpoint except those that the query excludes.
    pub(crate) fn all(&self, endpoint: Endpoint, query: &[(String, String)]) -> Health {
        let mut unmatched: Vec<&str> = query
            .iter()
            .filter(|(key, _)| key == "exclude")
            .map(|(_, value)| value.as_str())
            .collect();
        unmatched.sort_unstable();
        unmatched.dedup();
        let excluded = unmatched.clone();
        let (mut listing, mut failures) = (String::new(), Vec::new());
        for counted in self
            .checks
            .iter()
            .filter(|counted| endpoint.shows(counted.check.scope))
        {
            let name = counted.check.name;
            let line = if excluded.contains(&name) {
                unmatched.retain(|other| *other != name);
                writeln!(listing, "[+]{name} excluded: ok")
            } else {
                match counted.run(endpoint) {
                    Ok(()) => writeln!(listing, "[+]{name} ok"),
                    Err(why) => {
                        failures.push(format!("{name}: {why}"));
                        writeln!(listing, "[-]{name} failed: reason withheld")
                    }
                }
            };
            line.expect("a String takes all text");
        }
        if !unmatched.is_empty() {
            let names: Vec<String> = unmatched.iter().map(|name| format!("\"{name}\"")).collect();
            listing.push_str("warn: some health checks cannot be excluded: no matches for ");
            listing.push_str(&names.join(","));
            listing.push('\n');
        }
        let name = endpoint.name();
        if !failures.is_empty() {
            let why = failures.join("; ");
            tracing::warn!(endpoint = name, %why, "a health check failed");
            return Health::Unwell(format!("{listing}{name} check failed\n"));
        }
        Health::Well(if query.iter().any(|(key, _)| key == "verbose") {
            format!("{listing}{name} check passed\n")
        } else {
            "ok".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(store: Result<(), String>) -> (Checks, Arc<Drain>) {
        let drain = Drain::new();
        let check = HealthCheck {
            name: "store",
            scope: CheckScope::Ready,
            check: Arc::new(move || store.clone()),
        };
        (Checks::new(vec![check], Arc::clone(&drain)), drain)
    }

    fn query(text: &str) -> Vec<(String, String)> {
        crate::request::route::parse_query(Some(text))
    }

    #[test]
    fn listings_read_as_upstream_writes_them() {
        let (checks, _) = checks(Ok(()));
        assert_eq!(
            checks.all(Endpoint::Readyz, &[]),
            Health::Well("ok".to_owned())
        );
        let verbose = "[+]ping ok\n[+]store ok\n[+]shutdown ok\nreadyz check passed\n";
        assert_eq!(
            checks.all(Endpoint::Readyz, &query("verbose")),
            Health::Well(verbose.to_owned())
        );
        let excluded = "[+]ping ok\n[+]store excluded: ok\n[+]shutdown ok\nwarn: some health checks \
            cannot be excluded: no matches for \"nope\"\nhealthz check passed\n";
        let asked = query("verbose&exclude=store&exclude=nope");
        assert_eq!(
            checks.all(Endpoint::Healthz, &asked),
            Health::Well(excluded.to_owned())
        );
        let live = "[+]ping ok\nlivez check passed\n";
        assert_eq!(
            checks.all(Endpoint::Livez, &query("verbose")),
            Health::Well(live.to_owned())
        );
    }

    #[test]
    fn a_start_that_is_not_finished_is_alive_and_not_ready() {
        let check = |name, scope| HealthCheck {
            name,
            scope,
            check: Arc::new(|| Err("not finished".to_owned())),
        };
        let behind = vec![
            check("poststarthook/one", CheckScope::Start),
            check("etcd-readiness", CheckScope::ReadyOnly),
        ];
        let checks = Checks::new(behind, Drain::new());
        let unwell = |listing: &str| Health::Unwell(listing.to_owned());
        let line = "[-]poststarthook/one failed: reason withheld\n";
        let more = "[-]etcd-readiness failed: reason withheld\n[+]shutdown ok\n";
        let ready = format!("[+]ping ok\n{line}{more}readyz check failed\n");
        assert_eq!(checks.all(Endpoint::Readyz, &[]), unwell(&ready));
        let healthy = format!("[+]ping ok\n{line}[+]shutdown ok\nhealthz check failed\n");
        assert_eq!(checks.all(Endpoint::Healthz, &[]), unwell(&healthy));
        let live = "[+]ping ok\n[+]poststarthook/one ok\nlivez check passed\n";
        assert_eq!(
            checks.all(Endpoint::Livez, &query("verbose")),
            Health::Well(live.to_owned())
        );
        let one = |endpoint, name| checks.one(endpoint, name);
        let name = "poststarthook/one";
        let refused = "internal server error: not finished\n";
        assert_eq!(one(Endpoint::Readyz, name), unwell(refused));
        assert_eq!(one(Endpoint::Livez, name), Health::Well("ok".to_owned()));
        assert_eq!(
            one(Endpoint::Healthz, "etcd-readiness"),
            Health::Unknown,
            "upstream has it on /readyz alone"
        );
    }

    #[test]
    fn checks_are_left_out_of_a_request_by_their_whole_name() {
        let (checks, _) = checks(Err("disk full".to_owned()));
        let asked = query("exclude=store&exclude=x&exclude=a&exclude=x&verbose");
        let listing = "[+]ping ok\n[+]store excluded: ok\n[+]shutdown ok\nwarn: some health checks \
            cannot be excluded: no matches for \"a\",\"x\"\nreadyz check passed\n";
        let well = Health::Well(listing.to_owned());
        assert_eq!(checks.all(Endpoint::Readyz, &asked), well);
        // Names that are unknown fail nothing, and a failure shows them too.
        let listing = "[+]ping ok\n[-]store failed: reason withheld\n[+]shutdown ok\nwarn: some health \
            checks cannot be excluded: no matches for \"stor\"\nreadyz check failed\n";
        let unwell = Health::Unwell(listing.to_owned());
        assert_eq!(checks.all(Endpoint::Readyz, &query("exclude=stor")), unwell);
    }

    #[test]
    fn failures_withhold_their_reason_in_the_listing_only() {
        let (checks, _) = checks(Err("disk full".to_owned()));
        let listing =
            "[+]ping ok\n[-]store failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n";
        assert_eq!(
            checks.all(Endpoint::Readyz, &[]),
            Health::Unwell(listing.to_owned())
        );
        let one = "internal server error: disk full\n".to_owned();
        assert_eq!(checks.one(Endpoint::Readyz, "store"), Health::Unwell(one));
        assert_eq!(
            checks.all(Endpoint::Livez, &[]),
            Health::Well("ok".to_owned())
        );
        assert_eq!(checks.one(Endpoint::Livez, "store"), Health::Unknown);
    }

    #[test]
    fn results_are_counted_for_each_endpoint() {
        let (checks, _) = checks(Err("disk full".to_owned()));
        for _ in 0..2 {
            drop(checks.all(Endpoint::Readyz, &[]));
        }
        drop(checks.one(Endpoint::Livez, "ping"));
        let mut out = Exposition::default();
        checks.expose(&mut out);
        let text = out.into_text();
        for line in [
            r#"kubernetes_healthcheck{name="ping",type="readyz"} 1"#,
            r#"kubernetes_healthcheck{name="store",type="readyz"} 0"#,
            r#"kubernetes_healthchecks_total{name="store",status="error",type="readyz"} 2"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 2"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1"#,
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
        assert!(!text.contains("healthz\""), "{text}");
    }

    #[test]
    fn a_draining_server_is_alive_and_not_ready() {
        let (checks, drain) = checks(Ok(()));
        drain.unready();
        assert!(matches!(
            checks.all(Endpoint::Readyz, &[]),
            Health::Unwell(_)
        ));
        assert!(matches!(checks.all(Endpoint::Livez, &[]), Health::Well(_)));
    }

    #[test]
    fn paths_name_an_endpoint_and_maybe_a_check() {
        assert_eq!(Endpoint::of("/readyz"), Some((Endpoint::Readyz, None)));
        assert_eq!(
            Endpoint::of("/livez/ping"),
            Some((Endpoint::Livez, Some("ping")))
        );
        assert_eq!(
            Endpoint::of("/healthz/poststarthook/x"),
            Some((Endpoint::Healthz, Some("poststarthook/x")))
        );
        for path in ["/readyzx", "/ready", "/readyz/", "/"] {
            assert_eq!(Endpoint::of(path), None, "{path}");
        }
    }
}
