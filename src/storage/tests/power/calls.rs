//! What each system call does to the disk.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::{Change, Description, Disk, Failure, Inode, InodeId, ROOT, Said, Sync, What, apply};
use crate::trace::Call;

impl Disk {
    pub(super) fn take(&mut self, call: &Call) {
        let result = call.result.unwrap_or_default();
        if call.name == "ioctl" {
            return self.flag(call);
        }
        if result < 0 {
            return self.fail(call, call.end);
        }
        let during = (call.start, call.end);
        match call.name.as_str() {
            "open" => self.open(call, None, 0),
            "openat" => self.open(call, call.descriptor(0), 1),
            "close" => _ = self.descriptors.remove(&call.number(0)),
            "dup" | "dup2" | "dup3" => self.duplicate(call.number(0), result),
            "fcntl" if call.arguments[1].starts_with("F_DUPFD") => {
                self.duplicate(call.number(0), result);
            }
            "read" | "lseek" => self.seek(call, result),
            "write" if call.number(0) == 1 => self.say(call),
            "write" | "pwrite64" => self.write(call, result),
            "copy_file_range" => self.copy(call, (0, 2), result),
            "sendfile" => self.copy(call, (1, 0), result),
            "ftruncate" => {
                if let Some(inode) = self.inode_of(call.number(0)) {
                    let size = usize::try_from(call.number(1)).expect("a length");
                    self.change(inode, during, false, What::Size(size));
                }
            }
            "fallocate" => self.allocate(call),
            "fsync" | "fdatasync" => {
                if let Some(inode) = self.inode_of(call.number(0)) {
                    self.sync(inode, &call.name, during);
                }
            }
            "rename" => self.rename(during, &call.path(0), &call.path(1)),
            "renameat" | "renameat2" => {
                let from = self.path_at(call.descriptor(0), call.path(1));
                let to = self.path_at(call.descriptor(2), call.path(3));
                self.rename(during, &from, &to);
            }
            "unlink" | "rmdir" => self.remove(during, &call.path(0)),
            "unlinkat" => {
                let path = self.path_at(call.descriptor(0), call.path(1));
                self.remove(during, &path);
            }
            "mkdir" => _ = self.make(&call.path(0), true, call.start, call.end),
            "fadvise64" => self.advise(call),
            // Makes nothing durable, or changes nothing that is followed here.
            "sync_file_range" | "fcntl" | "chdir" | "fchdir" | "close_range" => {}
            "mmap" => {
                let writes = call.arguments[2].contains("PROT_WRITE");
                let shared = call.arguments[3].contains("MAP_SHARED");
                let known = shared && writes && self.inode_of(call.number(4)).is_some();
                assert!(!known, "writes through a mapped file are not seen");
            }
            "link" | "truncate" => {
                assert!(self.relative(&call.path(0)).is_none(), "add {}", call.name);
            }
            "readv" | "writev" | "pwritev" | "pwritev2" | "msync" | "splice" => {
                let known = call.arguments[0].parse().ok();
                let known = known.and_then(|descriptor| self.inode_of(descriptor));
                assert!(known.is_none(), "add {} to the recorder", call.name);
            }
            other => panic!("the recorder does not know what {other} does"),
        }
    }

    /// The path below the root, if it is one.
    fn relative(&self, path: &Path) -> Option<PathBuf> {
        let through = self.through_descriptor(path);
        let path = through.as_deref().unwrap_or(path);
        path.strip_prefix(&self.root).ok().map(Path::to_owned)
    }

    /// The plain path for one that begins at an open folder, whatever its name is by now.
    fn through_descriptor(&self, path: &Path) -> Option<PathBuf> {
        let mut parts = path.strip_prefix("/proc/self/fd").ok()?.components();
        let descriptor = parts.next()?.as_os_str().to_str()?.parse().ok()?;
        let folder = self.inode_of(descriptor)?;
        Some(self.path_of(folder).join(parts.as_path()))
    }

    fn path_at(&self, folder: Option<i64>, path: PathBuf) -> PathBuf {
        let folder = folder.and_then(|descriptor| self.inode_of(descriptor));
        match folder {
            Some(folder) if path.is_relative() => self.path_of(folder).join(path),
            _ => path,
        }
    }

    pub(super) fn path_of(&self, wanted: InodeId) -> PathBuf {
        let mut folders = vec![(self.root.clone(), ROOT)];
        while let Some((path, inode)) = folders.pop() {
            if inode == wanted {
                return path;
            }
            let names = self.inodes[inode].names.iter();
            folders.extend(names.map(|(name, inode)| (path.join(name), *inode)));
        }
        self.root.join("removed")
    }

    fn find(&self, path: &Path) -> Option<InodeId> {
        let mut inode = ROOT;
        for part in self.relative(path)?.components() {
            let Component::Normal(name) = part else {
                panic!("{} is not a plain path", path.display());
            };
            inode = *self.inodes[inode].names.get(name.to_str()?)?;
        }
        Some(inode)
    }

