//! The metrics that the server does not have itself: those of planes, store and ring.
//!
//! Invariant: the number of series does not grow with the number of planes. Only the few that use most
//! have series of their own.

use crate::replica::access::Access;
use crate::replica::followed_file::Follower as _;
use crate::replica::issuers_file::expose_keys;
use crate::replica::plane_directory::PlaneDirectory;
use polyplane_batteries::kind_tables::{custom_kinds, root_kinds};
use polyplane_fairness::Usage;
use polyplane_outbound::OutboundMetrics;
use polyplane_ownership::{ROOT, RingStats};
use polyplane_plane::{Memory, Plane, Share};
use polyplane_registry::kinds::custom::schemas_waiting;
use polyplane_server::{CustomNames, Exposition, Kind, expose_objects};
use polyplane_storage::{Health, Store};
use std::cmp::Reverse;
use std::sync::Arc;

/// Writes all metrics of this module.
pub fn expose(directory: &PlaneDirectory, out: &mut Exposition) {
    let awake = directory.planes.all_awake();
    gauge(
        out,
        "polyplane_planes_awake",
        "Control planes whose state is in memory here.",
        awake.len(),
    );
    gauge(
        out,
        "polyplane_planes",
        "Control planes of the whole ring, the root aside.",
        directory.rows.len(),
    );
    store(&**directory.planes.store(), out);
    gauge(
        out,
        "polyplane_stale_records",
        "Records of awake control planes that are to be encrypted at rest anew.",
        awake
            .iter()
            .map(|plane| plane.stale_at_rest())
            .sum::<usize>(),
    );
    let name = "polyplane_compiled_schemas_total";
    let help =
        "Schemas of custom kinds that were compiled. Control planes with equal schemas share them.";
    out.family(name, Kind::Counter, help);
    out.sample(name, &[], custom_kinds().compilations());
    gauge(
        out,
        "polyplane_schemas_waiting",
        "Schemas of custom kinds that wait until others are compiled.",
        schemas_waiting(),
    );
    planes(&awake, out);
    largest(directory, &awake, out);
    memory(directory.planes.memory(), out);
    ring(directory, out);
    moves(directory, out);
}

/// Writes what a store says of itself.
pub fn store(store: &dyn Store, out: &mut Exposition) {
    let status = store.status();
    gauge(
        out,
        "polyplane_store_used_bytes",
        "Bytes the store holds on disk, or in memory if it has none.",
        status.used_bytes,
    );
    gauge(
        out,
        "polyplane_store_writable",
        "1 if the store takes writes, else 0.",
        i32::from(status.health == Health::Ok),
    );
    gauge(
        out,
        "polyplane_store_nearly_full",
        "1 if the store is nearly full, so that clients may delete but not add data, else 0.",
        i32::from(store.is_nearly_full()),
    );
}

/// Writes upstream's metrics of the files and the issuers of the root's users, at the replica with this name.
pub fn delegated(access: &Access, replica: &str, out: &mut Exposition) {
    let delegated = access.delegated();
    let replica = access.plain_identity().unwrap_or(replica);
    if let Some(file) = &delegated.issuers_file {
        file.file().expose(replica, out);
    }
    if let Some(issuers) = &delegated.issuers {
        expose_keys(issuers, replica, out);
    }
    if let Some(file) = &delegated.authorizers_file {
        file.file().expose(replica, out);
    }
}

/// Writes what was counted of calls to servers of others.
pub fn outbound(counted: OutboundMetrics, out: &mut Exposition) {
    gauge(
        out,
        "polyplane_outbound_calls_in_flight",
        "Calls to issuers and webhooks that wait for their answer.",
        counted.in_flight,
    );
    let name = "polyplane_outbound_calls_total";
    let help = "Calls to issuers and webhooks, by outcome: open and busy ones were not tried.";
    out.family(name, Kind::Counter, help);
    for (outcome, calls) in [
        ("answered", counted.answered),
        ("failed", counted.failed),
        ("open", counted.open),
        ("busy", counted.busy),
        ("refused", counted.refused),
    ] {
        out.sample(name, &[("outcome", outcome)], calls);
    }
}

/// Writes the shares of the memory budget.
fn memory(memory: &Memory, out: &mut Exposition) {
    let name = "polyplane_memory_used_bytes";
    out.family(
        name,
        Kind::Gauge,
        "Bytes of the memory budget in use, by share.",
    );
    for share in Share::all() {
        out.sample(name, &[("share", share.name())], memory.used(share));
    }
    let name = "polyplane_memory_limit_bytes";
    out.family(name, Kind::Gauge, "Bytes of the memory budget, by share.");
    for share in Share::all() {
        out.sample(name, &[("share", share.name())], memory.limit(share));
    }
    let name = "polyplane_memory_full_total";
    let help = "Times a share of the memory budget was full: something was refused or shed.";
    out.family(name, Kind::Counter, help);
    for share in Share::all() {
        out.sample(name, &[("share", share.name())], memory.times_full(share));
    }
}

