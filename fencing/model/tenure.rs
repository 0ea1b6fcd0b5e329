//! The events within a tenure, as the server's plane and fence drivers perform them: releasing
//! after a pause, refusals and probes, tasks that die, the two reads that settle a batch after its
//! barrier was refused, observers and bookmarks.

use std::sync::Arc;

use polyplane_fencing::{Event, Intake, Outcome, Rule, Streaming};

use super::replica::Intent;
use super::store::Request;
use super::{Breach, Scenario, World};

impl World {
    /// Pauses the plane for a purpose, which is carried out once the plane stands still.
    pub(super) fn part(&mut self, process: usize, intent: Intent) {
        self.replica(process).intend(intent);
        self.fence_event(process, Event::Pause, None);
    }

    /// Carries out the purpose of each pause whose plane stands still now.
    pub(super) fn continue_relinquishing(&mut self, scenario: &Scenario) {
        for process in 0..self.replicas.len() {
            if !self.replicas[process].has_intent() {
                continue;
            }
            match self.replica(process).take_intent() {
                Some(Intent::HandOff { to }) => {
                    let successor = scenario.id(to);
                    let streaming = Streaming::To(successor.clone());
                    self.replica(process).stream_towards(to);
                    let hand_off = Event::HandOff {
                        successor: Some(successor),
                        streaming,
                    };
                    self.fence_event(process, hand_off, None);
                }
                Some(Intent::Sleep) => {
                    let release = Event::HandOff {
                        successor: None,
                        streaming: Streaming::Nothing,
                    };
                    self.fence_event(process, release, None);
                }
                Some(Intent::Delete) => self.fence_event(process, Event::Delete, None),
                // The tenure was lost in the meantime, or a batch is still being settled.
                None if self.replicas[process].tenure().is_none() => {
                    self.replica(process).drop_intent();
                }
                None => {}
            }
        }
    }

    pub(super) fn reject(&mut self, index: usize) {
        let message = self.net.remove(index);
        if self.replicas[message.from].holder() == message.sender {
            let history = self.store.history();
            let (from, request, sent) = (message.from, message.request, message.sent);
            self.outcome(from, request, Outcome::Rejected, history, sent);
        }
    }

    /// Returns whether a read-only plane may be probed: only if no probe of it is under way.
    pub(super) fn may_probe(&self, scenario: &Scenario, process: usize) -> bool {
        let replica = &self.replicas[process];
        let asks = |message: &Arc<super::Message>| message.from == process && !message.forgotten;
        scenario.rules.keep(Rule::ReadOnlyIsProbed)
            && replica.intake() == Intake::ReadOnly
            && !self.net.iter().any(asks)
    }

    /// Returns whether the sender of a message is a task that may die. A part is settled by the
    /// committer, whose death ends the whole process.
    pub(super) fn may_die(&self, index: usize) -> bool {
        let message = &self.net[index];
        let replica = &self.replicas[message.from];
        let task = matches!(message.request, Request::Fence(_)) && !message.forgotten;
        task && !replica.has_batch() && replica.holder() == message.sender
    }

    pub(super) fn die(&mut self, index: usize) {
        let message = Arc::make_mut(&mut self.net[index]);
        let from = message.from;
        message.forgotten = true;
        if message.reply.is_some() {
            self.net.remove(index);
        }
        self.replica(from).stream_is_over();
        self.replica(from).drop_intent();
    }

    pub(super) fn settle_first(&mut self, scenario: &Scenario, process: usize) {
        let store = Arc::clone(&self.store);
        let Some(unsettled) = self.replica(process).unsettled_mut() else {
            return;
        };
        match scenario.rules.keep(Rule::HistoryBeforeSuperseded) {
            true => unsettled.history = Some(store.history()),
            false => unsettled.superseded = Some(store.superseded(unsettled.compared)),
        }
    }

    /// Decides a batch whose barrier was refused. The first write after the batch's sending and
    /// before the next owner's fence must be the batch's own; without one it was not applied.
    pub(super) fn settle_second(&mut self, process: usize) {
        let store = Arc::clone(&self.store);
        let Some(mut unsettled) = self.replica(process).settle() else {
            return;
        };
        let history = unsettled.history.take().unwrap_or_else(|| store.history());
        let superseded = unsettled.superseded.take();
        let superseded = superseded.unwrap_or_else(|| store.superseded(unsettled.compared));
        let until = superseded.unwrap_or(history.len()).min(history.len());
        let write = unsettled.write;
        match history[..until].get(unsettled.sent_after) {
            Some(found) if *found == write => {
                self.tell_observers(process, write);
                self.acknowledge(write);
            }
            Some(_) => self.breach = self.breach.or(Some(Breach::NeverHappened)),
            None => self.deny(write),
        }
    }

    pub(super) fn publish(&mut self, process: usize, write: u8) {
        self.tell_observers(process, write);
        self.replica(process).publish(write);
    }

    /// Records that a write is published at this replica, or would be if it still held the plane.
    pub(super) fn tell_observers(&mut self, process: usize, write: u8) {
        self.published |= 1 << write;
        if self.by_publisher || !self.replicas[process].gave_up() {
            self.notified |= 1 << write;
        }
        if self.published & !self.notified != 0 {
            self.breach = self.breach.or(Some(Breach::UntoldObservers));
        }
    }

    pub(super) fn begin_bookmark(&mut self, scenario: &Scenario, process: usize) {
        let replica = self.replica(process);
        let (observed, may) = (replica.observed(), replica.may_bookmark());
        *replica.bookmark_mut() = match scenario.rules.keep(Rule::BookmarkBeforeTenure) {
            true => Some(Some(observed)),
            false if may => Some(None),
            false => None,
        };
    }

    pub(super) fn end_bookmark(&mut self, scenario: &Scenario, process: usize) {
        let replica = self.replica(process);
        let Some(begun) = replica.bookmark_mut().take() else {
            return;
        };
        let may = replica.may_bookmark();
        let named = match scenario.rules.keep(Rule::BookmarkBeforeTenure) {
            true if may => begun,
            true => None,
            false => Some(replica.observed()),
        };
        let named = named.unwrap_or_default();
        let known = replica.writes();
        let history = self.store.history();
        let before = &history[..named.min(history.len())];
        if before.iter().any(|write| known & 1 << write == 0) {
            self.breach = self.breach.or(Some(Breach::BookmarkBeyondTold));
        }
    }
}
