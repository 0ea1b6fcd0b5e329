//! The events that wait for the log: one bounded queue, in a share for each plane.
//!
//! Invariant: the lines of a plane leave in the order in which they came, and a plane whose share is
//! the largest loses its oldest lines before any other plane loses one.

use std::collections::{HashMap, VecDeque};

use polyplane_apimachinery::Str;

/// Bytes that a line in the queue takes beside its text.
const LINE_BYTES: usize = 48;

/// The lines of one plane.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Name and id of the plane.
    pub(crate) plane: (Str, Str),
    pub(crate) lines: VecDeque<Vec<u8>>,
    /// Lines that were lost since the log last took some.
    pub(crate) lost: u64,
    bytes: usize,
}

/// The lines of all planes.
pub(crate) struct Queue {
    planes: HashMap<Str, Waiting>,
    bytes: usize,
    bytes_max: usize,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            planes: HashMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds a line of a plane. Returns how many lines were lost over it.
    pub(crate) fn add(&mut self, plane: &(Str, Str), line: Vec<u8>) -> u64 {
        let bytes = line.len() + LINE_BYTES;
        let waiting = self
            .planes
            .entry(plane.1.clone())
            .or_insert_with(|| Waiting {
                plane: plane.clone(),
                ..Waiting::default()
            });
        waiting.lines.push_back(line);
        waiting.bytes += bytes;
        self.bytes += bytes;
        let mut lost = 0;
        while self.bytes > self.bytes_max && self.lose_one() {
            lost += 1;
        }
        lost
    }

    /// Takes everything that waits.
    pub(crate) fn take(&mut self) -> Vec<Waiting> {
        self.bytes = 0;
        self.planes.drain().map(|(_, waiting)| waiting).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.planes.is_empty()
    }

    /// Drops the oldest line of the plane whose lines take most.
    fn lose_one(&mut self) -> bool {
        let largest = self.planes.values_mut().max_by_key(|waiting| waiting.bytes);
        let Some(largest) = largest else {
            return false;
        };
        let Some(line) = largest.lines.pop_front() else {
            return false;
        };
        let bytes = line.len() + LINE_BYTES;
        largest.bytes -= bytes;
        largest.lost += 1;
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(name: &str) -> (Str, Str) {
        (name.into(), format!("id-{name}").into())
    }

    #[test]
    fn a_flood_loses_its_own_lines_and_no_others() {
        let mut queue = Queue::new(100 * (10 + LINE_BYTES));
        let (quiet, loud) = (plane("quiet"), plane("loud"));
        let mut lost = 0;
        for number in 0..1000u32 {
            if number % 100 == 0 {
                lost += queue.add(&quiet, format!("quiet {number:04}").into_bytes());
            }
            lost += queue.add(&loud, format!("loud  {number:04}").into_bytes());
        }
        let mut taken = queue.take();
        taken.sort_by(|a, b| a.plane.cmp(&b.plane));
        let [loud, quiet] = &taken[..] else {
            panic!("two planes wait");
        };
        assert_eq!((quiet.lines.len(), quiet.lost), (10, 0));
        assert_eq!((loud.lines.len(), loud.lost), (90, 910));
        assert_eq!(lost, 910);
        assert_eq!(
            loud.lines.back().map(Vec::as_slice),
            Some(&b"loud  0999"[..])
        );
        assert!(queue.is_empty());
    }

    #[test]
    fn a_line_longer_than_the_queue_is_lost() {
        let mut queue = Queue::new(100);
        assert_eq!(queue.add(&plane("a"), vec![b'x'; 500]), 1);
        let taken = queue.take();
        assert_eq!((taken[0].lines.len(), taken[0].lost), (0, 1));
    }
}
