//! What one plane uses, and what its priority levels have at the moment, as metrics. Whoever may read the
//! path in the plane may read it.
//!
//! Invariant: nothing here tells anything about another plane, and of the replica only how the health checks
//! went that each plane shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_auth::METRICS_PATH;
use polyplane_fairness::PlaneMeter;
use polyplane_plane::{Prefix, Snapshot};
use polyplane_registry::{KindTable, flows};

use crate::answer::respond::{Refusal, Reply};
use crate::backend::PlaneApi;
use crate::documents::paths;
use crate::operations::exposition::{Exposition, Kind};
use crate::operations::flow_metrics::{GAUGES, NOMINAL_LIMIT, expose_limits};
use crate::operations::local::SLIS_PATH;
use crate::pipeline::Pipeline;
use crate::request::flow::Flows;
use crate::request::route::PlaneReference;

const NANOS_PER_SECOND: f64 = 1e9;
/// Custom resources that have series of their own. More would let tenants, who name them, make one scrape as
/// long as they like.
const CUSTOM_SERIES_MAX: usize = 1000;
/// The label of the other custom resources. No resource has it: the name of a custom one has a dot.
const OTHER: &str = "other";

impl Pipeline<'_> {
    /// Answers `/metrics` and `/metrics/slis` of a plane beside the root; `None` for other paths, and for the
    /// root, whose metrics are the replica's.
    pub(crate) fn metrics_of(
        &self,
        plane: PlaneReference<'_>,
        meter: &Arc<PlaneMeter>,
        awake: &dyn PlaneApi,
    ) -> Option<Result<Reply, Refusal>> {
        let is_plane = plane != PlaneReference::Root;
        if self.path == SLIS_PATH && is_plane {
            let request = self.path_request(plane);
            return Some(paths::require_get(&request).map(|()| paths::slis(&request)));
        }
        if self.path != METRICS_PATH {
            return None;
        }
        let cut = awake.state();
        if is_plane {
            let request = self.path_request(plane);
            let allowed = paths::require_get(&request);
            return Some(allowed.map(|()| self.plane_metrics(meter, cut, awake.kinds().base())));
        }
        if let Some(cut) = cut {
            let levels = flows::index_of(&cut).levels();
            self.state.flows.metrics.note_levels(levels);
        }
        None
    }

    /// Answers the metrics of the plane that has this meter, is in this state and shares these kinds.
    fn plane_metrics(
        &self,
        meter: &Arc<PlaneMeter>,
        cut: Option<Snapshot>,
        built_in: &KindTable,
    ) -> Reply {
        let mut out = Exposition::default();
        expose_usage(meter, &mut out);
        if let Some(cut) = cut {
            gauge(
                &mut out,
                "polyplane_plane_objects",
                "Objects of the control plane, those that it has from the start not among them.",
                cut.own_objects(),
            );
            gauge(
                &mut out,
                "polyplane_plane_bytes",
                "Bytes of these objects.",
                cut.own_bytes(),
            );
            self.state.flows.expose_plane(meter, &cut, &mut out);
            let help = "Objects of the control plane, by resource.";
            expose_objects([(cut, CustomNames::Shown)], built_in, help, &mut out);
        }
        paths::metrics(&self.parts.headers, out.into_text())
    }
}

fn gauge(out: &mut Exposition, name: &str, help: &str, value: u64) {
    out.family(name, Kind::Gauge, help);
    out.sample(name, &[], value);
}

fn expose_usage(meter: &PlaneMeter, out: &mut Exposition) {
    let used = meter.usage();
    for (name, help, value) in [
        (
            "polyplane_plane_requests_total",
            "Requests to the control plane since it woke, refused ones not among them.",
            used.requests,
        ),
        (
            "polyplane_plane_writes_total",
            "Changing requests to the control plane since it woke.",
            used.writes,
        ),
        (
            "polyplane_plane_refused_requests_total",
            "Requests that were refused at a limit of the control plane since it woke.",
            used.refused,
        ),
    ] {
        out.family(name, Kind::Counter, help);
        out.sample(name, &[], value);
    }
    let name = "polyplane_plane_cpu_seconds_total";
    let help = "CPU time of requests to the control plane since it woke.";
    out.family(name, Kind::Counter, help);
    out.sample(name, &[], used.cpu_nanos as f64 / NANOS_PER_SECOND);
    gauge(
        out,
        "polyplane_plane_watches",
        "Open watches of the control plane.",
        used.watches,
    );
    expose_plane_limits(meter, out);
}

/// Writes the limits that the plane has.
fn expose_plane_limits(meter: &PlaneMeter, out: &mut Exposition) {
    let limits = meter.limits();
    let name = "polyplane_plane_limit";
    let help = "Limits of the control plane, by what is limited. What has no limit is not there.";
    out.family(name, Kind::Gauge, help);
    for (limited, limit) in [
        ("bytes", limits.bytes),
        ("objects", limits.objects),
        ("requests_per_second", limits.requests_per_second),
        ("watches", limits.watches),
        ("writes_per_second", limits.writes_per_second),
    ] {
        if let Some(limit) = limit {
            out.sample(name, &[("limit", limited)], limit);
        }
    }
}

/// Whether the custom resources of a plane have their names in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CustomNames {
    /// The reader administers the plane, or may read its metrics.
    Shown,
    /// The reader is the operator, and users of the plane have given the names.
    Hidden,
}

/// Writes how many objects of each resource the planes of these cuts have together. Resources that are not
/// `built_in` are custom ones.
pub fn expose_objects(
    cuts: impl IntoIterator<Item = (Snapshot, CustomNames)>,
    built_in: &KindTable,
    help: &str,
    out: &mut Exposition,
) {
    let mut objects = ResourceObjects::default();
    for (cut, custom_names) in cuts {
        for prefix in cut.resources() {
            let is_built_in =
                |group: &str, resource: &str| built_in.stored(group, resource).is_some();
            objects.add(prefix, is_built_in, custom_names, cut.count(prefix));
        }
    }
    objects.expose(help, out);
}

