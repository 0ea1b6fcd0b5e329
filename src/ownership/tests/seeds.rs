//! Bugs that are put in on purpose, and a checker of what clients saw that must detect each of
//! them.
//!
//! A scene is a run of a few replicas under one kind of fault; its seed chooses objects, numbers
//! and times. The same scene passes while all rules hold, so a violation in a run without a rule is
//! caused by the missing rule. The checker knows neither rules nor faults: it sees operations,
//! lists and watches, as clients do.
//!
//! The bugs are rules of the protocol that are taken out (`ReplicaOptions::rules`, which exists in
//! tests only), and a history that appears empty to the replica that takes over.
//!
//! Rules whose absence no scene here detects, and the reasons:
//! * That a commit or an acquire compares the replica's own member key: without either no answer is
//!   wrong as long as the fence is compared, only the loss is noticed later (PROTOCOL 9). The model
//!   detects the second one.
//! * That a takeover names the incarnation, and that an own fence is adopted: without these rules
//!   no replica can ever take the plane. No answer is wrong; `crashes` and the model check this.
//! * That a tenure ends before Released is sent, and that an unknown Released is settled by a
//!   write: the driver has one place that ends a tenure and cannot continue after Released was
//!   sent. Taking the tenure's check out of the answer opens the same hole (PROTOCOL 2, 3).
//! * The margin, counting from sending, the wait before a release and after an adoption, and the
//!   fence compare of an acquire: their bugs need clocks that differ, or three steps within one
//!   read lease. The model explores these.

use super::tape::{Client, Receiving, Tape, Watching};
use super::*;
use crate::membership::member_record::member_key;
use crate::records::{decode_fence, fence_key};
use bytes::Bytes;
use polyplane_fencing::{Duration as Length, FenceState, Rule, Rules};
use polyplane_storage::{CommitFault, ReadError, ReadFault};
use polyplane_tests::checker::{self, Allowed, Kind, Verdict};
use polyplane_tests::history::{History, Outcome};
use tokio_util::sync::CancellationToken;

/// Number of runs of a scene with all rules, all of which must pass.
const SEEDS: u64 = 3;
/// Number of runs of a scene with a bug, at least one of which must detect it.
const SEEDS_MAX: u64 = 20;
/// The objects of a run.
const OBJECTS: [&str; 3] = ["x", "y", "z"];
/// More faults than a run can use up.
const ALL: usize = 1_000_000;

/// The bug that the replicas have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// They do not follow this rule.
    Without(Rule),
    /// A replica that takes a plane over gets an empty history of it.
    HistoryDropped,
}

/// The events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A commit of unknown outcome is applied long after its caller got an answer.
    LateCommit,
    /// The owner loses the store and its member key, but its process continues to answer.
    CutOff,
    /// The reply to the owner's Released is late; the successor does not wait for it.
    SlowRelease,
    /// The successor got a streamed state from before the owner's last writes. The plane falls
    /// asleep, and then the owner dies.
    OldStreamThenRelease,
    /// The successor got such a state too, but the owner dies with the plane awake.
    OldStreamThenCrash,
    /// A watcher loses its connection; then the owner writes and dies.
    LateWatcher,
    /// A second process of the same name joins while the first one continues to read the store but
    /// cannot write to it.
    Namesake,
}

/// One run of a scene.
struct Run {
    town: Arc<Town>,
    tape: Arc<Tape>,
    birth: Birth,
    dice: Dice,
    bug: Option<Bug>,
    writer: Client,
}

impl Run {
    /// Starts replicas, the first of which creates the objects of a plane that `owner` is
    /// designated for among all of `ring`, and a watcher.
    async fn new(
        (seed, bug): (u64, Option<Bug>),
        joined: &[&str],
        (owner, ring): (&str, &[&str]),
    ) -> (Self, Arc<Plane>, Receiving) {
        let town = Town::new();
        let birth = town.plane_of(owner, ring).await;
        let tape = Tape::new(&birth.id);
        let run = Self {
            writer: tape.client(),
            town,
            tape,
            birth,
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            bug,
        };
        for name in joined {
            run.join(name).await;
        }
        for name in joined {
            let replica = run.replica(name);
            until("all are there", || members(&replica).len() == joined.len()).await;
        }
        let plane = run.town.find(&run.birth).await;
        for name in OBJECTS {
            run.writer.create(&plane, name).await;
        }
        let watching = run.tape.client().watch(&plane).await;
        let receiving = watching.receive(&run.town, &run.birth);
        (run, plane, receiving)
    }

