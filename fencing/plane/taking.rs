//! Acquiring a fence: the compares of an acquire, and the handling of its outcome.

use alloc::vec;
use alloc::vec::Vec;

use crate::plane::{
    Action, Batch, Goal, Held, Load, NotTaken, Phase, PlaneFence, PlaneKind, Taking, Tenure,
    TenureMode,
};
use crate::record::{Epoch, Fence, FenceState, Holder, Observed, Revision};
use crate::rules::Rule;
use crate::terms::LeaseTerms;
use crate::time::{Duration, Time};
use crate::transaction::{Compare, Directory, Outcome, Refusal, Transaction, Write};
use crate::witness::{Liveness, Sighting};

impl PlaneFence {
    pub(super) fn acquire(&mut self, now: Time, sighting: &Sighting) -> Vec<Action> {
        match &self.phase {
            Phase::Away => {}
            // A plane's id is never used again; removing its range needs the record's revision.
            Phase::Deleted => {
                let found = sighting.fence();
                let deleted = found.filter(|fence| fence.value.state == FenceState::Deleted);
                let fence = deleted.map(|fence| fence.revision);
                let not = fence.map(|fence| Action::NotTaken(NotTaken::Deleted { fence }));
                return not.into_iter().collect();
            }
            _ if !self.rules.keep(Rule::BegunIsDrivenOn) => return Vec::new(),
            // The task that sent the last acquire is gone. The acquire may be applied at any later
            // time; a read of the fence will show it.
            Phase::Taking(_) => self.phase = Phase::Away,
            Phase::Held(_) => return self.open_again(),
            // The plane is needed here after all.
            Phase::Relinquishing(relinquishing) => {
                let relinquishing = relinquishing.clone();
                return match relinquishing.goal {
                    Goal::Release { .. } => self.reclaim(relinquishing),
                    Goal::Delete => self.say_again(relinquishing),
                };
            }
            Phase::Lost => return Vec::new(),
        }
        let wait = sighting.wait();
        let Some(fence) = sighting.fence() else {
            let released_head = None;
            return self.take(now, None, Ground::Free { released_head }, wait);
        };
        let holder = &fence.value.holder;
        match (&fence.value.state, sighting.liveness()) {
            (FenceState::Released { head, .. }, _) => {
                let released_head = Some(*head);
                self.take(now, Some(fence), Ground::Free { released_head }, wait)
            }
            (FenceState::Deleted, _) => {
                let fence = fence.revision;
                vec![Action::NotTaken(NotTaken::Deleted { fence })]
            }
            (FenceState::Held, _) if *holder == self.me => self.looked(now, sighting),
            (FenceState::Held, Liveness::BeforeOpening) => {
                self.take(now, Some(fence), Ground::BeforeOpening(holder), wait)
            }
            (FenceState::Held, Liveness::Gone { since }) => {
                self.take(now, Some(fence), Ground::Gone { holder, since }, wait)
            }
            (FenceState::Held, Liveness::Alive) => vec![Action::AskHolder(holder.clone())],
            (FenceState::Held, Liveness::Unseen) => vec![Action::NotTaken(NotTaken::ViewTooOld)],
        }
    }

    /// Handles a fence that was read: an own fence without a tenure is adopted.
    pub(super) fn looked(&mut self, now: Time, sighting: &Sighting) -> Vec<Action> {
        match sighting.fence() {
            Some(fence) => {
                let adopted = self.adopt_if_own(now, fence, sighting.wait());
                adopted.unwrap_or_default()
            }
            None => Vec::new(),
        }
    }

    fn adopt_if_own(
        &mut self,
        now: Time,
        fence: &Observed<Fence>,
        wait: LeaseTerms,
    ) -> Option<Vec<Action>> {
        let own = fence.value.holder == self.me && fence.value.state == FenceState::Held;
        let adopt = own && self.phase == Phase::Away && self.rules.keep(Rule::OwnFenceIsAdopted);
        adopt.then(|| self.take(now, Some(fence), Ground::Own, wait))
    }

