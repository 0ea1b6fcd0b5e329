//! `bin` in the data folder has links to this program: `kubectl-plane`, so that `kubectl plane` works
//! once the folder is on PATH, and `polyplane`, which kubeconfigs that renew themselves run.

use std::path::Path;

/// Creates or corrects the links. A failure is only logged, because the server can serve without them.
pub fn write_plugin(folder: &Path) {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let bin = folder.join("bin");
    for name in ["kubectl-plane", "polyplane"] {
        let link = bin.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == program) {
            continue;
        }
        let _ = std::fs::create_dir_all(&bin);
        let _ = std::fs::remove_file(&link);
        if let Err(error) = std::os::unix::fs::symlink(&program, &link) {
            tracing::warn!(%error, "{name} is not available from {}", bin.display());
        }
    }
}
