//! The allocations of a Service in its plane: addresses, recorded by IPAddress objects, and ports on
//! nodes, which an index of the plane has.
//!
//! Both are chosen from the upper part of their range while it has room, so that the lower part
//! stays free for clients that choose themselves. The search starts at a position that depends on
//! the Service's uid, which is random; claims keep two writes from allocating the same one.

use super::{cluster_ips, ip_families as families};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Claim, Index, IndexId, IndexRow, Key, Snapshot};
use polyplane_registry::request::options::Persistence;
use polyplane_registry::strategy::{Allocation, Context};
use std::collections::BTreeSet;

/// The index of the ports that Services have on nodes.
pub const NODE_PORTS: IndexId = IndexId(0);

/// A dry run allocates nothing: it shows the ports from the one behind this on, whether they are free or not.
const DRY_RUN_PORT: i64 = 32_768;

const TAKEN_PORT: &str = "provided port is already allocated";
pub(super) const FULL: &str = "range is full";

/// Computes the rows of the node ports that a Service has.
#[derive(Debug)]
pub struct NodePorts;

impl Index for NodePorts {
    fn covers(&self, key: &Key) -> bool {
        key.is_of("", "services")
    }

    fn rows(&self, _: &Key, body: &[u8]) -> Vec<IndexRow> {
        let Ok(parsed) = json::parse(body, &json::Limits::default()) else {
            return Vec::new();
        };
        let spec = &parsed.value["spec"];
        let mut ports: BTreeSet<i64> = families::node_ports(spec).into_iter().collect();
        ports.extend(
            spec.int_at(&["healthCheckNodePort"])
                .filter(|port| *port != 0),
        );
        let values = ports
            .into_iter()
            .filter_map(|port| u16::try_from(port).ok());
        values
            .map(|port| IndexRow {
                value: port_value(port),
                amount: 1,
            })
            .collect()
    }
}

fn port_value(port: u16) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&port.to_be_bytes())
}

/// Allocates and releases the addresses and ports of a Service; `object` is null when it is
/// deleted.
///
/// # Errors
/// Returns 422 if a requested address or port is not available, 500 if nothing is free.
pub fn allocate(
    context: &Context<'_>,
    cut: &Snapshot,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, ApiError> {
    let ranges = &context.settings.service_ranges;
    let old = old.map(|old| families::filled_in(old, ranges));
    if object.is_null() {
        let mut gone = Allocation::default();
        if let Some(old) = &old {
            cluster_ips::release(old, &mut gone);
        }
        return Ok(gone);
    }
    if let Some(old) = &old {
        families::keep_choices(object, old);
    }
    families::align_addresses(object, old.as_ref());
    families::init(object, old.as_ref(), ranges).map_err(|errors| invalid(object, &errors))?;
    let mut allocation = Allocation::default();
    match &old {
        None => cluster_ips::allocate(context, cut, object, &mut allocation)?,
        Some(old) => cluster_ips::change(context, cut, object, old, &mut allocation)?,
    }
    let mut ports = Ports::new(context, cut, object);
    match &old {
        None => ports.allocate_all(object)?,
        Some(old) => ports.change(object, old)?,
    }
    allocation.claims.extend(ports.claims);
    if let Some(old) = &old {
        families::drop_leftovers(object, old);
    }
    Ok(allocation)
}

pub(super) fn invalid(object: &Value, errors: &[FieldError]) -> ApiError {
    let name = object.str_at(&["metadata", "name"]);
    ApiError::invalid(Qualified::new("", "Service"), name, errors)
}

/// Returns a number that depends only on the Service and `step`.
pub(super) fn draw(object: &Value, step: u64) -> u64 {
    let uid = object.str_at(&["metadata", "uid"]);
    let mut state = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ step, |state: u64, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    state ^= state >> 30;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ (state >> 27)
}

/// Returns how many addresses or ports at the beginning of a range are left to clients that choose
/// themselves.
pub(super) fn reserved(size: u64, step: u64, most: u64) -> u64 {
    const LEAST: u64 = 16;
    if size <= LEAST {
        0
    } else {
        (size / step).clamp(LEAST, most)
    }
}

/// Returns all positions of a range of `size`, from some position behind the first `reserved` ones
/// on; the reserved ones are last.
pub(super) fn places(size: u64, reserved: u64, start: u64) -> impl Iterator<Item = u64> {
    let upper = size - reserved;
    let first = (0..upper).map(move |step| reserved + (start + step) % upper.max(1));
    let start = start % reserved.max(1);
    first.chain((0..reserved).map(move |step| (start + step) % reserved.max(1)))
}

/// The node ports of one write.
struct Ports<'a> {
    cut: &'a Snapshot,
    persistence: Persistence,
    owner: Key,
    first: u16,
    last: u16,
    seed: u64,
    /// The ports that this write has allocated.
    taken: BTreeSet<i64>,
    claims: Vec<Claim>,
}

