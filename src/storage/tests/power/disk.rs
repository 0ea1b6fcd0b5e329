//! A disk that remembers, of a recorded program, what was durable when, and says what a power cut
//! may leave.
//!
//! The model is strict, it promises what POSIX promises and nothing that some file system adds:
//!
//! * A change of a file (a write, a new length) is durable once an `fsync` or `fdatasync` of that
//!   file that began after it has returned. `sync_file_range` makes nothing durable.
//! * A change of a folder (a new name, a removed one, a rename within it) is durable once an
//!   `fsync` of that folder that began after it has returned. A rename between two folders is two
//!   changes.
//! * Of what is not durable, a cut keeps any part: each change or none, whatever their order, a
//!   write in sectors, a length without the bytes.
//! * A sync of a file may fail. The kernel takes what it covered for clean: no later sync makes that
//!   durable, unless it is written again. A program reads it as it was written until the kernel drops
//!   those pages, and then what the disk has of them. They are dropped between two programs, and the
//!   second must ask the kernel for it: see [`Disk::evict`].
//! * A file opened with `O_SYNC` or `O_DSYNC`, or with the flag S if the disk honours it, has each
//!   write durable on return.

#[path = "calls.rs"]
mod calls;
#[path = "content.rs"]
mod content;
#[path = "explain.rs"]
mod explain;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::content::Content;
use crate::random::Random;
use crate::trace::{Call, Fault, FaultKind, record};

type InodeId = usize;
const ROOT: InodeId = 0;

#[derive(Debug, Clone)]
enum What {
    Write { at: usize, bytes: Arc<[u8]> },
    Size(usize),
    Names(Vec<(String, Option<InodeId>)>),
}

#[derive(Debug, Clone)]
struct Change {
    start: u64,
    end: u64,
    /// Durable on return, whatever the disk.
    direct: bool,
    what: What,
    /// What the disk has of it, since the kernel has dropped the page with it.
    evicted: Option<Evicted>,
}

#[derive(Debug, Clone)]
struct Evicted {
    at: u64,
    pieces: Vec<What>,
}

#[derive(Debug, Clone)]
struct Sync {
    start: u64,
    end: u64,
    site: usize,
}

/// A sync that failed.
#[derive(Debug, Clone)]
struct Failure {
    start: u64,
    end: u64,
}

/// A file or a folder.
#[derive(Debug, Clone, Default)]
struct Inode {
    is_folder: bool,
    changes: Vec<Change>,
    syncs: Vec<Sync>,
    failures: Vec<Failure>,
    /// When the flag S was set.
    write_through: Option<u64>,
    /// What the running program sees.
    bytes: Content,
    names: BTreeMap<String, InodeId>,
}

/// What an open file is shared by after `dup`.
#[derive(Debug, Clone)]
struct Description {
    inode: InodeId,
    position: usize,
    append: bool,
    direct: bool,
}

/// A line that the program wrote to its output: what it told the world, and when it began to.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) at: u64,
    pub(crate) text: String,
}

/// What of the changes that are not durable a cut keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Loss {
    /// None of them.
    All,
    /// All of them, as when only the process dies.
    Nothing,
    /// Those of files, none of folders.
    Names,
    /// Those of folders, none of files.
    Bytes,
    /// Each by itself or not.
    Each,
    /// All of some files and folders.
    Whole,
    /// Of each file or folder those up to some time.
    Late,
    /// Each by itself or not, and some sectors of some writes, the last of each file among them.
    Torn,
}

pub(crate) const LOSSES: [Loss; 8] = [
    Loss::All,
    Loss::Nothing,
    Loss::Names,
    Loss::Bytes,
    Loss::Each,
    Loss::Whole,
    Loss::Late,
    Loss::Torn,
];

/// A power cut.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    pub(crate) at: u64,
    pub(crate) loss: Loss,
    pub(crate) seed: u64,
    /// Whether the disk honours the flag S.
    pub(crate) write_through: bool,
    /// Sites whose syncs do nothing.
    pub(crate) without: BTreeSet<usize>,
}

