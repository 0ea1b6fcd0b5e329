//! The file that names the format of a store, and its word for a copy that has not begun.

use std::fs;

use super::super::folder::{copy_has_begun, engine_of};
use super::{Engine, Options, get, put};
use crate::OpenError;

pub(super) async fn newer_and_unreadable_formats_are_refused<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    E::open(folder.path()).close().await;
    let format = folder.path().join("format");
    fs::write(&format, format!("polyplane-store {} 7\n", E::FORMAT.engine)).expect("written");
    let error = E::try_open(folder.path(), Options::default())
        .err()
        .expect("refused");
    assert!(
        matches!(
            error,
            OpenError::Newer {
                found: 7,
                supported: 1
            }
        ),
        "{error}"
    );
    fs::write(&format, "polyplane-store other 1\n").expect("written");
    let error = E::try_open(folder.path(), Options::default())
        .err()
        .expect("refused");
    assert!(
        matches!(&error, OpenError::OtherEngine { found, used, .. }
            if found == "other" && *used == E::FORMAT.engine),
        "{error}"
    );
    let found = engine_of(folder.path()).expect("read");
    assert_eq!(found.as_deref(), Some("other"));
    fs::write(&format, "something else\n").expect("written");
    let error = E::try_open(folder.path(), Options::default())
        .err()
        .expect("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    fs::remove_file(&format).expect("removed");
    let error = E::try_open(folder.path(), Options::default())
        .err()
        .expect("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    let data = folder.path().join(E::FORMAT.data);
    let removed = match data.is_dir() {
        true => fs::remove_dir_all(&data),
        false => fs::remove_file(&data),
    };
    removed.expect("removed");
    let path = folder.path().join("format/inside/a/file");
    fs::write(&format, "a file").expect("written");
    let error = E::try_open(&path, Options::default())
        .err()
        .expect("refused");
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

/// Whenever a copy is killed before it has put its record: the format is the first file that it leaves.
pub(super) async fn only_a_copy_opens_the_store_that_it_has_created_and_not_begun<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let target = || {
        let options = Options {
            is_copy_target: true,
            ..Options::default()
        };
        E::try_open(&path, options).expect("the copy opens it")
    };
    let check_refused = || {
        let error = E::try_open(&path, Options::default()).err();
        let error = error.expect("refused");
        assert!(matches!(error, OpenError::UnfinishedCopy { .. }), "{error}");
        let found = engine_of(&path).expect("read");
        assert_eq!(found.as_deref(), Some(E::FORMAT.engine));
    };
    target().close().await;
    let format = fs::read(path.join("format")).expect("read");
    check_refused();
    fs::remove_dir_all(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    fs::write(path.join("format"), format).expect("written");
    check_refused();
    let store = target();
    store.commit(put("copy", "x")).await.expect("committed");
    store.close().await;
    check_refused();
    let store = target();
    copy_has_begun(&path).expect("written");
    store.close().await;
    let store = E::open(&path);
    assert_eq!(get(&*store, "copy").await, Some("x".into()));
    store.close().await;
    target().close().await;
}
