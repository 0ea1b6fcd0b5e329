//! The view: read once, then followed by a watch on the member keys. Owns how changes of that range
//! become views; must not know the own life.

use crate::backoff::Backoff;
use crate::membership::member_record::{MemberSeen, decode_member, members_store_prefix};
use crate::membership::ring::{Level, RingState};
use bytes::Bytes;
use polyplane_fencing::Holder;
use polyplane_ring::{Incarnation, Member, Membership, ViewNumber};
use polyplane_storage::{
    KeyValue, RangeRequest, ReadError, Revision, StoreEvent, WatchEnd, prefix_end,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the time of a death is remembered: far longer than any wait that is counted from it.
pub(crate) const DEATHS_KEPT: Duration = Duration::from_secs(600);

/// The life a member's record belongs to.
pub(crate) fn holder(member: &Member) -> Holder {
    Holder {
        replica: member.id.clone(),
        incarnation: member.incarnation,
    }
}

/// Follows the member keys for ever. A watch that ends is taken up by a new read.
pub(crate) async fn follow(shared: &Arc<RingState>) {
    let mut backoff = Backoff::default();
    loop {
        match follow_once(shared, &mut backoff).await {
            Follow::Watch(end) => tracing::debug!(%end, "the watch on the ring ended"),
            Follow::Read(error) => tracing::debug!(%error, "the ring cannot be read"),
        }
        backoff.wait().await;
    }
}

enum Follow {
    Watch(WatchEnd),
    Read(ReadError),
}

async fn follow_once(shared: &Arc<RingState>, backoff: &mut Backoff) -> Follow {
    let (mut known, read_at) = match read(shared).await {
        Ok(read) => read,
        Err(error) => return Follow::Read(error),
    };
    // Members that went while nobody watched are missing in this view, as of its revision.
    known.publish(shared, read_at);
    let start = members_store_prefix();
    let end = prefix_end(&start);
    let mut watch = match shared.store.watch(start, end, read_at).await {
        Ok(watch) => watch,
        Err(error) => return Follow::Read(error),
    };
    *backoff = Backoff::default();
    loop {
        match watch.next().await {
            Ok(batch) => {
                if !batch.events.is_empty() {
                    for event in &batch.events {
                        known.apply(event);
                    }
                    known.publish(shared, batch.revision);
                }
                shared.members_seen_to.send_replace(batch.revision);
            }
            Err(end) => return Follow::Watch(end),
        }
    }
}

async fn read(shared: &Arc<RingState>) -> Result<(Known, Revision), ReadError> {
    let mut known = Known::default();
    let mut read_at = None;
    let mut request = Some(RangeRequest::prefix(members_store_prefix()));
    while let Some(page) = request {
        let reply = shared.store.range(page.clone()).await?;
        request = page.next_page(&reply);
        read_at.get_or_insert(reply.revision);
        for item in &reply.items {
            known.found(item);
        }
    }
    Ok((known, read_at.unwrap_or_default()))
}

/// The members as the store has told them so far.
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

    /// An event names no creation: a key that was there keeps its incarnation, and that it was
    /// there is known by the uid, for the store may have forgotten what the key held before.
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
        let mut membership = Membership::default();
        for seen in self.by_key.values() {
            membership.put(number, seen.member.clone());
        }
        if self.by_key.is_empty() {
            let nobody = shared.options.id.clone();
            membership.remove(number, &nobody);
        }
        shared.publish_view(membership.view());
        shared.members_seen_to.send_replace(at);
    }
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
