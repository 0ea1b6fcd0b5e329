//! The file of the log: it is renamed once it is full, and old files are removed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use polyplane_apimachinery::time::Timestamp;

/// A file that rotates.
pub(crate) struct RotatingFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// True if the file ends within a line, because a write failed there.
    is_torn: bool,
    /// The length in bytes from which the file is renamed; 0 for never.
    bytes_max: u64,
    /// Renamed files that are kept; 0 for all.
    kept_max: usize,
    /// The age from which renamed files are removed; zero for never.
    age_max: Duration,
}

impl RotatingFile {
    /// Opens the file, which may exist. Only its owner may read it.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub(crate) fn open(
        path: &Path,
        bytes_max: u64,
        kept_max: usize,
        age_max: Duration,
    ) -> io::Result<Self> {
        let file = open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            is_torn: false,
            bytes_max,
            kept_max,
            age_max,
        })
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// Returns the error of the file system; a part of the lines may have been written.
    pub(crate) fn append(&mut self, lines: &[u8], now: SystemTime) -> io::Result<()> {
        let after = self.bytes + lines.len() as u64;
        if self.bytes_max > 0 && self.bytes > 0 && after > self.bytes_max {
            self.rotate(now)?;
        }
        if self.is_torn {
            // Else the next line would be lost too.
            self.write(b"\n")?;
        }
        self.write(lines)
    }

    /// Writes whole lines, and notes whether it failed within them.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut rest = lines;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.bytes += count as u64;
                    rest = &rest[count..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        match std::fs::rename(&self.path, self.free_name(now)) {
            // Somebody has moved or removed the file: what is written from now on is in a new one, as upstream.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = open(&self.path)?;
        self.bytes = 0;
        self.is_torn = false;
        // The events do not depend on it, and the next rotation tries again.
        if let Err(error) = self.remove_old(now) {
            tracing::warn!(%error, "old files of the audit log were not removed");
        }
        Ok(())
    }

    /// Returns a name that no file has: the log's with the time in it.
    fn free_name(&self, now: SystemTime) -> PathBuf {
        let time = Timestamp::from(now).to_rfc3339().replace(':', "-");
        let (stem, end) = self.parts();
        let mut number = 0;
        loop {
            let name = format!("{stem}-{time}.{number:03}{end}");
            let path = self.path.with_file_name(name);
            if !path.exists() {
                return path;
            }
            number += 1;
        }
    }

    /// Returns the file's name before and from its last dot.
    fn parts(&self) -> (String, String) {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        match name.rfind('.') {
            Some(dot) if dot > 0 => (name[..dot].to_owned(), name[dot..].to_owned()),
            _ => (name.into_owned(), String::new()),
        }
    }

    fn remove_old(&self, now: SystemTime) -> io::Result<()> {
        let mut renamed = self.renamed()?;
        renamed.sort();
        let surplus = match self.kept_max {
            0 => 0,
            kept => renamed.len().saturating_sub(kept),
        };
        for (place, path) in renamed.iter().enumerate() {
            let age = std::fs::metadata(path).and_then(|about| about.modified());
            let age = age.ok().and_then(|at| now.duration_since(at).ok());
            let is_old = !self.age_max.is_zero() && age.is_some_and(|age| age > self.age_max);
            if place < surplus || is_old {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Returns the files that this one was renamed to, oldest first by name.
    fn renamed(&self) -> io::Result<Vec<PathBuf>> {
        let (stem, end) = self.parts();
        let folder = self.path.parent().filter(|path| *path != Path::new(""));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let time = name
                .strip_prefix(&format!("{stem}-"))
                .and_then(|rest| rest.strip_suffix(end.as_str()));
            // A time as `free_name` writes it. Other files of a like name are not ours.
            if time.is_some_and(|time| time.len() >= 24 && time.as_bytes()[10] == b'T') {
                found.push(path);
            }
        }
        Ok(found)
    }
}

/// Opens the file. Its folder is made if there is none.
fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_renamed_and_old_ones_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        std::fs::write(folder.path().join("audit-notes.log"), "mine").expect("written");
        let mut file = RotatingFile::open(&path, 100, 2, Duration::ZERO).expect("it opens");
        let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for number in 0..40 {
            now += Duration::from_secs(1);
            let line = format!("{number:029}\n");
            file.append(line.as_bytes(), now).expect("it is written");
        }
        let mut names: Vec<String> = std::fs::read_dir(folder.path())
            .expect("it is read")
            .map(|entry| {
                entry
                    .expect("it is read")
                    .file_name()
                    .to_string_lossy()
                    .into()
            })
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(names.contains(&"audit-notes.log".to_owned()), "{names:?}");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("read");
        let all = format!(
            "{}{}{}",
            read(&names[0]),
            read(&names[1]),
            read("audit.log")
        );
        // Three lines fill a file, so two renamed ones and the current one have the last seven.
        let expected: Vec<String> = (33..40).map(|number| format!("{number:029}")).collect();
        assert_eq!(all.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_log_whose_folder_was_removed_goes_on_in_a_new_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("logs").join("audit.log");
        let mut file = RotatingFile::open(&path, 10, 0, Duration::ZERO).expect("it opens");
        let now = SystemTime::now();
        file.append(b"first--\n", now).expect("it is written");
        std::fs::remove_dir_all(folder.path().join("logs")).expect("removed");
        for line in [b"second-\n", b"third--\n"] {
            file.append(line, now).expect("it is written");
        }
        assert_eq!(std::fs::read(&path).expect("read"), b"third--\n");
    }

    #[test]
    fn a_line_after_a_torn_one_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        let mut file = RotatingFile::open(&path, 0, 0, Duration::ZERO).expect("it opens");
        let now = SystemTime::now();
        file.append(b"torn", now).expect("it is written");
        file.is_torn = true;
        file.append(b"whole\n", now).expect("it is written");
        file.append(b"next\n", now).expect("it is written");
        assert_eq!(std::fs::read(&path).expect("read"), b"torn\nwhole\nnext\n");
    }

    #[test]
    fn files_of_an_age_go_and_a_restart_appends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit");
        let hour = Duration::from_secs(3600);
        let open = || RotatingFile::open(&path, 10, 0, hour).expect("it opens");
        let now = SystemTime::now();
        open().append(b"first--\n", now).expect("it is written");
        open().append(b"second-\n", now).expect("it is written");
        let later = now + 3 * hour;
        open().append(b"third--\n", later).expect("it is written");
        let count = std::fs::read_dir(folder.path())
            .expect("it is read")
            .count();
        // Both renamed files are older than an hour by then.
        assert_eq!(count, 1);
        assert_eq!(std::fs::read(&path).expect("read"), b"third--\n");
    }
}
