//! The addresses of a Service, one of each of its families, each recorded by an IPAddress object.
//!
//! They come from the ranges of the plane's ServiceCIDRs. The ServiceCIDR `kubernetes` shows the ranges
//! that the plane was made with; while nobody has created it again after its deletion, these ranges count.

use super::allocation::{FULL, draw, invalid, places, reserved};
use super::ip_families::stays_dual;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::ip_sloppy;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Snapshot, Start};
use polyplane_registry::metadata::strings;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::service_ranges::{IpFamily, ServiceRange};
use polyplane_registry::strategy::{Allocation, Companion, CompanionChange, Context};
use std::net::IpAddr;

const TAKEN: &str = "provided IP is already allocated";
const FOREIGN: &str = "the provided network does not match the current range";
/// The name of the ServiceCIDR that shows the ranges which a plane was made with.
const DEFAULT_CIDR: &str = "kubernetes";
/// The shortest prefix of a range of IPv6 from which upstream allocates.
const IPV6_BITS_MIN: u8 = 64;

/// The addresses that Services can have: all of a range except the network's own and, of IPv4, the
/// broadcast address.
struct Addresses {
    range: ServiceRange,
    count: u64,
    reserved: u64,
}

impl Addresses {
    fn of(range: ServiceRange) -> Option<Self> {
        let unusable = match range.family() {
            IpFamily::V4 => 1,
            IpFamily::V6 if range.bits() < IPV6_BITS_MIN => return None,
            IpFamily::V6 => 0,
        };
        let last = u64::try_from(range.last_offset()).unwrap_or(u64::MAX);
        Some(Self {
            range,
            count: last.saturating_sub(unusable),
            reserved: reserved(last.saturating_add(1), 16, 256),
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let offset = self.range.offset(address);
        offset.is_some_and(|offset| (1..=u128::from(self.count)).contains(&offset))
    }

    fn at(&self, place: u64) -> IpAddr {
        self.range.address(u128::from(place) + 1)
    }

    /// Returns the addresses, those that are left to clients last.
    fn candidates(&self, start: u64) -> impl Iterator<Item = IpAddr> {
        let kept = self.reserved.min(self.count);
        places(self.count, kept, start).map(|place| self.at(place))
    }
}

/// The addresses of one write.
pub(super) struct Pool<'a> {
    cut: &'a Snapshot,
    persistence: Persistence,
    ranges: Vec<Addresses>,
}

impl<'a> Pool<'a> {
    /// Finds the ranges from which addresses are allocated.
    ///
    /// # Errors
    /// Returns 500 if a ServiceCIDR cannot be read.
    fn new(context: &Context<'_>, cut: &'a Snapshot) -> Result<Self, ApiError> {
        let own = &context.settings.service_ranges;
        let mut ranges: Vec<ServiceRange> = own.iter().collect();
        let mut others = Vec::new();
        let prefix = Prefix::resource("networking.k8s.io", "servicecidrs");
        for object in cut.range(&prefix, Start::First) {
            let found = ready_ranges(context, &object)?;
            match object.key().name() {
                // It is about to get the secondary range.
                DEFAULT_CIDR if found == [own.primary()] => {}
                DEFAULT_CIDR => ranges = found,
                _ => others.extend(found),
            }
        }
        for range in others {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        let ranges = ranges.into_iter().filter_map(Addresses::of).collect();
        Ok(Self {
            cut,
            persistence: context.persistence,
            ranges,
        })
    }

    fn is_free(&self, address: IpAddr) -> bool {
        let key = Key::new(
            "networking.k8s.io",
            "ipaddresses",
            None,
            &address.to_string(),
        );
        self.cut.get(&key).is_none()
    }

    /// Allocates any free address of a family. A dry run looks for none: it shows that of the network.
    fn allocate_next(&self, object: &Value, family: &str) -> Result<IpAddr, ApiError> {
        let start = draw(object, 0) >> 1;
        let ranges = self.ranges.iter();
        let mut ranges = ranges.filter(|addresses| addresses.range.family().name() == family);
        let free = ranges.find_map(|addresses| {
            if self.persistence == Persistence::DryRun {
                return Some(addresses.range.address(0));
            }
            let mut candidates = addresses.candidates(start);
            candidates.find(|address| self.is_free(*address))
        });
        free.ok_or_else(|| {
            let name = object.str_at(&["metadata", "name"]);
            ApiError::internal(format!(
                "failed to allocate a serviceIP for Service {name:?}: {FULL}"
            ))
        })
    }

    /// Allocates a requested address, or returns the complaint about it. To a dry run every address of a range is free.
    fn allocate(&self, wish: &str) -> Result<IpAddr, String> {
        let address = ip_sloppy(wish).map(|address| address.to_canonical());
        let within = |address: &IpAddr| self.ranges.iter().any(|range| range.contains(*address));
        match address.filter(within) {
            Some(address) if self.persistence == Persistence::DryRun => Ok(address),
            Some(address) if self.is_free(address) => Ok(address),
            Some(_) => Err(TAKEN.to_owned()),
            None => Err(self.outside(address)),
        }
    }

    /// Returns the address if an IPAddress can record it, else the complaint: it names the Service, and upstream stores
    /// it before the Service is validated.
    fn recorded(&self, object: &Value, address: IpAddr) -> Result<IpAddr, String> {
        let is_named = !object.str_at(&["metadata", "name"]).is_empty();
        match is_named || self.persistence == Persistence::DryRun {
            true => Ok(address),
            false => Err(format!(
                "IPAddress.networking.k8s.io \"{address}\" is invalid: spec.parentRef.name: Required value"
            )),
        }
    }

    /// Returns the complaint about an address that no range has. A dry run looks at one range only, and names it.
    fn outside(&self, address: Option<IpAddr>) -> String {
        let one = address.and_then(|address| {
            let family = IpFamily::of(address);
            let mut ranges = self.ranges.iter().map(|addresses| addresses.range);
            let range = ranges.find(|range| range.family() == family)?;
            Some((address, range))
        });
        match (self.persistence, one) {
            (Persistence::DryRun, Some((address, range))) => format!(
                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
            ),
            _ => FOREIGN.to_owned(),
        }
    }
}

/// Returns the ranges of a ServiceCIDR; none if it is not ready or is being deleted.
fn ready_ranges(context: &Context<'_>, object: &ObjectRef) -> Result<Vec<ServiceRange>, ApiError> {
    let cidr = context.stored_tree(object)?;
    let mut conditions = cidr.items_at(&["status", "conditions"]).iter();
    let ready = conditions.find(|condition| condition.str_at(&["type"]) == "Ready");
    let unready = ready.is_some_and(|ready| ready.str_at(&["status"]) != "True");
    if unready || object.flags().has(Flags::DELETING) {
        return Ok(Vec::new());
    }
    let texts = strings(&cidr["spec"]["cidrs"]);
    Ok(texts.into_iter().filter_map(ServiceRange::parse).collect())
}

/// Allocates the addresses of a Service that has none.
///
/// # Errors
/// Returns 422 if a requested address is not available, 500 if none is free.
pub(super) fn allocate(
    context: &Context<'_>,
    cut: &Snapshot,
    object: &mut Value,
    allocation: &mut Allocation,
) -> Result<(), ApiError> {
    if object.str_at(&["spec", "type"]) == "ExternalName" || begins_with_none(object) {
        return Ok(());
    }
    allocate_from(0, context, cut, object, allocation)
}

fn begins_with_none(object: &Value) -> bool {
    strings(&object["spec"]["clusterIPs"]).first() == Some(&"None")
}

/// Allocates the addresses of all families of a Service from the one at a position on.
fn allocate_from(
    first: usize,
    context: &Context<'_>,
    cut: &Snapshot,
    object: &mut Value,
    allocation: &mut Allocation,
) -> Result<(), ApiError> {
    let texts = |field: &str| -> Vec<String> {
        let texts = strings(&object["spec"][field]).into_iter();
        texts.map(str::to_owned).collect()
    };
    let (families, mut addresses) = (texts("ipFamilies"), texts("clusterIPs"));
    if addresses.len() < families.len() {
        addresses.resize(families.len(), String::new());
    }
    let pool = Pool::new(context, cut)?;
    for (at, family) in families.iter().enumerate().skip(first) {
        let wish = addresses[at].clone();
        let found = match wish.as_str() {
            "" => Ok(pool.allocate_next(object, family)?),
            wish => pool.allocate(wish),
        };
        let recorded = found.and_then(|address| pool.recorded(object, address));
        let address = recorded.map_err(|why| refused(object, &addresses, at, &why))?;
        allocation.companions.push(record(object, address));
        if wish.is_empty() {
            addresses[at] = address.to_string();
        }
    }
    if let Some(address) = addresses.first() {
        object.set(&["spec", "clusterIP"], address.as_str());
    }
    let addresses: Vec<Value> = addresses.into_iter().map(Value::from).collect();
    object.set(&["spec", "clusterIPs"], addresses);
    Ok(())
}

/// Returns the error about the address at a position of those that a Service has, or is to get.
fn refused(object: &Value, addresses: &[String], at: usize, why: &str) -> ApiError {
    let wish = match addresses.get(at).map_or("", String::as_str) {
        "" => String::new(),
        wish => format!(" {wish}"),
    };
    let shown: Vec<Value> = addresses.iter().map(|it| it.as_str().into()).collect();
    let detail = format!("failed to allocate IP{wish}: {why}");
    let spec = Path::new("spec");
    let bad = Bad::Json(shown.into());
    let error = FieldError::invalid(&spec.child("clusterIPs"), bad, detail);
    invalid(object, &[error])
}

/// Returns the IPAddress that records which Service has an address.
fn record(object: &Value, address: IpAddr) -> Companion {
    let of = |field: &str| object.str_at(&["metadata", field]);
    let tree = json!({
        "metadata": {"labels": {
            "ipaddress.kubernetes.io/ip-family": (IpFamily::of(address).name()),
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"
        }},
        "spec": {"parentRef": {
            "resource": "services",
            "namespace": (of("namespace")),
            "name": (of("name"))
        }}
    });
    companion(address, CompanionChange::Create(tree))
}

fn companion(address: IpAddr, change: CompanionChange) -> Companion {
    Companion {
        group: "networking.k8s.io".into(),
        resource: "ipaddresses".into(),
        namespace: None,
        name: address.to_string().into(),
        manager: "kube-apiserver",
        change,
    }
}

/// Removes the records of a Service's addresses.
pub(super) fn release(old: &Value, allocation: &mut Allocation) {
    if old.str_at(&["spec", "type"]) != "ExternalName" {
        release_all(&strings(&old["spec"]["clusterIPs"]), allocation);
    }
}

fn release_all(addresses: &[&str], allocation: &mut Allocation) {
    let addresses = addresses.iter().copied().filter_map(ip_sloppy);
    let removals =
        addresses.map(|address| companion(address.to_canonical(), CompanionChange::Remove));
    allocation.companions.extend(removals);
}

/// Allocates the addresses that a change of a Service adds, and releases those that it takes away.
///
/// # Errors
/// Returns 422 if a requested address is not available, 500 if none is free.
pub(super) fn change(
    context: &Context<'_>,
    cut: &Snapshot,
    object: &mut Value,
    old: &Value,
    allocation: &mut Allocation,
) -> Result<(), ApiError> {
    if stays_dual(object, old) {
        return Ok(());
    }
    let named = |object: &Value| object.str_at(&["spec", "type"]) == "ExternalName";
    match (named(old), named(object)) {
        (true, false) => return allocate(context, cut, object, allocation),
        (true, true) => return Ok(()),
        (false, _) if begins_with_none(old) => return Ok(()),
        (false, true) => {
            release(old, allocation);
            return Ok(());
        }
        (false, false) => {}
    }
    let count = |object: &Value| object.items_at(&["spec", "ipFamilies"]).len();
    match (count(old), count(object)) {
        (1, 2) => allocate_from(1, context, cut, object, allocation),
        (2, 1) => {
            let had = strings(&old["spec"]["clusterIPs"]);
            release_all(had.get(1..).unwrap_or_default(), allocation);
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Addresses {
        let range = ServiceRange::parse(text).expect("a range");
        Addresses::of(range).expect("addresses")
    }

    #[test]
    fn the_ends_of_a_range_are_not_given_to_services() {
        for (text, outside, first, last) in [
            (
                "10.0.0.0/24",
                ["10.0.0.0", "10.0.0.255"],
                "10.0.0.1",
                "10.0.0.254",
            ),
            (
                "2001:db8::/120",
                ["2001:db8::", "2001:db8::100"],
                "2001:db8::1",
                "2001:db8::ff",
            ),
            (
                "2001:db8::/64",
                ["2001:db8::", "2001:db8:0:1::"],
                "2001:db8::1",
                "2001:db8::ffff:ffff:ffff:ffff",
            ),
        ] {
            let range = addresses(text);
            let parsed = |text: &str| -> IpAddr { text.parse().expect("an address") };
            assert!(
                outside.iter().all(|text| !range.contains(parsed(text))),
                "{text}"
            );
            assert!(
                range.contains(parsed(first)) && range.contains(parsed(last)),
                "{text}"
            );
            assert_eq!(
                (range.at(0), range.at(range.count - 1)),
                (parsed(first), parsed(last))
            );
        }
        assert!(Addresses::of(ServiceRange::parse("2001:db8::/63").expect("a range")).is_none());
        assert_eq!(addresses("10.0.0.0/31").count, 0);
    }

    #[test]
    fn the_upper_part_of_a_range_is_given_first() {
        for (text, reserved) in [
            ("10.0.0.0/28", 0),
            ("10.0.0.0/24", 16),
            ("2001:db8::/64", 256),
        ] {
            let range = addresses(text);
            assert_eq!(range.reserved, reserved, "{text}");
            let first = range.candidates(u64::MAX >> 1).next().expect("an address");
            assert!(
                range.range.offset(first) > Some(u128::from(reserved)),
                "{first}"
            );
        }
    }
}
