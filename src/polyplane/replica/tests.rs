//! Replicas of one process on a store in memory, with their real listeners.

use super::*;
use crate::cli::StoreKind;
use polyplane_server::{Options, PeerLimits, PeerTls};
use std::path::Path;

/// So many that one of them is to own the root plane, by their names.
const NEWCOMERS: usize = 4;

async fn started(store: &Arc<dyn Store>, folder: &Path, name: &str) -> anyhow::Result<Replica> {
    let options = Options {
        data_folder: folder.to_owned(),
        listen: vec!["127.0.0.1:0".to_owned()],
        ..Options::default()
    };
    let completed = options.complete()?;
    let listeners = completed.listen().await?;
    let peers = TcpListener::bind("127.0.0.1:0").await?;
    let tls = PeerTls::load_or_create(&folder.join("pki"), name)?;
    let setup = Setup {
        store: Arc::clone(store),
        release: Release::own(),
        replica: ReplicaOptions::new(name.parse()?, peers.local_addr()?.to_string().parse()?),
        peering: Some((PeerTransport::new(tls, PeerLimits::default()), vec![peers])),
        config: completed.configure()?,
        endpoint: listeners[0].local_addr()?.to_string(),
        listeners,
        idle: Duration::from_secs(300),
        metrics: None,
        wait: None,
        memory: Arc::default(),
    };
    Replica::start(setup).await
}

/// It asks the holder for the root, and the holder streams it: to a listener that is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_a_newcomer_or_one_that_leaves_for_dead() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let (mut running, mut worlds, mut roots) = (Vec::new(), Vec::new(), 0);
    for number in 0..=NEWCOMERS {
        let replica = started(&store, folder.path(), &format!("r-{number}")).await?;
        replica.wake_root().await?;
        let world = Arc::clone(&replica.world);
        roots += usize::from(number > 0 && world.root_here().is_some());
        worlds.push(world);
        running.push((replica.stop_handle(), tokio::spawn(replica.run())));
    }
    assert!(roots > 0, "no newcomer was to own the root plane");
    for (stop, run) in running {
        stop.stop();
        run.await?;
    }
    for world in worlds {
        let stats = world.planes.ring().stats();
        assert_eq!((stats.lives_lost, stats.evictions), (0, 0), "{stats:?}");
    }
    Ok(())
}