/// Files and folders below some folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) folders: BTreeSet<PathBuf>,
    pub(crate) files: BTreeMap<PathBuf, Content>,
}

impl Image {
    /// The names that only one of the images has, or with other content.
    fn differing<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a Path> {
        let names = self.files.keys().chain(other.files.keys());
        let differ = |name: &&PathBuf| self.files.get(*name) != other.files.get(*name);
        let files = names.filter(differ).map(PathBuf::as_path);
        let folders = self.folders.symmetric_difference(&other.folders);
        files.chain(folders.map(PathBuf::as_path)).collect()
    }

    pub(crate) fn write_to(&self, root: &Path) {
        for folder in &self.folders {
            std::fs::create_dir_all(root.join(folder)).expect("a folder is made");
        }
        for (name, bytes) in &self.files {
            bytes.write_to(&root.join(name)).expect("a file is written");
        }
    }

    pub(crate) fn read_from(root: &Path) -> Self {
        let mut image = Self::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root.join(&folder)).expect("a folder") {
                let name = folder.join(entry.expect("an entry").file_name());
                if root.join(&name).is_dir() {
                    image.folders.insert(name.clone());
                    folders.push(name);
                } else {
                    let bytes = std::fs::read(root.join(&name)).expect("a file");
                    image.files.insert(name, Content::new(bytes));
                }
            }
        }
        image
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Disk {
    root: PathBuf,
    inodes: Vec<Inode>,
    descriptions: Vec<Description>,
    descriptors: HashMap<i64, usize>,
    /// The number given to the last call.
    pub(crate) order: u64,
    pub(crate) said: Vec<Said>,
    /// Where syncs are, by kind, path and step; see [`Disk::name_sites`].
    pub(crate) sites: Vec<String>,
    /// Syncs of the step under way: kind and path, inode, and its place there.
    step: Vec<(String, InodeId, usize)>,
    /// Files of which the kernel has dropped pages before the program under way.
    evicted: BTreeSet<InodeId>,
    /// Files of which this program has asked the kernel to drop the pages.
    advised: BTreeSet<InodeId>,
}

impl Disk {
    /// A disk that holds an image, all of it durable. Programs find it below `root`.
    pub(crate) fn with(root: &Path, image: &Image) -> Self {
        let mut disk = Self {
            root: root.to_owned(),
            inodes: vec![Inode {
                is_folder: true,
                ..Inode::default()
            }],
            descriptions: Vec::new(),
            descriptors: HashMap::new(),
            order: 0,
            said: Vec::new(),
            sites: vec!["unnamed".to_owned()],
            step: Vec::new(),
            evicted: BTreeSet::new(),
            advised: BTreeSet::new(),
        };
        image.write_to(root);
        for folder in &image.folders {
            disk.make(&root.join(folder), true, 0, 0);
        }
        for (name, bytes) in &image.files {
            let inode = disk.make(&root.join(name), false, 0, 0);
            let inode = inode.expect("its folder is there");
            let written = bytes.read(0, bytes.len()).into();
            let what = What::Write {
                at: 0,
                bytes: written,
            };
            disk.change(inode, (0, 0), true, what);
        }
        disk
    }

