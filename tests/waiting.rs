//! A replica whose etcd is down at its start waits for etcd, reports why, ends at once on SIGTERM,
//! and serves as soon as etcd is up. One whose etcd runs out of space goes on reading, and one that starts
//! then says why it waits. The tests also cover which paths the metrics token opens, and a drain with a given serving certificate.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, polyplane};
use polyplane_tests::ring::addresses::free_ports;
use polyplane_tests::ring::etcd::Cluster;
use polyplane_tests::ring::process::{Launch, Process, Told};
use serde_json::json;
use tokio::time::Instant;

/// The longest time of any step on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time until a replica that holds no plane has ended. Its grace is 25 s.
const END_LIMIT: Duration = Duration::from_secs(10);
const TOKEN: &str = "metrics-0123456789abcdef";

/// One replica with a folder of its own.
struct Replica {
    process: Process,
    folder: PathBuf,
    address: String,
}

impl Replica {
    fn start(name: &str, folder: &Path, store: &str) -> Result<Self> {
        Self::start_with(name, folder, store, &[])
    }

    /// Starts a replica, and returns once it serves.
    async fn ready(name: &str, folder: &Path, store: &str) -> Result<Self> {
        let mut replica = Self::start(name, folder, store)?;
        replica
            .until("/readyz", |reply| reply.status == 200)
            .await?;
        Ok(replica)
    }

    fn start_with(name: &str, folder: &Path, store: &str, options: &[&str]) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(folder.join("certs"))?;
        let token = folder.join("metrics.token");
        std::fs::write(&token, format!("{TOKEN}\n"))?;
        let ports = free_ports(Ipv4Addr::LOCALHOST, 2)?;
        let address = |at: usize| format!("127.0.0.1:{}", ports[at]);
        let launch = Launch::of(polyplane()?)
            .with(["serve", "--store", store, "--replica-id", name])
            .with(["--listen", &address(0), "--endpoint", &address(0)])
            .with(["--peer-listen", &address(1), "--advertise", &address(1)])
            .with(["--certs", &folder.join("certs").to_string_lossy()])
            .with(["--metrics-token-file", &token.to_string_lossy()])
            .with(options.iter().copied());
        Ok(Self {
            process: Process::start(name, &launch, None, &folder)?,
            folder,
            address: address(0),
        })
    }

    fn admin(&self) -> Result<Endpoint> {
        Endpoint::from_kubeconfig(&self.folder.join("certs/admin.kubeconfig"), None)
    }

    /// Returns a path's answer, and repeats the request until `well` accepts the answer.
    async fn until(&mut self, path: &str, well: impl Fn(&Reply) -> bool) -> Result<Reply> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let asked = async { Client::open(&self.admin()?).await?.get(path).await };
            let asked = asked.await;
            if let Ok(reply) = &asked
                && well(reply)
            {
                return asked;
            }
            ensure!(
                self.process.ended()?.is_none() && Instant::now() < deadline,
                "{path}: {asked:?}\n{}",
                self.process.last_words()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the output of `polyplane drain` with the certificates of `folder`.
    async fn drain(&self, folder: &Path) -> Result<String> {
        let mut drain = tokio::process::Command::new(polyplane()?);
        drain.args(["drain", "--server", &self.address, "--certs"]);
        let output = drain.arg(folder).output().await?;
        let said = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8(said)?)
    }

    /// Sends SIGTERM and checks that the process ends well within [`END_LIMIT`].
    async fn ended(&mut self) -> Result<()> {
        self.process.tell(Told::End)?;
        let status = self.process.end(END_LIMIT).await?;
        let status = status.with_context(|| self.process.last_words())?;
        ensure!(status.success(), "{status}: {}", self.process.last_words());
        Ok(())
    }
}

