//! The membership of this replica: its member key and read lease, the view of all members, and the
//! eviction of members that do not answer. Open this folder if a replica does not join, loses its
//! member key or is evicted.
//!
//! Must not know planes: [`crate::planes`] subscribes to views and to the end of a life.

mod beats;
pub(crate) mod candidates;
pub(crate) mod contact;
pub(crate) mod join_facts;
pub(crate) mod late_proofs;
pub(crate) mod lease_terms;
pub(crate) mod member_driver;
pub(crate) mod member_record;
pub(crate) mod members;
pub(crate) mod options;
mod own_complaints;
pub(crate) mod own_life;
mod own_record;
mod peer_view;
mod range_copy;
mod refused_join;
pub(crate) mod ring;
mod state;
mod suspicion;
mod welcome;