    /// The folder of a path below the root, and the name in it.
    fn place(&self, path: &Path) -> Option<(InodeId, String)> {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((self.find(path.parent()?)?, name))
    }

    pub(super) fn inode_of(&self, descriptor: i64) -> Option<InodeId> {
        let description = *self.descriptors.get(&descriptor)?;
        Some(self.descriptions[description].inode)
    }

    pub(super) fn change(
        &mut self,
        inode: InodeId,
        (start, end): (u64, u64),
        direct: bool,
        what: What,
    ) {
        let inode = &mut self.inodes[inode];
        apply(&what, &mut inode.bytes, &mut inode.names);
        inode.changes.push(Change {
            start,
            end,
            direct,
            what,
            evicted: None,
        });
    }

    pub(super) fn make(
        &mut self,
        path: &Path,
        is_folder: bool,
        start: u64,
        end: u64,
    ) -> Option<InodeId> {
        let (folder, name) = self.place(path)?;
        let inode = self.inodes.len();
        self.inodes.push(Inode {
            is_folder,
            ..Inode::default()
        });
        let names = vec![(name, Some(inode))];
        self.change(folder, (start, end), false, What::Names(names));
        Some(inode)
    }

    fn open(&mut self, call: &Call, folder: Option<i64>, first: usize) {
        let path = self.path_at(folder, call.path(first));
        let flags = call.arguments[first + 1].clone();
        let has = |flag: &str| flags.split('|').any(|other| other == flag);
        let found = match self.find(&path) {
            None if has("O_CREAT") => self.make(&path, false, call.start, call.end),
            found => found,
        };
        let descriptor = call.result.unwrap_or(-1);
        let Some(inode) = found else {
            self.descriptors.remove(&descriptor);
            return;
        };
        let direct = has("O_SYNC") || has("O_DSYNC");
        if has("O_TRUNC") && !self.inodes[inode].bytes.is_empty() {
            self.change(inode, (call.start, call.end), false, What::Size(0));
        }
        self.descriptors.insert(descriptor, self.descriptions.len());
        self.descriptions.push(Description {
            inode,
            position: 0,
            append: has("O_APPEND"),
            direct,
        });
    }

    fn duplicate(&mut self, from: i64, to: i64) {
        match self.descriptors.get(&from).copied() {
            Some(description) => self.descriptors.insert(to, description),
            None => self.descriptors.remove(&to),
        };
    }

    fn description(&mut self, descriptor: i64) -> Option<&mut Description> {
        let description = *self.descriptors.get(&descriptor)?;
        self.descriptions.get_mut(description)
    }

    fn seek(&mut self, call: &Call, result: i64) {
        let result = usize::try_from(result).expect("not negative");
        let is_read = call.name == "read";
        if let Some(description) = self.description(call.number(0)) {
            let from = if is_read { description.position } else { 0 };
            description.position = from + result;
        }
    }

    fn write(&mut self, call: &Call, result: i64) {
        let descriptor = call.number(0);
        let Some(inode) = self.inode_of(descriptor) else {
            return;
        };
        let end = self.inodes[inode].bytes.len();
        let done = match call.result {
            Some(_) => usize::try_from(result).expect("not negative"),
            None => usize::MAX,
        };
        let mut bytes = call.bytes(1);
        bytes.truncate(done);
        let description = self.description(descriptor).expect("it has an inode");
        let direct = description.direct;
        let at = if call.name == "pwrite64" {
            usize::try_from(call.number(3)).expect("not negative")
        } else {
            let at = if description.append {
                end
            } else {
                description.position
            };
            description.position = at + bytes.len();
            at
        };
        let bytes = Arc::from(bytes);
        let what = What::Write { at, bytes };
        self.change(inode, (call.start, call.end), direct, what);
    }

    fn copy(&mut self, call: &Call, (from, to): (usize, usize), result: i64) {
        let (from, to) = (call.number(from), call.number(to));
        let Some(target) = self.inode_of(to) else {
            return;
        };
        let offsets = [1, 2, 3].map(|index| call.arguments[index].starts_with('['));
        assert!(!offsets.contains(&true), "add copies at an offset");
        let bytes = usize::try_from(result).expect("not negative");
        let source = self.inode_of(from).expect("copied from below the root");
        let source_at = self.advance(from, bytes);
        let at = self.advance(to, bytes);
        let copied = self.inodes[source].bytes.read(source_at, bytes);
        let what = What::Write {
            at,
            bytes: copied.into(),
        };
        self.change(target, (call.start, call.end), false, what);
    }

    /// Moves the position of a descriptor and returns where it was.
    fn advance(&mut self, descriptor: i64, bytes: usize) -> usize {
        let description = self.description(descriptor).expect("it is open");
        description.position += bytes;
        description.position - bytes
    }

    fn allocate(&mut self, call: &Call) {
        let Some(inode) = self.inode_of(call.number(0)) else {
            return;
        };
        assert_eq!(call.arguments[1], "0", "add holes to the recorder");
        let end = usize::try_from(call.number(2) + call.number(3)).expect("a length");
        let size = end.max(self.inodes[inode].bytes.len());
        self.change(inode, (call.start, call.end), false, What::Size(size));
    }