#[tokio::test]
async fn a_replica_without_its_store_waits_says_why_and_ends_at_once() -> Result<()> {
    let mut etcd = Cluster::start(1, &[], &[]).await?;
    etcd.kill_member(0).await?;
    let folder = tempfile::tempdir()?;
    let mut replica = Replica::start("early", folder.path(), &etcd.url())?;
    replica.until("/livez", |reply| reply.status == 200).await?;
    let shown = replica
        .until("/readyz", |reply| reply.status == 500)
        .await?;
    let listing = shown.body.as_str().unwrap_or_default();
    for check in ["etcd", "poststarthook/rbac/bootstrap-roles"] {
        let failed = format!("[-]{check} failed: reason withheld\n");
        ensure!(listing.contains(&failed), "{check}: {listing}");
    }
    let known = |reply: &Reply| reply.body.to_string().contains("etcd cannot be reached");
    replica.until("/readyz/etcd", known).await?;
    let metrics = replica
        .until("/metrics", |reply| reply.status == 200)
        .await?;
    let metrics = metrics.body.as_str().unwrap_or_default();
    for used_as in ["ca", "peer", "peer-ca", "serving"] {
        let label = format!("use=\"{used_as}\"}} ");
        ensure!(metrics.contains(&label), "{used_as}: {metrics}");
    }
    let refused = replica.until("/api/v1/namespaces", known).await?;
    refused.refuses(503, "waits for its store")?;
    // `kubectl plane` prints the message.
    let admin = Client::open(&replica.admin()?).await?;
    for path in ["ring", "ring/terms", "top", "locate/team-a"] {
        let refused = admin.get(&format!("/polyplane/{path}")).await?;
        refused.refuses(503, "waits for its store")?;
        ensure!(refused.body["details"]["retryAfterSeconds"] == 1);
    }
    let raise = "/polyplane/ring/raise-floor";
    let refused = admin.post(raise, &json!({})).await?;
    refused.refuses(503, "waits for its store")?;
    let listed = replica
        .until("/clusters/team-a/api/v1/pods", |_| true)
        .await?;
    ensure!(listed.status == 503, "{listed:?}");
    // A client whose credential may be good has to try again. Who has none is a stranger at once.
    let admin = replica.admin()?;
    for path in ["/clusters/team-a/api/v1/pods", "/api/v1/pods"] {
        for token in ["eyJhbGciOiJFUzI1NiJ9.e30.c2ln", "opaque"] {
            let unjudged = admin.with_token(Some(token));
            let put_off = Client::open(&unjudged).await?.get(path).await?;
            put_off.refuses(503, "is starting")?;
            let seconds = &put_off.body["details"]["retryAfterSeconds"];
            ensure!(*seconds == 1, "{put_off:?}");
        }
        let stranger = Client::open(&admin.with_token(None)).await?;
        stranger.get(path).await?.refuses(401, "Unauthorized")?;
    }
    let probe = Client::open(&admin.with_token(None)).await?;
    ensure!(probe.get("/livez").await?.status == 200);
    // The replica holds no planes, so it is drained already, and the hook before its end does not
    // wait.
    let drained = replica.drain(&replica.folder.join("certs")).await?;
    ensure!(drained == "drained\n", "{drained}");
    replica.ended().await?;

    // Another replica sees etcd start, and stop again before the replica ends.
    let mut replica = Replica::start("patient", folder.path(), &etcd.url())?;
    replica.until("/readyz/etcd", known).await?;
    etcd.start_member(0)?;
    replica
        .until("/readyz", |reply| reply.status == 200)
        .await?;
    replica
        .until("/api/v1/namespaces", |reply| reply.status == 200)
        .await?;
    ensure!(replica.process.ended()?.is_none());
    // What does not answer is named, and not only that nobody does.
    etcd.kill_member(0).await?;
    let names_store = |reply: &Reply| {
        reply
            .body
            .to_string()
            .contains("the server's store does not answer")
    };
    let refused = replica
        .until("/api/v1/namespaces?timeout=2s", names_store)
        .await?;
    refused.refuses(503, "the server's store does not answer")?;
    replica.process.kill().await
}

/// A plane is awake and another one asleep when etcd runs out of space.
#[tokio::test]
async fn a_replica_whose_etcd_is_out_of_space_stays_ready_and_reads() -> Result<()> {
    let etcd = Cluster::start(1, &[], &[]).await?;
    let folder = tempfile::tempdir()?;
    let options = ["--sleep-after", "1"];
    let mut replica = Replica::start_with("full", folder.path(), &etcd.url(), &options)?;
    replica
        .until("/readyz", |reply| reply.status == 200)
        .await?;
    let admin = replica.admin()?;
    let asleep = create_plane(&admin, "asleep").await?;
    let maps = "/api/v1/namespaces/default/configmaps";
    let kept = json!({"metadata": {"name": "kept"}});
    let plane = Client::open(&asleep).await?;
    plane.post(maps, &kept).await?.expect(201)?;
    let has = |reply: &Reply, line: &str| {
        let text = reply.body.as_str().unwrap_or_default();
        text.lines().any(|found| found == line)
    };
    // The root plane alone.
    replica
        .until("/metrics", |reply| has(reply, "polyplane_planes_awake 1"))
        .await?;
    etcd.alarm_no_space(true).await?;
    replica
        .until("/metrics", |reply| has(reply, "polyplane_store_writable 0"))
        .await?;
    let root = Client::open(&admin).await?;
    let listing = root.get("/readyz?verbose").await?.expect(200)?;
    ensure!(listing.to_string().contains("[+]etcd ok"), "{listing}");
    let planes = "/apis/polyplane.dev/v1alpha1/controlplanes";
    root.get(planes).await?.expect(200)?;
    let why = "no space: the quota of etcd is used up (NOSPACE)";
    let refused = root.delete(&format!("{planes}/asleep")).await?;
    refused.refuses(503, why)?;
    let sleeping = Client::open(&asleep).await?;
    let refused = sleeping.get(&format!("{maps}/kept")).await?;
    refused.refuses(503, &format!("while the store takes no writes: {why}"))?;
    etcd.alarm_no_space(false).await?;
    replica
        .until("/metrics", |reply| has(reply, "polyplane_store_writable 1"))
        .await?;
    sleeping.get(&format!("{maps}/kept")).await?.expect(200)?;
    replica.process.kill().await
}

