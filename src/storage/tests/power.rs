//! Power cuts: whatever a disk may hold after one, every acknowledged commit is there.
//!
//! A program that uses the store runs under a recorder that sees its system calls; a model of a
//! disk says what a cut at any moment may leave; each of these states is opened as after a real
//! cut. Programs are recorded on new folders, after kills, and on what earlier cuts left, so that
//! openings are cut, too. Then every sync is taken out in turn, and each must be missed.
//!
//! Other programs are recorded while syncs fail. What those covered is lost at a cut unless it was written
//! again, whatever later syncs report, and is read anew by the program that opens the store next.
//!
//! Seed: `POLYPLANE_POWER_SEED`. Cuts of each engine: `POLYPLANE_POWER_CUTS`. Engine, both unless set:
//! `POLYPLANE_POWER_ENGINE`.
//!
//! A program of its own, because it starts itself as the program to be recorded.

#![expect(
    clippy::disallowed_types,
    reason = "threads of a test, without a runtime"
)]

#[path = "power/disk.rs"]
mod disk;
#[path = "power/random.rs"]
mod random;
#[path = "power/trace.rs"]
mod trace;
#[path = "power/workload.rs"]
mod workload;

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use disk::{Cut, Disk, Image, LOSSES, Loss};
use random::Random;
use trace::{Fault, FaultKind};
use workload::{ENGINE, Engine, Expected, FAILS, FOLDER, KIND, Kind, PLAN, program, stored};

const SEED: u64 = 1;
/// Cuts that both engines together survive in a minute and a half. An opening of fjall takes about
/// four times as long as one of sled.
const CUTS: [(Engine, usize); 2] = [(Engine::Sled, 3_000), (Engine::Fjall, 600)];
/// Cuts after which a missing sync that did no harm is taken to be needless.
const CUTS_WITHOUT: usize = 1_000;
/// Cuts of programs whose syncs fail: one for so many of the others.
const FAILING_PART: usize = 4;
/// One state in so many is opened a second time, after a commit.
const AGAIN: usize = 8;
/// Where the store is below the recorded root: in folders that the store makes.
const STORE: &str = "a/b/store";

fn main() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return program(Path::new(&folder));
    }
    let number = |name| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse().expect("a number"))
    };
    let seed = number("POLYPLANE_POWER_SEED").unwrap_or(SEED);
    let cuts =
        number("POLYPLANE_POWER_CUTS").map(|cuts| usize::try_from(cuts).expect("a number of cuts"));
    let only = std::env::var(ENGINE).ok().map(|name| Engine::named(&name));
    for (engine, cuts_unless_set) in CUTS {
        if only.is_none_or(|only| only == engine) {
            test(engine, seed, cuts.unwrap_or(cuts_unless_set));
        }
    }
}

fn test(engine: Engine, seed: u64, cuts: usize) {
    println!("power: {}, seed {seed}, {cuts} cuts", engine.name());
    let started = Instant::now();
    let recordings = recordings(engine, seed);
    println!("recorded in {:.1?}", started.elapsed());
    let bench = Bench::new();
    let mut losses = bench.cut_all(&recordings, seed, cuts);
    losses.extend(bench.cut_all(&failing(engine), seed, cuts / FAILING_PART));
    let (tried, opened, lost) = (bench.tried(), bench.opened(), losses.len());
    let took = started.elapsed();
    println!("{tried} cuts, {opened} different disks opened, {lost} losses, after {took:.1?}");
    let needless = bench.take_out_each(&recordings, seed);
    println!("{:.1?} in all", started.elapsed());
    assert!(
        losses.is_empty(),
        "{}, seed {seed}: {:#?}",
        engine.name(),
        &losses[..losses.len().min(10)]
    );
    assert!(needless.is_empty(), "nobody missed {needless:#?}");
}

/// A program that was run, with what must be true of its disk before it said anything.
struct Recording {
    name: String,
    disk: Disk,
    expected: Expected,
}

