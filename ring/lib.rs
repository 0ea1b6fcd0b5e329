//! The ring: which replicas live, and which of them *should* own a plane.
//!
//! This crate owns the membership view and the placement function over it. It must not know the
//! fence of a plane (who *may* write), the store, the network or a clock: it computes a [`Member`]
//! from a view, and two replicas with equal views compute equal answers, bit for bit.
//!
//! ```
//! use polyplane_ring::{Incarnation, Member, Membership, Pin, PlaneId, Standing, ViewNumber};
//!
//! let mut membership = Membership::default();
//! for (n, name) in ["polyplane-0", "polyplane-1", "polyplane-2"].iter().enumerate() {
//!     let revision = 10 + n as u64;
//!     let member = Member {
//!         id: name.parse()?,
//!         incarnation: Incarnation::new(revision),
//!         address: "10.0.0.1:7443".parse()?,
//!         zone: None,
//!         weight: Default::default(),
//!         standing: Standing::Serving,
//!     };
//!     membership.put(ViewNumber::new(revision), member);
//! }
//! let view = membership.view();
//! assert_eq!(view.number(), ViewNumber::new(12));
//! let plane: PlaneId = "team-a".parse()?;
//! let owner = view.designated(&plane, &Pin::Anywhere).expect("the view has members");
//! assert!(view.standbys(&plane, &Pin::Anywhere, 2).iter().all(|m| m.id != owner.id));
//! # Ok::<(), polyplane_ring::InvalidName>(())
//! ```
//!
//! Invariants, checked by `tests/placement.rs`:
//! * **R1** equal views lead to equal placement: integer arithmetic only, golden vectors in the
//!   tests.
//! * **R2** losing a member moves only its planes; gaining one moves planes only to it.
//! * **R3** the load of each replica stays within bounds of its weight's share.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod log2;
mod name;
mod placement;
mod view;

pub use name::{InvalidName, PeerAddress, PlaneId, ReplicaId, Zone};
pub use placement::{Pin, Score};
pub use view::{Incarnation, Member, Membership, Standing, View, ViewNumber, Weight};