impl<'a> Ports<'a> {
    fn new(context: &Context<'_>, cut: &'a Snapshot, object: &Value) -> Self {
        let of = |field: &str| object.str_at(&["metadata", field]);
        let owner = Key::new("", "services", Some(of("namespace")), of("name"));
        let (first, last) = context.settings.node_ports;
        let seed = draw(object, 1) >> 1;
        Self {
            cut,
            persistence: context.persistence,
            owner,
            first,
            last,
            seed,
            taken: BTreeSet::new(),
            claims: Vec::new(),
        }
    }

    fn is_free(&self, port: u16) -> bool {
        !self.taken.contains(&i64::from(port))
            && self.cut.index_amount(NODE_PORTS, &port.to_be_bytes()) == 0
    }

    fn take(&mut self, port: u16) {
        self.taken.insert(i64::from(port));
        let (value, owner) = (port_value(port), self.owner.clone());
        self.claims.push(Claim::Free {
            index: NODE_PORTS,
            value,
            owner,
        });
    }

    /// Allocates a requested port.
    fn allocate(&mut self, port: i64) -> Result<(), String> {
        let within = u16::try_from(port)
            .ok()
            .filter(|port| (self.first..=self.last).contains(port));
        if self.persistence == Persistence::DryRun {
            let is_free = within.is_none_or(|port| self.is_free(port));
            return match is_free && self.taken.insert(port) {
                true => Ok(()),
                false => Err(TAKEN_PORT.to_owned()),
            };
        }
        let Some(number) = within else {
            let (first, last) = (self.first, self.last);
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            ));
        };
        if !self.is_free(number) {
            return Err(TAKEN_PORT.to_owned());
        }
        self.take(number);
        Ok(())
    }

    /// Allocates any free port.
    fn allocate_next(&mut self) -> Result<i64, String> {
        if self.persistence == Persistence::DryRun {
            let port = self.taken.last().unwrap_or(&DRY_RUN_PORT) + 1;
            self.taken.insert(port);
            return Ok(port);
        }
        let size = u64::from(self.last.saturating_sub(self.first)) + 1;
        let start = self.seed.wrapping_add(self.taken.len() as u64 * 7919) >> 1;
        let candidates = places(size, reserved(size, 32, 128), start);
        let ports = candidates.map(|place| self.first + u16::try_from(place).unwrap_or(0));
        let free = ports
            .into_iter()
            .find(|port| self.is_free(*port))
            .ok_or(FULL)?;
        self.take(free);
        Ok(i64::from(free))
    }

    fn any_port(&mut self) -> Result<i64, ApiError> {
        self.allocate_next()
            .map_err(|why| ApiError::internal(format!("failed to allocate a nodePort: {why}")))
    }

    fn wished_port(&mut self, object: &Value, at: usize, port: i64) -> Result<(), ApiError> {
        self.allocate(port).map_err(|detail| {
            let spec = Path::new("spec");
            let ports = spec.child("ports");
            let error = FieldError::invalid(&ports.index(at).child("nodePort"), port, detail);
            invalid(object, &[error])
        })
    }

    /// Allocates the ports of a new Service. Ports of the same number share a node port.
    fn allocate_all(&mut self, object: &mut Value) -> Result<(), ApiError> {
        let spec = object["spec"].clone();
        let on_nodes = matches!(spec.str_at(&["type"]), "NodePort" | "LoadBalancer");
        let ports = if on_nodes {
            spec.items_at(&["ports"])
        } else {
            &[]
        };
        let mut by_number: Vec<(i64, i64)> = Vec::new();
        for (at, port) in ports.iter().enumerate() {
            let (number, wish) = (port.int_at(&["port"]).unwrap_or(0), wish_of(port));
            if wish == 0 && !families::needs_node_ports(&spec) {
                continue;
            }
            let known = by_number
                .iter()
                .find(|(known, _)| *known == number)
                .map(|(_, node)| *node);
            let node = match known {
                None => {
                    let same = ports
                        .iter()
                        .filter(|port| port.int_at(&["port"]).unwrap_or(0) == number);
                    let node = match same.map(wish_of).find(|wish| *wish != 0) {
                        Some(wish) => self.wished_port(object, at, wish).map(|()| wish)?,
                        None => self.any_port()?,
                    };
                    by_number.push((number, node));
                    node
                }
                Some(node) if wish == 0 => node,
                Some(node) if wish == node => node,
                Some(_) => self.wished_port(object, at, wish).map(|()| wish)?,
            };
            set_node_port(object, at, node);
        }
        self.health_check(object)
    }

    fn health_check(&mut self, object: &mut Value) -> Result<(), ApiError> {
        if !families::needs_health_check(&object["spec"]) {
            return Ok(());
        }
        match object.int_at(&["spec", "healthCheckNodePort"]).unwrap_or(0) {
            0 => {
                let port = self.allocate_next().map_err(|why| {
                    ApiError::internal(format!(
                        "failed to allocate a HealthCheck NodePort 0: {why}"
                    ))
                })?;
                object.set(&["spec", "healthCheckNodePort"], port);
                Ok(())
            }
            wish => self.allocate(wish).map_err(|why| {
                ApiError::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {wish}: {why}"
                ))
            }),
        }
    }

    /// Allocates the ports that a change adds.
    fn change(&mut self, object: &mut Value, old: &Value) -> Result<(), ApiError> {
        let spec = object["spec"].clone();
        let had = families::node_ports(&old["spec"]);
        let on_nodes = matches!(spec.str_at(&["type"]), "NodePort" | "LoadBalancer");
        let ports = if on_nodes {
            spec.items_at(&["ports"])
        } else {
            &[]
        };
        let mut known: Vec<(String, i64)> = Vec::new();
        for (at, port) in ports.iter().enumerate() {
            let wish = wish_of(port);
            if wish == 0 && !families::needs_node_ports(&spec) {
                continue;
            }
            let node = if wish == 0 { self.any_port()? } else { wish };
            if wish != 0 && !had.contains(&wish) && !self.taken.contains(&wish) {
                self.wished_port(object, at, wish)?;
            }
            let protocol = port.str_at(&["protocol"]).to_owned();
            if known.contains(&(protocol.clone(), node)) {
                let why = format!("duplicate nodePort: {{{protocol} {node}}}");
                return Err(ApiError::new(Reason::Unknown, why));
            }
            known.push((protocol, node));
            set_node_port(object, at, node);
        }
        if families::needs_health_check(&old["spec"]) {
            return Ok(());
        }
        self.health_check(object)
    }
}

