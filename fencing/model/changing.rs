//! Changes of the lease terms in the model. Owns no decision: those are the membership machine's.

use std::sync::Arc;

use polyplane_fencing::{Event, Holder, Terms, ViewNumber, member};

use super::scenarios::Named;
use super::{Budget, Happening, MARGIN, READ_LEASE, Scenario, World, terms};

/// R and margin of the shorter terms, in ticks. The other scenarios use the longer ones.
const SHORT: (u64, u64) = (1, 1);

/// Returns scenarios with a crash while the lease terms change: to longer and to shorter ones with
/// two replicas, and with one replica that another joins in the meantime.
pub fn changing() -> Vec<Named> {
    let named = |name: &str, scenario| (name.to_owned(), scenario);
    vec![
        named("a crash while terms become longer", to_longer()),
        named("a crash while terms become shorter", to_shorter()),
        named(
            "a join while terms become longer",
            to_longer().processes(&[0, 1], 1),
        ),
    ]
}

/// Returns a scenario with a complete change to longer terms, and a crash of the owner at any time.
/// Events that only make answers shorter or waits longer are left out: a slow clock other than the
/// owner's, a proof of life without a tenure, an owner that learns of its end or acts without a
/// key.
pub fn to_longer() -> Scenario {
    Scenario {
        focus: Some(|world, happening| match happening {
            Happening::Tick { slow } => slow.is_none_or(|process| process == 0),
            Happening::BeginChange | Happening::ReadTerms(_) => world.spent().ticks == 0,
            Happening::Expire(process) => process == 0,
            Happening::Acquire(process) => process == 1,
            Happening::ReadMember(process) => {
                world.lives(process) && world.replicas[process].tenure().is_some()
            }
            Happening::See(process) | Happening::SeeAdopters(process) => world.lives(process),
            _ => true,
        }),
        ..to_longer_at_any_pace()
    }
}

/// Returns the scenario of [`to_longer`] with all events.
pub fn to_longer_at_any_pace() -> Scenario {
    Scenario {
        first: terms(SHORT),
        then: Some(terms((READ_LEASE, MARGIN))),
        stride: READ_LEASE,
        ..Scenario::new(Budget {
            acquires: 1,
            expiries: 1,
            ticks: 3,
            slow: 1,
            ..Budget::default()
        })
    }
}

/// Returns the scenario of [`to_longer`] with a change to shorter terms.
pub fn to_shorter() -> Scenario {
    let longer = to_longer();
    Scenario {
        first: terms((READ_LEASE, MARGIN)),
        then: Some(longer.first),
        ..longer
    }
}

impl Scenario {
    pub(super) fn of_terms(&self, world: &World, out: &mut Vec<Happening>) {
        let (Some(_), Some(terms)) = (self.then, world.store.terms()) else {
            return;
        };
        if terms.value == Terms::settled(self.first) {
            out.push(Happening::BeginChange);
        }
        for (process, replica) in world.replicas.iter().enumerate() {
            if !replica.runs() {
                if replica.terms_read().is_none() {
                    out.push(Happening::ReadTerms(process));
                }
                continue;
            }
            if replica.would_change(member::Event::Terms(terms.clone())) {
                out.push(Happening::SeeTerms(process));
            }
            if replica.would_change(world.adopters(self, process)) {
                out.push(Happening::SeeAdopters(process));
            }
        }
    }
}

impl World {
    pub(super) fn begin_change(&mut self, scenario: &Scenario) {
        let changing = Terms {
            current: scenario.first,
            next: scenario.then,
        };
        Arc::make_mut(&mut self.store).put_terms(changing);
    }

    pub(super) fn read_terms(&mut self, process: usize) {
        let terms = self.store.terms();
        self.replica(process).read_terms(terms);
    }

    pub(super) fn see_terms(&mut self, process: usize) {
        if let Some(terms) = self.store.terms() {
            self.member_event(process, member::Event::Terms(terms));
        }
    }

    pub(super) fn see_adopters(&mut self, scenario: &Scenario, process: usize) {
        let event = self.adopters(scenario, process);
        self.member_event(process, event);
    }

    /// Returns the members of the view that this process has seen, with their confirmations in the
    /// store.
    fn adopters(&self, scenario: &Scenario, process: usize) -> member::Event {
        let view = self.replicas[process].view();
        let members = view.members.iter().enumerate();
        let members = members.filter_map(|(name, incarnation)| {
            let holder = Holder {
                replica: scenario.ids[name].clone(),
                incarnation: (*incarnation)?,
            };
            let adopted = self.store.adopted(name, holder.incarnation);
            Some(member::Adopter { holder, adopted })
        });
        member::Event::Adopters {
            at: ViewNumber::new(view.number.get()),
            members: members.collect(),
        }
    }

    /// Performs actions of a membership machine. Its transactions are applied at once; that one is
    /// applied late is covered by one that is sent late.
    pub(super) fn perform_of_member(&mut self, process: usize, actions: Vec<member::Action>) {
        for action in actions {
            match action {
                member::Action::CloseAllPlanes => {
                    self.fence_event(process, Event::MemberLost, None);
                }
                member::Action::WaitBy(wait) => self.replica(process).wait_by(wait),
                member::Action::Transact {
                    attempt,
                    transaction,
                } => {
                    let name = self.replicas[process].name();
                    let outcome =
                        Arc::make_mut(&mut self.store).apply_of_member(name, &transaction);
                    self.member_event(process, member::Event::Done { attempt, outcome });
                }
                member::Action::ReadJoinFacts
                | member::Action::Joined(_)
                | member::Action::ReadMember
                | member::Action::Renew
                | member::Action::DrainAnnounced => {}
            }
        }
    }
}
