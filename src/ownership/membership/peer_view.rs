//! The newest view of a peer, for a replica that alone does not reach the store. If that view does
//! not show this life, the life is over. Requests are forwarded by that view until the store
//! answers again.
//!
//! Owns polling the peers and the view that they send. Must not change this replica's own view or
//! the witness: fences are judged only by what the store itself has delivered. Invariant: a peer's
//! view opens no tenure, proves no lease and starts no wait. It may end a life, which is always
//! safe, and it says where to forward requests.

use crate::membership::state::RingState;
use crate::peers::{PeerMessage, PeerReply, ViewMember};
use polyplane_ring::{Member, View, ViewNumber};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Pause between two rounds of polls. A longer one delays the end of a life that the store no
/// longer has.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// The longest time that a peer may take to send its view. A slower one is polled again in a later
/// round.
const PEER_PATIENCE: Duration = Duration::from_millis(500);
/// Number of peers that are polled in one round, so that a large ring is not flooded.
const PEERS_POLLED_MAX: usize = 3;

/// Polls peers for their views while the store does not answer, until the ring ends.
pub(crate) async fn poll(shared: Arc<RingState>) {
    let mut ticks = interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0;
    loop {
        tokio::select! {
            // The end of the ring is polled first.
            biased;
            () = shared.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if store_is_silent(&shared) {
            let asked = newest_of_peers(&shared, turn).await;
            turn = turn.wrapping_add(PEERS_POLLED_MAX);
            if let Some(view) = asked {
                observe(&shared, view);
            }
        }
    }
}

/// Returns whether this replica may have lost its member key because the store has not answered it.
/// The key is renewed at a third of its TTL, so it may be lost once two thirds have passed without
/// a reply. Always true while the replica has no member key.
fn store_is_silent(shared: &RingState) -> bool {
    match shared.current().filter(|life| !life.over().is_cancelled()) {
        Some(life) => life.silent() >= shared.options.member_ttl * 2 / 3,
        None => true,
    }
}

/// Returns the newest view of a few peers. Each round polls the next peers.
async fn newest_of_peers(shared: &Arc<RingState>, turn: usize) -> Option<View> {
    let view = shared.newest_view();
    let own = &shared.options.id;
    let peers: Vec<&Member> = view.members().filter(|member| member.id != *own).collect();
    let mut asking = JoinSet::new();
    for at in 0..PEERS_POLLED_MAX.min(peers.len()) {
        let peer = peers[(turn + at) % peers.len()].clone();
        let shared = Arc::clone(shared);
        asking.spawn(async move {
            let request = PeerMessage::View.into();
            match timeout(PEER_PATIENCE, shared.peers.call(&peer, request)).await {
                Ok(Ok(PeerReply::View { number, members })) => read(number, &members),
                Ok(Ok(_) | Err(_)) | Err(_) => None,
            }
        });
    }
    let views = asking.join_all().await.into_iter().flatten();
    views.max_by_key(View::number)
}

/// Returns the view of a reply; `None` if one of its members is invalid. An invalid member cannot
/// be left out, because a view without a member says that the member is gone.
fn read(number: u64, members: &[ViewMember]) -> Option<View> {
    let members: Option<Vec<Member>> = members.iter().map(ViewMember::member).collect();
    Some(View::new(ViewNumber::new(number), members?))
}

/// Uses a peer's view if it is newer. The member machine decides what the view means for this
/// replica's own life.
fn observe(shared: &RingState, view: View) {
    if view.number() <= shared.newest_view().number() {
        return;
    }
    shared.peer_views.fetch_add(1, Ordering::Relaxed);
    let found = view.member(&shared.options.id);
    let found = found.map(|member| member.incarnation);
    if let Some(life) = shared.current() {
        life.observe_peer_view(view.number(), found);
        if !life.over().is_cancelled() {
            return;
        }
    }
    tracing::info!(view = %view.number(), "requests are forwarded by a peer's view");
    shared.peer_view.store(Arc::new(view));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Life;

    #[test]
    fn a_view_with_a_member_that_makes_no_sense_is_no_view() {
        let member = |address: &str| ViewMember {
            life: Life {
                replica: "a".to_owned(),
                incarnation: 4,
            },
            address: address.to_owned(),
            zone: None,
            weight: 100,
            draining: false,
        };
        let good = read(7, &[member("h:1")]).expect("it makes sense");
        assert_eq!(good.number(), ViewNumber::new(7));
        assert_eq!(good.members().count(), 1);
        assert_eq!(read(7, &[member("h:1"), member("")]), None);
    }
}