    /// Runs this program with `variables` under the recorder, and adds its recorded calls to the
    /// model. Panics unless these calls explain the content of the disk byte for byte, and unless the program
    /// reads from the disk what a failed sync has left in memory.
    pub(crate) fn run(&mut self, variables: &[(&str, String)], fault: Option<Fault>) {
        let program = std::env::current_exe().expect("this program");
        let log = self.root.with_extension("log");
        let mut order = self.order;
        let calls = record(&log, &program, variables, fault, &mut order);
        std::fs::remove_file(&log).expect("the log is there");
        let (mut done, torn): (Vec<_>, Vec<_>) =
            calls.iter().partition(|call| call.result.is_some());
        // A descriptor is free from the beginning of `close` and taken at the end of `open`.
        done.sort_by_key(|call| {
            if call.name == "close" {
                call.start
            } else {
                call.end
            }
        });
        self.descriptors.clear();
        self.advised.clear();
        let is_named = |inode: &InodeId| self.path_of(*inode).exists();
        let evicted: Vec<InodeId> = self.evicted.iter().copied().filter(is_named).collect();
        for call in done {
            self.take(call);
        }
        for inode in evicted {
            let path = self.path_of(inode);
            let is_advised = self.advised.contains(&inode);
            assert!(
                is_advised,
                "{}: the kernel was not asked for what the disk has",
                path.display()
            );
        }
        if fault.is_some_and(|fault| fault.kind == FaultKind::FailsUnseen) {
            for call in &torn {
                self.fail(call, order);
            }
        }
        self.name_sites(false);
        let real = Image::read_from(&self.root);
        // Where an argument could not be read, the thread was dead before the kernel began.
        let is_begun = |call: &&Call| !call.arguments.iter().any(|text| text.starts_with("0x"));
        let torn: Vec<&Call> = torn.into_iter().filter(is_begun).collect();
        assert!(
            self.explain(&torn, &real),
            "the recorder did not see everything: {:?} differ, {:?} were under way",
            self.live().differing(&real),
            torn.iter().map(|call| &call.name).collect::<Vec<_>>()
        );
        self.order = order;
    }

    /// Has the kernel drop the pages that it takes for clean because a sync of them failed, so that programs
    /// read what the disk has of them: all, nothing or some sectors. No program runs.
    pub(crate) fn evict(&mut self, random: &mut Random) {
        self.order += 1;
        let at = self.order;
        self.evicted.clear();
        for id in 0..self.inodes.len() {
            let inode = &mut self.inodes[id];
            let lost = inode.changes.iter().map(|change| inode.is_lost(change));
            let lost: Vec<bool> = lost.collect();
            if !lost.contains(&true) {
                continue;
            }
            for (change, _) in inode.changes.iter_mut().zip(lost).filter(|(_, lost)| *lost) {
                let pieces = match random.below(4) {
                    0 => vec![change.what.clone()],
                    1 => Vec::new(),
                    _ => pieces(&change.what, random),
                };
                change.evicted = Some(Evicted { at, pieces });
            }
            inode.bytes = inode.replayed();
            self.evicted.insert(id);
            let path = self.path_of(id);
            if path.exists() {
                let bytes = &self.inodes[id].bytes;
                bytes.write_to(&path).expect("a file is written");
            }
        }
    }

