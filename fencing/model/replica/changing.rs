//! The part of a process in a change of the lease terms.

use polyplane_fencing::{LeaseTerms, Observed, Terms, member};

use super::Replica;

impl Replica {
    pub fn wait_by(&mut self, wait: LeaseTerms) {
        if let Some(machines) = &mut self.machines {
            machines.witness.wait_by(wait);
        }
    }

    pub fn terms_read(&self) -> Option<&Observed<Terms>> {
        self.terms_read.as_ref()
    }

    pub fn read_terms(&mut self, terms: Option<Observed<Terms>>) {
        self.terms_read = terms;
    }

    pub fn take_terms_read(&mut self) -> Option<Observed<Terms>> {
        self.terms_read.take()
    }

    /// Returns whether its membership machine reacts to an event.
    pub fn would_change(&self, event: member::Event) -> bool {
        let now = self.now();
        self.machines.as_ref().is_some_and(|machines| {
            let mut member = machines.member.clone();
            !member.step(now, event).is_empty() || member != machines.member
        })
    }
}
