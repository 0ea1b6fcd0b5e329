//! The etcd engine on real etcd: the conformance suite, and what only a cluster can show.

#[path = "etcd/cluster.rs"]
mod cluster;
#[path = "etcd/compaction.rs"]
mod compaction;
#[path = "etcd/proxy.rs"]
mod proxy;
#[path = "etcd/quota.rs"]
mod quota;
#[path = "etcd/rotation.rs"]
mod rotation;
#[path = "etcd/served.rs"]
mod served;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use polyplane_storage::{
    CommitError, Committed, Compare, EtcdOptions, EtcdStore, EtcdTls, Health, Op, OpenError,
    ReadError, Rejection, Revision, Store, StoreEvent, Txn, WatchEnd, conformance,
};

use cluster::Cluster;
use proxy::Proxy;

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
    Op::Put {
        key: key.into(),
        value: value.into(),
        lease: None,
    }
}

fn txn(ops: Vec<Op>) -> Txn {
    Txn {
        compares: Vec::new(),
        ops,
    }
}

async fn done(store: &EtcdStore, ops: Vec<Op>) -> Revision {
    store.commit(txn(ops)).await.expect("committed").revision
}

async fn value(store: &EtcdStore, key: &str) -> Option<Bytes> {
    let found = store.get(key.as_bytes()).await.expect("read").1;
    found.map(|found| found.value)
}

/// Asks until the answer is yes.
async fn eventually(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ask().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn fresh(cluster: &Cluster, number: u32) -> Arc<dyn Store> {
    let options = EtcdOptions {
        prefix: format!("/case-{number}/").into(),
        ..cluster.options()
    };
    cluster.connect_with(options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn etcd_conforms() {
    let cluster = Cluster::one();
    let mut number = 0;
    conformance::run(|| {
        number += 1;
        fresh(&cluster, number)
    })
    .await;
}

#[test]
fn etcd_follows_the_model_over_openings() {
    let cluster = Cluster::one();
    leave_revision_one(&cluster);
    let number = AtomicU32::new(0);
    conformance::model(12, |again| {
        let number = number.fetch_add(u32::from(again.is_none()), Ordering::SeqCst)
            + u32::from(again.is_none());
        let cluster = &cluster;
        async move {
            if let Some(store) = again {
                store.close().await;
            }
            fresh(cluster, number).await
        }
    });
}

/// Commits once, so that the model's floor is above revision 1. Nobody can compact away what is at
/// revision 1, see `compaction::revision_one_reads_whole_in_a_store_that_did_not_compact_it_itself`.
fn leave_revision_one(cluster: &Cluster) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = cluster.connect().await;
        done(&store, vec![put("before", "the model")]).await;
        store.close().await;
    });
}