impl Recording {
    /// Runs programs one after the other on a disk that holds an image.
    fn new(name: &str, image: &Image, expected: Expected, runs: &[(&str, Option<Fault>)]) -> Self {
        let folder = folder_in_memory();
        let path = folder.path().canonicalize().expect("it is there");
        let root = path.join("root");
        std::fs::create_dir(&root).expect("made");
        let mut disk = Disk::with(&root, image);
        let mut random = Random::new(SEED);
        for (plan, fault) in runs {
            disk.evict(&mut random);
            let store = root.join(STORE).display().to_string();
            let kind = expected.kind.name().to_owned();
            let engine = expected.engine.name().to_owned();
            let mut variables = vec![
                (FOLDER, store),
                (PLAN, (*plan).to_owned()),
                (KIND, kind),
                (ENGINE, engine),
            ];
            if fault.is_some_and(|fault| fault.kind.fails()) {
                variables.push((FAILS, String::new()));
            }
            disk.run(&variables, *fault);
        }
        Self {
            name: name.to_owned(),
            disk,
            expected,
        }
    }

    /// The sites of syncs that the engine does by itself, or none. Nothing may rest on them: with
    /// them taken out all must be as with them.
    fn engines_syncs(&self, are_out: bool) -> BTreeSet<usize> {
        let places = 1..self.disk.sites.len();
        places
            .filter(|place| are_out && self.is_engines(*place))
            .collect()
    }

    /// Whether the disk honours the flag S in a cut. Without it, writes of several segments between
    /// two syncs may make the engine's log unreadable (see `sled/engine.rs`), so those have it. With it, no
    /// sync that fails has anything to lose.
    fn write_through(&self, random: &mut Random) -> bool {
        let is_honoured = random.below(2) == 0 || self.expected.kind == Kind::Bulk;
        is_honoured && !self.disk.has_failed()
    }

    fn is_engines(&self, place: usize) -> bool {
        is_idle(self.expected.engine, &self.disk.sites[place])
    }

    /// A moment of it.
    fn moment(&self, random: &mut Random) -> u64 {
        let moments = self.disk.moments();
        moments[random.below(moments.len())]
    }
}

/// Whose turn it is to be cut: those with much data more seldom, since each cut takes long.
fn turns(recordings: &[Recording]) -> Vec<usize> {
    let is_turn = |round: usize, kind: Kind| match kind {
        Kind::Mixed | Kind::Small => true,
        Kind::Churn => round.is_multiple_of(4),
        Kind::Bulk => round.is_multiple_of(4),
    };
    let turns = (0..16).flat_map(|round| {
        let places = 0..recordings.len();
        places.filter(move |place| is_turn(round, recordings[*place].expected.kind))
    });
    turns.collect()
}

/// A folder in memory if there is such a place: what happens here needs no real disk. It must know
/// file flags, so that the store asks for the flag S.
fn folder_in_memory() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    let memory = memory.filter(|folder| {
        let opened = std::fs::File::open(folder.path()).expect("it was made");
        rustix::fs::ioctl_getflags(&opened).is_ok()
    });
    memory.unwrap_or_else(|| tempfile::tempdir().expect("a folder"))
}

/// Whether the engine does this sync by itself and the store does not rest on it.
///
/// The store syncs sled's data and snapshots with `fdatasync`, sled with `fsync`, and the store syncs
/// nothing of the copy. On fjall's syncs the store rests.
fn is_idle(engine: Engine, site: &str) -> bool {
    let (_, sync) = site.split_once(": ").expect("a step and a sync");
    let is_file = sync.contains("/db") || sync.contains("/snap.");
    let is_engines = sync.starts_with("fsync") && is_file;
    engine == Engine::Sled && (is_engines || sync.contains("/before-open/"))
}

/// Whether something must be lost without this sync: whether the store does it itself, or names it as
/// what it rests on. What else fjall syncs is fjall's affair, and some of it is done twice.
fn is_needed(engine: Engine, site: &str) -> bool {
    let (step, sync) = site.split_once(": ").expect("a step and a sync");
    match engine {
        // Without those of snapshots a store is lost only after some few commits, if the engine's
        // threads came in a certain order: too seldom to be sure of it in one run.
        Engine::Sled => !is_idle(engine, site) && !sync.contains("snap.") && !sync.ends_with(" -3"),
        Engine::Fjall => {
            let path = sync.split(' ').nth(1).unwrap_or_default();
            let is_fjalls = Path::new(path).starts_with(Path::new(STORE).join("fjall"));
            !is_fjalls || step == "serving" && sync.starts_with("fdatasync")
        }
    }
}

fn kill(call: &'static str, nth: u32) -> Option<Fault> {
    let kind = FaultKind::Killed;
    Some(Fault { call, nth, kind })
}

