//! `/livez`, `/readyz` and `/healthz`, in the format of upstream.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::backend::{CheckScope, HealthCheck};
use crate::operations::drain::Drain;

/// One of the three health paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Livez,
    Readyz,
    Healthz,
}

impl Endpoint {
    /// Returns the endpoint of a path, and the name of the check if the path names one.
    pub(crate) fn of(path: &str) -> Option<(Self, Option<&str>)> {
        for endpoint in [Self::Livez, Self::Readyz, Self::Healthz] {
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
        self != Self::Livez || scope == CheckScope::Live
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

/// The checks of a server: its own and those of the layers behind it.
pub(crate) struct Checks {
    checks: Vec<HealthCheck>,
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
        Self { checks }
    }

    /// Returns the paths of all checks, for the list of paths.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for endpoint in [Endpoint::Healthz, Endpoint::Livez, Endpoint::Readyz] {
            paths.push(format!("/{}", endpoint.name()));
            let shown = self
                .checks
                .iter()
                .filter(|check| endpoint.shows(check.scope));
            paths.extend(shown.map(|check| format!("/{}/{}", endpoint.name(), check.name)));
        }
        paths
    }

    /// Runs one check.
    pub(crate) fn one(&self, endpoint: Endpoint, name: &str) -> Health {
        let check = self
            .checks
            .iter()
            .find(|check| check.name == name && endpoint.shows(check.scope));
        match check.map(|check| (check.check)()) {
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
        let (mut listing, mut failed) = (String::new(), false);
        for check in self
            .checks
            .iter()
            .filter(|check| endpoint.shows(check.scope))
        {
            let name = check.name;
            let line = if excluded.contains(&name) {
                unmatched.retain(|other| *other != name);
                writeln!(listing, "[+]{name} excluded: ok")
            } else {
                match (check.check)() {
                    Ok(()) => writeln!(listing, "[+]{name} ok"),
                    Err(why) => {
                        tracing::warn!(check = name, %why, "a health check failed");
                        failed = true;
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
        if failed {
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
