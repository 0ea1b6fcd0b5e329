//! What peers say of the ring while the store says nothing to this replica alone: the newest view
//! that one of them has. If it shows this life no more, the life is over; and requests are
//! forwarded by it until the store speaks again.
//!
//! Owns the asking and what was heard. Must not touch the own view or what was witnessed: fences
//! are judged by what the store itself has said. Invariant: what is heard opens no tenure, proves
//! no lease and starts no wait. It ends a life, which is always safe, and names whom to forward to.

use crate::membership::state::RingState;
use crate::peers::{PeerMessage, PeerReply, ViewMember};
use polyplane_ring::{Member, View, ViewNumber};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Between two rounds of questions.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// How long a peer may take to tell its view.
const PEER_PATIENCE: Duration = Duration::from_millis(500);
/// Peers that are asked in one round.
const PEERS_POLLED_MAX: usize = 3;

/// Asks peers for their views while the store says nothing, until the ring ends.
pub(crate) async fn poll(shared: Arc<RingState>) {
    let mut ticks = interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0;
    loop {
        tokio::select! {
            // The end of the ring comes first.
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

/// Whether the store has been silent for so long that this replica may have lost its member key: it
/// is renewed at a third of its time, so two thirds must have passed without a word. A newcomer
/// hears nothing until it has a life.
fn store_is_silent(shared: &RingState) -> bool {
    match shared.current().filter(|life| !life.over().is_cancelled()) {
        Some(life) => life.silent() >= shared.options.member_ttl * 2 / 3,
        None => true,
    }
}

/// The newest view that some peers have; they take turns.
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
    let told = asking.join_all().await.into_iter().flatten();
    told.max_by_key(View::number)
}

/// A view as it was told; none if one of its members makes no sense, for a view that lacks a member
/// says that the member is gone.
fn read(number: u64, members: &[ViewMember]) -> Option<View> {
    let members: Option<Vec<Member>> = members.iter().map(ViewMember::member).collect();
    Some(View::new(ViewNumber::new(number), members?))
}

/// Takes in what a peer said: the own machine judges what that says of the own life.
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
        let told = |address: &str| ViewMember {
            life: Life {
                replica: "a".to_owned(),
                incarnation: 4,
            },
            address: address.to_owned(),
            zone: None,
            weight: 100,
            draining: false,
        };
        let good = read(7, &[told("h:1")]).expect("it makes sense");
        assert_eq!(good.number(), ViewNumber::new(7));
        assert_eq!(good.members().count(), 1);
        assert_eq!(read(7, &[told("h:1"), told("")]), None);
    }
}