    fn remove(&mut self, during: (u64, u64), path: &Path) {
        if let Some((folder, name)) = self.place(path) {
            self.change(folder, during, false, What::Names(vec![(name, None)]));
        }
    }

    fn rename(&mut self, during: (u64, u64), from: &Path, to: &Path) {
        let Some(inode) = self.find(from) else {
            return;
        };
        let (old_folder, old) = self.place(from).expect("it was found");
        let (new_folder, new) = self.place(to).expect("renamed below the root");
        let (removed, added) = ((old, None), (new, Some(inode)));
        if old_folder == new_folder {
            let both = What::Names(vec![removed, added]);
            return self.change(new_folder, during, false, both);
        }
        self.change(new_folder, during, false, What::Names(vec![added]));
        self.change(old_folder, during, false, What::Names(vec![removed]));
    }

    /// The flag S, even if the file system refuses it: the cut says whether the disk honours it.
    fn flag(&mut self, call: &Call) {
        let sets =
            call.arguments[1] == "FS_IOC_SETFLAGS" && call.arguments[2].contains("FS_SYNC_FL");
        if sets && let Some(inode) = self.inode_of(call.number(0)) {
            self.inodes[inode].write_through.get_or_insert(call.end);
        }
    }

    fn say(&mut self, call: &Call) {
        let text = String::from_utf8(call.bytes(1)).expect("text");
        for line in text.lines() {
            if line.starts_with("step ") || line.starts_with("loop ") {
                self.name_sites(true);
            }
            self.said.push(Said {
                at: call.start,
                text: line.to_owned(),
            });
        }
    }

    fn sync(&mut self, inode: InodeId, kind: &str, (start, end): (u64, u64)) {
        let path = self.path_of(inode);
        let path = self.relative(&path).unwrap_or_default();
        let place = self.inodes[inode].syncs.len();
        let site = 0;
        self.inodes[inode].syncs.push(Sync { start, end, site });
        self.step
            .push((format!("{kind} {}", plain(&path)), inode, place));
    }

    fn advise(&mut self, call: &Call) {
        if call.arguments[3] == "POSIX_FADV_DONTNEED"
            && let Some(inode) = self.inode_of(call.number(0))
        {
            self.advised.insert(inode);
        }
    }

    /// A call that failed, of which a sync matters. One of a folder does nothing: what such a sync covers is in
    /// the journal of the file system, which takes no more changes if it cannot be written.
    pub(super) fn fail(&mut self, call: &Call, end: u64) {
        let start = call.start;
        if is_sync(call)
            && let Some(inode) = self.inode_of(call.number(0))
            && !self.inodes[inode].is_folder
        {
            self.inodes[inode].failures.push(Failure { start, end });
        }
    }

    /// Gives the syncs of the step that ends now their sites: what the program said of the step,
    /// the kind and path, and, unless it is a loop, the place among those of that kind and path,
    /// counted from the last. In a step that a kill cut short there is no last.
    pub(super) fn name_sites(&mut self, is_whole: bool) {
        let steps = self.said.iter().rev().map(|said| &said.text);
        let mut steps = steps.filter(|text| text.starts_with("step ") || text.starts_with("loop "));
        let step = steps.next().cloned().unwrap_or_default();
        let mut later: BTreeMap<String, u32> = BTreeMap::new();
        for (name, inode, place) in std::mem::take(&mut self.step).into_iter().rev() {
            let count = later.entry(name.clone()).or_default();
            *count += 1;
            let site = match step.split_once(' ') {
                Some(("loop", step)) => format!("{step}: {name}"),
                Some((_, step)) if name.ends_with("/fjall.new") => format!("{step}: {name}"),
                Some((_, step)) if is_whole => format!("{step}: {name} -{count}"),
                Some((_, step)) => format!("killed while {step}: {name}"),
                None => continue,
            };
            let known = self.sites.iter().position(|known| *known == site);
            let known = known.unwrap_or_else(|| {
                self.sites.push(site);
                self.sites.len() - 1
            });
            self.inodes[inode].syncs[place].site = known;
        }
    }
}

/// Whether a call reports that what was written could not be made durable. `sync_file_range` does, though it
/// makes nothing durable.
fn is_sync(call: &Call) -> bool {
    ["fsync", "fdatasync", "sync_file_range"].contains(&call.name.as_str())
}

/// A path without numbers that differ from run to run. A database in the making is one thing: it counts
/// once all of it is durable.
fn plain(path: &Path) -> String {
    let text = path.display().to_string();
    if let Some((above, _)) = text.split_once("/fjall.new") {
        return format!("{above}/fjall.new");
    }
    let parts = text.split('.');
    let is_number = |part: &&str| part.len() >= 8 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = parts
        .map(|part| if is_number(&part) { "*" } else { part })
        .collect();
    let text = parts.join(".");
    if text.is_empty() {
        ".".to_owned()
    } else {
        text
    }
}