    /// Whether a sync of a file has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.inodes.iter().any(|inode| !inode.failures.is_empty())
    }

    /// The syncs of a site that made something durable, by when they ended.
    pub(crate) fn syncs_of(&self, site: usize, without: &BTreeSet<usize>) -> Vec<u64> {
        let mut ends = Vec::new();
        for inode in &self.inodes {
            for sync in inode.syncs.iter().filter(|sync| sync.site == site) {
                let others = inode.syncs.iter().filter(|other| other.end < sync.start);
                let others = others.filter(|other| !without.contains(&other.site));
                let before = others.map(|other| other.start).max().unwrap_or_default();
                let new = before + 1..=sync.start;
                if inode.changes.iter().any(|change| new.contains(&change.end)) {
                    ends.push(sync.end);
                }
            }
        }
        ends.sort_unstable();
        ends
    }

    /// Every moment at which a change had begun or ended of what is synced at a site.
    pub(crate) fn moments_of(&self, site: &str) -> Vec<u64> {
        let place = self.sites.iter().position(|known| known == site);
        let is_synced = |inode: &&Inode| inode.syncs.iter().any(|sync| Some(sync.site) == place);
        let synced = self.inodes.iter().filter(is_synced);
        let changes = synced.flat_map(|inode| &inode.changes);
        let mut found: Vec<u64> = changes
            .flat_map(|change| [change.start + 1, change.end.saturating_add(1)])
            .filter(|at| *at <= self.order + 1)
            .collect();
        found.push(self.order + 1);
        found.sort_unstable();
        found
    }

    /// Every moment at which something had begun or ended.
    pub(crate) fn moments(&self) -> Vec<u64> {
        let mut found = BTreeSet::from([self.order + 1]);
        for inode in &self.inodes {
            for change in &inode.changes {
                found.extend([change.start + 1, change.end.saturating_add(1)]);
            }
            for sync in &inode.syncs {
                found.extend([sync.start, sync.end + 1]);
            }
        }
        found.extend(self.said.iter().map(|said| said.at + 1));
        found.remove(&1);
        found
            .into_iter()
            .filter(|at| *at <= self.order + 1)
            .collect()
    }

    /// What the running program sees.
    pub(crate) fn live(&self) -> Image {
        self.image(&|inode: InodeId| {
            let inode = &self.inodes[inode];
            (inode.bytes.clone(), inode.names.clone())
        })
    }

    /// What the disk holds after a cut.
    pub(crate) fn after(&self, cut: &Cut) -> Image {
        self.image(&|inode: InodeId| self.inodes[inode].after(inode, cut))
    }

    fn image(&self, of: &dyn Fn(InodeId) -> (Content, BTreeMap<String, InodeId>)) -> Image {
        let mut image = Image::default();
        let mut folders = vec![(PathBuf::new(), ROOT)];
        while let Some((path, folder)) = folders.pop() {
            for (name, inode) in of(folder).1 {
                let path = path.join(name);
                if self.inodes[inode].is_folder {
                    image.folders.insert(path.clone());
                    folders.push((path, inode));
                } else {
                    image.files.insert(path, of(inode).0);
                }
            }
        }
        image
    }
}

impl Inode {
    fn after(&self, id: InodeId, cut: &Cut) -> (Content, BTreeMap<String, InodeId>) {
        let synced = self.syncs.iter();
        let synced = synced.filter(|sync| sync.end < cut.at && !cut.without.contains(&sync.site));
        let mut synced: Vec<u64> = synced.map(|sync| sync.start).collect();
        synced.sort_unstable();
        let through = self.write_through.filter(|_| cut.write_through);
        let is_durable = |change: &Change| {
            let returned = change.end < cut.at;
            let through = through.is_some_and(|since| since < change.start);
            self.is_synced(change, &synced) || returned && (change.direct || through)
        };
        let evicted = |change: &Change| match &change.evicted {
            Some(evicted) if evicted.at < cut.at => Some(evicted.pieces.clone()),
            _ => None,
        };
        let begun: Vec<&Change> = self.changes.iter().filter(|c| c.start < cut.at).collect();
        let is_pending = |change: &&&Change| evicted(change).is_none() && !is_durable(change);
        let pending = begun.iter().filter(is_pending).count();
        let mut random = Random::new(cut.seed ^ (id as u64) << 32);
        let whole = random.below(2) == 0;
        let kept = random.below(pending + 1);
        let (mut nth, mut bytes, mut names) = (0, Content::default(), BTreeMap::new());
        for change in begun {
            if let Some(pieces) = evicted(change) {
                for piece in pieces {
                    apply(&piece, &mut bytes, &mut names);
                }
                continue;
            }
            if is_durable(change) {
                apply(&change.what, &mut bytes, &mut names);
                continue;
            }
            nth += 1;
            let coin = random.below(2) == 0;
            let keep = match cut.loss {
                Loss::All => false,
                Loss::Nothing => true,
                Loss::Names => !self.is_folder,
                Loss::Bytes => self.is_folder,
                Loss::Each => coin,
                Loss::Whole => whole,
                Loss::Late => nth <= kept,
                Loss::Torn if nth == pending || random.below(3) == 0 => {
                    tear(&change.what, &mut bytes, &mut names, &mut random);
                    continue;
                }
                Loss::Torn => coin,
            };
            if keep {
                apply(&change.what, &mut bytes, &mut names);
            } else if matches!(cut.loss, Loss::Each | Loss::Whole) && random.below(3) == 0 {
                lengthen(&change.what, &mut bytes);
            }
        }
        (bytes, names)
    }

