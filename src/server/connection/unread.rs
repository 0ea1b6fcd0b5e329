//! The answers that the client of a connection does not read, and the end of those that it does not read for too
//! long.
//!
//! hyper takes a piece of a body before the client has given its stream room, and once there is room for a byte h2
//! takes all of the piece. Neither asks the body for another piece before the client has read, so a body cannot know
//! how long they have kept what they took. A [`Piece`] therefore counts what the connection has written of it. While
//! a connection keeps bytes of an answer, the answer is in its list ([`UnreadAnswers`]), and at times the connection
//! looks at the list ([`Sweeper`]) and cuts the answers of which it has written nothing for some looks. An answer that
//! waits for its source is not listed: the connection has written all of it.
//!
//! Invariant: a listed answer is cut only if its client has not taken a byte of it since the last looks, or takes too
//! long for a finite answer. This module does not know how an answer that is cut ends: its owner sees to that.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use crate::connection::reset_delay::{KeptStreams, StreamDelay};
use crate::request::limits::Limits;

/// Bytes of an answer that a connection may keep unlisted, and after the answer's end. With more, unread answers
/// could fill memory, because h2 keeps them in its queue and nothing can cut them; with less, answers that are
/// written at once would wait for that.
const KEPT_BYTES_MAX: u64 = 16 * 1024;
/// Looks without progress after which a finite answer is cut. With fewer, a client could lose an answer in less time
/// than it may stall, because the first look comes at any time.
const LOOKS_MAX: u32 = 3;
/// Looks without progress after which a watch is cut. With fewer, a client that works on many events at a time would
/// have to begin anew.
const WATCH_LOOKS_MAX: u32 = 6;
/// Looks for which a connection may keep bytes of an answer that was cut. If it keeps them for longer, its socket
/// takes nothing, and h2 frees nothing.
const CUT_LOOKS_MAX: u32 = 3;
/// Number of listed answers at which those that are read by now are removed for the first time.
const FORGET_FIRST: usize = 64;

/// How long a client may leave an answer unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as the limits say for a finite answer, which must also be read within a time.
    Finite,
    /// For twice as long, because the client of a watch may be busy with its events.
    Watch,
    /// For at least this time. The body limits the time of the whole answer.
    AtLeast(Duration),
}

impl Patience {
    fn to_number(self) -> u64 {
        match self {
            Self::Finite => 0,
            Self::Watch => u64::MAX,
            Self::AtLeast(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1),
        }
    }

    fn of_number(number: u64) -> Self {
        match number {
            0 => Self::Finite,
            u64::MAX => Self::Watch,
            nanos => Self::AtLeast(Duration::from_nanos(nanos)),
        }
    }

    /// Returns whether an answer has to be cut that was unread at `looks` looks, and at the last `stalled` of them
    /// without progress.
    fn is_over(self, looks: u32, stalled: u32, times: Times) -> bool {
        match self {
            Self::Finite => stalled >= LOOKS_MAX || times.of(looks) > times.total_max,
            Self::Watch => stalled >= WATCH_LOOKS_MAX,
            Self::AtLeast(time) => stalled >= LOOKS_MAX && times.of(stalled) >= time,
        }
    }
}

/// The times of a connection's looks.
#[derive(Clone, Copy, Debug)]
struct Times {
    every: Duration,
    /// Longest time for which a finite answer may be unread, with progress.
    total_max: Duration,
}

impl Times {
    fn of(self, looks: u32) -> Duration {
        self.every.saturating_mul(looks)
    }
}

/// An answer on its way to the client of a connection; with HTTP/1.1, all answers of the connection, one after the
/// other.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// Bytes that the connection was given, and bytes that it has written or dropped since.
    given: AtomicU64,
    freed: AtomicU64,
    /// Number of answers so far. With HTTP/1.1 there are more than one.
    answers: AtomicU64,
    /// True from when the connection is given a piece until it asks for the next one.
    has_next: AtomicBool,
    /// True once the answer ends as soon as the connection keeps little of it.
    ends: AtomicBool,
    is_cut: AtomicBool,
    /// Changed with the list locked.
    is_listed: AtomicBool,
    /// A [`Patience`].
    patience: AtomicU64,
    /// The task of the request.
    request: AtomicWaker,
    /// Those among which the stream is kept after the answer's end; unset if the stream ends with it.
    kept_streams: OnceLock<Arc<KeptStreams>>,
}