    fn take(
        &mut self,
        now: Time,
        fence: Option<&Observed<Fence>>,
        ground: Ground<'_>,
        wait: LeaseTerms,
    ) -> Vec<Action> {
        let epoch = fence
            .map_or(Epoch::default(), |fence| fence.value.epoch)
            .next();
        let attempt = self.next_attempt();
        let transaction = Transaction {
            compares: self.acquire_compares(fence, &ground),
            writes: vec![Write::PutFence(Fence {
                holder: self.me.clone(),
                epoch,
                state: FenceState::Held,
            })],
        };
        // The wait after a dead holder, and after an own fence that is adopted (PROTOCOL 7).
        let (serve_from, released_head) = match ground {
            Ground::Free { released_head } => (now, released_head),
            Ground::BeforeOpening(_) => (now, None),
            Ground::Gone { since, .. } if self.rules.keep(Rule::TakeoverWaits) => {
                (since + self.length(wait), None)
            }
            Ground::Own if self.rules.keep(Rule::AdoptionWaits) => (now + self.length(wait), None),
            Ground::Gone { .. } | Ground::Own => (now, None),
        };
        self.phase = Phase::Taking(Taking {
            attempt,
            epoch,
            serve_from,
            wait,
            released_head,
        });
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    fn acquire_compares(
        &self,
        fence: Option<&Observed<Fence>>,
        ground: &Ground<'_>,
    ) -> Vec<Compare> {
        let mut compares = Vec::with_capacity(4);
        if self.rules.keep(Rule::AcquireComparesFence) {
            let fence = fence.map(|fence| Compare::FenceAt(fence.revision));
            compares.push(fence.unwrap_or(Compare::FenceAbsent));
        }
        if self.rules.keep(Rule::AcquireComparesOwnMember) {
            compares.push(Compare::MemberIs(self.me.clone()));
        }
        match ground {
            Ground::Gone { holder, .. } | Ground::BeforeOpening(holder) => {
                compares.push(match self.rules.keep(Rule::TakeoverNamesIncarnation) {
                    true => Compare::MemberIsNot((*holder).clone()),
                    false => Compare::MemberAbsent(holder.replica.clone()),
                });
            }
            Ground::Free { .. } | Ground::Own => {}
        }
        match self.kind {
            PlaneKind::Tenant => compares.push(Compare::DirectoryPresent),
            PlaneKind::Root => {}
        }
        compares
    }

    fn length(&self, wait: LeaseTerms) -> Duration {
        match self.rules.keep(Rule::TakeoverWaitsMargin) {
            true => wait.wait(),
            false => wait.read_lease(),
        }
    }

    pub(super) fn taking_done(
        &mut self,
        now: Time,
        taking: Taking,
        outcome: Outcome,
    ) -> Vec<Action> {
        self.phase = Phase::Away;
        match outcome {
            Outcome::Applied(revision) => self.taken(&taking, revision),
            Outcome::Refused(refusal) => self.taking_refused(now, taking.wait, &refusal),
            Outcome::Rejected => vec![Action::NotTaken(NotTaken::Rejected)],
            // The acquire may be applied later; a read of the fence will show it.
            Outcome::Unknown => vec![Action::ReadFence],
        }
    }

    fn taken(&mut self, taking: &Taking, revision: Revision) -> Vec<Action> {
        let from_released = match self.rules.keep(Rule::StreamOnlyFromReleased) {
            true => taking.released_head.is_some(),
            false => true,
        };
        let at_head = match self.rules.keep(Rule::StreamAtReleasedHead) {
            true => taking
                .released_head
                .is_none_or(|head| self.incoming == Some(head)),
            false => true,
        };
        // A streamed state is used now or never.
        let load = match self.incoming.take() {
            Some(head) if from_released && at_head => Load::Streamed { head },
            Some(_) | None => Load::Store {
                not_before: revision,
            },
        };
        self.open(taking.epoch, revision, taking.serve_from, load)
    }

    /// Opens a new tenure over a fence that is held while its plane is not in memory, because the
    /// task that was loading it ended or failed. The tenure is new so that nothing of the old one
    /// answers any more.
    fn open_again(&mut self) -> Vec<Action> {
        let Phase::Held(held) = &self.phase else {
            return Vec::new();
        };
        match held.batch {
            Batch::None | Batch::Probe { .. } => {}
            // The plane is in memory, so its committer settles the batch.
            Batch::InFlight | Batch::Barrier(_) | Batch::Replaying => return Vec::new(),
        }
        let held = held.clone();
        self.phase = Phase::Away;
        let load = Load::Store {
            not_before: held.fence,
        };
        let actions = self.open(held.tenure.epoch, held.fence, held.serve_from, load);
        if let Phase::Held(opened) = &mut self.phase {
            opened.batch = held.batch;
            opened.rejections = held.rejections;
        }
        actions
    }

    /// Opens a tenure over a fence record that is Held by this incarnation.
    pub(super) fn open(
        &mut self,
        epoch: Epoch,
        fence: Revision,
        serve_from: Time,
        load: Load,
    ) -> Vec<Action> {
        assert!(
            self.tenure().is_none(),
            "F1: a plane has one tenure at a time"
        );
        self.openings += 1;
        let tenure = Tenure {
            epoch,
            opening: self.openings,
        };
        self.phase = Phase::Held(Held {
            tenure,
            fence,
            serve_from,
            head: None,
            batch: Batch::None,
            mode: TenureMode::Serving,
            rejections: 0,
        });
        vec![Action::OpenTenure {
            tenure,
            serve_from,
            load,
        }]
    }

    fn taking_refused(&mut self, now: Time, wait: LeaseTerms, refusal: &Refusal) -> Vec<Action> {
        if !self.lives(refusal) {
            return self.lose(Some(refusal));
        }
        // An earlier acquire of this replica, which it had given up, was applied first.
        let fence = refusal.fence.as_ref();
        if let Some(actions) = fence.and_then(|fence| self.adopt_if_own(now, fence, wait)) {
            return actions;
        }
        match (self.kind, refusal.directory) {
            (PlaneKind::Tenant, Directory::Absent) => {
                vec![Action::NotTaken(NotTaken::NoDirectoryRecord)]
            }
            (PlaneKind::Tenant, Directory::Present) | (PlaneKind::Root, _) => {
                vec![Action::NotTaken(NotTaken::Changed)]
            }
        }
    }
}

/// The reason that allows a fence to be acquired.
enum Ground<'a> {
    /// Rule 1: the fence is absent or Released.
    Free { released_head: Option<Revision> },
    /// Rule 2: the holder's incarnation is gone.
    Gone { holder: &'a Holder, since: Time },
    /// Rule 2 on an embedded store: the holder was created before the store was opened.
    BeforeOpening(&'a Holder),
    /// Rule 4: this incarnation holds it without knowing.
    Own,
}