    /// When a sync began that failed on a change. Lengths and names are in the journal of the file system; see
    /// `fail`. What any earlier sync has written, whatever a cut takes out, is not dirty any more.
    fn failed_on(&self, change: &Change) -> Option<u64> {
        let covers = |failure: &&Failure| {
            let mut before = self.syncs.iter().filter(|sync| sync.end < failure.start);
            failure.end > change.start && !before.any(|sync| change.end <= sync.start)
        };
        let failures = self.failures.iter().filter(covers);
        let first = failures.map(|failure| failure.start).min();
        first.filter(|_| matches!(change.what, What::Write { .. }))
    }

    /// Whether one of the syncs, of which these are the beginnings in order, has made a change durable: it
    /// began after the change, and before another one failed on it.
    fn is_synced(&self, change: &Change, synced: &[u64]) -> bool {
        let known = match self.failed_on(change) {
            Some(failed) => synced.partition_point(|start| *start < failed),
            None => synced.len(),
        };
        change.end <= synced[..known].last().copied().unwrap_or_default()
    }

    /// Whether only the memory is known to have a change, which the kernel may drop from there.
    fn is_lost(&self, change: &Change) -> bool {
        change.evicted.is_none() && !change.direct && self.failed_on(change).is_some()
    }

    /// Its bytes, after the kernel has dropped pages.
    fn replayed(&self) -> Content {
        let (mut bytes, mut names) = (Content::default(), BTreeMap::new());
        for change in &self.changes {
            let whole = std::slice::from_ref(&change.what);
            let evicted = change.evicted.as_ref();
            for what in evicted.map_or(whole, |evicted| &evicted.pieces[..]) {
                apply(what, &mut bytes, &mut names);
            }
        }
        bytes
    }
}

fn apply(what: &What, bytes: &mut Content, names: &mut BTreeMap<String, InodeId>) {
    match what {
        What::Write { at, bytes: new } => {
            bytes.write(*at, new);
        }
        What::Size(size) => bytes.resize(*size),
        What::Names(changed) => {
            for (name, inode) in changed {
                match inode {
                    Some(inode) => names.insert(name.clone(), *inode),
                    None => names.remove(name),
                };
            }
        }
    }
}

/// The length that a write gives, without its bytes.
fn lengthen(what: &What, bytes: &mut Content) {
    if let What::Write { at, bytes: new } = what
        && bytes.len() < at + new.len()
    {
        bytes.resize(at + new.len());
    }
}

/// Some sectors of a write.
fn tear(
    what: &What,
    bytes: &mut Content,
    names: &mut BTreeMap<String, InodeId>,
    random: &mut Random,
) {
    for piece in pieces(what, random) {
        apply(&piece, bytes, names);
    }
}

/// Some sectors of a write, with its length or without; the whole of any other change.
fn pieces(what: &What, random: &mut Random) -> Vec<What> {
    let What::Write { at, bytes: new } = what else {
        return vec![what.clone()];
    };
    let sector = [512, 4096][random.below(2)];
    let mut pieces = Vec::new();
    if random.below(2) == 0 {
        // Nothing, written at the end of it.
        let (at, bytes) = (at + new.len(), Arc::from(Vec::<u8>::new()));
        pieces.push(What::Write { at, bytes });
    }
    let mut from = 0;
    while from < new.len() {
        let to = new.len().min(from + sector - (at + from) % sector);
        if random.below(2) == 0 {
            let (at, bytes) = (at + from, Arc::from(&new[from..to]));
            pieces.push(What::Write { at, bytes });
        }
        from = to;
    }
    pieces
}
