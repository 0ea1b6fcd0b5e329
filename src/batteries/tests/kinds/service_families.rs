//! Services in planes with ranges of either family, or of both.

use crate::core_kinds::{allocate_with, changes, put, service};
use crate::shared::plane;
use crate::site;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::Snapshot;
use polyplane_registry::service_ranges::{ServiceRange, ServiceRanges};
use polyplane_registry::strategy::{Allocation, CompanionChange};
use std::net::IpAddr;

const FOUR: &str = "10.0.0.0/16";
const SIX: &str = "2001:db8:1::/108";
const ONE_FOUR: [&str; 1] = [FOUR];
const ONE_SIX: [&str; 1] = [SIX];
const FOUR_SIX: [&str; 2] = [FOUR, SIX];
const SIX_FOUR: [&str; 2] = [SIX, FOUR];

fn ranges(texts: &[&str]) -> ServiceRanges {
    let mut ranges = texts
        .iter()
        .map(|text| ServiceRange::parse(text).expect("a range"));
    let primary = ranges.next().expect("one range");
    ServiceRanges::new(primary, ranges.next()).expect("two families")
}

fn allocate(
    texts: &[&str],
    cut: &Snapshot,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, String> {
    let mut settings = site::settings();
    settings.service_ranges = ranges(texts);
    allocate_with(&settings, cut, object, old).map_err(|error| error.message)
}

/// Creates a Service with these members of the spec beside a port.
fn create(texts: &[&str], mut spec: Value) -> Result<Value, String> {
    spec.set(&["ports"], json!([{"port": 80i64}]));
    let mut object = service("a", spec);
    allocate(texts, &plane::empty(), &mut object, None)?;
    Ok(object)
}

/// Returns the policy, the families, and the families of the addresses.
fn families(object: &Value) -> (&str, String, String) {
    let join = |field: &str, of: &dyn Fn(&str) -> String| {
        let texts = object.items_at(&["spec", field]).iter();
        let texts: Vec<String> = texts.filter_map(Value::as_str).map(of).collect();
        texts.join(",")
    };
    let family = |text: &str| match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "IPv4".to_owned(),
        Ok(IpAddr::V6(_)) => "IPv6".to_owned(),
        Err(_) => text.to_owned(),
    };
    (
        object.str_at(&["spec", "ipFamilyPolicy"]),
        join("ipFamilies", &str::to_owned),
        join("clusterIPs", &family),
    )
}

/// Ranges, members of a spec, and what [`families`] returns.
type Case<'a> = (&'a [&'a str], Value, (&'a str, &'a str, &'a str));

#[test]
fn a_new_service_gets_the_families_that_its_policy_and_the_ranges_allow() {
    let (single, prefer, require) = ("SingleStack", "PreferDualStack", "RequireDualStack");
    let cases: &[Case<'_>] = &[
        (&ONE_FOUR, json!({}), (single, "IPv4", "IPv4")),
        (&ONE_SIX, json!({}), (single, "IPv6", "IPv6")),
        (&FOUR_SIX, json!({}), (single, "IPv4", "IPv4")),
        (&SIX_FOUR, json!({}), (single, "IPv6", "IPv6")),
        (
            &FOUR_SIX,
            json!({"ipFamilies": ["IPv6"]}),
            (single, "IPv6", "IPv6"),
        ),
        (
            &ONE_SIX,
            json!({"ipFamilyPolicy": prefer}),
            (prefer, "IPv6", "IPv6"),
        ),
        (
            &FOUR_SIX,
            json!({"ipFamilyPolicy": prefer}),
            (prefer, "IPv4,IPv6", "IPv4,IPv6"),
        ),
        (
            &SIX_FOUR,
            json!({"ipFamilyPolicy": require}),
            (require, "IPv6,IPv4", "IPv6,IPv4"),
        ),
        (
            &FOUR_SIX,
            json!({"ipFamilyPolicy": require, "ipFamilies": ["IPv6"]}),
            (require, "IPv6,IPv4", "IPv6,IPv4"),
        ),
        (
            &FOUR_SIX,
            json!({"ipFamilyPolicy": prefer, "clusterIP": "2001:db8:1::7"}),
            (prefer, "IPv6,IPv4", "IPv6,IPv4"),
        ),
        (
            &SIX_FOUR,
            json!({"clusterIP": "None", "selector": {"a": "b"}}),
            (single, "IPv6", "None"),
        ),
        (
            &ONE_SIX,
            json!({"clusterIP": "None"}),
            (require, "IPv6,IPv4", "None"),
        ),
    ];
    for (texts, spec, (policy, of_families, of_addresses)) in cases {
        let made = create(texts, spec.clone());
        let object = made.unwrap_or_else(|error| panic!("{texts:?} {spec:?}: {error}"));
        let wanted = (
            *policy,
            (*of_families).to_owned(),
            (*of_addresses).to_owned(),
        );
        assert_eq!(families(&object), wanted, "{texts:?} {spec:?}");
    }
}