/// Moments at which a process is killed whose store is then opened once more.
fn kills(engine: Engine) -> &'static [(&'static str, &'static str, u32)] {
    match engine {
        Engine::Sled => &[
            ("killed before a sync of its data", "fdatasync", 3),
            ("killed before a late sync of its data", "fdatasync", 6),
            ("killed before its format is named", "rename", 1),
            ("killed before it makes its folder", "mkdir", 2),
            ("killed before a sync above its folder", "fsync", 2),
            ("killed before its folder's first sync", "fsync", 8),
            ("killed before it sets its first opening's flag", "ioctl", 2),
        ],
        Engine::Fjall => &[
            ("killed before a sync of its data", "fdatasync", 3),
            ("killed before a late sync of its data", "fdatasync", 6),
            ("killed before its format is named", "rename", 1),
            ("killed before its database is named", "rename", 6),
            ("killed before it makes its folder", "mkdir", 2),
            ("killed before a sync above its folder", "fsync", 2),
            ("killed before its folder's first sync", "fsync", 8),
            ("killed while it makes its database", "fsync", 14),
        ],
    }
}

/// The same, of a process that opens a store.
fn kills_while_opening(engine: Engine) -> &'static [(&'static str, &'static str, u32)] {
    match engine {
        Engine::Sled => &[
            ("killed while it copies", "copy_file_range", 2),
            ("killed while it tries its copy", "pwrite64", 1),
            ("killed while it removes its copy", "unlinkat", 2),
            ("killed while the engine recovers", "pwrite64", 3),
        ],
        Engine::Fjall => &[
            ("killed before it cuts its journal", "ftruncate", 2),
            ("killed before it syncs its journal", "fsync", 12),
            ("killed before it deletes what it replaced", "unlink", 1),
            ("killed before it names a manifest", "rename", 1),
        ],
    }
}

fn recordings(engine: Engine, seed: u64) -> Vec<Recording> {
    let none = Image::default();
    let mixed = Expected::new(engine, Kind::Mixed);
    let plan = "open commit:5 close open commit:4 close";
    let mut all = vec![Recording::new("new", &none, mixed.clone(), &[(plan, None)])];
    for (name, call, nth) in kills(engine) {
        let runs = [
            ("open commit:6 close", kill(call, *nth)),
            ("open commit:2 close", None),
        ];
        all.push(Recording::new(name, &none, mixed.clone(), &runs));
    }
    for (name, call, nth) in kills_while_opening(engine) {
        let again = ("open commit:2 close", kill(call, *nth));
        let runs = [
            ("open commit:3 close", None),
            again,
            ("open commit:2 close", None),
        ];
        all.push(Recording::new(name, &none, mixed.clone(), &runs));
    }
    let small = Expected::new(engine, Kind::Small);
    all.push(Recording::new(
        "many",
        &none,
        small,
        &[("open commit:260 close", None)],
    ));
    let churn = Expected::new(engine, Kind::Churn);
    let plan = "open commit:60 close open commit:20 close";
    all.push(Recording::new("churn", &none, churn, &[(plan, None)]));
    let bulk = Expected::new(engine, Kind::Bulk);
    let plan = "open commit:14 close open commit:3 close";
    all.push(Recording::new("bulk", &none, bulk.clone(), &[(plan, None)]));
    // What replaces large values leaves segments without content near the end of sled's log, which an
    // opening overwrites.
    for commits in [4, 5] {
        let name = format!("left after {commits}");
        let first = format!("open commit:{commits}");
        let runs = [(&*first, None), ("open commit:1 close open close", None)];
        all.push(Recording::new(&name, &none, bulk.clone(), &runs));
    }
    if engine == Engine::Fjall {
        // As much as a journal takes, so that it is replaced and deleted.
        let long = Expected::new(engine, Kind::Bulk);
        let runs = [("open commit:64 close open commit:1 close", None)];
        all.push(Recording::new("journals", &none, long, &runs));
    }
    all.push(damaged(&all[0]));
    let mut random = Random::new(seed);
    // What cuts leave is opened under the recorder, and cut again.
    for generation in 0..8 {
        let from = &all[[0, 1, 0, all.len() - 1][generation % 4]];
        if from.expected.damaged.is_some() {
            continue;
        }
        let at = from.moment(&mut random);
        let cut = Cut {
            at,
            loss: [Loss::Torn, Loss::Each, Loss::Nothing][generation % 3],
            seed: random.next(),
            write_through: false,
            without: BTreeSet::new(),
        };
        let image = from.disk.after(&cut);
        let expected = from.expected.at(&from.disk, at);
        let name = format!("{}, cut at {at}", from.name);
        let runs = [("open commit:2 close", None)];
        all.push(Recording::new(&name, &image, expected, &runs));
    }
    all
}

