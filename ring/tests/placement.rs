//! Tests of R1, R2 and R3, with ordinal and random names.

use std::collections::BTreeMap;

use polyplane_ring::{
    Incarnation, Member, Pin, PlaneId, ReplicaId, Standing, View, ViewNumber, Weight,
};
use proptest::prelude::*;

fn member(id: &str, weight: u16) -> Member {
    Member {
        id: id.parse().expect("a replica id"),
        incarnation: Incarnation::new(1),
        address: "h:1".parse().expect("an address"),
        zone: None,
        weight: Weight::new(weight).expect("a weight above zero"),
        standing: Standing::Serving,
    }
}

fn view(members: impl IntoIterator<Item = Member>) -> View {
    View::new(ViewNumber::new(1), members)
}

fn plane(text: &str) -> PlaneId {
    text.parse().expect("a plane id")
}

fn counts<'a>(view: &View, planes: impl Iterator<Item = PlaneId> + 'a) -> BTreeMap<ReplicaId, u64> {
    let mut counts = BTreeMap::new();
    for plane in planes {
        let owner = view.designated(&plane, &Pin::Anywhere).expect("members");
        *counts.entry(owner.id.clone()).or_default() += 1;
    }
    counts
}

/// Returns whether a binomial count is within `sigmas` standard deviations of `total · share /
/// shares`.
fn plausible(count: u64, total: u64, share: u64, shares: u64, sigmas: i128) -> bool {
    // (count·shares − total·share)² ≤ sigmas² · total · share · (shares − share), all integers.
    let off = i128::from(count) * i128::from(shares) - i128::from(total) * i128::from(share);
    let variance = i128::from(total) * i128::from(share) * i128::from(shares - share);
    off * off <= sigmas * sigmas * variance
}

fn names(kind: &str, count: usize) -> Vec<String> {
    let name = |n: usize| match kind {
        "ordinal" => format!("polyplane-{n}"),
        _ => {
            let mixed = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("r{:x}", mixed ^ (mixed >> 29))
        }
    };
    (0..count).map(name).collect()
}

#[test]
fn r3_equal_weights_come_out_even_from_2_to_100_replicas() {
    let planes: u64 = 12_000;
    for kind in ["ordinal", "random"] {
        for replicas in [2, 3, 4, 5, 7, 8, 10, 16, 33, 64, 100] {
            let view = view(names(kind, replicas).iter().map(|name| member(name, 100)));
            for plane_kind in ["plane-", "0a"] {
                let ids = (0..planes).map(|n| plane(&format!("{plane_kind}{n}")));
                let counts = counts(&view, ids);
                assert_eq!(
                    counts.len(),
                    replicas,
                    "{kind}: every replica owns something"
                );
                for (id, count) in counts {
                    let even = plausible(count, planes, 1, replicas as u64, 5);
                    assert!(even, "{kind} {replicas}: {id} owns {count} of {planes}");
                }
            }
        }
    }
}

#[test]
fn r3_weights_hold_within_two_percent() {
    let planes: u64 = 150_000;
    for kind in ["ordinal", "random"] {
        for weights in [
            vec![100, 100],
            vec![100, 200],
            vec![1, 2, 3],
            vec![50, 100, 150, 100],
        ] {
            let names = names(kind, weights.len());
            let members = names
                .iter()
                .zip(&weights)
                .map(|(name, weight)| member(name, *weight));
            let counts = counts(&view(members), (0..planes).map(|n| plane(&format!("p{n}"))));
            let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            for (name, weight) in names.iter().zip(&weights) {
                let count = counts[&name.parse::<ReplicaId>().expect("a replica id")];
                let expected = planes * u64::from(*weight) / sum;
                let off = count.abs_diff(expected) * 1000 / expected;
                assert!(
                    off <= 20,
                    "{kind} {weights:?}: {name} owns {count}, {expected} expected"
                );
            }
        }
    }
}