impl Sending {
    /// Begins an answer. The one before has ended, be it that it was cut.
    pub(crate) fn begin(&self, patience: Patience) {
        self.is_cut.store(false, Ordering::SeqCst);
        self.patience.store(patience.to_number(), Ordering::Relaxed);
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a piece of the answer, for the connection.
    pub(crate) fn give(self: &Arc<Self>, bytes: Bytes) -> Piece {
        self.has_next.store(true, Ordering::Relaxed);
        self.given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Piece {
            bytes,
            sending: Some(Arc::clone(self)),
        }
    }

    /// Returns the last piece of the answer. It is not counted if it is small.
    pub(crate) fn give_last(self: &Arc<Self>, bytes: Bytes) -> Piece {
        if self.kept() + bytes.len() as u64 >= KEPT_BYTES_MAX {
            return self.give(bytes);
        }
        self.has_next.store(true, Ordering::Relaxed);
        Piece {
            bytes,
            sending: None,
        }
    }

    /// Notes that the connection has passed on the last piece: it asks for the next one, or drops the body.
    pub(crate) fn passed_on(&self) {
        self.has_next.store(false, Ordering::Relaxed);
    }

    /// Notes that the connection has written or dropped bytes.
    fn free(&self, count: usize) {
        self.freed.fetch_add(count as u64, Ordering::SeqCst);
        if self.ends.load(Ordering::SeqCst) && !self.keeps_much() {
            self.request.wake();
        }
    }

    /// Returns a number that grows whenever the client takes a part of the answer.
    pub(crate) fn progress(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Returns how many bytes the connection keeps.
    fn kept(&self) -> u64 {
        // In this order, because what is given and freed in between must not make it less than nothing.
        let freed = self.freed.load(Ordering::SeqCst);
        self.given.load(Ordering::SeqCst).saturating_sub(freed)
    }

    /// Returns whether the connection keeps so much of the answer that the answer must not end.
    pub(crate) fn keeps_much(&self) -> bool {
        self.kept() >= KEPT_BYTES_MAX
    }

    /// Returns whether the connection keeps bytes that the client has given it no room for.
    pub(crate) fn is_unread(&self) -> bool {
        self.has_next.load(Ordering::Relaxed) || self.keeps_much()
    }

    /// Waits until the connection keeps little of the answer.
    pub(crate) fn poll_end(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.keeps_much() {
            return Poll::Ready(());
        }
        self.ends.store(true, Ordering::SeqCst);
        self.request.register(context.waker());
        match self.keeps_much() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// Lets the stream of the answer be kept among these after its end.
    pub(crate) fn keep_stream(&self, kept_streams: &Arc<KeptStreams>) {
        // With HTTP/2, the only protocol with streams, this is the only answer.
        let _ = self.kept_streams.set(Arc::clone(kept_streams));
    }

    /// Returns what keeps the stream of the answer, which has ended, if there is room. An answer that was cut has no more
    /// of it.
    pub(crate) fn take_delay(&self) -> Option<StreamDelay> {
        let kept_streams = self.kept_streams.get().filter(|_| !self.is_cut());
        kept_streams?.delay()
    }

    /// Ends the answer: the client does not read it.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.request.wake();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Waits until the answer is cut.
    pub(crate) fn poll_cut(&self, context: &mut Context<'_>) -> Poll<()> {
        self.request.register(context.waker());
        match self.is_cut() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// A piece of an answer's body, which counts what the connection writes of it.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    /// `None` if the piece is not counted.
    sending: Option<Arc<Sending>>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(sending) = &self.sending {
            sending.free(count);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(sending) = &self.sending else {
            return;
        };
        let left = mem::take(&mut self.bytes).len();
        if left > 0 {
            sending.free(left);
        }
    }
}

/// The answers of which a connection keeps bytes.
#[derive(Debug, Default)]
pub(crate) struct UnreadAnswers {
    list: Mutex<List>,
    /// False while the list is empty.
    has_some: AtomicBool,
}

#[derive(Debug, Default)]
struct List {
    answers: Vec<Listed>,
    /// Number of answers at which those that are read by now are removed.
    forget_at: usize,
    /// The connection's task.
    sweeper: Option<Waker>,
}

impl UnreadAnswers {
    /// Lists an answer, if it is not listed.
    pub(crate) fn list(&self, sending: &Arc<Sending>) {
        let mut list = self.list.lock();
        if sending.is_listed.swap(true, Ordering::Relaxed) {
            return;
        }
        if list.answers.len() >= list.forget_at.max(FORGET_FIRST) {
            list.answers.retain(Listed::stays);
            list.forget_at = 2 * list.answers.len();
        }
        list.answers.push(Listed::new(sending));
        self.has_some.store(true, Ordering::SeqCst);
        if let (1, Some(sweeper)) = (list.answers.len(), &list.sweeper) {
            sweeper.wake_by_ref();
        }
    }

    /// Looks at all listed answers, and cuts some.
    fn look(&self, times: Times) -> Swept {
        let mut swept = Swept::default();
        let mut list = self.list.lock();
        list.answers.retain_mut(|one| {
            match one.look(times) {
                Seen::InTime => {}
                Seen::Cut(patience) => {
                    swept.cut += 1;
                    swept.watches += usize::from(patience == Patience::Watch);
                }
                Seen::Stuck => swept.is_stuck = true,
            }
            one.stays()
        });
        let has_some = !list.answers.is_empty();
        self.has_some.store(has_some, Ordering::SeqCst);
        swept
    }
}

#[derive(Debug)]
struct Listed {
    sending: Arc<Sending>,
    /// The progress at the last look.
    progress: u64,
    /// The number of the answer that was under way then.
    answer: u64,
    /// The looks since the answer was listed, and those of them since it has made progress.
    looks: u32,
    stalled: u32,
    /// The looks since it was cut.
    cut: u32,
}

/// What a look at an answer has found.
enum Seen {
    /// It goes on, or the connection keeps nothing of it.
    InTime,
    /// It was cut by this look, because it was unread for longer than this.
    Cut(Patience),
    /// It was cut, and the connection keeps what it has of it.
    Stuck,
}

impl Listed {
    fn new(sending: &Arc<Sending>) -> Self {
        Self {
            sending: Arc::clone(sending),
            progress: sending.progress(),
            answer: sending.answers.load(Ordering::Relaxed),
            looks: 0,
            stalled: 0,
            cut: 0,
        }
    }

    /// Returns whether the answer is to be looked at again. Called with the list locked.
    fn stays(&self) -> bool {
        let sending = &self.sending;
        let stays = match sending.is_cut() {
            true => sending.kept() > 0,
            false => sending.is_unread(),
        };
        sending.is_listed.store(stays, Ordering::Relaxed);
        stays
    }

    fn look(&mut self, times: Times) -> Seen {
        let sending = &self.sending;
        let answer = sending.answers.load(Ordering::Relaxed);
        if answer != self.answer {
            (self.answer, self.looks, self.stalled, self.cut) = (answer, 0, 0, 0);
        }
        if sending.is_cut() {
            self.cut += 1;
            return match self.cut >= CUT_LOOKS_MAX && sending.kept() > 0 {
                true => Seen::Stuck,
                false => Seen::InTime,
            };
        }
        if !sending.is_unread() {
            return Seen::InTime;
        }
        let progress = sending.progress();
        self.looks += 1;
        self.stalled = match progress == self.progress {
            true => self.stalled + 1,
            false => 0,
        };
        self.progress = progress;
        let patience = Patience::of_number(sending.patience.load(Ordering::Relaxed));
        if !patience.is_over(self.looks, self.stalled, times) {
            return Seen::InTime;
        }
        sending.cut();
        Seen::Cut(patience)
    }
}

/// What a look has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// The number of answers that it has cut.
    pub cut: usize,
    /// How many of them were watches.
    pub watches: usize,
    /// True if the connection keeps what was cut, so that only its end frees that.
    pub is_stuck: bool,
}

/// Looks at the unread answers of a connection at times, while there are some.
pub(crate) struct Sweeper {
    unread: Arc<UnreadAnswers>,
    times: Times,
    /// The task that the list wakes.
    task: Option<Waker>,
    /// The time of the next look; `None` while nothing is listed.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Sweeper {
    pub(crate) fn new(unread: Arc<UnreadAnswers>, limits: &Limits) -> Self {
        Self {
            unread,
            times: Times {
                every: limits.answer_stall_max,
                total_max: limits.answer_time_max,
            },
            task: None,
            timer: None,
        }
    }

    /// Waits until a look has cut an answer, or has found that the connection is stuck.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the next call continues.
    pub(crate) async fn next(&mut self) -> Swept {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Swept> {
        let is_known = |task: &Waker| task.will_wake(context.waker());
        if !self.task.as_ref().is_some_and(is_known) {
            self.task = Some(context.waker().clone());
            self.unread.list.lock().sweeper.clone_from(&self.task);
        }
        loop {
            let Some(timer) = &mut self.timer else {
                if !self.unread.has_some.load(Ordering::SeqCst) {
                    return Poll::Pending;
                }
                self.timer = Some(Box::pin(sleep(self.times.every)));
                continue;
            };
            ready!(timer.as_mut().poll(context));
            self.timer = None;
            let swept = self.unread.look(self.times);
            if swept != Swept::default() {
                return Poll::Ready(swept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use tokio::time::{Instant, timeout};

    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    fn sweeper() -> (Arc<UnreadAnswers>, Sweeper) {
        let unread = Arc::<UnreadAnswers>::default();
        let limits = Limits {
            answer_stall_max: EVERY,
            answer_time_max: EVERY * 20,
            ..Limits::default()
        };
        (Arc::clone(&unread), Sweeper::new(unread, &limits))
    }

    /// Returns an answer of which the connection keeps a piece.
    fn unread_answer(patience: Patience, bytes: usize) -> (Arc<Sending>, Piece) {
        let sending = Arc::<Sending>::default();
        sending.begin(patience);
        let piece = sending.give(vec![b'x'; bytes].into());
        (sending, piece)
    }

    fn swept(cut: usize, is_stuck: bool) -> Swept {
        Swept {
            cut,
            watches: 0,
            is_stuck,
        }
    }

    /// Waits for the sweeper for as long as it takes to cut a watch.
    async fn finds_nothing(sweeper: &mut Sweeper) {
        let found = timeout(EVERY * (WATCH_LOOKS_MAX + 1), sweeper.next()).await;
        assert!(found.is_err(), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_cut_once_nothing_of_it_is_read_for_too_long() {
        for (patience, looks) in [
            (Patience::Finite, 3),
            (Patience::Watch, 6),
            (Patience::AtLeast(EVERY), 3),
            (Patience::AtLeast(EVERY * 9), 9),
        ] {
            let (unread, mut sweeper) = sweeper();
            let (sending, piece) = unread_answer(patience, 10);
            unread.list(&sending);
            let begun = Instant::now();
            let wanted = Swept {
                watches: usize::from(patience == Patience::Watch),
                ..swept(1, false)
            };
            assert_eq!(sweeper.next().await, wanted, "{patience:?}");
            let waited = begun.elapsed().as_secs();
            assert_eq!(waited, EVERY.as_secs() * looks, "{patience:?}");
            assert!(sending.is_cut());
            sending.passed_on();
            drop(piece);
            finds_nothing(&mut sweeper).await;
            assert!(sweeper.timer.is_none(), "nothing is listed any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_cut_before_the_time_of_a_whole_answer() {
        let (unread, mut sweeper) = sweeper();
        let (watch, mut events) = unread_answer(Patience::Watch, 30_000);
        let (list, mut items) = unread_answer(Patience::Finite, 30_000);
        unread.list(&watch);
        unread.list(&list);
        let begun = Instant::now();
        let cut = loop {
            // A byte at every second look.
            match timeout(EVERY * 2, sweeper.next()).await {
                Ok(swept) => break swept,
                Err(_) => {
                    events.advance(1);
                    items.advance(1);
                }
            }
        };
        assert_eq!(cut, swept(1, false));
        assert!(list.is_cut() && !watch.is_cut());
        assert!(begun.elapsed() >= EVERY * 20);
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_of_a_connection_has_the_time_of_one() {
        let (unread, mut sweeper) = sweeper();
        let (sending, mut piece) = unread_answer(Patience::Finite, 30_000);
        unread.list(&sending);
        for _ in 0..5 {
            let found = timeout(EVERY * 10, async {
                loop {
                    let next = timeout(EVERY, sweeper.next()).await;
                    assert!(next.is_err(), "{next:?}");
                    piece.advance(1);
                }
            })
            .await;
            assert!(found.is_err());
            sending.begin(Patience::Finite);
        }
        assert!(!sending.is_cut());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_follows_one_that_was_cut_has_its_own_time() {
        let (unread, mut sweeper) = sweeper();
        let (sending, piece) = unread_answer(Patience::Finite, 10);
        unread.list(&sending);
        sending.cut();
        for _ in 1..CUT_LOOKS_MAX {
            let next = timeout(EVERY, sweeper.next()).await;
            assert!(next.is_err(), "{next:?}");
        }
        sending.begin(Patience::Finite);
        assert_eq!(sweeper.next().await, swept(1, false), "not stuck");
        drop(piece);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_source_is_not_listed() {
        let (unread, mut sweeper) = sweeper();
        let (sending, piece) = unread_answer(Patience::Finite, 100_000);
        assert!(sending.is_unread());
        unread.list(&sending);
        sending.passed_on();
        assert!(sending.is_unread(), "the connection keeps it");
        drop(piece);
        assert!(!sending.is_unread());
        finds_nothing(&mut sweeper).await;
        assert!(!sending.is_cut());
        let more = sending.give(vec![b'x'; 100_000].into());
        unread.list(&sending);
        assert_eq!(sweeper.next().await, swept(1, false), "listed again");
        drop(more);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_keeps_what_was_cut_is_stuck() {
        let (unread, mut sweeper) = sweeper();
        let (sending, piece) = unread_answer(Patience::Finite, 10);
        unread.list(&sending);
        assert_eq!(sweeper.next().await, swept(1, false));
        sending.passed_on();
        assert_eq!(sweeper.next().await, swept(0, true));
        drop(piece);
        finds_nothing(&mut sweeper).await;
    }

    #[test]
    fn answers_that_are_read_do_not_fill_the_list() {
        let unread = UnreadAnswers::default();
        let (kept, _piece) = unread_answer(Patience::Finite, 10);
        unread.list(&kept);
        for _ in 0..FORGET_FIRST * 10 {
            let (sending, piece) = unread_answer(Patience::Finite, 10);
            unread.list(&sending);
            sending.passed_on();
            drop(piece);
        }
        let list = unread.list.lock();
        assert!(list.answers.len() <= FORGET_FIRST + 1);
        assert!(Arc::ptr_eq(&list.answers[0].sending, &kept));
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_answer_ends_when_the_connection_keeps_little_of_it() {
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let (sending, mut piece) = unread_answer(Patience::Finite, 40_000);
        let mut end = pin!(poll_fn(|context| sending.poll_end(context)));
        assert!(end.as_mut().poll(&mut context).is_pending());
        piece.advance(10_000);
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "it keeps much");
        piece.advance(20_000);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(end.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_small_last_piece_is_not_counted() {
        let sending = Arc::<Sending>::default();
        let small = sending.give_last(vec![b'x'; 1000].into());
        assert!(small.sending.is_none() && sending.is_unread());
        let large = sending.give_last(vec![b'x'; 100_000].into());
        assert!(large.sending.is_some());
    }
}
