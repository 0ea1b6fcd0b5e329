//! Deletions of very many objects at once: a namespace with its content, and an owner with its
//! dependents, here and on the reference with its controller manager.
//!
//! An operation is one such deletion, from the request until nothing is left. CPU is that of the server,
//! of its store and of what collects: the owner of a plane collects by itself, the reference has a
//! controller manager for it. The looks whether everything is gone are in it, on both sides alike.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use polyplane_tests::programs::Server as Program;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lane::Content;
use crate::mass_objects::{KINDS, LEASES, lease, namespace_path};
use crate::objects::text;
use crate::proc::Process;
use crate::report::{Format, Spread};
use crate::servers::{Build, Plane, Server};
use crate::target::{Place, Target};

/// Requests under way while objects are created.
const CREATED_AT_ONCE: usize = 64;
/// Time between two looks whether everything is gone.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How long a deletion may take. The reference's garbage collector needs minutes.
const GONE_LIMIT: Duration = Duration::from_secs(1800);
const CONNECTIONS: usize = 4;
const OWNER: &str = "owner";

/// What is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Deletion {
    /// A namespace with objects of ten kinds
    Namespace,
    /// An owner, and its dependents behind it
    Background,
    /// An owner that waits for its dependents
    Foreground,
    /// An owner that leaves its dependents to nobody
    Orphan,
}

/// What is deleted, how much of it, and where.
#[derive(Args)]
pub struct MassArguments {
    /// Deletions; all if none is named
    #[arg(value_enum)]
    deletions: Vec<Deletion>,
    /// Objects in the namespace, of ten kinds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
    objects: u64,
    /// Dependents of the owner
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    dependents: u64,
    /// Rounds; each has every deletion once on each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Leave the reference out
    #[arg(long)]
    alone: bool,
    /// The store of the server: `etcd`, or a value of `up --store`
    #[arg(long)]
    store: Option<String>,
}

/// One server that deletes.
struct Site {
    target: Target,
    _reference: Option<Program>,
}

/// What one deletion took.
#[derive(Clone, Debug, Serialize)]
struct Taken {
    seconds: f64,
    /// CPU seconds of all processes.
    cpu_seconds: f64,
    /// CPU seconds of each process.
    by_process: Vec<(String, f64)>,
}

/// Prints what each deletion takes on each side, and the ratios.
///
/// # Errors
/// Returns an error if a server does not start, refuses something, or does not get rid of everything.
pub async fn mass_deletion(arguments: &MassArguments, format: Format) -> Result<()> {
    let deletions = match arguments.deletions.is_empty() {
        true => Deletion::value_variants().to_vec(),
        false => arguments.deletions.clone(),
    };
    let build = Build::current(arguments.store.clone())?;
    let server = Server::start("Polyplane", &build, Plane::Tenant).await?;
    let mut sites = vec![Site {
        target: server.plane.reconnected().await?,
        _reference: None,
    }];
    if !arguments.alone {
        sites.push(reference().await?);
    }
    for deletion in deletions {
        let mut taken = vec![Vec::new(); sites.len()];
        for round in 0..arguments.rounds {
            for (site, taken) in sites.iter().zip(&mut taken) {
                let one = site.delete(deletion, round, arguments).await;
                let one = one.with_context(|| format!("{deletion:?} at {}", site.target.label))?;
                eprintln!("{deletion:?} at {}: {one:?}", site.target.label);
                taken.push(one);
            }
        }
        print(deletion, &sites, &taken, format);
    }
    drop(sites);
    server.stop().await
}

/// Starts the reference with controllers that are not slowed down: by default its garbage collector
/// deletes twenty objects a second.
async fn reference() -> Result<Site> {
    let program = Program::start_reference_unthrottled().await?;
    let place = Place {
        kubeconfig: program.kubeconfig.clone(),
        context: None,
    };
    let mut target = Target::open("reference", &place, &[], CONNECTIONS).await?;
    target.processes.push(controllers(program.folder())?);
    Ok(Site {
        target,
        _reference: Some(program),
    })
}

/// Returns the reference's controller manager.
fn controllers(folder: &Path) -> Result<Process> {
    let file = folder.join("controllers-pid");
    let text = std::fs::read_to_string(&file).context("the reference names no controllers")?;
    Process::find(text.trim().parse()?)
}

impl Site {
    async fn delete(
        &self,
        deletion: Deletion,
        round: u32,
        arguments: &MassArguments,
    ) -> Result<Taken> {
        let name = format!("mass-{}-{round}", std::process::id());
        let namespace = namespace_path(&name);
        let body = json!({"metadata": {"name": name}});
        self.target
            .lane()
            .create("/api/v1/namespaces", text(&body))
            .await?;
        if deletion == Deletion::Namespace {
            self.fill(&namespace, arguments.objects).await?;
            let taken = self.timed(&namespace, "Background", &[]).await?;
            return Ok(taken);
        }
        let owner = format!("{namespace}/configmaps/{OWNER}");
        let dependents = LEASES.collection(&namespace);
        self.own(&namespace, &dependents, arguments.dependents)
            .await?;
        let policy = match deletion {
            Deletion::Orphan => "Orphan",
            Deletion::Foreground => "Foreground",
            Deletion::Background | Deletion::Namespace => "Background",
        };
        let gone = match deletion {
            Deletion::Orphan => Vec::new(),
            _ => vec![dependents.as_str()],
        };
        let taken = self.timed(&owner, policy, &gone).await?;
        if deletion == Deletion::Orphan {
            self.check_orphans(&dependents, arguments.dependents)
                .await?;
        }
        // So that the next deletion finds the server as this one did.
        self.timed(&namespace, "Background", &[]).await?;
        Ok(taken)
    }

