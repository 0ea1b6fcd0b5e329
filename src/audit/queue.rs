//! The events that wait for a backend: one bounded queue, in a share for each plane.
//!
//! Invariant: the lines of a plane leave in the order in which they came, and a plane whose share is
//! the largest loses its oldest lines before any other plane loses one.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use polyplane_apimachinery::Str;
use tokio::sync::oneshot;

use crate::event::{Bodies, Event, PlaneName, Stage};

/// Bytes that a line in the queue takes beside its text.
const LINE_BYTES: usize = 48;
/// Planes without waiting lines whose losses are remembered. The losses of further ones are told
/// without a plane.
const LOSERS_MAX: usize = 4096;

/// One line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: Text,
    /// Hears whether the backend has recorded the line. Dropped, it hears that it has not.
    pub(crate) done: Option<oneshot::Sender<bool>>,
}

/// The text of a line.
#[derive(Debug)]
pub(crate) enum Text {
    Written(Vec<u8>),
    /// What writes the line, when its batch is put together.
    Unwritten {
        event: Arc<Event>,
        stage: Stage,
        now: SystemTime,
        /// About as long as the line will be.
        bytes: usize,
    },
}

impl Text {
    /// Returns the number of bytes, of an unwritten line about.
    fn bytes(&self) -> usize {
        match self {
            Self::Written(text) => text.len(),
            Self::Unwritten { bytes, .. } => *bytes,
        }
    }

    /// Writes the text behind what `out` has.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Written(text) => out.extend_from_slice(text),
            Self::Unwritten {
                event, stage, now, ..
            } => event.write_line(*stage, *now, Bodies::Whole, out),
        }
    }

    /// Returns the whole text.
    pub(crate) fn whole(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Written(text) => Cow::Borrowed(text),
            Self::Unwritten {
                event, stage, now, ..
            } => Cow::Owned(event.line(*stage, *now, Bodies::Whole)),
        }
    }
}

impl Line {
    fn bytes(&self) -> usize {
        self.text.bytes() + LINE_BYTES
    }
}

/// The lines of one plane.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Name and id of the plane.
    pub(crate) plane: (Str, Str),
    pub(crate) lines: VecDeque<Line>,
    /// Lines that were lost since the backend last took some.
    pub(crate) lost: u64,
    bytes: usize,
}

impl Share {
    fn of(plane: &PlaneName<'_>) -> Self {
        Self {
            plane: (plane.name.into(), plane.id.into()),
            ..Self::default()
        }
    }

    /// Returns the plane.
    pub(crate) fn plane(&self) -> PlaneName<'_> {
        PlaneName {
            name: &self.plane.0,
            id: &self.plane.1,
        }
    }

    /// Returns the bytes of the lines, with what they take beside their texts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn pop(&mut self) -> Option<(Line, usize)> {
        let line = self.lines.pop_front()?;
        let bytes = line.bytes();
        self.bytes -= bytes;
        Some((line, bytes))
    }
}

/// The bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) lines_max: usize,
    pub(crate) bytes_max: usize,
}

/// The lines of all planes.
#[derive(Debug)]
pub(crate) struct Queue {
    /// By the id of the plane.
    shares: BTreeMap<Str, Share>,
    lines: usize,
    bytes: usize,
    limits: QueueLimits,
    /// The plane whose lines were taken last, so that the next batch begins with another.
    served: Str,
}

