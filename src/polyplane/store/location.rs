//! Where a store is, as `store copy` names it: a folder or an etcd. Owns the spelling; must not know
//! what is done with the store.

use crate::cli::StoreOptions;
use crate::cli::store_command::StoreCopyOptions;
use crate::store::{Naming, etcd_options};
use anyhow::{Context, bail};
use polyplane_storage::{
    EtcdOptions, EtcdStore, FjallOptions, FjallStore, SledOptions, SledStore, Store,
    copy_has_begun, engine_of,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an embedded engine keeps history while it is open for a copy: longer than any copy takes.
/// With the time of a server, the history that is copied first would be gone when the copy ends.
const HISTORY_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an etcd may take to answer when a copy begins.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Names of engines. Alone, one is not taken for a folder: the copy would be where nobody looks for it.
const ENGINES: [&str; 5] = ["memory", "fjall", "sled", "etcd", "etcds"];
/// The prefix of keys in etcd if the URL has none: that of `serve`.
const PREFIX: &str = "/polyplane/";

/// The side of a copy that a location is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It exists, and is read.
    From,
    /// It is created if it does not exist.
    To,
}

/// An engine of embedded stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Fjall,
    Sled,
}

enum Place {
    Folder { engine: Engine, store: PathBuf },
    Etcd(Box<EtcdOptions>),
}

/// Where a store is.
pub struct Location {
    text: String,
    side: Side,
    place: Place,
}

impl Side {
    fn naming(self) -> Naming {
        match self {
            Self::From => Naming {
                url: "FROM",
                option: "--from-",
            },
            Self::To => Naming {
                url: "TO",
                option: "--to-",
            },
        }
    }
}

impl Location {
    /// Reads the location on one side of a copy.
    ///
    /// # Errors
    /// Returns an error if it cannot be understood, if the options do not fit it, or if it is to be read
    /// and does not exist.
    pub fn parse(options: &StoreCopyOptions, side: Side) -> anyhow::Result<Self> {
        let name = side.naming().url;
        let (text, files) = match side {
            Side::From => (
                &options.from,
                [&options.from_ca, &options.from_cert, &options.from_key],
            ),
            Side::To => (
                &options.to,
                [&options.to_ca, &options.to_cert, &options.to_key],
            ),
        };
        let login = match side {
            Side::From => (&options.from_user, &options.from_password_file),
            Side::To => (&options.to_user, &options.to_password_file),
        };
        let place = match text.split_once("://") {
            Some((scheme, rest)) => {
                let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = match prefix {
                    "" => PREFIX.to_owned(),
                    prefix => format!("/{prefix}"),
                };
                if !prefix.ends_with('/') {
                    bail!(
                        "{name}: the prefix {prefix:?} does not end with a slash; write {scheme}://{hosts}{prefix}/"
                    );
                }
                let [ca, cert, key] = files.map(Clone::clone);
                let typed = StoreOptions {
                    store: format!("{scheme}://{hosts}"),
                    store_ca: ca,
                    store_cert: cert,
                    store_key: key,
                    store_user: login.0.clone(),
                    store_password_file: login.1.clone(),
                    store_prefix: prefix,
                };
                let etcd = etcd_options(&typed, side.naming())?;
                Place::Etcd(Box::new(EtcdOptions {
                    open_timeout: OPEN_TIMEOUT,
                    ..etcd
                }))
            }
            None => {
                if files.iter().any(|file| file.is_some()) || login.0.is_some() {
                    bail!(
                        "{name}: {text:?} is a folder, but {}ca, {0}cert, {0}key or {0}user is given, which is \
                         for etcd; leave it out",
                        side.naming().option
                    );
                }
                folder(text, side)?
            }
        };
        Ok(Self {
            text: text.clone(),
            side,
            place,
        })
    }

    /// Returns the location as the user gave it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether two locations are certainly the same store.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (Place::Folder { store: a, .. }, Place::Folder { store: b, .. }) => {
                let real = |path: &Path| path.canonicalize().ok();
                a == b || real(a).is_some_and(|a| Some(a) == real(b))
            }
            (Place::Etcd(a), Place::Etcd(b)) => {
                a.prefix == b.prefix && a.endpoints.iter().any(|host| b.endpoints.contains(host))
            }
            (Place::Folder { .. }, Place::Etcd(_)) | (Place::Etcd(_), Place::Folder { .. }) => {
                false
            }
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Returns an error if it is in use, damaged, or cannot be reached.
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        match &self.place {
            Place::Etcd(etcd) => {
                let store = EtcdStore::connect((**etcd).clone()).await;
                Ok(store.with_context(|| self.named())? as Arc<dyn Store>)
            }
            Place::Folder { engine, store } => {
                let (engine, side, store) = (*engine, self.side, store.clone());
                let opened = tokio::task::spawn_blocking(move || open_folder(engine, side, &store));
                let opened = opened.await.context("opening the store panicked")?;
                opened.with_context(|| self.named())
            }
        }
    }

    /// Notes that the copy in this store has put its record. Until then nobody but a copy opens a folder that
    /// the copy has created; from then on a server that opens it finds the record.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub async fn note_begun(&self) -> anyhow::Result<()> {
        let Place::Folder { store, .. } = &self.place else {
            return Ok(());
        };
        let folder = store.clone();
        let noted = tokio::task::spawn_blocking(move || copy_has_begun(&folder));
        let noted = noted.await.context("writing the store's format panicked")?;
        noted.with_context(|| self.named())
    }

    fn named(&self) -> String {
        format!("{} {}", self.side.naming().url, self.text)
    }
}

