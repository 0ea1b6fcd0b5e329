//! Keeps the member key up to date with the replica's certificates, which the operator may replace while it
//! runs. Must not decide who may join.

use crate::membership::member_record::{MemberRecord, decode_member};
use crate::membership::own_life::OwnLife;
use crate::membership::state::RingState;
use crate::transactions::MemberPut;
use polyplane_storage::{Compare, Op, Txn};
use std::time::Duration;
use tokio::time::timeout;

/// The longest time that the put may take. The next renewal tries again.
const PUT_PATIENCE: Duration = Duration::from_secs(1);

/// Puts the member key again if the CAs of this replica's certificates are not those that it names.
///
/// The put compares that the key is as it was read, so that it never takes back a put that says Draining,
/// however late the store applies it.
pub(crate) async fn refresh(shared: &RingState, life: &OwnLife) {
    let put = life.put();
    let trust = shared.peers.trust();
    if trust == put.record.trust || life.over().is_cancelled() {
        return;
    }
    let key = life.member_key();
    let incarnation = life.holder().incarnation;
    let Ok((_, Some(found))) = shared.store.get(key).await else {
        return;
    };
    // If the key is another life's, the next member read ends this one.
    let seen = match found.created.0 == incarnation.get() {
        true => decode_member(&found.value, incarnation),
        false => None,
    };
    let Some(seen) = seen else {
        return;
    };
    let fresh = MemberPut {
        record: MemberRecord {
            trust,
            ..put.record.clone()
        },
        lease: put.lease,
    };
    let txn = Txn {
        compares: vec![Compare::Unchanged {
            key: key.clone(),
            revision: found.modified,
        }],
        ops: vec![Op::Put {
            key: key.clone(),
            value: fresh.record.encode(seen.member.standing),
            lease: Some(fresh.lease),
        }],
    };
    match timeout(PUT_PATIENCE, shared.store.commit(txn)).await {
        Ok(Ok(_)) => {
            life.set_put(fresh);
            tracing::info!("the member key names the CAs of the new peer certificates");
        }
        Ok(Err(error)) => tracing::debug!(%error, "the member key was not put again"),
        Err(_) => tracing::debug!("the store was too slow for a put of the member key"),
    }
}
