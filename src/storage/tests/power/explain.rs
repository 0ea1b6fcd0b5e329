//! What became of the calls that a program's threads were in when it ended or was killed.

use super::{Disk, Image};
use crate::trace::Call;

/// Bytes up to whose multiples the kernel does a part of a write.
const PAGE_BYTES: usize = 4096;

impl Disk {
    /// Takes those of the calls that threads were in at the end that were done, and the part of a write that was:
    /// the kernel ends a long one early. Returns false if none of that explains what is on the disk.
    pub(super) fn explain(&mut self, torn: &[&Call], real: &Image) -> bool {
        if self.live() == *real {
            return true;
        }
        let Some((call, rest)) = torn.split_first() else {
            return false;
        };
        for result in self.results_of(call) {
            let mut disk = self.clone();
            let done = Call {
                result,
                ..(*call).clone()
            };
            disk.take(&done);
            if disk.explain(rest, real) {
                *self = disk;
                return true;
            }
        }
        self.explain(rest, real)
    }

    /// Returns the results that a call may have had that nobody saw return: `None` if all of it was done, and the bytes
    /// of a write up to a page's end.
    fn results_of(&self, call: &Call) -> Vec<Option<i64>> {
        let mut results = vec![None];
        if !matches!(call.name.as_str(), "write" | "pwrite64") {
            return results;
        }
        let Some(inode) = self.inode_of(call.number(0)) else {
            return results;
        };
        let begin = match call.name.as_str() {
            "pwrite64" => usize::try_from(call.number(3)).expect("not negative"),
            _ => self.inodes[inode].bytes.len(),
        };
        let end = begin + call.bytes(1).len();
        let pages = (begin + 1..end).filter(|at| at % PAGE_BYTES == 0);
        let parts = pages.map(|at| i64::try_from(at - begin).expect("it is short"));
        results.extend(parts.map(Some));
        results
    }
}