    async fn join(&self, name: &str) -> Arc<Replica> {
        let rules = match self.bug {
            Some(Bug::Without(rule)) => Rules::without(rule),
            Some(Bug::HistoryDropped) | None => Rules::default(),
        };
        let terms = LeaseTerms::new(Length::from_millis(500), Length::from_millis(150));
        let options = ReplicaOptions {
            terms: terms.expect("good terms"),
            member_ttl: Duration::from_secs(5),
            rules,
            ..options(name)
        };
        self.town.join_as(options).await
    }

    fn replica(&self, name: &str) -> Arc<Replica> {
        Arc::clone(&self.town.replicas.lock()[name])
    }

    fn object(&mut self) -> &'static str {
        let at = self.dice.roll(OBJECTS.len() as u64);
        OBJECTS[usize::try_from(at).expect("it is small")]
    }

    /// Makes at least one write, each to an object that the random numbers choose.
    async fn writes(&mut self, plane: &Arc<Plane>, more: u64) {
        for _ in 0..=self.dice.roll(more) {
            let name = self.object();
            self.writer.write(plane, name).await;
        }
    }

    /// Writes to every object, with pauses in which others read.
    async fn slow_writes(&mut self, plane: &Arc<Plane>) {
        for _ in 0..=self.dice.roll(3) {
            for name in OBJECTS {
                self.writer.write(plane, name).await;
                sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Starts a handler that got the plane's map earlier and was slow since: it does not look up
    /// where the plane is now. It reads until the returned token is cancelled.
    fn slow_reader(&self, plane: &Arc<Plane>) -> CancellationToken {
        let stop = CancellationToken::new();
        let (client, plane, stopped) = (self.tape.client(), Arc::clone(plane), stop.clone());
        tokio::spawn(async move {
            for n in 0.. {
                if stopped.is_cancelled() {
                    return;
                }
                client.read(&plane, OBJECTS[n % OBJECTS.len()]).await;
                sleep(Duration::from_millis(3)).await;
            }
        });
        stop
    }

    /// Returns a filter for transactions that contain a write of a client.
    fn parts(&self) -> impl Fn(&Txn) -> bool + Send + Sync + 'static {
        let keys = OBJECTS.map(|name| external::object_key(&self.birth.id, &key(name)));
        move |txn| txn.ops.iter().any(|op| keys.contains(op.key()))
    }

    /// Returns a filter for transactions that put Released.
    fn release(&self) -> impl Fn(&Txn) -> bool + Send + Sync + 'static {
        let fence = fence_key(&self.birth.id);
        move |txn| txn.ops.iter().any(|op| says_released(op, &fence))
    }

    /// Removes a member key, as the store does at the end of its lease.
    async fn expire(&self, name: &str) {
        let ops = vec![Op::Delete {
            key: member_key(&id(name)),
        }];
        let compares = Vec::new();
        let gone = self.town.store.commit(Txn { compares, ops }).await;
        gone.expect("it is dropped");
    }

    /// Writes and reads everything at the plane's present owner, waits for the watcher, and ends
    /// the run.
    async fn end(self, receiving: Receiving) -> History {
        let mut newest = None;
        for name in OBJECTS {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let plane = self.town.find(&self.birth).await;
                self.writer.read(&plane, name).await;
                self.writer.list(&plane).await;
                if let Outcome::Object { version, .. } = self.writer.write(&plane, name).await {
                    newest = Some(version);
                    self.writer.read(&plane, name).await;
                    break;
                }
                assert!(Instant::now() < deadline, "no write gets through");
            }
        }
        // A watcher that gets wrong events need not be waited for long.
        let patience = match self.bug {
            Some(_) => Duration::from_millis(500),
            None => PATIENCE,
        };
        receiving
            .reaches(newest.expect("something was written"), patience)
            .await;
        receiving.break_off().await.finish();
        for (_, replica) in std::mem::take(&mut *self.town.replicas.lock()) {
            replica.ring.vanish();
        }
        self.tape.history()
    }
}

fn says_released(op: &Op, fence: &Bytes) -> bool {
    let Op::Put { key, value, .. } = op else {
        return false;
    };
    let fence = (key == fence).then(|| decode_fence(key, value).expect("a fence"));
    fence.is_some_and(|fence| matches!(fence.state, FenceState::Released { .. }))
}

