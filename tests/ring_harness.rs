//! Tests of the ring harness itself, with one server: its load, its faults and its records.
//!
//! One server on its embedded store is behind the balancer and is killed under load; a store of
//! three members loses its leader; a network is cut and healed.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::checker::{Allowed, check};
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::addresses::Block;
use polyplane_tests::ring::balancer::{Balancer, Probing};
use polyplane_tests::ring::controller::{Controller, Manners, Places, Template};
use polyplane_tests::ring::etcd::Cluster;
use polyplane_tests::ring::figures::{Figures, Spread};
use polyplane_tests::ring::load::{Load, Mix, make_planes};
use polyplane_tests::ring::network::Network;
use polyplane_tests::ring::process::{Launch, Told};
use polyplane_tests::ring::replica::{CLIENT_PORT, Start};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

const PLANES: usize = 10;
const KILLS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_server_acknowledged_outlives_kill_9_under_load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let program = polyplane()?;
    let words = data.to_string_lossy().into_owned();
    let template: Template = Box::new(move |pod| {
        let serve = Launch::of(&program)
            .with(["up", "--dir", &words])
            .with(["--listen", &pod.client().to_string()]);
        Ok(Start {
            serve,
            pre_stop: None,
        })
    });
    let block = Block::take()?;
    let address = SocketAddr::from((block.first(), CLIENT_PORT));
    let balancer = Balancer::start(address, Probing::default()).await?;
    let mut controller = Controller::new(
        "up",
        template,
        balancer,
        &data.join("kubeconfig"),
        Manners::default(),
        Places::Loopback(block),
        folder.path(),
    );
    controller.scale(1).await?;
    let root = controller.admin()?;
    let planes = make_planes(&root, "p", PLANES).await?;
    let mix = Mix {
        per_second: 150.0,
        ..Mix::default()
    };
    let load = Load::start(&root, &planes, mix).await?;
    let mut gaps = Vec::new();
    for _ in 0..KILLS {
        sleep(Duration::from_secs(2)).await;
        let fault = load.now();
        controller.kill(0).await?;
        let (restarted, found) = tokio::join!(controller.restart(0), load.gaps(fault));
        restarted?;
        gaps.extend(found?);
    }
    sleep(Duration::from_secs(2)).await;
    let (history, left_out) = load.finish().await?;
    let figures = Figures::of(&history, left_out);
    println!("{KILLS} kills: {figures}");
    println!("gap to the first write of a plane: {}", Spread::of(gaps));
    let verdict = check(&history, Allowed::default());
    println!("{verdict}");
    ensure!(verdict.is_right(), "the run is faulty");
    ensure!(
        figures.answered > 500 && figures.events > 200,
        "a run of too little"
    );
    ensure!(left_out == 0, "the generator was too slow");
    let ended = controller.remove(0).await?;
    println!("ended in {} ms", ended.as_millis());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_three_outlives_its_leader() -> Result<()> {
    let mut cluster = Cluster::start(3, &[], &[]).await?;
    let first = cluster.leader().await?;
    cluster.kill_member(first).await?;
    let began = Instant::now();
    let second = loop {
        match cluster.leader().await {
            Ok(leader) if leader != first => break leader,
            _ if began.elapsed() > Duration::from_secs(20) => anyhow::bail!("no new leader"),
            _ => sleep(Duration::from_millis(50)).await,
        }
    };
    println!("a new leader after {} ms", began.elapsed().as_millis());
    cluster.start_member(first)?;
    cluster.wait_ready().await?;
    cluster.tell_member(second, Told::Stand)?;
    cluster.tell_member(second, Told::GoOn)?;
    cluster.wait_ready().await?;
    cluster.alarm_no_space(true).await?;
    cluster.alarm_no_space(false).await?;
    cluster.wait_ready().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_network_says_nothing_and_heals() -> Result<()> {
    let Some(mut network) = Network::make(2)? else {
        return Ok(());
    };
    // The test is a machine of the network too, so a listener of its own shows the partition.
    let own = network.own();
    let listener = TcpListener::bind((own, 0))?;
    let port = listener.local_addr()?.port();
    let node = network.nodes()[0].clone();
    let dial = || {
        let script = format!("exec 3<>/dev/tcp/{own}/{port}");
        let launch = Launch::of("bash").with(["-c", &script]);
        let mut command = launch.command(Some(&node));
        async move { anyhow::Ok(command.status().await?.success()) }
    };
    let quick = Duration::from_secs(2);
    ensure!(
        timeout(quick, dial()).await.context("no answer")??,
        "not connected"
    );
    network.cut(own, node.address)?;
    ensure!(
        timeout(quick, dial()).await.is_err(),
        "the cut lets something through"
    );
    network.heal()?;
    ensure!(
        timeout(quick, dial()).await.context("not healed")??,
        "not healed"
    );
    let nobody = SocketAddr::from((network.nodes()[1].address, 1));
    let refused = timeout(quick, TcpStream::connect(nobody))
        .await
        .context("no answer")?;
    ensure!(refused.is_err(), "nobody listens there");
    Ok(())
}