impl Queue {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self {
            shares: BTreeMap::new(),
            lines: 0,
            bytes: 0,
            limits,
            served: Str::default(),
        }
    }

    /// Adds a line of a plane. Returns how many lines were lost over it.
    pub(crate) fn add(&mut self, plane: &PlaneName<'_>, line: Line) -> u64 {
        let bytes = line.bytes();
        self.lines += 1;
        self.bytes += bytes;
        let share = self.share(plane);
        share.lines.push_back(line);
        share.bytes += bytes;
        let mut lost = 0;
        while self.is_over_full() && self.lose_one(plane.id) {
            lost += 1;
        }
        lost
    }

    /// Notes lines that a backend took and has not recorded.
    pub(crate) fn note_lost(&mut self, plane: &PlaneName<'_>, count: u64) {
        let is_known = self.shares.contains_key(plane.id);
        if is_known || self.shares.len() < LOSERS_MAX {
            self.share(plane).lost += count;
        } else {
            self.share(&PlaneName::default()).lost += count;
        }
    }

    /// Takes at most so many lines and bytes, but one line at least; of each plane in turn.
    pub(crate) fn take(&mut self, lines_max: usize, bytes_max: usize) -> Vec<Share> {
        if self.lines <= lines_max && self.bytes <= bytes_max {
            (self.lines, self.bytes) = (0, 0);
            let shares = std::mem::take(&mut self.shares);
            return shares.into_values().collect();
        }
        let after = (Bound::Excluded(&*self.served), Bound::Unbounded);
        let after = self.shares.range::<str, _>(after);
        let until = (Bound::Unbounded, Bound::Included(&*self.served));
        let until = self.shares.range::<str, _>(until);
        let ids: Vec<Str> = after.chain(until).map(|(id, _)| id.clone()).collect();
        let portion = (lines_max / ids.len().max(1)).max(1);
        let mut taken: BTreeMap<Str, Share> = BTreeMap::new();
        let (mut lines, mut bytes) = (0, 0);
        'full: loop {
            let before = lines;
            for id in &ids {
                let Some(share) = self.shares.get_mut(id) else {
                    continue;
                };
                for _ in 0..portion {
                    let next = share.lines.front().map(Line::bytes);
                    let Some(next) = next else { break };
                    if lines == lines_max || (lines > 0 && bytes + next > bytes_max) {
                        break 'full;
                    }
                    let Some((line, line_bytes)) = share.pop() else {
                        break;
                    };
                    lines += 1;
                    bytes += line_bytes;
                    let of_plane = taken.entry(id.clone()).or_insert_with(|| Share {
                        plane: share.plane.clone(),
                        lost: std::mem::take(&mut share.lost),
                        ..Share::default()
                    });
                    of_plane.lines.push_back(line);
                    of_plane.bytes += line_bytes;
                }
                self.served.clone_from(id);
            }
            if lines == before {
                break;
            }
        }
        self.lines -= lines;
        self.bytes -= bytes;
        self.shares
            .retain(|_, share| !share.lines.is_empty() || share.lost > 0);
        taken.into_values().collect()
    }

    /// Returns whether no line waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Returns how many lines wait.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    fn share(&mut self, plane: &PlaneName<'_>) -> &mut Share {
        if !self.shares.contains_key(plane.id) {
            self.shares.insert(plane.id.into(), Share::of(plane));
        }
        self.shares
            .get_mut(plane.id)
            .expect("the share is there or was just inserted")
    }

    fn is_over_full(&self) -> bool {
        self.lines > self.limits.lines_max || self.bytes > self.limits.bytes_max
    }

    /// Drops the oldest line of the plane whose lines take most. `last` is the plane that added the
    /// last line: if it has half of all bytes, no other plane has to be looked at.
    fn lose_one(&mut self, last: &str) -> bool {
        let is_largest = |share: &Share| share.bytes * 2 >= self.bytes;
        let largest = match self.shares.get(last).is_some_and(is_largest) {
            true => self.shares.get_mut(last),
            false => self.shares.values_mut().max_by_key(|share| share.bytes),
        };
        let Some(largest) = largest else {
            return false;
        };
        let Some((_, bytes)) = largest.pop() else {
            return false;
        };
        largest.lost += 1;
        self.lines -= 1;
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(lines_max: usize, bytes_max: usize) -> Queue {
        Queue::new(QueueLimits {
            lines_max,
            bytes_max,
        })
    }

    fn plane(id: &'static str) -> PlaneName<'static> {
        PlaneName { name: id, id }
    }

    fn line(text: String) -> Line {
        Line {
            text: Text::Written(text.into_bytes()),
            done: None,
        }
    }

    fn texts(share: &Share) -> Vec<String> {
        let text = |line: &Line| String::from_utf8(line.text.whole().into_owned()).expect("ASCII");
        share.lines.iter().map(text).collect()
    }

    #[test]
    fn a_flood_loses_its_own_lines_and_no_others() {
        for limits in [(usize::MAX, 100 * (10 + LINE_BYTES)), (100, usize::MAX)] {
            let mut queue = queue(limits.0, limits.1);
            let mut lost = 0;
            for number in 0..1000u32 {
                if number % 100 == 0 {
                    lost += queue.add(&plane("quiet"), line(format!("quiet {number:04}")));
                }
                lost += queue.add(&plane("loud"), line(format!("loud  {number:04}")));
            }
            let taken = queue.take(usize::MAX, usize::MAX);
            let [loud, quiet] = &taken[..] else {
                panic!("two planes wait");
            };
            assert_eq!((quiet.lines.len(), quiet.lost), (10, 0));
            assert_eq!((loud.lines.len(), loud.lost), (90, 910));
            assert_eq!(lost, 910);
            assert_eq!(texts(loud).last().map(String::as_str), Some("loud  0999"));
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn a_line_longer_than_the_queue_is_lost() {
        let mut queue = queue(10, 100);
        assert_eq!(queue.add(&plane("a"), line("x".repeat(500))), 1);
        assert!(queue.is_empty());
        let taken = queue.take(1, 1);
        assert_eq!((taken[0].lines.len(), taken[0].lost), (0, 1));
    }

    #[test]
    fn batches_take_of_each_plane_in_turn_and_in_order() {
        let mut queue = queue(1000, usize::MAX);
        for number in 0..20 {
            queue.add(&plane("loud"), line(format!("l{number:02}")));
        }
        for id in ["a", "b", "c"] {
            queue.add(&plane(id), line(id.to_owned()));
        }
        let first = queue.take(4, usize::MAX);
        let ids: Vec<&str> = first.iter().map(|share| share.plane().id).collect();
        assert_eq!(ids, ["a", "b", "c", "loud"], "each has its part at once");
        let mut seen = texts(&first[3]);
        // One line, though it is longer than a batch may be.
        let second = queue.take(4, 1);
        assert_eq!(second[0].lines.len(), 1);
        seen.extend(texts(&second[0]));
        while !queue.is_empty() {
            for share in queue.take(7, usize::MAX) {
                seen.extend(texts(&share));
            }
        }
        let all: Vec<String> = (0..20).map(|number| format!("l{number:02}")).collect();
        assert_eq!(seen, all);
    }

    #[test]
    fn what_a_backend_loses_is_told_with_its_next_batch_and_makes_none() {
        let mut queue = queue(10, usize::MAX);
        queue.note_lost(&plane("a"), 3);
        assert!(queue.is_empty(), "a loss alone is not sent");
        queue.add(&plane("b"), line("b".to_owned()));
        let taken = queue.take(10, usize::MAX);
        let told: Vec<(&str, u64)> = taken
            .iter()
            .map(|share| (share.plane().id, share.lost))
            .collect();
        assert_eq!(told, [("a", 3), ("b", 0)]);
        for number in 0..2 * LOSERS_MAX {
            let id = number.to_string();
            queue.note_lost(&PlaneName { name: &id, id: &id }, 1);
        }
        assert!(queue.shares.len() <= LOSERS_MAX + 1);
        let lost: u64 = queue
            .take(1, usize::MAX)
            .iter()
            .map(|share| share.lost)
            .sum();
        assert_eq!(lost, 2 * LOSERS_MAX as u64);
    }
}