/// The numbers of objects by resource.
#[derive(Debug, Default)]
struct ResourceObjects {
    built_in: BTreeMap<String, usize>,
    /// Those of the first custom resources by name, so that each scrape has the same series.
    custom: BTreeMap<String, usize>,
    /// Those of all other custom resources.
    other: usize,
}

impl ResourceObjects {
    fn add(
        &mut self,
        prefix: &Prefix,
        is_built_in: impl FnOnce(&str, &str) -> bool,
        custom_names: CustomNames,
        count: usize,
    ) {
        let text = String::from_utf8_lossy(prefix.as_bytes());
        let parts = text.trim_end_matches('/').split_once('/');
        let (group, resource) = parts.unwrap_or(("", &*text));
        // As the metric names it: `deployments.apps`.
        let name = match group {
            "" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        match (is_built_in(group, resource), custom_names) {
            (true, _) => *self.built_in.entry(name).or_default() += count,
            (false, CustomNames::Shown) => self.add_custom(name, count),
            (false, CustomNames::Hidden) => self.other += count,
        }
    }

    fn add_custom(&mut self, name: String, count: usize) {
        *self.custom.entry(name).or_default() += count;
        if self.custom.len() > CUSTOM_SERIES_MAX
            && let Some((_, count)) = self.custom.pop_last()
        {
            self.other += count;
        }
    }

    fn expose(&self, help: &str, out: &mut Exposition) {
        let name = "apiserver_resource_objects";
        let help = format!(
            "{help} Of custom resources the first {CUSTOM_SERIES_MAX} by name; {OTHER} are all the rest."
        );
        out.family(name, Kind::Gauge, &help);
        for (resource, count) in self.built_in.iter().chain(&self.custom) {
            out.sample(name, &[("resource", resource)], count);
        }
        if self.other > 0 {
            out.sample(name, &[("resource", OTHER)], self.other);
        }
    }
}

impl Flows {
    /// Writes what the priority levels of a plane have at the moment.
    fn expose_plane(&self, meter: &Arc<PlaneMeter>, cut: &Snapshot, out: &mut Exposition) {
        let Some(seats) = self.seats() else {
            return;
        };
        let help = "Seats of the priority levels of the control plane.";
        out.family(NOMINAL_LIMIT, Kind::Gauge, help);
        expose_limits(flows::index_of(cut).levels(), seats, out);
        let mut gauges: BTreeMap<(String, String), [u64; GAUGES.len()]> = BTreeMap::new();
        self.of_plane(meter, |plane| {
            let Some(plane) = plane else {
                return;
            };
            for level in plane.levels() {
                for request in plane.requests(&level.name) {
                    let key = (
                        request.kept.class.schema().to_owned(),
                        level.name.to_string(),
                    );
                    let numbers = gauges.entry(key).or_default();
                    let first = if request.started.is_some() { 0 } else { 2 };
                    numbers[first] += 1;
                    numbers[first + 1] += u64::from(request.seats);
                }
            }
        });
        for (at, (name, help)) in GAUGES.into_iter().enumerate() {
            out.family(name, Kind::Gauge, help);
            for ((schema, level), numbers) in &gauges {
                let labels = [
                    ("flow_schema", schema.as_str()),
                    ("priority_level", level.as_str()),
                ];
                out.sample(name, &labels, numbers[at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_custom_resources_are_bounded_and_the_same_in_any_order() {
        let names = || (0..CUSTOM_SERIES_MAX + 100).map(|at| format!("r{at:04}.example.com"));
        let text_of = |names: Vec<String>| {
            let mut objects = ResourceObjects::default();
            objects.built_in.insert("pods".to_owned(), 7);
            // Each plane may have each of them.
            for name in names.iter().chain(&names) {
                objects.add_custom(name.clone(), 1);
            }
            let mut out = Exposition::default();
            objects.expose("Objects.", &mut out);
            out.into_text()
        };
        let text = text_of(names().collect());
        let series = text.matches("apiserver_resource_objects{").count();
        assert_eq!(series, 1 + CUSTOM_SERIES_MAX + 1);
        for line in [
            "apiserver_resource_objects{resource=\"pods\"} 7\n",
            "apiserver_resource_objects{resource=\"r0000.example.com\"} 2\n",
            "apiserver_resource_objects{resource=\"r0999.example.com\"} 2\n",
            "apiserver_resource_objects{resource=\"other\"} 200\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert_eq!(text, text_of(names().rev().collect()));
    }

    #[test]
    fn objects_of_custom_resources_whose_names_are_hidden_count_as_other() {
        let mut objects = ResourceObjects::default();
        let is_built_in = |group: &str, _: &str| group.is_empty();
        for (group, resource, custom_names) in [
            ("", "pods", CustomNames::Hidden),
            ("example.com", "secrets-of-a-plane", CustomNames::Hidden),
            ("example.com", "others-of-a-plane", CustomNames::Hidden),
            ("root.example.com", "tenants", CustomNames::Shown),
        ] {
            let prefix = Prefix::resource(group, resource);
            objects.add(&prefix, is_built_in, custom_names, 3);
        }
        let mut out = Exposition::default();
        objects.expose("Objects.", &mut out);
        let text = out.into_text();
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "apiserver_resource_objects{resource=\"pods\"} 3",
            "apiserver_resource_objects{resource=\"tenants.root.example.com\"} 3",
            "apiserver_resource_objects{resource=\"other\"} 6",
        ];
        assert_eq!(series, expected);
    }
}