#[test]
fn r3_weight_classes_of_a_hundred_replicas_hold_within_two_percent() {
    let planes: u64 = 40_000;
    let names = names("ordinal", 100);
    let weight = |n: usize| if n < 50 { 100 } else { 300 };
    let view = view(
        names
            .iter()
            .enumerate()
            .map(|(n, name)| member(name, weight(n))),
    );
    let counts = counts(&view, (0..planes).map(|n| plane(&format!("p{n}"))));
    let light: u64 = names[..50]
        .iter()
        .map(|name| counts[&name.parse::<ReplicaId>().expect("a replica id")])
        .sum();
    let expected = planes / 4;
    assert!(
        light.abs_diff(expected) * 50 <= expected,
        "{light} of {expected}"
    );
    for (n, name) in names.iter().enumerate() {
        let count = counts[&name.parse::<ReplicaId>().expect("a replica id")];
        assert!(
            plausible(count, planes, weight(n).into(), 20_000, 5),
            "{name}: {count}"
        );
    }
}

#[test]
fn r2_going_from_n_to_n_plus_one_moves_one_share_all_to_the_new_one() {
    let planes: u64 = 20_000;
    for replicas in [2_usize, 3, 9, 30] {
        let names = names("ordinal", replicas + 1);
        let before = view(names[..replicas].iter().map(|name| member(name, 100)));
        let after = view(names.iter().map(|name| member(name, 100)));
        let newcomer = &names[replicas];
        let mut moved = 0;
        for n in 0..planes {
            let plane = plane(&format!("plane-{n}"));
            let old = before.designated(&plane, &Pin::Anywhere).expect("members");
            let new = after.designated(&plane, &Pin::Anywhere).expect("members");
            if old.id != new.id {
                assert_eq!(
                    new.id.as_str(),
                    newcomer,
                    "a plane moved between old replicas"
                );
                moved += 1;
            }
        }
        assert!(
            plausible(moved, planes, 1, replicas as u64 + 1, 5),
            "{replicas}: {moved} moved"
        );
    }
}

#[test]
fn r1_golden_vectors() {
    let golden = include_str!("golden.txt");
    assert_eq!(golden.lines().count(), 60, "the vectors are all there");
    for line in golden.lines() {
        let mut fields = line.split(' ');
        let mut next = || fields.next().expect("four fields");
        let (plane_id, replica, neg_log2, rank) = (next(), next(), next(), next());
        let plane = plane(plane_id);
        let replica: ReplicaId = replica.parse().expect("a replica id");
        let members = (0..5).map(|n| member(&format!("polyplane-{n}"), 100 + 50 * n));
        let view = view(members);
        let me = view.member(&replica).expect("one of the five");
        let score = polyplane_ring::Score::of(&plane, &replica, me.weight);
        let ranked = view.ranked(&plane, &Pin::Anywhere);
        let place = ranked.iter().position(|m| m.id == replica).expect("ranked");
        assert_eq!(score.neg_log2().to_string(), neg_log2, "{line}");
        assert_eq!(place.to_string(), rank, "{line}");
    }
}

#[test]
fn draining_members_are_eligible_only_when_no_serving_one_is_left() {
    let mut members: Vec<_> = names("ordinal", 3)
        .iter()
        .map(|name| member(name, 100))
        .collect();
    members[0].standing = Standing::Draining;
    members[1].standing = Standing::Draining;
    let one_left = view(members.clone());
    members[2].standing = Standing::Draining;
    let none_left = view(members);
    let mut owners = std::collections::BTreeSet::new();
    for n in 0..100 {
        let plane = plane(&format!("p{n}"));
        let owner = one_left
            .designated(&plane, &Pin::Anywhere)
            .expect("members");
        assert_eq!(owner.id.as_str(), "polyplane-2");
        owners.insert(
            none_left
                .designated(&plane, &Pin::Anywhere)
                .expect("members")
                .id
                .clone(),
        );
    }
    assert_eq!(owners.len(), 3);
    assert!(view([]).designated(&plane("p"), &Pin::Anywhere).is_none());
    assert!(view([]).standbys(&plane("p"), &Pin::Anywhere, 3).is_empty());
}

