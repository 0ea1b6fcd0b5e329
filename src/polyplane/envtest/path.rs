//! `polyplane envtest path`: the folder that test harnesses look for their programs in, and what is
//! in it: links to this program, which acts by the name that it is called by.

use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

/// The programs that harnesses look for.
pub const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

/// Makes the folder, unless it is there, and prints its path.
///
/// # Errors
/// Returns an error if the folder cannot be made.
pub fn run(folder: Option<PathBuf>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let folder = match folder {
        Some(folder) => std::path::absolute(folder)?,
        None => cache_folder(&program)?,
    };
    make(&folder, &program).with_context(|| {
        let shown = folder.display();
        format!("cannot make the folder {shown}; name another with --dir")
    })?;
    super::etcd::print(&format!("{}\n", folder.display()))
}

/// Returns the folder of links to `program` in the user's cache.
fn cache_folder(program: &Path) -> anyhow::Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = named("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || named("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let Some(cache) = cache.or_else(home) else {
        bail!("neither HOME nor XDG_CACHE_HOME is set; name a folder with --dir");
    };
    // One folder for each place of the program, so that two builds do not change each other's links.
    let place = program.parent().unwrap_or(program).to_string_lossy();
    let place: String = place
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    Ok(cache
        .join("polyplane")
        .join("envtest")
        .join(place.trim_matches('-')))
}

fn make(folder: &Path, program: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    for name in PROGRAMS {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == program) {
            continue;
        }
        // By a rename, so that tests that start at once find the old link or the new one.
        let fresh = folder.join(format!(".{name}.{}", std::process::id()));
        symlink(program, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(())
}

/// Replaces this process by the kubectl on PATH.
///
/// # Errors
/// Returns an error if PATH has none but this program itself.
pub fn kubectl() -> anyhow::Result<()> {
    let own = std::env::current_exe().and_then(std::fs::canonicalize)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join("kubectl"))
        .find(|file| std::fs::canonicalize(file).is_ok_and(|real| real != own));
    let Some(kubectl) = found else {
        bail!("there is no kubectl on PATH, to which this one would lead");
    };
    let error = std::process::Command::new(&kubectl)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).with_context(|| format!("cannot run {}", kubectl.display()))
}

/// Returns the program of [`PROGRAMS`] that this process was called as.
pub fn called_as(argument: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(argument?).file_name()?;
    PROGRAMS.into_iter().find(|program| name == *program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_has_links_to_the_program_and_is_made_anew_for_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let links = folder.path().join("a/b");
        for program in ["/bin/true", "/bin/false", "/bin/false"] {
            make(&links, Path::new(program)).expect("made");
            let mut names: Vec<String> = std::fs::read_dir(&links)
                .expect("a folder")
                .map(|entry| {
                    entry
                        .expect("an entry")
                        .file_name()
                        .into_string()
                        .expect("text")
                })
                .collect();
            names.sort_unstable();
            assert_eq!(names, PROGRAMS);
            for name in PROGRAMS {
                let target = std::fs::read_link(links.join(name)).expect("a link");
                assert_eq!(target, Path::new(program));
            }
        }
    }

    #[test]
    fn the_name_decides_what_the_program_is() {
        let called = |name: &str| called_as(Some(OsStr::new(name)));
        assert_eq!(called("/a/b/kube-apiserver"), Some("kube-apiserver"));
        assert_eq!(called("etcd"), Some("etcd"));
        assert_eq!(called("/etcd/polyplane"), None);
        assert_eq!(called_as(None), None);
    }
}