/// Syncs that fail, by what is committed meanwhile. Each thread counts its own calls.
fn failures(engine: Engine) -> Vec<(Kind, Fault)> {
    use FaultKind::{Fails, FailsUnseen};
    let mut all = vec![
        (Kind::Mixed, "fdatasync", 1, Fails),
        (Kind::Mixed, "fdatasync", 2, Fails),
        (Kind::Mixed, "fdatasync", 4, Fails),
        (Kind::Mixed, "fdatasync", 2, FailsUnseen),
        (Kind::Mixed, "fdatasync", 5, FailsUnseen),
        (Kind::Small, "fdatasync", 7, Fails),
        (Kind::Small, "fdatasync", 7, FailsUnseen),
    ];
    if engine == Engine::Sled {
        all.extend([
            (Kind::Churn, "fdatasync", 6, Fails),
            (Kind::Churn, "fdatasync", 9, FailsUnseen),
            // Threads of sled write its log; the one that flushes must learn that they failed.
            (Kind::Small, "sync_file_range", 2, Fails),
            (Kind::Churn, "sync_file_range", 2, Fails),
            (Kind::Churn, "sync_file_range", 3, FailsUnseen),
        ]);
    }
    let fault = |(of, call, nth, kind)| (of, Fault { call, nth, kind });
    all.into_iter().map(fault).collect()
}

/// Programs whose syncs fail, and the next ones on their disks.
fn failing(engine: Engine) -> Vec<Recording> {
    let record = |(kind, fault): (Kind, Fault)| {
        let name = format!("{}, {fault:?}", kind.name());
        let runs = [
            ("open commit:30 close open commit:6 close", Some(fault)),
            ("open commit:3 close open commit:2 close", None),
        ];
        let expected = Expected::new(engine, kind);
        let recording = Recording::new(&name, &Image::default(), expected, &runs);
        assert!(recording.disk.has_failed(), "{name}: no sync failed");
        recording
    };
    failures(engine).into_iter().map(record).collect()
}

/// A store with a damaged log, whose opening is refused.
fn damaged(whole: &Recording) -> Recording {
    let mut image = whole.disk.live();
    let engine = whole.expected.engine;
    let name = PathBuf::from(STORE).join(match engine {
        Engine::Sled => "db",
        Engine::Fjall => "fjall/0.jnl",
    });
    let log = image.files.get_mut(&name).expect("a log").bytes_mut();
    let at = log.len() - 2_001;
    log[at] ^= 0x5A;
    let folder = tempfile::tempdir().expect("a folder");
    image.write_to(folder.path());
    let mut expected = Expected::new(engine, Kind::Mixed);
    expected.damaged = Some(stored(&folder.path().join(STORE)));
    let recording = Recording::new("damaged", &image, expected, &[("open open", None)]);
    let refused = |said: &disk::Said| said.text == "refused";
    assert_eq!(
        recording
            .disk
            .said
            .iter()
            .filter(|said| refused(said))
            .count(),
        2
    );
    recording
}

