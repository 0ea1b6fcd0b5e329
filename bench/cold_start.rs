//! Measures a cold start of `polyplane up`: until /readyz is 200 and until a create is durable, in
//! time and in CPU, from nothing, from a folder, and from a folder with very many planes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::{Method, StatusCode};
use polyplane_tests::kubeconfig::Endpoint;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::planes::CONTROL_PLANES;
use crate::proc::Process;
use crate::program;
use crate::report::{Format, Latencies, show_quantiles};

/// The longest time that a start may take before the run fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two checks of a server that starts; small against the milliseconds that are
/// measured.
const POLL: Duration = Duration::from_micros(200);
/// Planes that are created at a time when a folder is filled. More would not fill it faster.
const CREATES_AT_A_TIME: usize = 64;

/// What was measured of one kind of start.
#[derive(Default)]
struct Starts {
    ready: Latencies,
    /// The CPU that the server had used when it was ready.
    cpu: Latencies,
    durable: Latencies,
}

impl Starts {
    /// Starts the server in a folder, measures, and kills it.
    async fn add(&mut self, program: &Path, folder: &Path, name: &str) -> Result<()> {
        let start = Instant::now();
        let mut server = Started::new(program, folder)?;
        let lane = server.answering(folder, start).await?;
        self.ready.add(start.elapsed());
        let cpu = Process::find(server.0.id())?.cpu()?;
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        let path = "/api/v1/namespaces/default/configmaps";
        lane.call(Method::POST, path, Content::Json(body.into()))
            .await?;
        self.durable.add(start.elapsed());
        self.cpu.add(cpu.total());
        Ok(())
    }

    fn show(&self, kind: &str, format: Format) {
        for (what, values) in [
            ("/readyz is 200", &self.ready),
            ("CPU until then", &self.cpu),
            ("first create is durable", &self.durable),
        ] {
            show_quantiles(format, &format!("{kind}: {what}"), values);
        }
    }
}

/// Starts the server from nothing and then from the folder of that start, several times; and as
/// often from a folder with so many planes, unless there are to be none.
///
/// # Errors
/// Returns an error if it does not start.
pub async fn measure(rounds: u64, planes: u64, format: Format) -> Result<()> {
    let program = program::current()?;
    let (mut fresh, mut existing, mut full) =
        (Starts::default(), Starts::default(), Starts::default());
    let many = tempfile::tempdir()?;
    if planes > 0 {
        fill(&program, many.path(), planes).await?;
    }
    for round in 0..rounds {
        let folder = tempfile::tempdir()?;
        let name = format!("cold-{round}");
        fresh.add(&program, folder.path(), &name).await?;
        let name = format!("cold-{round}-again");
        existing.add(&program, folder.path(), &name).await?;
        if planes > 0 {
            full.add(&program, many.path(), &name).await?;
        }
    }
    fresh.show("from nothing", format);
    existing.show("existing folder", format);
    if planes > 0 {
        full.show(&format!("folder with {planes} planes"), format);
    }
    Ok(())
}

/// Makes a folder with so many planes, and starts the server in it once more: the first start after
/// the kill repairs what the kill left, and is not measured.
async fn fill(program: &Path, folder: &Path, planes: u64) -> Result<()> {
    let mut server = Started::new(program, folder)?;
    let lane = server.answering(folder, Instant::now()).await?;
    let lane = &lane;
    futures_util::stream::iter(0..planes)
        .map(|index| async move {
            let body = format!(
                r#"{{"apiVersion":"polyplane.dev/v1alpha1","kind":"ControlPlane","metadata":{{"name":"cold-{index}"}}}}"#
            );
            let content = Content::Json(body.into());
            lane.call(Method::POST, CONTROL_PLANES, content).await
        })
        .buffer_unordered(CREATES_AT_A_TIME)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    drop(server);
    let mut server = Started::new(program, folder)?;
    server.answering(folder, Instant::now()).await?;
    Ok(())
}

/// A server in a process of its own, which ends when this is dropped.
struct Started(Child);

impl Started {
    fn new(program: &Path, folder: &Path) -> Result<Self> {
        let child = Command::new(program)
            .arg("up")
            .arg("--dir")
            .arg(folder)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self(child))
    }

    /// Waits for the first 200 of /readyz. The kubeconfig of an earlier start may name a port on
    /// which nobody listens any more, so it is read again until it leads to the server.
    async fn answering(&mut self, folder: &Path, start: Instant) -> Result<Lane> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended with {status}");
            }
            if let Ok(endpoint) = Endpoint::from_kubeconfig(&folder.join("kubeconfig"), None)
                && let Ok(lane) = Lane::open(&endpoint).await
                && let Ok(request) = lane.request(Method::GET, "/readyz", Content::None)
                && lane.exchange(request, StatusCode::OK).await.is_ok()
            {
                return Ok(lane);
            }
            ensure!(start.elapsed() < LIMIT, "the server does not become ready");
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
