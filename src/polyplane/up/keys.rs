//! Keys and data of `up` belong together: a server must not begin anew with one of them without a word. This
//! module only looks; it must not create or change a file.

use crate::cli::StoreKind;
use crate::replica::root_secret;
use anyhow::{Context, bail};
use polyplane_ownership::is_unfinished_copy;
use polyplane_pki::ROOT_SECRET_FILE;
use polyplane_storage::Store;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Logs a warning if the store in `folder` will be a new one although `certs` has the keys of an earlier one.
/// Called before the store is opened, which creates it.
pub fn warn_of_new_store(kind: StoreKind, folder: &Path, certs: &Path) {
    if kind != StoreKind::Memory && is_store_missing(folder, certs) {
        tracing::warn!(
            "there is no store in {}, but {} has the keys of an earlier one: the server begins with an empty \
             store. If control planes are missing, stop the server and restore the folder `store` from a \
             backup",
            folder.display(),
            certs.display()
        );
    }
}

/// Returns whether there are keys, and no store.
fn is_store_missing(folder: &Path, certs: &Path) -> bool {
    let is_empty = match std::fs::read_dir(folder.join("store")) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    is_empty && certs.join(ROOT_SECRET_FILE).exists()
}

/// Checks that the root secret is not missing in `certs` if the keys in the store derive from one. Called
/// before a missing one is made.
///
/// # Errors
/// Returns an error that says which file is missing, or one of the store.
pub async fn check_root_secret(store: &Arc<dyn Store>, certs: &Path) -> anyhow::Result<()> {
    let file = certs.join(ROOT_SECRET_FILE);
    if file.exists() {
        return Ok(());
    }
    if is_unfinished_copy(store).await? {
        // The server is refused for that, and the copy may have a secret by the time it is complete.
        return Ok(());
    }
    let is_agreed = root_secret::is_agreed(store).await;
    if is_agreed.context("the store cannot be used")? {
        bail!(
            "{} is missing, and the keys of the control planes in the store derive from it: restore it from \
             a backup, with the other files of its folder. A new one would not fit, so none was made",
            file.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use polyplane_ownership::agreement;
    use polyplane_pki::make_root_secret;

    #[tokio::test]
    async fn a_root_secret_that_the_store_needs_is_not_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let certs = folder.path().join("pki");
        let store = crate::store::embedded(StoreKind::Memory, folder.path()).await;
        let store = store.expect("opened");
        let check = async || check_root_secret(&store, &certs).await;
        check().await.expect("a new store has no keys yet");
        let value = Bytes::from_static(&[7; 32]);
        let agreed = agreement::agree(&store, "root-secret/1", value).await;
        agreed.expect("written");
        let refused = check().await.expect_err("it is missing").to_string();
        let file = certs.join(ROOT_SECRET_FILE).display().to_string();
        assert!(refused.contains(&file), "{refused}");
        assert!(refused.contains("restore it"), "{refused}");
        assert!(!certs.exists(), "nothing was made");
        make_root_secret(&certs).expect("made");
        check().await.expect("the comparison comes later");
    }

    #[test]
    fn a_store_is_missing_only_beside_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let certs = folder.path().join("pki");
        let is_missing = || is_store_missing(folder.path(), &certs);
        assert!(!is_missing(), "everything is new");
        make_root_secret(&certs).expect("made");
        assert!(is_missing());
        let store = folder.path().join("store");
        std::fs::create_dir(&store).expect("made");
        assert!(is_missing(), "an empty folder is no store");
        std::fs::write(store.join("format"), "").expect("written");
        assert!(!is_missing());
    }
}
