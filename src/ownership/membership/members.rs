//! Follows the member keys and publishes a view for each change. Owns how member keys become views;
//! must not know this replica's own life.

use crate::membership::candidates;
use crate::membership::member_record::{MemberSeen, decode_member, members_store_prefix};
use crate::membership::range_copy::{self, RangeCopy};
use crate::membership::state::{Level, RingState};
use crate::membership::suspicion;
use crate::peers::holder;
use bytes::Bytes;
use polyplane_fencing::{Holder, Time};
use polyplane_ring::{Incarnation, Member, Membership, View, ViewNumber};
use polyplane_storage::{KeyValue, Revision, StoreEvent, WatchBatch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time for which the witness remembers when a member left. It must be far longer than any wait
/// that is counted from that moment: a forgotten death would start the wait again.
pub(crate) const DEATHS_KEPT: Duration = Duration::from_secs(600);

/// Follows the member keys for ever.
pub(crate) async fn follow(state: &Arc<RingState>) {
    let mut follower = MemberFollower {
        state,
        known: Known::default(),
    };
    let prefix = members_store_prefix();
    range_copy::follow(&state.store, prefix, "the ring", &mut follower).await;
}

/// Publishes a view for each change of the member keys.
struct MemberFollower<'a> {
    state: &'a RingState,
    known: Known,
}

impl RangeCopy for MemberFollower<'_> {
    fn replace(&mut self, items: Vec<KeyValue>, at: Revision) {
        self.known = Known::default();
        for item in &items {
            self.known.found(item);
        }
        self.known.publish(self.state, at);
        self.state.members_known.send_replace(true);
    }

    fn apply(&mut self, batch: WatchBatch) {
        if !batch.events.is_empty() {
            for event in &batch.events {
                self.known.apply(event);
            }
            self.known.publish(self.state, batch.revision);
        }
        self.state.members_seen_to.send_replace(batch.revision);
    }
}

/// The members, according to the member keys seen so far.
#[derive(Default)]
struct Known {
    by_key: BTreeMap<Bytes, MemberSeen>,
}

impl Known {
    fn found(&mut self, item: &KeyValue) {
        let incarnation = Incarnation::new(item.created.0);
        if let Some(seen) = decode_member(&item.value, incarnation) {
            self.by_key.insert(item.key.clone(), seen);
        }
    }

    /// Applies one change of a member key. An event does not say when its key was created. A key
    /// that existed keeps its incarnation, and the uid shows whether it is the same life, because
    /// the store may have compacted the values in between.
    fn apply(&mut self, event: &StoreEvent) {
        let Some(value) = &event.value else {
            self.by_key.remove(&event.key);
            return;
        };
        let Some(seen) = decode_member(value, Incarnation::new(event.revision.0)) else {
            self.by_key.remove(&event.key);
            return;
        };
        let known = self.by_key.get(&event.key);
        let known = known.filter(|known| known.uid == seen.uid);
        let incarnation = known.map_or(seen.member.incarnation, |known| known.member.incarnation);
        let member = Member {
            incarnation,
            ..seen.member
        };
        let seen = MemberSeen { member, ..seen };
        self.by_key.insert(event.key.clone(), seen);
    }

    fn publish(&self, shared: &RingState, at: Revision) {
        let number = ViewNumber::new(at.0);
        let levels = self.by_key.values().map(|seen| {
            let level = Level {
                number: seen.level,
                layer: seen.layer.clone(),
            };
            (seen.member.id.clone(), level)
        });
        *shared.levels.lock() = levels.collect();
        let trusts = self.by_key.values();
        let trusts = trusts.filter_map(|seen| Some((seen.member.id.clone(), seen.trust.clone()?)));
        *shared.trusts.lock() = trusts.collect();
        let mut membership = Membership::default();
        for seen in self.by_key.values() {
            membership.put(number, seen.member.clone());
        }
        if self.by_key.is_empty() {
            let nobody = shared.options.id.clone();
            membership.remove(number, &nobody);
        }
        publish_view(shared, membership.view());
        shared.members_seen_to.send_replace(at);
    }
}

/// Publishes a new view to every task of the membership.
fn publish_view(state: &RingState, view: View) {
    let now = state.now();
    let holders: Vec<Holder> = view.members().map(holder).collect();
    {
        let mut witness = state.witness.lock();
        witness.observe(now, view.number(), holders.iter().cloned());
        let kept = u64::try_from(DEATHS_KEPT.as_nanos()).unwrap_or(u64::MAX);
        let horizon = now.as_nanos().saturating_sub(kept);
        witness.forget(Time::from_nanos(horizon));
    }
    let number = view.number();
    tracing::info!(view = %number, members = holders.len(), "the ring has changed");
    state.view.store(Arc::new(view));
    state.view_changed.send_replace(number);
    suspicion::view_changed(state, holders);
    candidates::judge(state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::member_record::{MemberRecord, member_key};
    use polyplane_fencing::Standing;
    use polyplane_plane::LayerHash;
    use polyplane_ring::Weight;

    fn put(revision: u64, uid: &str, standing: Standing) -> StoreEvent {
        let record = MemberRecord {
            id: "a".parse().expect("a replica id"),
            address: "h:1".parse().expect("an address"),
            zone: None,
            weight: Weight::default(),
            level: 1,
            layer: LayerHash("ab".to_owned()),
            ttl: Duration::from_secs(3),
            trust: None,
            uid: uid.to_owned(),
            began: "2026-01-01T00:00:00Z".to_owned(),
        };
        StoreEvent {
            revision: Revision(revision),
            key: member_key(&record.id),
            value: Some(record.encode(standing)),
            previous: None,
        }
    }

    #[test]
    fn a_second_put_of_a_life_keeps_its_incarnation() {
        let mut known = Known::default();
        known.apply(&put(5, "u", Standing::Serving));
        known.apply(&put(8, "u", Standing::Draining));
        let seen = known.by_key.values().next().expect("it is known");
        assert_eq!(seen.member.incarnation, Incarnation::new(5));
        assert_eq!(seen.member.standing, Standing::Draining);
        known.apply(&put(9, "v", Standing::Serving));
        let seen = known.by_key.values().next().expect("it is known");
        assert_eq!(seen.member.incarnation, Incarnation::new(9), "another life");
    }
}
