//! `polyplane envtest path`: the folder that test harnesses look for their programs in, and what is
//! in it: links to this program, which acts by the name that it is called by, and to the kubectl on PATH.

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
    let path = std::env::var_os("PATH").unwrap_or_default();
    make(&folder, &program, &path).with_context(|| {
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

/// Makes the folder. `path` has the folders in which a kubectl is looked for.
fn make(folder: &Path, program: &Path, path: &OsStr) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    let real_kubectl = kubectl_outside(folder, program, path);
    for name in PROGRAMS {
        // Some tests run it with no PATH.
        let target = match &real_kubectl {
            Some(kubectl) if name == "kubectl" => kubectl,
            _ => program,
        };
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        // By a rename, so that tests that start at once find the old link or the new one.
        let fresh = folder.join(format!(".{name}.{}", std::process::id()));
        symlink(target, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(())
}

/// Returns the first kubectl in the folders of `path` that is neither in `folder` nor the program itself.
fn kubectl_outside(folder: &Path, program: &Path, path: &OsStr) -> Option<PathBuf> {
    let own = std::fs::canonicalize(program).ok()?;
    std::env::split_paths(path)
        .filter(|place| place.is_absolute() && place != folder)
        .map(|place| place.join("kubectl"))
        .find(|file| std::fs::canonicalize(file).is_ok_and(|real| real != own))
}

/// Replaces this process by the kubectl on PATH. It is called only if there was none when the folder was made.
///
/// # Errors
/// Returns an error if PATH has none but this program itself.
pub fn kubectl() -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = kubectl_outside(Path::new(""), &own, &path);
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
            make(&links, Path::new(program), OsStr::new("")).expect("made");
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
    fn kubectl_is_the_one_on_path_though_it_runs_without_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let (links, other) = (folder.path().join("links"), folder.path().join("other"));
        std::fs::create_dir(&other).expect("a folder");
        symlink("/bin/false", other.join("kubectl")).expect("a link");
        // Also where the folder itself is the first on PATH.
        let path = std::env::join_paths([&links, &other]).expect("two folders");
        for _ in 0..2 {
            make(&links, Path::new("/bin/true"), &path).expect("made");
            let target = |name: &str| std::fs::read_link(links.join(name)).expect("a link");
            assert_eq!(target("kubectl"), other.join("kubectl"));
            assert_eq!(target("etcd"), Path::new("/bin/true"));
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