async fn late_commit(seeded: (u64, Option<Bug>)) -> History {
    let (mut run, plane, receiving) = Run::new(seeded, &["a"], ("a", &["a"])).await;
    let a = run.replica("a");
    run.writes(&plane, 3).await;
    let name = run.object();
    let parts = run.parts();
    a.store
        .plan()
        .commits_matching(parts, CommitFault::UnknownLate, 1);
    run.writer.write(&plane, name).await;
    run.writer.write(&plane, name).await;
    run.writes(&plane, 3).await;
    let late = a.store.apply_late().await;
    assert_eq!(late.len(), 1, "the fault was met");
    run.writes(&plane, 2).await;
    // The next replica that takes the plane reads the store.
    a.planes.put_to_sleep(a.planes.slots()).await;
    run.end(receiving).await
}

async fn cut_off(seeded: (u64, Option<Bug>)) -> History {
    let both = &["a", "b"];
    let (mut run, plane, receiving) = Run::new(seeded, both, ("a", both)).await;
    let watching = receiving.break_off().await;
    let reader = run.slow_reader(&plane);
    // The acknowledgement of this write is a fresh proof.
    run.writes(&plane, 2).await;
    let a = run.town.replicas.lock().remove("a").expect("it runs");
    let unavailable = ReadError::Unavailable("by plan".to_owned());
    a.store.plan().next_reads(ReadFault::Fail(unavailable), ALL);
    a.store.plan().next_keep_alives_fail(ALL);
    a.store
        .plan()
        .commits_matching(|_| true, CommitFault::UnknownNotApplied, ALL);
    a.store.cut_watches();
    run.expire("a").await;
    let taken = run.town.find(&run.birth).await;
    run.slow_writes(&taken).await;
    reader.cancel();
    a.ring.vanish();
    resume(run, watching).await
}

async fn slow_release(seeded: (u64, Option<Bug>)) -> History {
    let both = &["a", "b"];
    let (mut run, plane, receiving) = Run::new(seeded, &["a"], ("b", both)).await;
    let a = run.replica("a");
    let watching = receiving.break_off().await;
    let reader = run.slow_reader(&plane);
    let slow = CommitFault::DelayAnswer(Duration::from_millis(700));
    a.store.plan().commits_matching(run.release(), slow, 1);
    let b = run.join("b").await;
    until("a sees both", || members(&a) == *both).await;
    until("b sees both", || members(&b) == *both).await;
    if let Some(slot) = a.planes.known(&run.birth.id) {
        let planes = Arc::clone(&a.planes);
        tokio::spawn(async move { planes.hand_off(&slot, None).await });
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let fence = a.planes.fence(&run.birth).await.expect("it is read");
        if fence.expect("it is taken").state == "Released" {
            break;
        }
        assert!(Instant::now() < deadline, "it is never released");
        sleep(Duration::from_millis(2)).await;
    }
    run.town.replicas.lock().remove("a");
    let taken = run.town.find(&run.birth).await;
    run.slow_writes(&taken).await;
    reader.cancel();
    let history = resume(run, watching).await;
    a.ring.vanish();
    history
}

async fn old_stream(seeded: (u64, Option<Bug>), sleeps: bool) -> History {
    let both = &["a", "b"];
    let (mut run, plane, receiving) = Run::new(seeded, both, ("a", both)).await;
    let (a, b) = (run.replica("a"), run.replica("b"));
    run.writes(&plane, 3).await;
    // This is a hand-off that is called off after its stream.
    let export = plane.export().await.expect("it is small");
    let state = PeerRequest {
        message: PeerMessage::State {
            plane: run.birth.id.clone(),
            head: export.head.0,
        },
        payload: export.bytes,
    };
    let taken_in = b.planes.handle(&id("a"), state).await;
    assert_eq!(taken_in, PeerReply::Done);
    run.writes(&plane, 3).await;
    let watching = receiving.break_off().await;
    if sleeps {
        a.planes.put_to_sleep(a.planes.slots()).await;
    }
    run.town.crash("a");
    run.expire("a").await;
    resume(run, watching).await
}

async fn late_watcher(seeded: (u64, Option<Bug>)) -> History {
    let both = &["a", "b"];
    let (mut run, plane, receiving) = Run::new(seeded, both, ("a", both)).await;
    if run.bug == Some(Bug::HistoryDropped) {
        run.replica("b").store.plan().forget_histories();
    }
    run.writes(&plane, 2).await;
    let watching = receiving.break_off().await;
    run.writes(&plane, 4).await;
    run.town.crash("a");
    run.expire("a").await;
    resume(run, watching).await
}