fn open_folder(engine: Engine, side: Side, path: &Path) -> anyhow::Result<Arc<dyn Store>> {
    let is_copy_target = side == Side::To;
    Ok(match engine {
        Engine::Fjall => {
            let options = FjallOptions {
                history_window: HISTORY_WINDOW,
                history_bytes_max: usize::MAX,
                is_copy_target,
                ..FjallOptions::default()
            };
            Arc::new(FjallStore::open(path, options)?)
        }
        Engine::Sled => {
            let options = SledOptions {
                history_window: HISTORY_WINDOW,
                history_bytes_max: usize::MAX,
                is_copy_target,
                ..SledOptions::default()
            };
            Arc::new(SledStore::open(path, options)?)
        }
    })
}

/// Reads the location of an embedded store: the folder of `up`, or the folder `store` in it.
fn folder(text: &str, side: Side) -> anyhow::Result<Place> {
    let name = side.naming().url;
    let (engine, folder) = match text.split_once(':') {
        Some(("fjall", folder)) => (Some(Engine::Fjall), folder),
        Some(("sled", folder)) => (Some(Engine::Sled), folder),
        Some(_) | None => (None, text),
    };
    if ENGINES.contains(&text) {
        bail!(
            "{name}: {text:?} names a kind of store, but not where it is; write fjall:FOLDER, sled:FOLDER or \
             etcd://HOST:PORT, or ./{text} for a folder of that name"
        );
    }
    if folder.is_empty() {
        bail!(
            "{name}: {text:?} names no folder; write a folder, fjall:FOLDER, sled:FOLDER or etcd://HOST:PORT"
        );
    }
    let folder = std::path::absolute(folder).with_context(|| format!("{name} {text}"))?;
    let engine_in = |path: &Path| {
        let engine = engine_of(path).with_context(|| format!("{name} {text}"))?;
        anyhow::Ok(engine.map(|engine| match engine.as_str() {
            "sled" => Engine::Sled,
            _ => Engine::Fjall,
        }))
    };
    let (store, found) = match engine_in(&folder)? {
        Some(found) => (folder.clone(), Some(found)),
        None => {
            let store = folder.join("store");
            let found = engine_in(&store)?;
            (store, found)
        }
    };
    if side == Side::From && found.is_none() {
        bail!(
            "{name}: there is no store in {}; give the folder of `polyplane up --dir`",
            folder.display()
        );
    }
    let engine = engine.or(found).unwrap_or(Engine::Fjall);
    Ok(Place::Folder { engine, store })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(from: &str, to: &str) -> anyhow::Result<(Location, Location)> {
        let options = StoreCopyOptions {
            from: from.to_owned(),
            to: to.to_owned(),
            from_ca: None,
            from_cert: None,
            from_key: None,
            from_user: None,
            from_password_file: None,
            to_ca: None,
            to_cert: None,
            to_key: None,
            to_user: None,
            to_password_file: None,
        };
        let from = Location::parse(&options, Side::From)?;
        Ok((from, Location::parse(&options, Side::To)?))
    }

    #[test]
    fn an_etcd_is_named_with_its_prefix() {
        let (from, to) =
            parse("etcd://a:2379,b:2379", "etcds://c:2379/team/planes/").expect("fine");
        let Place::Etcd(etcd) = &from.place else {
            panic!("it is an etcd");
        };
        assert_eq!(etcd.endpoints, ["http://a:2379", "http://b:2379"]);
        assert_eq!(&etcd.prefix[..], b"/polyplane/");
        let Place::Etcd(etcd) = &to.place else {
            panic!("it is an etcd");
        };
        assert_eq!(etcd.endpoints, ["https://c:2379"]);
        assert_eq!(&etcd.prefix[..], b"/team/planes/");
        assert!(!from.is_same(&to));
    }

    #[test]
    fn one_store_under_two_names_is_noticed() {
        let same = |from: &str, to: &str| {
            let (from, to) = parse(from, to).expect("fine");
            from.is_same(&to)
        };
        assert!(same("etcd://a:1,b:2", "etcd://b:2/polyplane/"));
        assert!(!same("etcd://a:1", "etcd://a:1/other/"));
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path().join("store");
        drop(FjallStore::open(&store, FjallOptions::default()).expect("it opens"));
        let name = |path: &Path| path.display().to_string();
        assert!(same(&name(folder.path()), &name(&store)));
        let other = folder.path().join("other");
        assert!(!same(&name(folder.path()), &name(&other)));
        assert!(!other.exists(), "nothing is created before the copy begins");
    }

    #[test]
    fn a_wrong_location_is_refused_with_its_side_and_what_to_write() {
        let none = tempfile::tempdir().expect("a folder");
        let none = none.path().display().to_string();
        for (from, to, wanted) in [
            (&*none, "x", "FROM: there is no store in"),
            ("etcd://a", "x", "FROM: \"a\" is not HOST:PORT"),
            (
                "etcd://a:1",
                "etdc://b:1",
                "TO: \"etdc://b:1\" has an unknown scheme",
            ),
            (
                "etcd://a:1",
                "etcd://b:1/x",
                "TO: the prefix \"/x\" does not end with a slash",
            ),
            ("etcd://a:1", "sled:", "TO: \"sled:\" names no folder"),
            ("etcd://a:1", "memory", "./memory for a folder of that name"),
            ("etcd://a:1", "fjall", "TO: \"fjall\" names a kind of store"),
            ("etcd", "x", "FROM: \"etcd\" names a kind of store"),
        ] {
            let error = parse(from, to).err().expect("it is wrong").to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
