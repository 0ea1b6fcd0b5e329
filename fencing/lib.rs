//! The fence protocol: which replica may write to a plane, and which may answer for it.
//!
//! The machines have one form: `step(now, event) -> actions`. The driver (`src/ownership`) performs
//! exactly the returned actions, in their order, and reports their outcomes. Time is an argument;
//! the store appears only as types ([`Compare`], [`Write`], [`Outcome`]). This crate must not know
//! keys, sockets, clocks, or what a plane contains. A process that breaks an invariant stops.
//!
//! * [`Member`]: this replica's own membership, its incarnation, its [`ReadLease`].
//! * [`Witness`]: what this replica has seen of the others' lives.
//! * [`PlaneFence`]: one per plane. It acquires the fence, accepts writes, commits, settles,
//!   probes, hands off and deletes. It alone decides whether a plane accepts writes, is read-only,
//!   is paused or has ended.
//! * [`Eviction`]: the decision when a peer is removed from the ring.
//!
//! `PROTOCOL.md` beside this file has the reason for each rule; comments cite it by number.
//!
//! # Invariants
//! * **F1** two holders are never both valid, while clocks drift apart by less than the margin.
//! * **F2** an epoch never falls.
//! * **F3** the store accepts only the current epoch.
//! * **F4** a holder that lost its member key commits nothing and answers nothing later than
//!   R after its last proof was sent.
//! * **F5** an acknowledged write is in every later read.
//! * **F6** a settled outcome never changes.
//! * **F7** a tenure ends before its Released is sent.
//! * **F8** from every state a lone survivor can acquire the plane, answer and accept a write,
//!   whatever transactions were refused, got no reply or were interrupted before.
//!
//! A machine asserts each invariant that it can see alone. All are checked over whole state spaces
//! and random runs that drive these same `step` functions (`tests/model.rs`,
//! `examples/explore.rs`). If a [`Rule`] is taken out there, the check must find a violation.
//!
//! # One replica on an embedded store
//! ```
//! use polyplane_fencing::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Time::from_nanos(1_000); // the driver reads CLOCK_BOOTTIME
//! let terms = LeaseTerms::default();
//!
//! // The store was opened exclusively at revision 40; the member key was put at 41.
//! let witness = Witness::embedded_store(Revision::new(40), terms);
//! let me = Holder { replica: "polyplane-0".parse()?, incarnation: Incarnation::new(41) };
//! let mut lease = ReadLease::new(terms.read_lease(), Rules::default());
//! lease.prove(now, Proof { sent: now });
//!
//! // The fence was left Held by a life before the opening: it is taken without a wait.
//! let before = Holder { replica: "polyplane-0".parse()?, incarnation: Incarnation::new(7) };
//! let left = Fence { holder: before, epoch: Epoch::new(3), state: FenceState::Held };
//! let sighting = witness.sighting(Some(Observed { value: left, revision: Revision::new(9) }));
//! let mut fence = PlaneFence::new(me.clone(), PlaneKind::Tenant, Rules::default());
//! let actions = fence.step(now, Event::Acquire(sighting));
//! let [Action::Transact { attempt, transaction }] = actions.as_slice() else {
//!     panic!("one transaction is asked for");
//! };
//! assert!(transaction.compares.contains(&Compare::FenceAt(Revision::new(9))));
//! assert!(transaction.compares.contains(&Compare::MemberIs(me)));
//!
//! // The driver sends it. Applied: a tenure opens, to be loaded at the acquire or later.
//! let outcome = Outcome::Applied(Revision::new(42));
//! let actions = fence.step(now, Event::Done { attempt: *attempt, outcome });
//! let [Action::OpenTenure { tenure, serve_from, load }] = actions[..] else {
//!     panic!("a tenure opens");
//! };
//! assert_eq!((tenure.epoch(), serve_from), (Epoch::new(4), now));
//! assert_eq!(load, Load::Store { not_before: Revision::new(42) });
//! fence.step(now, Event::Loaded { head: Revision::new(30) });
//! assert_eq!(fence.answer(now, &lease, tenure), Verdict::Answer);
//!
//! // Each batch carries the guard's compares; the outcome comes back.
//! let CommitPermit::Granted(guard) = fence.commit_permit(now, tenure) else {
//!     panic!("nothing is in the way");
//! };
//! assert_eq!(guard.fence(), Some(Compare::FenceAt(Revision::new(42))));
//! fence.step(now, Event::CommitSent);
//! let actions = fence.step(now, Event::CommitDone(Outcome::Unknown));
//! // Unknown: the own fence is put again, and history up to that put decides.
//! let [Action::Transact { attempt, .. }] = actions[..] else { panic!("a barrier") };
//! let outcome = Outcome::Applied(Revision::new(44));
//! let actions = fence.step(now, Event::Done { attempt, outcome });
//! assert_eq!(actions, [Action::Settle { through: Revision::new(44) }]);
//! fence.step(now, Event::Replayed { head: Revision::new(43) });
//!
//! // Deleting: the tenure ends first, then Deleted is sent, then the range goes.
//! let actions = fence.step(now, Event::Delete);
//! let [Action::StopAccepting, Action::EndTenure { .. }, Action::Transact { attempt, .. }] =
//!     actions[..]
//! else {
//!     panic!("in this order");
//! };
//! assert_eq!(fence.answer(now, &lease, tenure), Verdict::Moved);
//! let outcome = Outcome::Applied(Revision::new(45));
//! let actions = fence.step(now, Event::Done { attempt, outcome });
//! assert_eq!(actions, [Action::RemoveRange { fence: Revision::new(45) }]);
//! # Ok(())
//! # }
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod eviction;
pub mod member;
#[cfg(feature = "model")]
pub mod naming;
mod plane;
mod read_lease;
mod record;
mod rules;
mod terms;
mod time;
mod transaction;
mod witness;

pub use eviction::Eviction;
pub use member::Member;
pub use plane::{
    Action, CommitPermit, Event, Guard, Intake, Load, NotTaken, PlaneFence, PlaneKind, Streaming,
    Tenure, TenureEnd, Verdict,
};
pub use polyplane_ring::{Incarnation, ReplicaId, Standing, ViewNumber};
pub use read_lease::{LeaseStatus, Proof, ReadLease};
pub use record::{Epoch, Fence, FenceState, Holder, Observed, Revision};
pub use rules::{Rule, Rules};
pub use terms::{InvalidTerms, LeaseTerms, Terms};
pub use time::{Duration, Time};
pub use transaction::{Attempt, Compare, Directory, Outcome, Refusal, Transaction, Write};
pub use witness::{Liveness, Sighting, Witness};