#[test]
fn a_pin_wins_while_it_can_be_met() {
    let mut members: Vec<_> = names("ordinal", 4)
        .iter()
        .map(|name| member(name, 100))
        .collect();
    members[3].zone = Some("z".parse().expect("a zone"));
    let calm = view(members.clone());
    members[3].standing = Standing::Draining;
    let draining = view(members);
    let pins = [
        Pin::Replica("polyplane-3".parse().expect("a replica id")),
        Pin::Zone("z".parse().expect("a zone")),
    ];
    for pin in pins {
        for n in 0..50 {
            let plane = plane(&format!("p{n}"));
            let pinned = calm.designated(&plane, &pin).expect("members");
            assert_eq!(pinned.id.as_str(), "polyplane-3");
            let unmet = draining.designated(&plane, &pin).expect("members");
            let free = draining
                .designated(&plane, &Pin::Anywhere)
                .expect("members");
            assert_eq!(
                unmet.id, free.id,
                "a pin to a draining member is passed over"
            );
        }
    }
}

#[test]
fn standbys_use_every_zone_before_one_twice() {
    let mut members: Vec<_> = names("ordinal", 9)
        .iter()
        .map(|name| member(name, 100))
        .collect();
    for (n, member) in members.iter_mut().enumerate() {
        member.zone = Some(["x", "y", "z"][n % 3].parse().expect("a zone"));
    }
    let view = view(members);
    for n in 0..200 {
        let plane = plane(&format!("p{n}"));
        let owner = view.designated(&plane, &Pin::Anywhere).expect("members");
        let standbys = view.standbys(&plane, &Pin::Anywhere, 20);
        assert_eq!(standbys.len(), 8);
        let zones: std::collections::BTreeSet<_> = standbys[..2]
            .iter()
            .chain([&owner])
            .map(|m| m.zone.clone())
            .collect();
        assert_eq!(zones.len(), 3);
        assert!(standbys.iter().all(|standby| standby.id != owner.id));
    }
}

fn arbitrary_members() -> impl Strategy<Value = Vec<Member>> {
    let standing = prop_oneof![Just(Standing::Serving), Just(Standing::Draining)];
    let one = ("[a-z][a-z0-9]{0,12}", 1_u16..1000, standing);
    proptest::collection::vec(one, 1..12).prop_map(|rows| {
        rows.into_iter()
            .map(|(id, weight, standing)| Member {
                standing,
                ..member(&id, weight)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn r1_the_order_of_arrival_does_not_matter(
        members in arbitrary_members(), seed in 0_usize..100, id in "[a-z0-9]{1,30}"
    ) {
        let unique: BTreeMap<_, _> = members.into_iter().map(|m| (m.id.clone(), m)).collect();
        let members: Vec<_> = unique.into_values().collect();
        let mut turned = members.clone();
        turned.rotate_left(seed % members.len());
        turned.reverse();
        let (left, right) = (view(members), view(turned));
        prop_assert_eq!(&left, &right);
        let plane = plane(&id);
        prop_assert_eq!(left.ranked(&plane, &Pin::Anywhere), right.ranked(&plane, &Pin::Anywhere));
    }

    #[test]
    fn r2_losing_a_member_moves_only_its_planes(
        members in arbitrary_members(), lost in 0_usize..100, id in "[a-z0-9]{1,30}"
    ) {
        let whole = view(members);
        let lost = whole.members().nth(lost % whole.members().len()).expect("in range").id.clone();
        let plane = plane(&id);
        let mut ranked = whole.ranked(&plane, &Pin::Anywhere);
        let rest = view(whole.members().filter(|m| m.id != lost).cloned());
        ranked.retain(|m| m.id != lost);
        prop_assert_eq!(ranked, rest.ranked(&plane, &Pin::Anywhere));
    }

    #[test]
    fn the_designated_member_is_the_first_of_the_ranking(
        members in arbitrary_members(), id in "[a-z0-9]{1,30}"
    ) {
        let view = view(members);
        let plane = plane(&id);
        let first = view.ranked(&plane, &Pin::Anywhere).first().copied();
        prop_assert_eq!(view.designated(&plane, &Pin::Anywhere), first);
    }
}
