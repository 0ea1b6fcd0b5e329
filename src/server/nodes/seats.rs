//! How many connections to nodes and pods there are, of all planes and of each one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use polyplane_apimachinery::Str;

use crate::nodes::NodeAccess;
use crate::operations::exposition::{Exposition, Kind};

/// The connections of this server to nodes and pods.
pub(crate) struct Nodes {
    pub access: NodeAccess,
    open: Mutex<Open>,
    pub opened: AtomicU64,
    pub failed: AtomicU64,
    pub refused: AtomicU64,
    busy: AtomicU64,
}

#[derive(Default)]
struct Open {
    all: usize,
    /// The planes that have connections, with their number.
    planes: HashMap<Str, usize>,
}

/// The seat of one connection, which is free again when this is dropped.
pub(crate) struct NodeSeat {
    nodes: Arc<Nodes>,
    plane: Str,
}

impl Nodes {
    pub(crate) fn new(access: NodeAccess) -> Arc<Self> {
        Arc::new(Self {
            access,
            open: Mutex::default(),
            opened: AtomicU64::default(),
            failed: AtomicU64::default(),
            refused: AtomicU64::default(),
            busy: AtomicU64::default(),
        })
    }

    /// Takes a seat for a connection of a plane; returns `None` if all are taken.
    pub(super) fn take(self: &Arc<Self>, plane: &str) -> Option<NodeSeat> {
        let mut open = self.open.lock();
        let of_plane = open.planes.get(plane).copied().unwrap_or(0);
        if open.all >= self.access.connections_max || of_plane >= self.access.plane_connections_max
        {
            self.busy.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let plane = Str::from(plane);
        open.all += 1;
        open.planes.insert(plane.clone(), of_plane + 1);
        Some(NodeSeat {
            nodes: Arc::clone(self),
            plane,
        })
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_node_connections";
        out.family(name, Kind::Gauge, "Open connections to nodes and pods.");
        out.sample(name, &[], self.open.lock().all);
        let name = "polyplane_node_connections_total";
        let help = "Connections to nodes and pods, by what became of them.";
        out.family(name, Kind::Counter, help);
        for (outcome, counter) in [
            ("opened", &self.opened),
            ("failed", &self.failed),
            ("not_allowed", &self.refused),
            ("busy", &self.busy),
        ] {
            out.sample(
                name,
                &[("outcome", outcome)],
                counter.load(Ordering::Relaxed),
            );
        }
    }
}

impl Drop for NodeSeat {
    fn drop(&mut self) {
        let mut open = self.nodes.open.lock();
        open.all -= 1;
        let left = open.planes.get(&self.plane).map_or(0, |count| count - 1);
        match left {
            0 => open.planes.remove(&self.plane),
            left => open.planes.insert(self.plane.clone(), left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::KubeletIdentity;
    use polyplane_outbound::Reach;

    #[test]
    fn seats_are_limited_for_a_plane_and_for_all_and_come_back() {
        let nodes = Nodes::new(NodeAccess {
            identity: KubeletIdentity::OfPlane,
            address_types: Vec::new(),
            reach: Reach::Anywhere,
            connections_max: 3,
            plane_connections_max: 2,
        });
        let first = nodes.take("a").expect("free");
        let _second = nodes.take("a").expect("free");
        assert!(nodes.take("a").is_none());
        let _other = nodes.take("b").expect("a neighbour has seats of its own");
        assert!(nodes.take("c").is_none());
        drop(first);
        assert!(nodes.take("c").is_some());
        assert_eq!(nodes.open.lock().all, 2);
        assert_eq!(nodes.open.lock().planes.len(), 2);
    }
}