#[test]
fn a_family_without_a_range_is_refused() {
    for (texts, spec, wanted) in [
        (
            &ONE_SIX,
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            &ONE_SIX,
            json!({"ipFamilies": ["IPv4"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv4\": not configured on this cluster",
        ),
        (
            &ONE_SIX,
            json!({"clusterIP": "10.0.0.7"}),
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.7\"]: IPv4 is not configured on this cluster",
        ),
        (
            &ONE_FOUR,
            json!({"clusterIP": "2001:db8:1::7"}),
            "spec.clusterIPs[0]: Invalid value: [\"2001:db8:1::7\"]: IPv6 is not configured on this cluster",
        ),
    ] {
        let error = create(texts, spec).expect_err("there is no such range");
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn each_address_is_recorded_with_its_family() {
    let mut object = service(
        "a",
        json!({"ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 80i64}],
            "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "2001:DB8:1:0::7"]}),
    );
    let allocation =
        allocate(&FOUR_SIX, &plane::empty(), &mut object, None).expect("both are free");
    // The name is canonical whatever the client wrote.
    let made = [("10.0.0.7", "create"), ("2001:db8:1::7", "create")];
    assert_eq!(changes(&allocation), made);
    let labels: Vec<&str> = allocation
        .companions
        .iter()
        .map(|companion| match &companion.change {
            CompanionChange::Create(tree) => {
                tree.str_at(&["metadata", "labels", "ipaddress.kubernetes.io/ip-family"])
            }
            _ => "",
        })
        .collect();
    assert_eq!(labels, ["IPv4", "IPv6"]);

    let record = put(
        "networking.k8s.io",
        "ipaddresses",
        None,
        "2001:db8:1::7",
        json!({}),
    );
    let mut wish = service(
        "b",
        json!({"clusterIP": "2001:db8:1:0:0::7", "ports": [{"port": 80i64}]}),
    );
    let taken = allocate(&SIX_FOUR, &plane::with(vec![record]), &mut wish, None);
    assert!(taken.is_err_and(|error| error.ends_with("provided IP is already allocated")));
}

#[test]
fn a_change_of_the_policy_adds_and_releases_the_second_address() {
    let cut = plane::empty();
    let before = create(&FOUR_SIX, json!({})).expect("it is made");
    let first = before.str_at(&["spec", "clusterIP"]).to_owned();

    let mut dual = before.clone();
    dual.set(&["spec", "ipFamilyPolicy"], "RequireDualStack");
    let allocation = allocate(&FOUR_SIX, &cut, &mut dual, Some(&before)).expect("it grows");
    let second = dual["spec"]["clusterIPs"][1].as_str().unwrap_or_default();
    assert_eq!(changes(&allocation), [(second, "create")]);
    assert_eq!(dual.str_at(&["spec", "clusterIP"]), first);
    assert_eq!(families(&dual).2, "IPv4,IPv6");

    let mut single = dual.clone();
    single.set(&["spec", "ipFamilyPolicy"], "SingleStack");
    let allocation = allocate(&FOUR_SIX, &cut, &mut single, Some(&dual)).expect("it shrinks");
    assert_eq!(changes(&allocation), [(second, "remove")]);
    let wanted = ("SingleStack", "IPv4".to_owned(), "IPv4".to_owned());
    assert_eq!(families(&single), wanted);

    let mut named = dual.clone();
    named.set(&["spec", "type"], "ExternalName");
    named.set(&["spec", "externalName"], "example.com");
    let allocation = allocate(&FOUR_SIX, &cut, &mut named, Some(&dual)).expect("it gives back");
    assert_eq!(
        changes(&allocation),
        [(first.as_str(), "remove"), (second, "remove")]
    );
    assert_eq!(families(&named), ("", String::new(), String::new()));
}

#[test]
fn a_service_that_prefers_two_families_stays_as_it_is_when_the_ranges_change() {
    let cut = plane::empty();
    let prefers = json!({"ipFamilyPolicy": "PreferDualStack"});
    for (then, now) in [(&ONE_FOUR[..], &FOUR_SIX[..]), (&FOUR_SIX, &ONE_FOUR)] {
        let before = create(then, prefers.clone()).expect("it is made");
        let mut after = before.clone();
        let allocation = allocate(now, &cut, &mut after, Some(&before)).expect("it stays");
        assert!(allocation.companions.is_empty());
        assert_eq!(families(&after), families(&before));
    }
}

#[test]
fn service_cidrs_of_either_family_give_addresses() {
    let cidr = |texts: &[&str]| {
        let texts: Vec<Value> = texts.iter().map(|text| Value::from(*text)).collect();
        json!({"metadata": {}, "spec": {"cidrs": texts}})
    };
    let of = |name: &str, tree| put("networking.k8s.io", "servicecidrs", None, name, tree);
    let wish = |cut: &Snapshot, address: &str| {
        let spec = json!({"clusterIP": address, "ports": [{"port": 80i64}]});
        allocate(&FOUR_SIX, cut, &mut service("a", spec), None).map(|_| ())
    };
    let cut = plane::with(vec![of("more", cidr(&["2001:db8:2::/64", "192.0.2.0/28"]))]);
    for address in [
        "2001:db8:2::ffff:0:0:1",
        "192.0.2.1",
        "10.0.0.7",
        "2001:db8:1::7",
    ] {
        assert_eq!(wish(&cut, address), Ok(()), "{address}");
    }
    // What the default one shows counts, and not what the server was started with.
    let cut = plane::with(vec![of("kubernetes", cidr(&["192.0.2.0/28"]))]);
    assert_eq!(wish(&cut, "192.0.2.1"), Ok(()));
    assert!(wish(&cut, "10.0.0.7").is_err());
    let mut object = service(
        "a",
        json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80i64}]}),
    );
    let full = allocate(&FOUR_SIX, &cut, &mut object, None).expect_err("no range of the family");
    assert!(full.ends_with("range is full"), "{full}");
    // It is about to get the second range.
    let cut = plane::with(vec![of("kubernetes", cidr(&[FOUR]))]);
    assert_eq!(wish(&cut, "2001:db8:1::7"), Ok(()));
}

/// An IPAddress names its Service, and is stored before the Service is validated.
#[test]
fn a_service_without_a_name_is_refused_for_the_record_of_its_address() {
    let refusal = |spec: Value| {
        let mut object = service("", spec);
        let outcome = allocate(&ONE_FOUR, &plane::empty(), &mut object, None);
        outcome.map(drop)
    };
    let why = "is invalid: spec.parentRef.name: Required value";
    let wished = refusal(json!({"clusterIP": "10.0.0.77"})).expect_err("it has no name");
    let place = "Service \"\" is invalid: spec.clusterIPs: Invalid value";
    let wanted = format!(
        "{place}: [\"10.0.0.77\"]: failed to allocate IP 10.0.0.77: IPAddress.networking.k8s.io \"10.0.0.77\" {why}"
    );
    assert_eq!(wished, wanted);
    let drawn = refusal(json!({})).expect_err("it has no name");
    let start = format!("{place}: [\"\"]: failed to allocate IP: IPAddress.networking.k8s.io ");
    assert!(drawn.starts_with(&start) && drawn.ends_with(why), "{drawn}");
    for spec in [
        json!({"type": "ExternalName"}),
        json!({"clusterIP": "None"}),
    ] {
        assert_eq!(refusal(spec), Ok(()));
    }
}