/// It is started again, because a store that is full from the beginning has nothing that could be joined.
#[tokio::test]
async fn a_replica_that_starts_while_its_etcd_is_out_of_space_says_so() -> Result<()> {
    let etcd = Cluster::start(1, &[], &[]).await?;
    let folder = tempfile::tempdir()?;
    let mut replica = Replica::ready("late", folder.path(), &etcd.url()).await?;
    replica.process.kill().await?;
    // Each start has other ports.
    std::fs::remove_file(replica.folder.join("certs/admin.kubeconfig"))?;
    etcd.alarm_no_space(true).await?;
    let mut replica = Replica::start("late", folder.path(), &etcd.url())?;
    let why = "its store takes no writes: no space: the quota of etcd is used up (NOSPACE); compact and \
               defragment etcd or raise its quota, and then disarm the alarm";
    let says = |reply: &Reply| reply.body.to_string().contains(why);
    replica.until("/readyz/ring", says).await?;
    let refused = replica.until("/api/v1/namespaces", says).await?;
    refused.refuses(503, "this replica does not join the ring")?;
    ensure!(refused.body["details"]["retryAfterSeconds"] == 1);
    let of_plane = replica.until("/clusters/team-a/api/v1/pods", says).await?;
    of_plane.refuses(503, "the control plane is not available here")?;
    // It reads.
    replica
        .until("/readyz/etcd", |reply| reply.status == 200)
        .await?;
    let is_full = |reply: &Reply| {
        let text = reply.body.as_str().unwrap_or_default();
        text.lines()
            .any(|line| line == "polyplane_store_writable 0")
    };
    replica.until("/metrics", is_full).await?;
    etcd.alarm_no_space(false).await?;
    replica
        .until("/readyz", |reply| reply.status == 200)
        .await?;
    replica
        .until("/api/v1/namespaces", |reply| reply.status == 200)
        .await?;
    // A drain that cannot end says why when it has waited long enough.
    etcd.alarm_no_space(true).await?;
    let is_known = |reply: &Reply| reply.body["cause"].to_string().contains("NOSPACE");
    replica.until("/polyplane/drain", is_known).await?;
    let mut drain = tokio::process::Command::new(polyplane()?);
    drain.args(["drain", "--timeout", "1", "--server", &replica.address]);
    let output = drain.arg("--certs").arg(replica.folder.join("certs"));
    let output = output.output().await?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    for words in [
        "it still holds 1 control planes",
        "takes no writes",
        "NOSPACE",
    ] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    replica.process.kill().await
}

