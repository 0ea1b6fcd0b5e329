//! The lease terms of a ring on etcd change under load, up and down: with all replicas well, while
//! one joins, and while the replica that would finish the change is killed. No acknowledged write
//! is lost, and no answer is stale.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::judged::{Demand, judge, loaded, wished};
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::time::{Instant, sleep};

/// How long a change may take in which a replica dies.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_terms_change_under_load_while_replicas_come_and_die() -> Result<()> {
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let refused = change(&ring, "500", "150")?.await;
    let refused = refused.err().context("the floor is not looked at")?;
    ensure!(refused.to_string().contains("raise the floor"), "{refused}");
    let program = polyplane()?;
    ring.plugin(&program, &["ring", "--raise-floor"]).await?;

    changed(&ring, "600", "200").await?;

    let asking = tokio::spawn(change(&ring, "200", "50")?);
    ring.controller.add().await?;
    println!("asked during a join: {:?}", asking.await?);
    changed(&ring, "200", "50").await?;

    let asking = tokio::spawn(change(&ring, "700", "100")?);
    let fault = load.now();
    ring.controller.kill(0).await?;
    let found = load.gaps(fault).await;
    let gaps = found.with_context(|| ring.last_words())?;
    // The replica that got the request may have died. A change that has begun continues without it.
    println!("asked during a kill: {:?}", asking.await?);
    changed(&ring, "700", "100").await?;
    ring.controller.restart(0).await?;
    let shown = ring.plugin(&program, &["terms"]).await?;
    ensure!(
        shown.contains("700 ms") && !shown.contains("changing"),
        "{shown}"
    );
    judge(&ring, load, Demand::Honest, &[], gaps).await
}

fn change(
    ring: &Ring,
    read_lease: &str,
    margin: &str,
) -> Result<impl Future<Output = Result<String>> + use<>> {
    let words = ["terms", "--read-lease", read_lease, "--margin", margin];
    Ok(ring.plugin(&polyplane()?, &words))
}

/// Requests a change until it has happened, because a replica that dies breaks its connections.
async fn changed(ring: &Ring, read_lease: &str, margin: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        match change(ring, read_lease, margin)?.await {
            Ok(shown) => {
                ensure!(shown.contains(&format!("{read_lease} ms")), "{shown}");
                println!("{read_lease} ms, {margin} ms after {:?}", began.elapsed());
                return Ok(());
            }
            Err(error) if began.elapsed() > CHANGE_LIMIT => {
                return Err(error.context(ring.last_words()));
            }
            Err(error) => println!("again: {error:#}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}
