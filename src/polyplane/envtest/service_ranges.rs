//! What `--service-cluster-ip-range` means: the ranges of service addresses, and the bootstrap objects
//! that show them.

use crate::envtest::flags::Flags;
use crate::envtest::settings::Problems;
use polyplane_batteries::bootstrap::{self, LEVEL, Release, ranges};
use polyplane_plane::Key;
use polyplane_registry::service_ranges::{IpFamily, ServiceRange, ServiceRanges};
use std::net::IpAddr;
use std::sync::Arc;

const FLAG: &str = "service-cluster-ip-range";
/// The addresses that a range has at least.
const SIZE_MIN: u128 = 8;
/// The shortest prefix of a range of IPv6 from which upstream allocates.
const IPV6_BITS_MIN: u8 = 64;

/// Reads the ranges, which must fit the address that the service `kubernetes` leads to. As upstream
/// since release 1.35, a range may be of any size from 8 addresses on.
pub fn read(flags: &Flags, advertise: IpAddr, problems: &mut Problems) -> ServiceRanges {
    let default = ServiceRange::new([10, 0, 0, 0], 24);
    let given = flags.text(FLAG).map(parse);
    let (primary, secondary) = match given.unwrap_or(Ok((default, None))) {
        Ok(ranges) => ranges,
        Err(problem) => {
            problems.add(problem);
            return default.into();
        }
    };
    for range in [Some(primary), secondary].into_iter().flatten() {
        if range.family() == IpFamily::V6 && range.bits() < IPV6_BITS_MIN {
            let bits = range.bits();
            tracing::warn!(
                "--{FLAG}: shortest allowed prefix length for service CIDR is {IPV6_BITS_MIN}, got {bits}: \
                 {range} gives no addresses"
            );
        }
    }
    // The service `kubernetes` and its endpoints must be of one family.
    let has_endpoints = flags.text("endpoint-reconciler-type") != Some("none");
    if has_endpoints && primary.family() != IpFamily::of(advertise) {
        problems.add(format!(
            "service IP family \"{primary}\" must match public address family \"{advertise}\""
        ));
    }
    ServiceRanges::new(primary, secondary).unwrap_or_else(|| {
        problems.add(format!(
            "--{FLAG}[0] and --{FLAG}[1] must be of different IP family"
        ));
        primary.into()
    })
}

/// Parses the primary and the secondary range.
fn parse(text: &str) -> Result<(ServiceRange, Option<ServiceRange>), String> {
    let mut texts = text.split(',');
    let primary = texts.next().and_then(ServiceRange::parse);
    let primary = primary.ok_or_else(|| format!("{FLAG}[0] is not a valid cidr"))?;
    if size(primary) < SIZE_MIN {
        return Err(format!(
            "error determining service IP ranges for primary service cidr: \
             the service cluster IP range must be at least {SIZE_MIN} IP addresses"
        ));
    }
    let secondary = texts
        .next()
        .map(|text| ServiceRange::parse(text).ok_or_else(|| format!("{FLAG}[1] is not an ip net")));
    let secondary = secondary.transpose()?;
    if texts.next().is_some() {
        return Err(format!("--{FLAG} must not contain more than two entries"));
    }
    Ok((primary, secondary))
}

/// Returns the number of addresses as upstream counts them: 0 for the widest ranges.
fn size(range: ServiceRange) -> u128 {
    match range.bits() {
        0 | 1 => 0,
        _ => range.last_offset() + 1,
    }
}

/// Returns the bootstrap objects that a kube-apiserver without a controller manager makes.
///
/// # Errors
/// Returns an error if they cannot be built into a layer.
pub fn release(given: &ServiceRanges, advertise: IpAddr) -> anyhow::Result<Arc<Release>> {
    let family = IpFamily::of(advertise);
    let release = Release::with_ranges(LEVEL, given, move |ranges| {
        let objects = bootstrap::objects().iter();
        let objects = objects.filter(|object| !is_of_controllers(&object.key));
        let objects = objects.map(|object| {
            let mut object = ranges::moved(object, ranges);
            if object.key.resource() == "endpointslices" {
                object.tree.set(&["addressType"], family.name());
            }
            object
        });
        objects.collect()
    });
    Ok(release?)
}

/// Returns whether upstream's controller manager makes the object, and not its API server.
fn is_of_controllers(key: &Key) -> bool {
    let is_root_ca = key.resource() == "configmaps" && key.name() == "kube-root-ca.crt";
    key.group().is_empty() && (key.resource() == "serviceaccounts" || is_root_ca)
}
