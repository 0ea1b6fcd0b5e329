//! Servers that a command starts itself, each with a store of its own.
//!
//! This module owns the processes and their folders. Both are gone when a [`Server`] is dropped,
//! which also happens when the command is interrupted or fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use serde::Serialize;
use tempfile::TempDir;

use crate::proc::{Process, has_ended};
use crate::program;
use crate::results::Side;
use crate::ring::Ring;
use crate::target::{Place, Target};

/// Connections to each server.
const CONNECTIONS: usize = 4;
/// The plane that is not the root plane.
const TENANT: &str = "bench-tenant";
/// How long a killed process may take to disappear, before its folder is removed anyway.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The plane that gets the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Plane {
    /// The root plane, which watches the store's keys and so does more for each write
    Root,
    /// A plane that the command creates, as every user has it
    Tenant,
}

/// A program with the store that it runs on.
#[derive(Clone, Debug)]
pub struct Build {
    /// The program.
    pub program: PathBuf,
    /// Its commit, if that is known.
    pub commit: Option<String>,
    /// `etcd` starts `serve` on an etcd of its own. Any other text is for `up --store`, and `{dir}`
    /// in it stands for the server's folder. Absent: `up` with its default.
    pub store: Option<String>,
    /// Further arguments of `up`.
    pub options: Vec<String>,
}

impl Build {
    /// Returns the tagged release.
    ///
    /// # Errors
    /// Returns an error if its commit is not in this clone or does not build.
    pub fn tagged(store: Option<String>) -> Result<Self> {
        let (program, commit) = program::tagged()?;
        Ok(Self {
            program,
            commit: Some(commit),
            store,
            options: Vec::new(),
        })
    }

    /// Returns the program of this tree.
    ///
    /// # Errors
    /// Returns an error if there is no program, or it does not build.
    pub fn current(store: Option<String>) -> Result<Self> {
        Ok(Self {
            program: program::current()?,
            commit: None,
            store,
            options: Vec::new(),
        })
    }

    /// Returns what a result file says about the build.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn side(&self, name: &str) -> Result<Side> {
        let version = program::output_of(Command::new(&self.program).arg("--version"))?;
        let file = self.program.file_name();
        Ok(Side {
            name: name.to_owned(),
            program: file.map(|name| name.to_string_lossy().into_owned()),
            version: Some(version.trim().to_owned()),
            commit: self.commit.clone(),
            store: self.store.clone(),
        })
    }
}

/// A running server. Dropping it ends its processes and removes its folder.
pub struct Server {
    /// The root plane.
    pub root: Target,
    /// The plane under load, which may be the root plane.
    pub plane: Target,
    host: Host,
}

/// The processes of a server.
enum Host {
    Up(Box<UpHost>),
    Ring(Box<Ring>),
}

/// `polyplane up` and its folder.
struct UpHost {
    up: Option<Up>,
    pid: u32,
    _folder: TempDir,
}

impl Drop for UpHost {
    #[expect(
        clippy::disallowed_methods,
        reason = "drop cannot wait otherwise, and the load has ended"
    )]
    fn drop(&mut self) {
        // Dropping `Up` kills the process. A process that still writes would leave files behind
        // when the folder is removed, so wait for its end.
        if self.up.take().is_some() {
            let begin = Instant::now();
            while !has_ended(self.pid) && begin.elapsed() < END_LIMIT {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Server {
    /// Starts a server and connects to the plane.
    ///
    /// # Errors
    /// Returns an error if the server does not start, or the plane does not become Ready.
    pub async fn start(label: &str, build: &Build, plane: Plane) -> Result<Self> {
        match build.store.as_deref() {
            Some("etcd") => Self::on_etcd(label, &build.program, plane).await,
            _ => Self::up(label, build, plane).await,
        }
    }

    async fn up(label: &str, build: &Build, plane: Plane) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let store = build.store.as_ref();
        let store = store.map(|text| text.replace("{dir}", &folder.path().to_string_lossy()));
        let options = store.iter().flat_map(|store| ["--store", store.as_str()]);
        let options: Vec<&str> = options
            .chain(build.options.iter().map(String::as_str))
            .collect();
        let up = Up::start_program(&build.program, folder.path(), &options).await?;
        let pid = up.pid()?;
        let place = |context: &str| Place {
            kubeconfig: up.kubeconfig.clone(),
            context: Some(context.to_owned()),
        };
        let root = Target::open(label, &place("root"), &[pid], CONNECTIONS).await?;
        let plane = match plane {
            Plane::Root => Target::open(label, &place("root"), &[pid], CONNECTIONS).await?,
            Plane::Tenant => {
                let endpoint = create_plane(&up.root()?, TENANT).await?;
                let processes = vec![Process::find(pid)?];
                Target::connect(label, &endpoint, processes, CONNECTIONS).await?
            }
        };
        let host = Host::Up(Box::new(UpHost {
            up: Some(up),
            pid,
            _folder: folder,
        }));
        Ok(Self { root, plane, host })
    }

    async fn on_etcd(label: &str, program: &Path, plane: Plane) -> Result<Self> {
        let ring = Ring::start_program(program, 1).await?;
        let name = match plane {
            Plane::Root => "root",
            Plane::Tenant => {
                ring.plane_at(TENANT, 0).await?;
                TENANT
            }
        };
        let mut root = ring.target(0, "root", CONNECTIONS).await?;
        let mut plane = ring.target(0, name, CONNECTIONS).await?;
        for target in [&mut root, &mut plane] {
            label.clone_into(&mut target.label);
        }
        let host = Host::Ring(Box::new(ring));
        Ok(Self { root, plane, host })
    }

    /// Returns the kubeconfig that leads to the root plane, if the server is a process of its own.
    pub fn place(&self) -> Option<Place> {
        let Host::Up(host) = &self.host else {
            return None;
        };
        Some(Place {
            kubeconfig: host.up.as_ref()?.kubeconfig.clone(),
            context: Some("root".to_owned()),
        })
    }

    /// Ends the server with SIGTERM and removes its folder.
    ///
    /// # Errors
    /// Returns an error if the server does not end, or has failed.
    pub async fn stop(self) -> Result<()> {
        let label = self.plane.label.clone();
        match self.host {
            Host::Ring(ring) => ring.stop().await?,
            Host::Up(mut host) => {
                if let Some(up) = host.up.take() {
                    let status = up.stop().await?;
                    ensure!(status.success(), "the server {label} ended with {status}");
                }
            }
        }
        Ok(())
    }
}
