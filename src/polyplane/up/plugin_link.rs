//! `bin/kubectl-plane` in the data folder: a link to this program, so that `kubectl plane` works
//! once the folder is on PATH.

use std::path::Path;

/// Creates or corrects the link. A failure is only logged, because the server can serve without it.
pub fn write_plugin(folder: &Path) {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let bin = folder.join("bin");
    let link = bin.join("kubectl-plane");
    if std::fs::read_link(&link).is_ok_and(|target| target == program) {
        return;
    }
    let _ = std::fs::create_dir_all(&bin);
    let _ = std::fs::remove_file(&link);
    if let Err(error) = std::os::unix::fs::symlink(&program, &link) {
        tracing::warn!(%error, "`kubectl plane` is not available from {}", bin.display());
    }
}