/// With planes that it cannot hand over and a write that waits for the store.
#[tokio::test]
async fn a_replica_whose_store_hangs_ends_within_its_grace() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(7);
    let etcd = Cluster::start(1, &[], &[]).await?;
    let folder = tempfile::tempdir()?;
    let grace = GRACE.as_secs().to_string();
    let options = ["--grace", &grace, "--drain-notice", "1"];
    let mut replica = Replica::start_with("held", folder.path(), &etcd.url(), &options)?;
    replica
        .until("/readyz", |reply| reply.status == 200)
        .await?;
    let plane = Client::open(&create_plane(&replica.admin()?, "team-a").await?).await?;
    let object = |name: &str| json!({"metadata": {"name": name}});
    let maps = "/api/v1/namespaces/default/configmaps";
    ensure!(plane.post(maps, &object("before")).await?.status == 201);
    etcd.tell_member(0, Told::Stand)?;
    let waits = tokio::spawn(async move { plane.post(maps, &object("after")).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let told = Instant::now();
    replica.process.tell(Told::End)?;
    // Its last steps may take all of the grace, so a second for a busy machine.
    let ended = replica.process.end(GRACE + Duration::from_secs(1)).await?;
    let took = told.elapsed();
    etcd.tell_member(0, Told::GoOn)?;
    waits.abort();
    ensure!(
        ended.is_some_and(|status| status.success()),
        "{ended:?} after {took:?}: {}",
        replica.process.last_words()
    );
    println!("it ended after {took:?} of {GRACE:?}");
    Ok(())
}

#[tokio::test]
async fn the_token_for_metrics_opens_metrics_and_nothing_else() -> Result<()> {
    let etcd = Cluster::start(1, &[], &[]).await?;
    let folder = tempfile::tempdir()?;
    let mut replica = Replica::ready("counted", folder.path(), &etcd.url()).await?;
    let mut endpoint = replica.admin()?;
    let plane = create_plane(&endpoint, "team-a").await?;
    endpoint.token = Some(TOKEN.to_owned());
    let reader = Client::open(&endpoint).await?;
    let metrics = reader.get("/metrics").await?;
    let text = metrics.body.as_str().unwrap_or_default();
    ensure!(
        metrics.status == 200 && text.contains("polyplane_"),
        "{metrics:?}"
    );
    for path in [
        "/",
        "/api",
        "/apis",
        "/version",
        "/metrics/",
        "/polyplane/ring",
        "/api/v1/namespaces",
        "/apis/polyplane.dev/v1alpha1/controlplanes",
        "/clusters/team-a/metrics",
        "/clusters/team-a/api/v1/namespaces",
    ] {
        let refused = reader.get(path).await?;
        ensure!(refused.status == 401, "{path}: {refused:?}");
    }
    for path in ["/metrics", "/drain"] {
        let refused = reader.post(path, &json!({})).await?;
        ensure!(
            matches!(refused.status.as_u16(), 401 | 403),
            "{path}: {refused:?}"
        );
    }
    let mut plane = plane;
    plane.token = Some(TOKEN.to_owned());
    let refused = Client::open(&plane).await?.get("/metrics").await?;
    ensure!(refused.status == 401, "{refused:?}");
    // The administrator can still read the metrics.
    let admin = Client::open(&replica.admin()?).await?;
    ensure!(admin.get("/metrics").await?.status == 200);
    replica.process.kill().await
}

/// Writes a serving certificate that a company's CA signed for the name that clients use, and for
/// no other name.
fn give_certificate(certs: &Path) -> Result<()> {
    let ca_key = rcgen::KeyPair::generate()?;
    let mut ca = rcgen::CertificateParams::new(Vec::new())?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate()?;
    let leaf = rcgen::CertificateParams::new(vec!["planes.example.org".to_owned()])?;
    let leaf = leaf.signed_by(&key, &issuer)?;
    std::fs::create_dir_all(certs)?;
    std::fs::write(certs.join("serving.crt"), leaf.pem())?;
    std::fs::write(certs.join("serving.key"), key.serialize_pem())?;
    Ok(())
}

#[tokio::test]
async fn a_replica_is_drained_whatever_its_serving_certificate_names() -> Result<()> {
    let etcd = Cluster::start(1, &[], &[]).await?;
    let folder = tempfile::tempdir()?;
    let certs = folder.path().join("given/certs");
    give_certificate(&certs)?;
    let mut replica = Replica::start("given", folder.path(), &etcd.url())?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let said = replica.drain(&certs).await?;
        // A replica that is alone cannot hand its root plane over, but the request reached it.
        if said == "drained\n" {
            break;
        }
        if said.contains("could not be given away") {
            ensure!(said.contains("no other serving replica is left"), "{said}");
            break;
        }
        // The replica does not listen yet, or has not created its keys.
        let early = said.contains("Connection refused") || said.contains("cannot read");
        ensure!(early && Instant::now() < deadline, "{said}");
    }
    // Without that certificate, `drain` trusts only the ring's CA, which did not sign it.
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir_all(&elsewhere)?;
    for name in ["ca.crt", "admin.token"] {
        std::fs::copy(certs.join(name), elsewhere.join(name))?;
    }
    let said = replica.drain(&elsewhere).await?;
    ensure!(said.contains("a certificate that is not trusted"), "{said}");
    replica.process.kill().await
}
