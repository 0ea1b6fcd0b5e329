//! Tests of several replicas in one process on a store in memory, with real listeners.

use super::*;
use crate::cli::StoreKind;
use crate::plugin::client::{Client, Refusal};
use crate::plugin::config::Target;
use crate::replica::access::authority;
use crate::replica::plane_directory::NameOrId;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::{Attributes, Decision, Masters};
use polyplane_batteries::bootstrap::{BootstrapObject, LEVEL, Restore, objects};
use polyplane_pki::{PeerTls, Pki};
use polyplane_plane::{Key, Snapshot};
use polyplane_registry::{ChainedAuthorizer, PlaneAuthorizer};
use polyplane_server::{Options, PeerLimits};
use polyplane_storage::RangeRequest;
use std::collections::BTreeMap;
use std::path::Path;

/// Newcomers to the ring. With this number and these names, the ring designates one of them as
/// owner of the root plane.
const NEWCOMERS: usize = 4;
/// How long planes may take to close.
const CLOSE: Duration = Duration::from_secs(10);

/// A replica, with the URL that its clients use and the keys of its server.
struct Started {
    replica: Replica,
    url: String,
    pki: Arc<Pki>,
}

async fn started(
    store: &Arc<dyn Store>,
    folder: &Path,
    name: &str,
    release: Arc<Release>,
    authority: Authority,
) -> anyhow::Result<Started> {
    let options = Options {
        data_folder: folder.to_owned(),
        listen: vec!["127.0.0.1:0".to_owned()],
        ..Options::default()
    };
    let completed = options.complete()?;
    let listeners = completed.listen().await?;
    let peers = TcpListener::bind("127.0.0.1:0").await?;
    let tls = PeerTls::load_or_create(&folder.join("pki"), name)?;
    let config = completed.configure()?;
    let (pki, address) = (Arc::clone(&config.pki), listeners[0].local_addr()?);
    let setup = ReplicaParts {
        encryption: None,
        store: Arc::clone(store),
        release,
        replica: ReplicaOptions {
            raise_floor_after: Duration::ZERO,
            ..ReplicaOptions::new(name.parse()?, peers.local_addr()?.to_string().parse()?)
        },
        peering: Some((PeerTransport::new(tls, PeerLimits::default()), vec![peers])),
        tokens: ServerTokens::of_admin(&pki),
        config,
        endpoint: address.to_string(),
        listeners,
        authority,
        idle: Duration::from_secs(300),
        root_secret: None,
        wait: None,
        plain: None,
        lifetimes: Default::default(),
        delegated: Default::default(),
        admission: polyplane_admission::built_in(),
        memory: Arc::default(),
    };
    Ok(Started {
        replica: Replica::start(setup).await?,
        url: format!("https://{address}"),
        pki,
    })
}

/// A newcomer requests the root plane from its holder, which streams it to the newcomer's peer
/// listener. That works only if the listener is served before the newcomer joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_a_newcomer_or_one_that_leaves_for_dead() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let (mut running, mut directories, mut roots) = (Vec::new(), Vec::new(), 0);
    for number in 0..=NEWCOMERS {
        let name = format!("r-{number}");
        let started = started(
            &store,
            folder.path(),
            &name,
            Release::own(),
            authority(None),
        )
        .await?;
        let replica = started.replica;
        replica.wake_root().await?;
        let directory = Arc::clone(&replica.directory);
        roots += usize::from(number > 0 && directory.root_here().is_some());
        directories.push(directory);
        running.push((replica.stop_handle(), tokio::spawn(replica.run(CLOSE))));
    }
    assert!(roots > 0, "no newcomer was to own the root plane");
    for (stop, run) in running {
        stop.stop();
        run.await?;
    }
    for directory in directories {
        let stats = directory.planes.ring().stats();
        assert_eq!((stats.lives_lost, stats.evictions), (0, 0), "{stats:?}");
    }
    Ok(())
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Allows everything while the plane has a config map called `open`.
struct WhileOpen;