async fn namesake(seeded: (u64, Option<Bug>)) -> History {
    let (mut run, plane, receiving) = Run::new(seeded, &["a"], ("a", &["a"])).await;
    let first = run.replica("a");
    let watching = receiving.break_off().await;
    run.writes(&plane, 2).await;
    let reader = run.slow_reader(&plane);
    // The first process writes nothing more: a refused commit would tell it of the loss.
    first
        .store
        .plan()
        .commits_matching(|_| true, CommitFault::UnknownNotApplied, ALL);
    run.join("a").await;
    let taken = run.town.find(&run.birth).await;
    run.slow_writes(&taken).await;
    reader.cancel();
    let history = resume(run, watching).await;
    first.ring.vanish();
    history
}

/// Connects the watcher again, and ends the run.
async fn resume(run: Run, watching: Watching) -> History {
    let receiving = watching.receive(&run.town, &run.birth);
    run.end(receiving).await
}

async fn verdict(scene: Scene, seed: u64, bug: Option<Bug>) -> Verdict {
    let seeded = (seed, bug);
    let history = match scene {
        Scene::LateCommit => late_commit(seeded).await,
        Scene::CutOff => cut_off(seeded).await,
        Scene::SlowRelease => slow_release(seeded).await,
        Scene::OldStreamThenRelease => old_stream(seeded, true).await,
        Scene::OldStreamThenCrash => old_stream(seeded, false).await,
        Scene::LateWatcher => late_watcher(seeded).await,
        Scene::Namesake => namesake(seeded).await,
    };
    checker::check(&history, Allowed::default())
}

/// Asserts that the scene passes with all rules, and that each bug is detected in at least one of a
/// few runs by a fault of one of these kinds.
async fn tells(scene: Scene, bugs: &[Bug], kinds: &[Kind]) {
    for seed in 1..=SEEDS {
        let verdict = verdict(scene, seed, None).await;
        assert!(verdict.is_right(), "{scene:?}, seed {seed}: {verdict}");
        println!("{scene:?}, seed {seed}, all rules: {verdict}");
    }
    for bug in bugs {
        let mut told = None;
        for seed in 1..=SEEDS_MAX {
            let verdict = verdict(scene, seed, Some(*bug)).await;
            let fault = verdict
                .faults
                .into_iter()
                .find(|fault| kinds.contains(&fault.kind));
            if let Some(fault) = fault {
                told = Some((seed, fault));
                break;
            }
        }
        let (seed, fault) = told.unwrap_or_else(|| {
            panic!("{scene:?}: {bug:?} was not told in {SEEDS_MAX} runs");
        });
        println!("{scene:?}, {bug:?}: told by seed {seed}: {fault}");
    }
}

/// Checks PROTOCOL 1 and F3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_told() {
    let bugs = [
        Bug::Without(Rule::CommitComparesFence),
        Bug::Without(Rule::CommitSettledByWrite),
    ];
    let kinds = [Kind::EffectOfRefused, Kind::NotLinearizable, Kind::WatchGap];
    tells(Scene::LateCommit, &bugs, &kinds).await;
}

/// Checks F1 and F4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_read_lease_is_told() {
    let bugs = [
        Bug::Without(Rule::AnswerNeedsLease),
        Bug::Without(Rule::TakeoverWaits),
    ];
    tells(Scene::CutOff, &bugs, &[Kind::NotLinearizable]).await;
}

/// Checks PROTOCOL 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_tenure_is_told() {
    let bugs = [Bug::Without(Rule::AnswerNeedsTenure)];
    tells(Scene::SlowRelease, &bugs, &[Kind::NotLinearizable]).await;
}

/// Checks PROTOCOL 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_state_of_another_time_is_told() {
    let kinds = [Kind::NotLinearizable, Kind::WrongCut, Kind::VersionFell];
    let bugs = [Bug::Without(Rule::StreamAtReleasedHead)];
    tells(Scene::OldStreamThenRelease, &bugs, &kinds).await;
    let bugs = [Bug::Without(Rule::StreamOnlyFromReleased)];
    tells(Scene::OldStreamThenCrash, &bugs, &kinds).await;
}

/// Checks W1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_history_is_told() {
    tells(
        Scene::LateWatcher,
        &[Bug::HistoryDropped],
        &[Kind::WatchGap],
    )
    .await;
}

/// Checks PROTOCOL 5b.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_an_earlier_life_is_told() {
    let bugs = [Bug::Without(Rule::ProofNamesIncarnation)];
    tells(Scene::Namesake, &bugs, &[Kind::NotLinearizable]).await;
}
