//! Members and the numbered view of them. Owns the content of a member key and how changes of the
//! member keys become a view; must not know how these changes are transported.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU16;

use crate::name::{PeerAddress, ReplicaId, Zone};
use crate::placement::{HashedMember, replica_seed};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Returns the counter with this number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the counter's number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

counter!(
    /// The store revision that created a replica's member key. It identifies one life of the replica.
    Incarnation
);

counter!(
    /// The store revision of a view's last membership change. Of two views, the one with the higher
    /// number is newer.
    ViewNumber
);

/// A replica's share of the planes, in relation to the others'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// Returns a weight; `None` for zero, because a replica that should own no planes is Draining
    /// instead.
    pub const fn new(weight: u16) -> Option<Self> {
        match NonZeroU16::new(weight) {
            Some(weight) => Some(Self(weight)),
            None => None,
        }
    }

    /// Returns the weight's number, never zero.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(NonZeroU16::new(100).expect("a hundred is not zero"))
    }
}

/// The choice whether a member accepts planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// It accepts planes.
    Serving,
    /// It hands its planes over, and accepts some only if no Serving member is left.
    Draining,
}

/// The content of a replica's member key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    /// The replica's name, unique in a view.
    pub id: ReplicaId,
    /// The life of the replica that wrote this record. After a restart the replica has another one.
    pub incarnation: Incarnation,
    /// The address at which peers reach it.
    pub address: PeerAddress,
    /// Its failure domain, if known.
    pub zone: Option<Zone>,
    /// Its share of the planes.
    pub weight: Weight,
    /// The choice whether it accepts planes.
    pub standing: Standing,
}

/// A numbered membership of the ring. Equal views lead to equal placement (R1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    number: ViewNumber,
    /// The members, sorted by id; ids are unique.
    members: Vec<HashedMember>,
}

impl View {
    /// Creates a view of these members. Of two records with one id, the later one in the iteration
    /// is kept.
    pub fn new(number: ViewNumber, members: impl IntoIterator<Item = Member>) -> Self {
        let mut membership = Membership::default();
        for member in members {
            membership.put(number, member);
        }
        membership.number = number;
        membership.view()
    }

    /// Returns the view's number.
    pub fn number(&self) -> ViewNumber {
        self.number
    }

    /// Returns all members, sorted by id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.iter().map(|hashed| &hashed.member)
    }

    /// Returns the member with this name.
    pub fn member(&self, id: &ReplicaId) -> Option<&Member> {
        let found = self
            .members
            .binary_search_by(|hashed| hashed.member.id.cmp(id));
        found.ok().map(|index| &self.members[index].member)
    }

    pub(crate) fn hashed(&self) -> &[HashedMember] {
        &self.members
    }
}

/// The membership as a watch on the member keys reports it, change by change.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    number: ViewNumber,
    members: BTreeMap<ReplicaId, Member>,
}

impl Membership {
    /// Adds or replaces a member, because its member key was put at the revision `at`.
    pub fn put(&mut self, at: ViewNumber, member: Member) {
        self.number = self.number.max(at);
        self.members.insert(member.id.clone(), member);
    }

    /// Removes a member, because its member key was removed at the revision `at`.
    pub fn remove(&mut self, at: ViewNumber, id: &ReplicaId) {
        self.number = self.number.max(at);
        self.members.remove(id);
    }

    /// Returns the present view.
    pub fn view(&self) -> View {
        let hashed = |member: &Member| HashedMember {
            seed: replica_seed(&member.id),
            member: member.clone(),
        };
        View {
            number: self.number,
            members: self.members.values().map(hashed).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, incarnation: u64) -> Member {
        Member {
            id: id.parse().expect("a good id"),
            incarnation: Incarnation::new(incarnation),
            address: "h:1".parse().expect("a good address"),
            zone: None,
            weight: Weight::default(),
            standing: Standing::Serving,
        }
    }

    #[test]
    fn a_view_carries_the_revision_of_its_last_change() {
        let mut membership = Membership::default();
        membership.put(ViewNumber::new(4), member("b", 4));
        membership.put(ViewNumber::new(7), member("a", 7));
        assert_eq!(membership.view().number(), ViewNumber::new(7));
        membership.remove(ViewNumber::new(9), &"b".parse().expect("a good id"));
        let view = membership.view();
        assert_eq!(view.number(), ViewNumber::new(9));
        assert_eq!(view.members().len(), 1);
        assert!(view.member(&"b".parse().expect("a good id")).is_none());
    }

    #[test]
    fn a_new_life_replaces_the_old_one() {
        let view = View::new(ViewNumber::new(9), [member("a", 3), member("a", 8)]);
        let alive = view
            .member(&"a".parse().expect("a good id"))
            .expect("a is there");
        assert_eq!(alive.incarnation, Incarnation::new(8));
        assert_eq!(view.members().len(), 1);
    }

    #[test]
    fn no_weight_is_zero() {
        assert_eq!(Weight::new(0), None);
        assert_eq!(Weight::default().get(), 100);
    }
}
