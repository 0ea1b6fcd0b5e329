//! The parts of a process that no later event reads, and the names in a process.

use polyplane_fencing::naming::{EachName, Name};
use polyplane_fencing::{Attempt, CommitPermit, Revision, Rule, Tenure, Time};

use super::{MemberRead, Replica, Stream};
use crate::model::{Budget, MARGIN, ORIGIN, PeerViews, READ_LEASE, Scenario, Writes};

/// Number of ticks beyond which times in the past need not be distinguished: every wait that began
/// then is over.
const HORIZON: u64 = READ_LEASE + MARGIN;

impl Replica {
    /// Clears the fields that no later event reads.
    pub fn forget_the_dead(&mut self, scenario: &Scenario, spent: &Budget, commit_under_way: bool) {
        if self.batch.is_none() {
            self.sent = (Revision::default(), 0);
            let may_be_told = commit_under_way || self.unsettled.is_some();
            self.gave_up &= may_be_told;
        }
        if scenario.peer_views == PeerViews::Untold && scenario.then.is_none() {
            self.members = [None; 3];
        }
        let reads_are_over = spent.reads == scenario.budget.reads && self.read.is_none();
        if reads_are_over {
            self.key_lost_for = None;
        }
        let of_tenure = scenario.rules.keep(Rule::AnswerNeedsTenure) || reads_are_over;
        if of_tenure && !self.tenure.is_some_and(|tenure| self.is_newest(tenure)) {
            self.tenure = None;
        }
        let shown = self.stream != Stream::None || self.bookmark.is_some();
        if of_tenure && !shown && self.tenure().is_none() && !self.is_relinquishing() {
            self.state.clear();
        }
    }

    /// Returns whether the machine's tenure is this one, be it open or suspended.
    fn is_newest(&self, tenure: Tenure) -> bool {
        let machines = self.machines.as_ref();
        machines.is_some_and(|machines| {
            machines.fence.tenure() == Some(tenure) || machines.fence.is_quiescent(tenure)
        })
    }

    /// Returns the attempt whose outcome the machine waits for.
    pub fn awaits(&mut self) -> Option<Attempt> {
        let mut awaited = None;
        if let Some(machines) = &mut self.machines {
            machines.fence.each_name(&mut |name| {
                if let Name::Attempt(attempt) = name {
                    awaited = Some(*attempt);
                }
            });
        }
        awaited
    }

    /// Collects the fence revisions that a batch of this process compared, or may still compare.
    pub fn compared(&mut self, found: &mut Vec<Revision>) {
        found.extend(self.unsettled.as_ref().map(|unsettled| unsettled.compared));
        found.extend(self.batch.map(|_| self.sent.0));
        if let Some(machines) = &mut self.machines {
            machines.fence.each_name(&mut |name| {
                if let Name::Fence(revision) = name {
                    found.push(*revision);
                }
            });
        }
    }

    /// Renumbers this process's names: the awaited attempt becomes number 1, the tenures are
    /// counted from 1, and the clock is set to [`ORIGIN`] with every time at the same distance from
    /// it.
    pub fn rename_own(&mut self) {
        let awaited = self.awaits().map_or(0, |_| 1);
        let mut openings = Vec::new();
        self.each_name(&mut |name| {
            if let Name::Opening(opening) = name {
                openings.push(*opening);
            }
        });
        openings.sort_unstable();
        openings.dedup();
        let clock = self.clock;
        self.each_name(&mut |name| match name {
            Name::Attempt(attempt) => *attempt = Attempt::numbered(1),
            Name::Opening(opening) => {
                let rank = openings.partition_point(|other| *other < *opening);
                *opening = rank as u32 + 1;
            }
            Name::Time(time) => *time = since_origin(*time, clock),
            Name::Epoch(_) | Name::Fence(_) => {}
        });
        self.clock = ORIGIN;
        if let Some(machines) = &mut self.machines {
            machines.fence.count_from(awaited, openings.len() as u32);
        }
    }

    /// Returns the writes that a read under way has seen, and those that it must have seen.
    pub fn read_writes(&self) -> (Writes, Writes) {
        self.read.map_or((0, 0), |read| (read.value, read.floor))
    }

    pub fn rename_read(&mut self, renamed: &dyn Fn(Writes) -> Writes) {
        if let Some(read) = &mut self.read {
            (read.value, read.floor) = (renamed(read.value), renamed(read.floor));
        }
    }

    /// Returns what the process holds, does and would do now, without names.
    pub fn outline(&self) -> String {
        let held = self
            .tenure()
            .map(|_| (self.state.len(), self.answers(), self.intake()));
        let lives = self.believes_to_live();
        let may = matches!(self.permit(), CommitPermit::Granted(_));
        let batch = (self.batch.is_some(), self.unsettled.is_some());
        let relinquishing = (
            self.is_relinquishing(),
            self.may_call_off(),
            self.intent,
            self.stream,
        );
        let read = self
            .read
            .map(|_| self.check_read().map(|(_, verdict)| verdict));
        let received = self.received.as_ref().map(Vec::len);
        format!("{lives} {held:?} {may} {batch:?} {relinquishing:?} {read:?} {received:?}")
    }

    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Visits the writes that this process knows of, in the order of its own lists.
    pub fn each_write(&mut self, visit: &mut dyn FnMut(&mut u8)) {
        let unsettled = self.unsettled.as_mut();
        let (settled, history) = match unsettled {
            Some(unsettled) => (Some(&mut unsettled.write), unsettled.history.as_mut()),
            None => (None, None),
        };
        let lists = [Some(&mut self.state), self.received.as_mut(), history];
        let single = self.batch.iter_mut().chain(settled);
        single
            .chain(lists.into_iter().flatten().flatten())
            .for_each(visit);
    }
}

/// Returns the time on a clock that is set to [`ORIGIN`].
pub fn since_origin(time: Time, clock: u64) -> Time {
    let back = clock.saturating_sub(HORIZON);
    Time::from_nanos(time.as_nanos().max(back) + ORIGIN - clock)
}

impl EachName for Replica {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        if let Some(machines) = &mut self.machines {
            machines.fence.each_name(visit);
            machines.member.each_name(visit);
            machines.witness.each_name(visit);
        }
        let read = self.read.as_mut().map(|read| &mut read.tenure);
        for tenure in self.tenure.iter_mut().chain(read) {
            tenure.each_name(visit);
        }
        match &mut self.member_read {
            MemberRead::Idle => {}
            MemberRead::Sent(sent) | MemberRead::Served(sent, _) => visit(Name::Time(sent)),
        }
        visit(Name::Fence(&mut self.sent.0));
        if let Some(unsettled) = &mut self.unsettled {
            visit(Name::Fence(&mut unsettled.compared));
        }
    }
}