/// Commits one key after the other until told to stop; gives what was acknowledged and how often
/// the outcome was unknown.
async fn write_on(store: Arc<EtcdStore>, stop: Arc<AtomicU32>) -> (BTreeMap<u64, Revision>, usize) {
    let (mut acknowledged, mut unknown) = (BTreeMap::new(), 0);
    for number in 0_u64.. {
        if stop.load(Ordering::SeqCst) > 0 {
            break;
        }
        match store.commit(txn(vec![put("k", number.to_string())])).await {
            Ok(Committed { revision }) => {
                acknowledged.insert(number, revision);
            }
            Err(CommitError::Unknown(_)) => unknown += 1,
            Err(CommitError::Rejected(Rejection::ReadOnly(_))) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    (acknowledged, unknown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cluster_with_a_member_lost_commits_and_watches_on() {
    let mut cluster = Cluster::start(3, "http", &[]);
    let store = cluster.connect().await;
    let start = store.revision().await.expect("read");
    let mut watch = store
        .watch(Bytes::new(), Bytes::new(), start)
        .await
        .expect("a watch");
    let stop = Arc::new(AtomicU32::new(0));
    let writer = tokio::spawn(write_on(Arc::clone(&store), Arc::clone(&stop)));
    for killed in [false, true] {
        // The leader is the one asked, so that this hits where it hurts.
        let lost = cluster.leader();
        match killed {
            false => cluster.members[lost].pause(),
            true => cluster.members[lost].kill(),
        }
        let cut = Instant::now();
        let mut after = 0;
        eventually("commits go on", async || {
            let ok = store.commit(txn(vec![put("probe", "x")])).await.is_ok();
            after += u32::from(ok);
            after >= 20
        })
        .await;
        println!(
            "leader {}: 20 further commits within {:?}",
            if killed { "killed" } else { "stopped" },
            cut.elapsed()
        );
        match killed {
            false => cluster.members[lost].resume(),
            true => cluster.members[lost].start(),
        }
        eventually("all members are back", async || {
            let answers = |n: usize| cluster.members[n].endpoint();
            let all = (0..3).map(answers).collect::<Vec<_>>();
            let options = EtcdOptions {
                endpoints: vec![all[lost].clone()],
                open_timeout: Duration::from_secs(1),
                ..cluster.options()
            };
            EtcdStore::connect(options).await.is_ok()
        })
        .await;
    }
    stop.store(1, Ordering::SeqCst);
    let (acknowledged, unknown) = writer.await.expect("the writer ends");
    println!(
        "{} commits acknowledged, {unknown} unknown",
        acknowledged.len()
    );
    let last = done(&store, vec![put("end", "x")]).await;
    let mut told: Vec<StoreEvent> = Vec::new();
    let mut at = start;
    while at < last {
        let batch = watch.next().await.expect("the watch goes on");
        assert!(batch.revision > at, "no revision twice, none out of order");
        at = batch.revision;
        told.extend(batch.events);
    }
    let history = store.history(Bytes::new(), Bytes::new(), start).await;
    let history = history.expect("read");
    assert_eq!(history.revision, last);
    assert!(told == history.events, "the watch is the history");
    for (number, revision) in acknowledged {
        let found = told.iter().find(|e| e.revision == revision && e.key == "k");
        let found = found.and_then(|event| event.value.clone());
        assert_eq!(found, Some(number.to_string().into()), "acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_waits_for_a_leader_but_not_for_a_store_that_is_away() {
    let mut cluster = Cluster::start(3, "http", &[]);
    let store = cluster.connect().await;
    done(&store, vec![put("k", "0")]).await;
    let no_leader = || matches!(store.health(), Health::Failed { .. });
    for lost in [0, 1] {
        cluster.members[lost].kill();
    }
    eventually("no member is fit", async || no_leader()).await;
    let sent = store.commit(txn(vec![put("k", "1")]));
    let (sent, ()) = tokio::join!(sent, async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.members[0].start();
    });
    // It was kept until a member could be asked. Who leads may change once more meanwhile.
    assert!(
        matches!(sent, Ok(_) | Err(CommitError::Unknown(_))),
        "{sent:?}"
    );
    eventually("commits go on", async || {
        store.commit(txn(vec![put("k", "1")])).await.is_ok()
    })
    .await;
    cluster.members[0].kill();
    eventually("no member is fit again", async || no_leader()).await;
    // A member that was its cluster's leader may take itself for one until it misses the others, and
    // a transaction that it got then is lost with an unknown outcome. The next ones find no member.
    let killed = Instant::now();
    let (not_sent, waited) = loop {
        let began = Instant::now();
        match store.commit(txn(vec![put("k", "2")])).await {
            Err(CommitError::Unknown(_)) if killed.elapsed() < Duration::from_secs(30) => {}
            outcome => break (outcome, began.elapsed()),
        }
    };
    assert!(
        matches!(not_sent, Err(CommitError::Rejected(Rejection::ReadOnly(_)))),
        "{not_sent:?}"
    );
    assert!(waited > Duration::from_secs(2), "only {waited:?}");
    let began = Instant::now();
    let not_sent = store.commit(txn(vec![put("k", "3")])).await;
    assert!(
        matches!(not_sent, Err(CommitError::Rejected(Rejection::ReadOnly(_)))),
        "{not_sent:?}"
    );
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(1), "it waited {waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_is_needed_and_checked() {
    let cluster = Cluster::one();
    // Waits until it is there.
    cluster.connect().await.close().await;
    cluster.ctl(&["user", "add", "root:secret"]);
    cluster.ctl(&["user", "grant-role", "root", "root"]);
    cluster.ctl(&["role", "add", "planes"]);
    cluster.ctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "planes",
        "readwrite",
        "/polyplane/",
    ]);
    cluster.ctl(&["user", "add", "planes:word"]);
    cluster.ctl(&["user", "grant-role", "planes", "planes"]);
    cluster.ctl(&["auth", "enable"]);
    let with = |user: Option<(&str, &str)>| EtcdOptions {
        user: user.map(|(name, password)| (name.to_owned(), password.into())),
        open_timeout: Duration::from_secs(2),
        ..cluster.options()
    };
    let wrong = EtcdStore::connect(with(Some(("planes", "wrong")))).await;
    assert!(
        matches!(wrong, Err(OpenError::Login { .. })),
        "{:?}",
        wrong.err()
    );
    let without = EtcdStore::connect(with(None)).await;
    assert!(
        matches!(without, Err(OpenError::Login { .. })),
        "{:?}",
        without.err()
    );
    let store = cluster.connect_with(with(Some(("planes", "word")))).await;
    let after = done(&store, vec![put("k", "1")]).await;
    let mut watch = store
        .watch("k".into(), "l".into(), after)
        .await
        .expect("a watch");
    let lease = store.lease_grant(Duration::from_secs(60)).await;
    let lease = lease.expect("a lease");
    let leased = Op::Put {
        key: "k".into(),
        value: "2".into(),
        lease: Some(lease),
    };
    let at = done(&store, vec![leased]).await;
    assert_eq!(watch.next().await.expect("told").revision, at);
    store.lease_keep_alive(lease).await.expect("kept");
    store.lease_revoke(lease).await.expect("revoked");
    assert_eq!(value(&store, "k").await, None);
    let elsewhere = EtcdOptions {
        prefix: "/elsewhere/".into(),
        ..with(Some(("planes", "word")))
    };
    let elsewhere = EtcdStore::connect(elsewhere).await;
    assert!(
        matches!(elsewhere, Err(OpenError::Login { .. })),
        "{:?}",
        elsewhere.err()
    );
    let grant = [
        "role",
        "revoke-permission",
        "--prefix=true",
        "planes",
        "/polyplane/",
    ];
    cluster.ctl(&[&["--user=root:secret"][..], &grant[..]].concat());
    let denied = store.commit(txn(vec![put("k", "1")])).await;
    assert!(
        matches!(&denied, Err(CommitError::Rejected(Rejection::ReadOnly(why))) if why.contains("denied")),
        "{denied:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_shows_who_is_who() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        (pem, Issuer::new(params, key))
    };
    let (ca, issuer) = authority("etcd");
    let (other_ca, _) = authority("another");
    let leaf = |name: &str| {
        let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]);
        let key = KeyPair::generate().expect("a key");
        let cert = params.expect("names").signed_by(&key, &issuer);
        (cert.expect("signed").pem(), key.serialize_pem())
    };
    let files = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (server_cert, server_key) = leaf("etcd.internal");
    let flags = [
        format!("--trusted-ca-file={}", file("ca", &ca)),
        format!("--cert-file={}", file("cert", &server_cert)),
        format!("--key-file={}", file("key", &server_key)),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let cluster = Cluster::start(1, "https", &flags);
    let (cert, key) = leaf("client");
    let tls = EtcdTls {
        ca: Some(ca.into()),
        cert_and_key: Some((cert.into(), key.into())),
        server_name: Some("etcd.internal".to_owned()),
    };
    let with = |tls: EtcdTls| EtcdOptions {
        tls: Some(tls),
        ..cluster.options()
    };
    let store = cluster.connect_with(with(tls.clone())).await;
    done(&store, vec![put("k", "1")]).await;
    assert_eq!(value(&store, "k").await, Some("1".into()));
    let other_ca = EtcdTls {
        ca: Some(other_ca.into()),
        ..tls.clone()
    };
    let other_name = EtcdTls {
        server_name: Some("not.internal".to_owned()),
        ..tls.clone()
    };
    for tls in [other_ca, other_name] {
        let options = EtcdOptions {
            // Nothing heals by waiting, so nobody waits for this.
            open_timeout: Duration::from_secs(3600),
            ..with(tls)
        };
        let refused = EtcdStore::connect(options).await;
        assert!(
            matches!(refused, Err(OpenError::Untrusted { .. })),
            "{:?}",
            refused.err()
        );
    }
    // The TLS handshake succeeds for a client without a certificate. Then etcd closes the
    // connection, so this looks like a broken one.
    let options = EtcdOptions {
        open_timeout: Duration::from_millis(500),
        ..with(EtcdTls {
            cert_and_key: None,
            ..tls
        })
    };
    let refused = EtcdStore::connect(options).await;
    assert!(
        matches!(
            refused,
            Err(OpenError::Untrusted { .. } | OpenError::Unreachable { .. })
        ),
        "{:?}",
        refused.err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_a_commit_leaves_it_unknown() {
    let cluster = Cluster::one();
    let direct = cluster.connect().await;
    let proxy = Proxy::start(cluster.members[0].client_port).await;
    let options = EtcdOptions {
        endpoints: vec![format!("127.0.0.1:{}", proxy.port)],
        ..cluster.options()
    };
    let store = cluster.connect_with(options).await;
    let start = done(&store, vec![put("k", "0")]).await;
    let mut watch = store
        .watch("k".into(), "l".into(), start)
        .await
        .expect("a watch");
    // Its answer is lost: it is done.
    proxy.lose_replies();
    let (sent, ()) = tokio::join!(store.commit(txn(vec![put("k", "1")])), async {
        eventually("the commit is done", async || {
            value(&direct, "k").await == Some("1".into())
        })
        .await;
        proxy.cut();
    });
    assert!(matches!(sent, Err(CommitError::Unknown(_))), "{sent:?}");
    // It is lost itself: it is not done.
    eventually("the store is back", async || {
        store.commit(txn(vec![put("k", "2")])).await.is_ok()
    })
    .await;
    proxy.lose_requests();
    let (sent, ()) = tokio::join!(store.commit(txn(vec![put("k", "3")])), async {
        // Long enough that the request has left; whether it had does not change the answer.
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.cut();
    });
    assert!(matches!(sent, Err(CommitError::Unknown(_))), "{sent:?}");
    assert_eq!(value(&direct, "k").await, Some("2".into()));
    let last = done(&direct, vec![put("k", "4")]).await;
    // The watch has been cut twice and tells everything once.
    let mut told = Vec::new();
    let mut at = start;
    while at < last {
        let batch = watch.next().await.expect("the watch goes on");
        at = batch.revision;
        told.extend(batch.events);
    }
    let history = direct.history("k".into(), "l".into(), start).await;
    assert_eq!(told, history.expect("read").events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_compare_is_not_taken_for_an_unknown_outcome_and_the_other_way_round() {
    let cluster = Cluster::one();
    let store = cluster.connect().await;
    let at = done(&store, vec![put("fence", "a")]).await;
    let compare = |revision| Compare::Unchanged {
        key: "fence".into(),
        revision,
    };
    let with = |revision| Txn {
        compares: vec![compare(revision)],
        ops: vec![put("k", "1")],
    };
    drop(cluster);
    let lost = store.commit(with(at)).await;
    assert!(
        matches!(
            lost,
            Err(CommitError::Unknown(_) | CommitError::Rejected(Rejection::ReadOnly(_)))
        ),
        "{lost:?}"
    );
    eventually("it is known that etcd is gone", async || {
        matches!(store.health(), Health::Failed { .. })
    })
    .await;
    let not_sent = store.commit(with(at)).await;
    assert!(
        matches!(not_sent, Err(CommitError::Rejected(Rejection::ReadOnly(_)))),
        "{not_sent:?}"
    );
    let read = store.get(b"k").await;
    assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_two_clusters_are_refused() {
    let (one, other) = (Cluster::one(), Cluster::one());
    one.connect().await;
    other.connect().await;
    // Often: the answers of the two race.
    for _ in 0..50 {
        let options = EtcdOptions {
            endpoints: [one.endpoints(), other.endpoints()].concat(),
            ..one.options()
        };
        let refused = EtcdStore::connect(options).await;
        assert!(
            matches!(refused, Err(OpenError::Refused { .. })),
            "{:?}",
            refused.err()
        );
    }
}

#[tokio::test]
async fn nonsense_is_told_before_anything_is_sent() {
    let tls = EtcdTls {
        ca: Some("not a certificate".into()),
        ..EtcdTls::default()
    };
    let nonsense = [
        (vec![], None),
        (vec!["etcd"], None),
        (vec!["ftp://etcd:2379"], None),
        (vec!["http://etcd:2379"], Some(EtcdTls::default())),
        (vec!["etcd:2379"], Some(tls)),
    ];
    for (endpoints, tls) in nonsense {
        let options = EtcdOptions {
            endpoints: endpoints.iter().map(|e| (*e).to_owned()).collect(),
            tls,
            open_timeout: Duration::ZERO,
            ..EtcdOptions::default()
        };
        let error = EtcdStore::connect(options).await.err().expect("refused");
        assert!(
            matches!(
                error,
                OpenError::Options { .. } | OpenError::Unreachable { .. }
            ),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_watches() {
    let cluster = Cluster::one();
    let store = cluster.connect().await;
    let after = store.revision().await.expect("read");
    let mut watch = store
        .watch(Bytes::new(), Bytes::new(), after)
        .await
        .expect("a watch");
    drop(store);
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
}