impl PlaneAuthorizer for WhileOpen {
    fn authorize_at(&self, cut: &Snapshot, _: &Attributes<'_>) -> Decision {
        let key = Key::new("", "configmaps", Some("default"), "open");
        match cut.get(&key) {
            Some(_) => Decision::Allow,
            None => Decision::NoOpinion(String::new()),
        }
    }
}

/// Returns true if a request was carried out, and false if it was forbidden.
async fn is_allowed(client: &Client, method: &str, name: &str) -> anyhow::Result<bool> {
    let (path, body) = match method {
        "POST" => {
            let mut body = Value::object();
            body.set(&["metadata", "name"], name);
            (CONFIG_MAPS.to_owned(), Some(body))
        }
        _ => (format!("{CONFIG_MAPS}/{name}"), None),
    };
    match client.send(method, &path, body.as_ref()).await {
        Ok(_) => Ok(true),
        Err(Refusal::Status { code: 403, .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_decides_on_a_forwarded_request_by_the_last_acknowledged_write()
-> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let (mut running, mut clients) = (Vec::new(), Vec::new());
    for name in ["r-0", "r-1"] {
        let authority = Authority::new(vec![
            ChainedAuthorizer::fixed(Arc::new(Masters)),
            ChainedAuthorizer::of_cut(Arc::new(WhileOpen)),
        ]);
        let started = started(&store, folder.path(), name, Release::own(), authority).await?;
        started.replica.wake_root().await?;
        let (url, pki) = (started.url, started.pki);
        running.push((
            started.replica.stop_handle(),
            tokio::spawn(started.replica.run(CLOSE)),
        ));
        let ca = pki.root_pem().as_bytes().to_vec();
        let admin = Target::of_server(url.clone(), ca.clone(), pki.admin_token().to_owned());
        let identity = pki.issue_client("jane", &["dev"])?;
        let mut jane = Target::of_server(url, ca, String::new());
        jane.identity = Some((identity.certificate_pem.into(), identity.key_pem.into()));
        jane.token = None;
        clients.push((Client::new(&admin)?, Client::new(&jane)?));
    }
    // One of the two replicas owns the plane; requests to the other one are forwarded.
    for (here, there) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
        let (admin, _) = &clients[here];
        let (_, jane) = &clients[there];
        assert!(!is_allowed(jane, "GET", "open").await?);
        assert!(!is_allowed(jane, "POST", "made").await?);
        assert!(is_allowed(admin, "POST", "open").await?);
        assert!(is_allowed(jane, "GET", "open").await?);
        assert!(is_allowed(jane, "POST", "made").await?);
        assert!(is_allowed(jane, "DELETE", "made").await?);
        assert!(is_allowed(admin, "DELETE", "open").await?);
        assert!(!is_allowed(jane, "DELETE", "made").await?);
    }
    for (stop, run) in running {
        stop.stop();
        run.await?;
    }
    Ok(())
}

const ROLES: &str = "/clusters/a/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// The first bytes of a plane's step record once its first steps are folded.
const FOLDED_STEPS: &[u8] = &[2, 5];

/// The role that each later release changes. No role aggregates it.
const CHANGED: &str = "system:kube-aggregator";

/// Returns a release `number` levels after this program's. Each level adds a role, and changes one
/// that exists.
fn later_release(number: u32) -> anyhow::Result<Arc<Release>> {
    let mut objects = objects().to_vec();
    let rule = |resource: String| json!({"verbs": ["get"], "apiGroups": ["later.example"], "resources": [resource]});
    for object in &mut objects {
        if object.key.resource() == "clusterroles" && object.key.name() == CHANGED {
            let mut rules = object.tree.items_at(&["rules"]).to_vec();
            rules.extend((1..=number).map(|number| rule(format!("things-{number}"))));
            object.tree.set(&["rules"], rules);
        }
    }
    for number in 1..=number {
        let name = format!("later:{number}");
        let mut tree = json!({"metadata": {"name": (name.as_str())}});
        tree.set(&["rules"], vec![rule("things".to_owned())]);
        objects.push(BootstrapObject {
            key: Key::new("rbac.authorization.k8s.io", "clusterroles", None, &name),
            tree,
            restore: Restore::Step,
        });
    }
    Ok(Release::new(LEVEL + number, &objects)?)
}

/// Returns all roles of a plane, once the plane has reached a release.
async fn roles_of(client: &Client, number: u32) -> anyhow::Result<BTreeMap<String, Value>> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let list = client.send("GET", ROLES, None).await?;
        let roles = list.items_at(&["items"]).iter().map(|role| {
            let name = role.str_at(&["metadata", "name"]).to_owned();
            (name, role.clone())
        });
        let roles: BTreeMap<String, Value> = roles.collect();
        if number == 0 || roles.contains_key(&format!("later:{number}")) {
            return Ok(roles);
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "the plane does not come to release {number}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Counts the planes in the store whose steps are folded.
async fn folded(store: &Arc<dyn Store>) -> anyhow::Result<usize> {
    let (mut found, mut start) = (0, bytes::Bytes::new());
    loop {
        let page = store.range(RangeRequest::between(start, "")).await?;
        let values = page.items.iter().map(|item| &item.value);
        found += values
            .filter(|value| value.starts_with(FOLDED_STEPS))
            .count();
        match page.items.last().filter(|_| page.more) {
            None => return Ok(found),
            Some(last) => start = [&last.key[..], &[0]].concat().into(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_lives_through_releases_folds_its_steps_and_keeps_its_objects()
-> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let mut before: BTreeMap<String, Value> = BTreeMap::new();
    // The last release starts twice: the second start reads the folded steps back.
    for (number, folds) in [(0, 0), (1, 0), (2, 1), (3, 1), (3, 1)] {
        let release = later_release(number)?;
        let started = started(&store, folder.path(), "r", release, authority(None)).await?;
        started.replica.wake_root().await?;
        let ca = started.pki.root_pem().as_bytes().to_vec();
        let token = started.pki.admin_token().to_owned();
        let client = Client::new(&Target::of_server(started.url, ca, token))?;
        let stop = started.replica.stop_handle();
        let run = tokio::spawn(started.replica.run(CLOSE));
        if number == 0 {
            let plane = json!({"metadata": {"name": "a"}});
            let planes = "/apis/polyplane.dev/v1alpha1/controlplanes";
            client.send("POST", planes, Some(&plane)).await?;
        }
        let roles = roles_of(&client, number).await?;
        for (name, old) in &before {
            let (old, new): (&Value, &Value) = (old, &roles[name]);
            match name.as_str() {
                CHANGED => {
                    for field in ["uid", "creationTimestamp"] {
                        let of = |role: &Value| role.str_at(&["metadata", field]).to_owned();
                        assert_eq!(of(old), of(new), "{field} of {name}");
                    }
                    assert_eq!(new["rules"] == old["rules"], before.len() == roles.len());
                }
                _ => assert_eq!(old, new),
            }
        }
        before = roles;
        assert_eq!(
            folded(&store).await?.min(1),
            folds,
            "after release {number}"
        );
        stop.stop();
        run.await?;
    }
    Ok(())
}

/// A watch that was opened by the record from before a move goes on; one that was opened by a record
/// from before a change of access or limits ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_stays_current_while_its_plane_moves() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let started = started(&store, folder.path(), "r", Release::own(), authority(None)).await?;
    started.replica.wake_root().await?;
    let ca = started.pki.root_pem().as_bytes().to_vec();
    let token = started.pki.admin_token().to_owned();
    let client = Client::new(&Target::of_server(started.url, ca, token))?;
    let directory = Arc::clone(&started.replica.directory);
    let stop = started.replica.stop_handle();
    let run = tokio::spawn(started.replica.run(CLOSE));
    let planes = "/apis/polyplane.dev/v1alpha1/controlplanes";
    let plane = json!({"metadata": {"name": "a"}});
    let mut object = client.send("POST", planes, Some(&plane)).await?;
    let seek = async |directory: &PlaneDirectory| {
        let found = directory.seek(&NameOrId::Name("a".into())).await;
        found.map_err(|error| anyhow::anyhow!("{error:?}"))
    };
    let (record, mut pins) = (seek(&directory).await?, directory.rows.pin_changes());
    object.set(&["spec", "placement", "zone"], "z");
    let path = format!("{planes}/a");
    let mut object = client.send("PUT", &path, Some(&object)).await?;
    pins.changed().await?;
    assert!(record.is_current(&directory));
    let moved = seek(&directory).await?;
    assert_ne!(moved.birth.pin, record.birth.pin, "requests see the pin");
    let mut changes = directory.rows.access_changes();
    object.set(&["spec", "limits", "watches"], 7);
    let limited = async {
        // Limits are refused until the floor has risen.
        while client.send("PUT", &path, Some(&object)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), limited).await?;
    changes.recv().await?;
    assert!(!record.is_current(&directory) && !moved.is_current(&directory));
    stop.stop();
    run.await?;
    Ok(())
}

/// Returns an error unless the status of a plane is about this generation of its object, and names its
/// place at this server.
fn check_status(plane: &Value, generation: i64, server: &str) -> anyhow::Result<()> {
    let of_object = plane.int_at(&["metadata", "generation"]);
    let observed = plane.int_at(&["status", "observedGeneration"]);
    let url = plane.str_at(&["status", "url"]);
    anyhow::ensure!(
        (of_object, observed) == (Some(generation), Some(generation)),
        "generation {of_object:?}, observed {observed:?} and not {generation}"
    );
    anyhow::ensure!(url == format!("{server}/clusters/a"), "{url} at {server}");
    Ok(())
}

/// The second server on the store has another address. Nobody uses the plane, so nobody acts on a change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_write_of_a_control_plane_observes_it_and_says_where_it_is() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = crate::store::embedded(StoreKind::Memory, folder.path()).await?;
    let planes = "/apis/polyplane.dev/v1alpha1/controlplanes";
    let path = format!("{planes}/a");
    for first in [true, false] {
        let started = started(&store, folder.path(), "r", Release::own(), authority(None)).await?;
        started.replica.wake_root().await?;
        let ca = started.pki.root_pem().as_bytes().to_vec();
        let token = started.pki.admin_token().to_owned();
        let url = started.url;
        let client = Client::new(&Target::of_server(url.clone(), ca, token))?;
        let stop = started.replica.stop_handle();
        let run = tokio::spawn(started.replica.run(CLOSE));
        if first {
            let plane = json!({"metadata": {"name": "a"}});
            let mut plane = client.send("POST", planes, Some(&plane)).await?;
            check_status(&plane, 1, &url)?;
            plane.set(&["spec", "displayName"], "A");
            let mut plane = client.send("PUT", &path, Some(&plane)).await?;
            check_status(&plane, 2, &url)?;
            plane.set(&["metadata", "labels", "of"], "a");
            let mut plane = client.send("PUT", &path, Some(&plane)).await?;
            check_status(&plane, 2, &url)?;
            // An earlier release left it one behind, and the next write of whichever kind mends that.
            plane.set(&["status", "observedGeneration"], 1_i64);
            plane.set(&["status", "url"], "https://elsewhere");
            let status = format!("{path}/status");
            check_status(&client.send("PUT", &status, Some(&plane)).await?, 2, &url)?;
        } else {
            let plane = client.send("GET", &path, None).await?;
            let plane = client.send("PUT", &path, Some(&plane)).await?;
            check_status(&plane, 2, &url)?;
            let deleted = client.send("DELETE", &path, None).await?;
            check_status(&deleted, 3, &url)?;
        }
        stop.stop();
        run.await?;
    }
    Ok(())
}