/// Where states are opened, and the counts.
struct Bench {
    folder: tempfile::TempDir,
    seen: Mutex<HashMap<u64, Result<(), String>>>,
    tried: AtomicUsize,
    opened: AtomicUsize,
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: folder_in_memory(),
            seen: Mutex::new(HashMap::new()),
            tried: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
        }
    }

    fn tried(&self) -> usize {
        self.tried.load(Ordering::Relaxed)
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Cuts a recording and opens what is left, unless the same was opened before.
    fn cut(&self, recording: &Recording, cut: &Cut) -> Result<(), String> {
        let nth = self.tried.fetch_add(1, Ordering::Relaxed);
        let image = recording.disk.after(cut);
        let expected = recording.expected.at(&recording.disk, cut.at);
        let mut hasher = DefaultHasher::new();
        (&image, &expected).hash(&mut hasher);
        let name = |lost| format!("{}: {cut:?}: {lost}", recording.name);
        let state = hasher.finish();
        if let Some(known) = self.seen.lock().expect("no panics").get(&state) {
            return known.clone().map_err(name);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let root = self.folder.path().join(format!("{nth}"));
        std::fs::create_dir(&root).expect("made");
        image.write_to(&root);
        let result = expected.check(&root.join(STORE), nth.is_multiple_of(AGAIN));
        std::fs::remove_dir_all(&root).expect("removed");
        let mut seen = self.seen.lock().expect("no panics");
        seen.insert(state, result.clone());
        // No run repeats another to the byte, so a disk that shows a loss is kept.
        if result.is_err() && cut.without.iter().all(|place| recording.is_engines(*place)) {
            let kept = std::env::temp_dir().join(format!("power-{state:x}"));
            std::fs::create_dir_all(&kept).expect("made");
            image.write_to(&kept);
            println!("kept: {}", kept.display());
        }
        result.map_err(name)
    }

    fn cut_all(&self, recordings: &[Recording], seed: u64, cuts: usize) -> Vec<String> {
        let (next, losses) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let moments: Vec<_> = recordings.iter().map(|one| one.disk.moments()).collect();
        let turns = turns(recordings);
        let work = || {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= cuts {
                    return;
                }
                let mut random = Random::new(seed ^ (nth as u64) << 20);
                let which = turns[nth % turns.len()];
                let cut = Cut {
                    at: moments[which][random.below(moments[which].len())],
                    loss: LOSSES[random.below(LOSSES.len())],
                    seed: random.next(),
                    write_through: recordings[which].write_through(&mut random),
                    without: recordings[which].engines_syncs(random.below(2) == 0),
                };
                if let Err(lost) = self.cut(&recordings[which], &cut) {
                    losses.lock().expect("no panics").push(lost);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
                scope.spawn(work);
            }
        });
        losses.into_inner().expect("no panics")
    }

    /// Takes each sync of the store out in turn; returns those that nobody missed.
    fn take_out_each(&self, recordings: &[Recording], seed: u64) -> Vec<String> {
        let engine = recordings[0].expected.engine;
        let sites: BTreeSet<&String> = recordings
            .iter()
            .flat_map(|recording| recording.disk.sites.iter().skip(1))
            .filter(|site| is_needed(engine, site) && !site.starts_with("killed"))
            .collect();
        let mut needless = Vec::new();
        for site in sites {
            let before = self.tried();
            let lost = self.take_out(recordings, site, seed);
            let cuts = self.tried() - before;
            let text = lost.as_deref().unwrap_or("not missed");
            println!("without {site:50} {cuts:4} cuts: {text}");
            if lost.is_none() {
                needless.push(site.clone());
            }
        }
        needless
    }

    /// Cuts after syncs of a site, as if they did nothing, until something is lost.
    fn take_out(&self, recordings: &[Recording], site: &str, seed: u64) -> Option<String> {
        let mut random = Random::new(seed);
        let mut syncs = Vec::new();
        for recording in recordings {
            let sites = &recording.disk.sites;
            let Some(place) = sites.iter().position(|other| other == site) else {
                continue;
            };
            for are_out in [false, true] {
                let mut without = recording.engines_syncs(are_out);
                let ends = recording.disk.syncs_of(place, &without);
                without.insert(place);
                syncs.extend(
                    ends.into_iter()
                        .map(|end| (recording, end, without.clone())),
                );
            }
        }
        if syncs.is_empty() {
            return None;
        }
        for nth in 0..CUTS_WITHOUT {
            let (recording, end, without) = &syncs[random.below(syncs.len())];
            // A third of the cuts come while the synced file or folder itself is changed.
            let moments = match nth % 3 {
                1 => recording.disk.moments_of(site),
                _ => recording.disk.moments(),
            };
            let first = moments.partition_point(|at| at <= end);
            let late = (moments.len() - first).max(1);
            let near = if nth % 2 == 0 { late.min(12) } else { late };
            let at = (first + random.below(near)).min(moments.len() - 1);
            let cut = Cut {
                at: moments[at],
                loss: LOSSES[if nth % 3 == 0 {
                    0
                } else {
                    random.below(LOSSES.len())
                }],
                seed: random.next(),
                write_through: recording.write_through(&mut random),
                without: without.clone(),
            };
            if let Err(lost) = self.cut(recording, &cut) {
                return Some(lost);
            }
        }
        None
    }
}
