//! Kinds that end: which of them were asked for, for the metrics, and the release in which they end.

use crate::kinds::table::Resource;
use crate::metrics::{Family, Labels, Samples};
use parking_lot::RwLock;
use polyplane_apimachinery::Str;
use std::collections::BTreeSet;

/// The group, version and resource of a kind that ends, with a subresource; each may be empty.
type Requested = [Str; 4];

/// Which kinds that end were asked for, for all planes together. There are as many as the built-in
/// kinds have of them; those of clients are not counted, as upstream.
#[derive(Debug, Default)]
pub(crate) struct DeprecatedRequests(RwLock<BTreeSet<(Requested, Str)>>);

impl DeprecatedRequests {
    /// Notes a request for a built-in kind with this warning.
    pub(crate) fn note(&self, row: &Resource, subresource: &str, deprecation: &str) {
        let requested = [&*row.group, &*row.version, &*row.name, subresource];
        let is_known = |known: &(Requested, Str)| known.0.each_ref().map(Str::as_str) == requested;
        if self.0.read().iter().any(is_known) {
            return;
        }
        let release = removed_in(deprecation).unwrap_or_default();
        let mut requests = self.0.write();
        let _is_new = requests.insert((requested.map(Str::from), release.into()));
    }

    /// Returns the metric.
    pub(crate) fn family(&self) -> Family {
        let requests = self.0.read();
        let samples = requests.iter().map(|(requested, release)| {
            let [group, version, resource, subresource] = requested;
            let labels: Labels = [
                ("group", group),
                ("removed_release", release),
                ("resource", resource),
                ("subresource", subresource),
                ("version", version),
            ]
            .map(|(name, value)| (name, value.to_string().into()))
            .into();
            (labels, 1)
        });
        Family {
            name: "apiserver_requested_deprecated_apis",
            help: "Kinds that end and were asked for, with the release in which they end.",
            samples: Samples::Gauges(samples.collect()),
        }
    }
}

/// Returns the release in which a kind ends, from the warning about it; `None` if none is decided.
pub(crate) fn removed_in(deprecation: &str) -> Option<&str> {
    let (_, rest) = deprecation.split_once("unavailable in v")?;
    Some(rest.split_once('+')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_that_of_the_warning() {
        let text = "a/v1beta1 B is deprecated in v1.36+, unavailable in v1.39+; use a/v1 B";
        assert_eq!(removed_in(text), Some("1.39"));
        assert_eq!(removed_in("v1 Endpoints is deprecated in v1.33+"), None);
    }
}
