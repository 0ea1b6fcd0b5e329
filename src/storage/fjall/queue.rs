//! The queue in front of the writer, and who runs it.
//!
//! A caller that queues a transaction while no thread runs the writer runs it on its own thread: a lone
//! client's write then waits only for the disk, and no thread is woken. The transactions that are queued
//! in the meantime are the next group, without a timer. The store's own thread runs the groups that a
//! caller leaves, and the work that is due by time.
//!
//! A caller's thread belongs to the async runtime. It may be held up by a sync as long as that takes no
//! longer than handing the sync to another thread and being woken again would. So after a slow sync the
//! store's thread does the next one ([`INLINE_SYNC_MAX`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::writer::{RETRY, Writer};
use crate::embedded::front::{Commands, Ended};
use crate::embedded::jobs::{Command, Work, reject};
use crate::error::Rejection;
use crate::txn::txn_bytes;

/// Bytes of one group beyond which the rest of the queue waits for the next.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Transactions of one group.
const GROUP_TXNS_MAX: usize = 1024;
/// Longest group after which a caller's thread may run the next one. Longer ones would hold up the
/// other tasks of that thread.
const INLINE_SYNC_MAX: Duration = Duration::from_millis(1);

/// The commands that wait for the writer.
#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    /// The time at which the store's thread wakes without being notified; `None` if it is awake, or sleeps
    /// until it is notified.
    wakes: Option<Instant>,
    is_closed: bool,
}

/// See the module.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    woken: Condvar,
    /// `None` once the store is closed. Taken before `waiting`, never after it.
    writer: Mutex<Option<Writer>>,
    /// True if the last group was fast enough for a caller's thread.
    is_quick: AtomicBool,
}

/// The callers' end of a queue.
pub(super) struct Callers(pub(super) Arc<Queue>);

impl Commands for Callers {
    fn send(&self, command: Command) -> Result<(), Ended> {
        self.0.send(command)
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        let (reply, _) = tokio::sync::oneshot::channel();
        // An error says that the store is closed already.
        let _ = self.0.send(Command::Close(reply));
    }
}

impl Queue {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            waiting: Mutex::default(),
            woken: Condvar::new(),
            writer: Mutex::new(Some(writer)),
            is_quick: AtomicBool::new(false),
        }
    }

    fn send(&self, command: Command) -> Result<(), Ended> {
        let is_commit = matches!(command, Command::Commit(_));
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_closed {
                return Err(Ended);
            }
            waiting.commands.push_back(command);
        }
        if !is_commit || !self.is_quick.load(Ordering::Relaxed) {
            self.woken.notify_one();
            return Ok(());
        }
        // If another thread runs the writer, it looks at the queue again afterwards.
        if let Some(mut running) = self.writer.try_lock() {
            // Opening the database and emptying its journals take longer than a caller's thread may be held up.
            if let Some(writer) = running.as_mut().filter(|writer| writer.is_calm()) {
                let commands = take_group(&mut self.waiting.lock().commands);
                self.run(writer, commands);
            }
            self.hand_over(running);
        }
        Ok(())
    }

    /// Wakes the store's thread if commands are left in the queue, or work is due before it wakes.
    fn hand_over(&self, mut running: MutexGuard<'_, Option<Writer>>) {
        let due = running.as_mut().and_then(|writer| writer.idle_for());
        let due = due.map(|wait| Instant::now() + wait);
        drop(running);
        let waiting = self.waiting.lock();
        // If it wakes earlier without a notification, it sees then what is due.
        let is_early = due.is_some_and(|due| waiting.wakes.is_none_or(|wakes| due < wakes));
        if is_early || !waiting.commands.is_empty() {
            self.woken.notify_one();
        }
    }

    fn run(&self, writer: &mut Writer, commands: Vec<Command>) {
        let began = Instant::now();
        let is_close = |command: &Command| matches!(command, Command::Close(_));
        let closes = commands.iter().any(is_close);
        writer.guarded(|writer| writer.run(commands));
        if closes && !writer.is_closed() {
            // A failure of what was queued before it must not keep the store open.
            let (reply, _) = tokio::sync::oneshot::channel();
            writer.guarded(|writer| writer.run(vec![Command::Close(reply)]));
        }
        let is_quick = began.elapsed() <= INLINE_SYNC_MAX;
        self.is_quick.store(is_quick, Ordering::Relaxed);
    }

    /// The store's thread. Ends when the store is closed or dropped.
    pub(super) fn serve(&self) {
        loop {
            let mut running = self.writer.lock();
            let Some(writer) = running.as_mut() else {
                return;
            };
            writer.guarded(Writer::tick);
            let mut ticked = Instant::now();
            loop {
                // Under constant load the queue is never empty.
                if ticked.elapsed() >= RETRY {
                    writer.guarded(Writer::tick);
                    ticked = Instant::now();
                }
                let commands = take_group(&mut self.waiting.lock().commands);
                if commands.is_empty() {
                    break;
                }
                self.run(writer, commands);
                if writer.is_closed() {
                    break;
                }
            }
            // A caller's thread may have run the command to close.
            if writer.is_closed() {
                return self.close(running);
            }
            let wait = writer.idle_for();
            drop(running);
            let mut waiting = self.waiting.lock();
            if !waiting.commands.is_empty() {
                continue;
            }
            match wait {
                Some(wait) => {
                    let wakes = Instant::now() + wait;
                    waiting.wakes = Some(wakes);
                    self.woken.wait_until(&mut waiting, wakes);
                }
                None => self.woken.wait(&mut waiting),
            }
            waiting.wakes = None;
        }
    }

    /// Rejects the commands that were queued after the one to close.
    fn close(&self, mut running: MutexGuard<'_, Option<Writer>>) {
        let writer = running.take();
        let left = {
            let mut waiting = self.waiting.lock();
            waiting.is_closed = true;
            std::mem::take(&mut waiting.commands)
        };
        for command in left {
            // The callers of other commands see that their channel is dropped.
            if let Command::Commit(job) = command {
                reject([job], &Rejection::Closed);
            }
        }
        if let Some(writer) = writer {
            writer.closed();
        }
    }
}

/// Removes and returns the commands of the next group.
fn take_group(commands: &mut VecDeque<Command>) -> Vec<Command> {
    let (mut bytes, mut taken) = (0, 0);
    for command in commands.iter().take(GROUP_TXNS_MAX) {
        taken += 1;
        if let Command::Commit(job) = command
            && let Work::Txn(txn) = &job.work
        {
            bytes += txn_bytes(txn);
        }
        if bytes >= GROUP_BYTES_MAX {
            break;
        }
    }
    commands.drain(..taken).collect()
}