/// Writes the ring as this replica sees it.
fn ring(directory: &PlaneDirectory, out: &mut Exposition) {
    let stats = directory.planes.ring().stats();
    let name = "polyplane_ring_members";
    out.family(
        name,
        Kind::Gauge,
        "Replicas in the newest view, by what they say of themselves.",
    );
    out.sample(name, &[("state", "Serving")], stats.serving);
    out.sample(name, &[("state", "Draining")], stats.draining);
    gauge(
        out,
        "polyplane_ring_candidates",
        "Replicas that wait outside the ring because of their certificates or their address.",
        stats.candidates,
    );
    gauge(
        out,
        "polyplane_ring_view",
        "The number of the newest view of the ring.",
        stats.view,
    );
    gauge(
        out,
        "polyplane_level",
        "The level of this program.",
        directory.planes.ring().options().level,
    );
    gauge(
        out,
        "polyplane_level_floor",
        "The store's level floor: no program below it joins, and planes have its bootstrap objects.",
        directory.planes.floor().level,
    );
    read_lease(&stats, out);
    gauge(
        out,
        "polyplane_unreachable_peers",
        "Peers that do not answer this replica's pings.",
        stats.unreachable,
    );
    counter(
        out,
        "polyplane_lives_lost_total",
        "Times this replica lost its member key and began anew.",
        stats.lives_lost,
    );
    counter(
        out,
        "polyplane_evictions_total",
        "Peers this replica has removed from the ring.",
        stats.evictions,
    );
    counter(
        out,
        "polyplane_peer_views_total",
        "Views taken from peers while the store said nothing to this replica alone.",
        stats.peer_views,
    );
}

/// Writes how long this replica may answer from memory, and how the reads go that prove it.
fn read_lease(stats: &RingStats, out: &mut Exposition) {
    gauge(
        out,
        "polyplane_read_lease_margin_seconds",
        "How long this replica could answer from memory without a further proof.",
        stats.read_lease_margin.as_secs_f64(),
    );
    gauge(
        out,
        "polyplane_member_read_seconds",
        "Time the newest read of this replica's member key took; beyond the read lease nothing is answered.",
        stats.member_read.as_secs_f64(),
    );
    counter(
        out,
        "polyplane_late_member_reads_total",
        "Reads of this replica's member key that the store answered later than the read lease lasts.",
        stats.late_reads,
    );
}

/// Writes how many planes came and went, and the commits of those that are here.
fn moves(directory: &PlaneDirectory, out: &mut Exposition) {
    let stats = directory.planes.stats();
    gauge(
        out,
        "polyplane_planes_owned",
        "Control planes whose fence this replica holds.",
        stats.owned,
    );
    gauge(
        out,
        "polyplane_fence_epoch_max",
        "The highest epoch of a fence that is held: how often that control plane was taken.",
        stats.epoch_max,
    );
    out.collected(&directory.planes.collect());
    let name = "polyplane_hand_offs_total";
    out.family(name, Kind::Counter, "Planned hand-offs, by how they ended.");
    out.sample(name, &[("result", "done")], stats.hand_offs_done);
    out.sample(name, &[("result", "called_off")], stats.hand_offs_failed);
    counter(
        out,
        "polyplane_fence_conflicts_total",
        "Acquires and commits that found the fence to be another's.",
        stats.fence_conflicts,
    );
    counter(
        out,
        "polyplane_fences_released_asleep_total",
        "Fences released because their planes were asleep.",
        stats.released_asleep,
    );
}

fn counter(out: &mut Exposition, name: &str, help: &str, value: impl std::fmt::Display) {
    out.family(name, Kind::Counter, help);
    out.sample(name, &[], value);
}

fn gauge(out: &mut Exposition, name: &str, help: &str, value: impl std::fmt::Display) {
    out.family(name, Kind::Gauge, help);
    out.sample(name, &[], value);
}

/// Planes that have series of their own. More would make the number of series grow with that of
/// planes, and all of them together say what the sums say.
const LARGEST: usize = 10;

/// Writes what the planes with the most CPU time have used since they woke here.
fn largest(directory: &PlaneDirectory, awake: &[Arc<Plane>], out: &mut Exposition) {
    let mut used: Vec<(Usage, &str)> = awake
        .iter()
        .filter_map(|plane| Some((plane.meter()?.usage(), plane.id())))
        .collect();
    used.sort_by_key(|(usage, _)| Reverse(usage.cpu_nanos));
    used.truncate(LARGEST);
    let named: Vec<(Usage, String)> = used
        .into_iter()
        .filter_map(|(usage, id)| match id {
            ROOT => Some((usage, ROOT.to_owned())),
            id => Some((usage, directory.rows.by_id(id)?.name.as_str().to_owned())),
        })
        .collect();
    let name = "polyplane_largest_plane_cpu_seconds_total";
    let help = "CPU time of the control planes that use most here, since they woke.";
    out.family(name, Kind::Counter, help);
    for (usage, plane) in &named {
        out.sample(name, &[("plane", plane)], usage.cpu_nanos as f64 / 1e9);
    }
    let name = "polyplane_largest_plane_requests_total";
    let help = "Requests to the control planes that use most CPU time here, since they woke.";
    out.family(name, Kind::Counter, help);
    for (usage, plane) in &named {
        out.sample(name, &[("plane", plane)], usage.requests);
    }
}

/// Writes sums over all awake planes.
fn planes(awake: &[Arc<Plane>], out: &mut Exposition) {
    let (mut watchers, mut log_bytes, mut queued) = (0, 0, 0);
    for plane in awake {
        let stats = plane.stats();
        watchers += stats.watchers;
        log_bytes += stats.log_bytes;
        queued += stats.queued;
    }
    gauge(out, "polyplane_watchers", "Open watches.", watchers);
    gauge(
        out,
        "polyplane_log_bytes",
        "Bytes of the logs that watches read.",
        log_bytes,
    );
    gauge(
        out,
        "polyplane_writes_queued",
        "Writes that wait for a transaction.",
        queued,
    );
    let cuts = awake.iter().map(|plane| {
        let custom_names = match plane.id() {
            ROOT => CustomNames::Shown,
            _ => CustomNames::Hidden,
        };
        (plane.snapshot(), custom_names)
    });
    let help =
        "Objects of awake control planes, by resource; custom ones have names only in the root.";
    expose_objects(cuts, &root_kinds(), help, out);
}