fn wish_of(port: &Value) -> i64 {
    port.int_at(&["nodePort"]).unwrap_or(0)
}

fn set_node_port(object: &mut Value, at: usize, node: i64) {
    let ports = object
        .at_mut(&["spec", "ports"])
        .and_then(Value::as_array_mut);
    if let Some(port) = ports.and_then(|ports| ports.get_mut(at)) {
        port.set(&["nodePort"], node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_tried_once_and_the_lower_part_last() {
        for (size, kept) in [(32u64, 16u64), (16, 0), (300, 18), (1, 0), (0, 0)] {
            for start in [0, 5, 1_000_003] {
                let order: Vec<u64> = places(size, kept, start).collect();
                let all: BTreeSet<u64> = order.iter().copied().collect();
                assert_eq!((order.len() as u64, all.len() as u64), (size, size));
                let upper = usize::try_from(size - kept).expect("small");
                assert!(order[..upper].iter().all(|place| *place >= kept));
            }
        }
    }

    #[test]
    fn ranges_keep_a_part_for_wishes() {
        assert_eq!(reserved(2768, 32, 128), 86);
        assert_eq!(reserved(65_536, 16, 256), 256);
        assert_eq!(reserved(16, 16, 256), 0);
    }

    #[test]
    fn the_index_names_every_node_port_once() {
        let body = br#"{"spec":{"ports":[{"nodePort":30001},{"nodePort":30001},{"port":1}],"healthCheckNodePort":30002}}"#;
        let key = Key::new("", "services", Some("a"), "b");
        let rows = NodePorts.rows(&key, body);
        let values: Vec<&[u8]> = rows.iter().map(|row| &row.value[..]).collect();
        assert_eq!(values, [30001u16.to_be_bytes(), 30002u16.to_be_bytes()]);
        assert!(NodePorts.rows(&key, b"{").is_empty());
        assert!(NodePorts.covers(&key));
    }
}