    /// Creates as many objects of each of the ten kinds.
    async fn fill(&self, namespace: &str, objects: u64) -> Result<()> {
        let each = objects / KINDS.len() as u64;
        let all = KINDS
            .iter()
            .flat_map(|kind| (0..each).map(move |number| (kind, number)));
        let made = stream::iter(all).map(|(kind, number)| {
            let (collection, body) = (kind.collection(namespace), kind.body(number));
            async move { self.target.lane().create(&collection, body).await }
        });
        made.buffer_unordered(CREATED_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Creates an owner and its dependents.
    async fn own(&self, namespace: &str, dependents: &str, count: u64) -> Result<()> {
        let body = Content::Json(text(&json!({"metadata": {"name": OWNER}})));
        let collection = format!("{namespace}/configmaps");
        let owner = self
            .target
            .lane()
            .call(Method::POST, &collection, body)
            .await?;
        let owner: Value = serde_json::from_slice(&owner)?;
        let uid = owner["metadata"]["uid"]
            .as_str()
            .context("an owner has a uid")?;
        let lanes = self.target.lanes.iter().cycle();
        let made = stream::iter((0..count).zip(lanes)).map(|(number, lane)| {
            let body = lease(number, OWNER, uid);
            async move { lane.create(dependents, body).await }
        });
        made.buffer_unordered(CREATED_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// Deletes the object, and waits until it is gone and the collections are empty.
    async fn timed(&self, path: &str, policy: &str, collections: &[&str]) -> Result<Taken> {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy});
        let before = self.cpu()?;
        let began = Instant::now();
        let body = Content::Json(text(&options));
        self.target.lane().call(Method::DELETE, path, body).await?;
        loop {
            if self.is_gone(path).await? && self.are_empty(collections).await? {
                break;
            }
            ensure!(began.elapsed() < GONE_LIMIT, "{path} is not gone");
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let by_process: Vec<(String, f64)> = before
            .into_iter()
            .zip(self.cpu()?)
            .map(|((name, before), (_, after))| (name, after.since(&before).as_secs_f64()))
            .collect();
        Ok(Taken {
            seconds,
            cpu_seconds: by_process.iter().map(|(_, seconds)| seconds).sum(),
            by_process,
        })
    }

    fn cpu(&self) -> Result<Vec<(String, crate::proc::CpuTime)>> {
        let processes = self.target.processes.iter();
        processes
            .map(|one| Ok((one.name.clone(), one.cpu()?)))
            .collect()
    }

    async fn is_gone(&self, path: &str) -> Result<bool> {
        let request = self
            .target
            .lane()
            .request(Method::GET, path, Content::None)?;
        let (status, body) = self.target.lane().start(request).await?;
        body.collect().await?;
        Ok(status == StatusCode::NOT_FOUND)
    }

    async fn are_empty(&self, collections: &[&str]) -> Result<bool> {
        for collection in collections {
            if self.count(collection).await? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of objects of a collection.
    async fn count(&self, collection: &str) -> Result<u64> {
        let path = format!("{collection}?limit=1");
        let answer = self
            .target
            .lane()
            .call(Method::GET, &path, Content::None)
            .await?;
        let list: Value = serde_json::from_slice(&answer)?;
        let listed = list["items"].as_array().map_or(0, Vec::len) as u64;
        Ok(listed + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0))
    }

    /// Checks that all dependents are left, and that the last of them has no owner.
    async fn check_orphans(&self, dependents: &str, count: u64) -> Result<()> {
        let left = self.count(dependents).await?;
        ensure!(left == count, "{left} of {count} dependents are left");
        let path = format!("{dependents}/{}", LEASES.name(count - 1));
        let answer = self
            .target
            .lane()
            .call(Method::GET, &path, Content::None)
            .await?;
        let object: Value = serde_json::from_slice(&answer)?;
        ensure!(
            object["metadata"]["ownerReferences"].is_null(),
            "an orphan has an owner"
        );
        Ok(())
    }
}

fn print(deletion: Deletion, sites: &[Site], taken: &[Vec<Taken>], format: Format) {
    let name = deletion.to_possible_value();
    let name = name.as_ref().map_or("", |value| value.get_name());
    if format == Format::Json {
        let sides: Vec<Value> = sites
            .iter()
            .zip(taken)
            .map(|(site, taken)| json!({"side": site.target.label, "rounds": taken}))
            .collect();
        println!("{}", json!({"deletion": name, "sides": sides}));
        return;
    }
    let spread =
        |taken: &[Taken], of: fn(&Taken) -> f64| Spread::of(taken.iter().map(of).collect());
    let text = |spread: Option<Spread>| {
        spread.map_or_else(String::new, |Spread { median, min, max }| {
            format!("{median:.2} ({min:.2} to {max:.2})")
        })
    };
    for (site, taken) in sites.iter().zip(taken) {
        println!(
            "{name} at {}: {} seconds, {} CPU seconds",
            site.target.label,
            text(spread(taken, |one| one.seconds)),
            text(spread(taken, |one| one.cpu_seconds))
        );
    }
    if let [own, reference] = taken {
        let ratios = |of: fn(&Taken) -> f64| {
            let pairs = own.iter().zip(reference);
            text(Spread::of(
                pairs.map(|(own, other)| of(other) / of(own)).collect(),
            ))
        };
        println!(
            "{name}, reference against Polyplane: time {}, CPU {}",
            ratios(|one| one.seconds),
            ratios(|one| one.cpu_seconds)
        );
    }
}
