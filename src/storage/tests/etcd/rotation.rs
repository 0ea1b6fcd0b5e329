//! Credentials that are replaced while the store is open.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyplane_storage::{
    EtcdOptions, EtcdStore, EtcdTls, LeaseId, OpenError, Secret, Store as _, WatchEnd,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::cluster::Cluster;
use crate::{done, eventually, put, txn, value};

/// A CA that signs for one name.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// A certificate and its key.
    fn leaf(&self, name: &str) -> (String, String) {
        let names = vec![name.to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        (cert.pem(), key.serialize_pem())
    }
}

/// Replaces a file as a whole.
fn replace(path: &Path, text: &str) {
    let staged = path.with_extension("new");
    fs::write(&staged, text).expect("written");
    fs::rename(&staged, path).expect("renamed");
}

/// etcd forgets whom it trusted: only the new certificate is good for a connection from then on.
fn restart(cluster: &mut Cluster) {
    cluster.members[0].kill();
    cluster.members[0].start();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_replaced_while_the_store_is_open() {
    let (server, first, second) = (
        Authority::new("etcd"),
        Authority::new("clients"),
        Authority::new("clients, later"),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let file = |name: &str, text: &str| {
        replace(&path(name), text);
        path(name).display().to_string()
    };
    let (server_cert, server_key) = server.leaf("etcd.internal");
    // etcd's own gateway is a client of it, with the server's certificate.
    let trusted = |clients: &Authority| format!("{}{}", server.pem, clients.pem);
    let flags = [
        format!("--trusted-ca-file={}", file("trusted", &trusted(&first))),
        format!("--cert-file={}", file("server.crt", &server_cert)),
        format!("--key-file={}", file("server.key", &server_key)),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(1, "https", &flags);
    let old = first.leaf("client");
    file("client.crt", &old.0);
    file("client.key", &old.1);
    let with = |cert: Secret, key: Secret| EtcdOptions {
        tls: Some(EtcdTls {
            ca: Some(server.pem.as_str().into()),
            cert_and_key: Some((cert, key)),
            server_name: Some("etcd.internal".to_owned()),
        }),
        ..cluster.options()
    };
    let files = with(
        Secret::File(path("client.crt")),
        Secret::File(path("client.key")),
    );
    let given = EtcdOptions {
        open_timeout: Duration::from_secs(2),
        ..with(old.0.into(), old.1.into())
    };
    let store = cluster.connect_with(files).await;
    let after = done(&store, vec![put("k", "1")]).await;
    let mut watch = store
        .watch("k".into(), "l".into(), after)
        .await
        .expect("a watch");

    // One half of a new pair is nothing: what fits stays in use.
    let new = second.leaf("client");
    file("client.crt", &new.0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    done(&store, vec![put("k", "2")]).await;
    file("client.key", &new.1);
    // Nor is a pair that etcd does not take yet.
    tokio::time::sleep(Duration::from_secs(5)).await;
    done(&store, vec![put("k", "3")]).await;

    file("trusted", &trusted(&second));
    restart(&mut cluster);
    eventually("a commit with the new certificate", async || {
        store.commit(txn(vec![put("k", "4")])).await.is_ok()
    })
    .await;
    assert_eq!(value(&store, "k").await, Some("4".into()));
    // The watch goes on over a connection with the new certificate, or ends and is begun again.
    let seen = async {
        loop {
            match watch.next().await {
                Ok(batch) => {
                    if batch
                        .events
                        .iter()
                        .any(|event| event.value.as_deref() == Some(b"4"))
                    {
                        return;
                    }
                }
                Err(end) => {
                    assert!(!matches!(end, WatchEnd::Closed), "{end:?}");
                    watch = store
                        .watch("k".into(), "l".into(), after)
                        .await
                        .expect("a watch");
                }
            }
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
    seen.expect("the watch goes on");
    // The old certificate is good for nothing by now.
    let refused = EtcdStore::connect(given).await;
    assert!(
        matches!(refused, Err(OpenError::Unreachable { .. })),
        "{:?}",
        refused.err()
    );
    // And a second time, after a restart of etcd with nothing changed.
    restart(&mut cluster);
    eventually("a commit after a restart", async || {
        store.commit(txn(vec![put("k", "5")])).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_replaced_while_the_store_is_open() {
    let mut cluster = Cluster::one();
    cluster.connect().await;
    let as_root = ["--user=root:secret"];
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "planes:one"],
        &["user", "grant-role", "planes", "root"],
        &["auth", "enable"],
    ] {
        cluster.ctl(arguments);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let password = folder.path().join("password");
    replace(&password, "one\n");
    let options = EtcdOptions {
        user: Some(("planes".to_owned(), Secret::File(password.clone()))),
        ..cluster.options()
    };
    let store = cluster.connect_with(options).await;
    done(&store, vec![put("k", "1")]).await;
    let delete = ["user", "delete", "planes"];
    let add = ["user", "add", "planes:two"];
    let grant = ["user", "grant-role", "planes", "root"];
    for arguments in [&delete[..], &add, &grant] {
        cluster.ctl(&[&as_root, arguments].concat());
    }
    replace(&password, "two\n");
    // Its tokens are gone with it.
    restart(&mut cluster);
    eventually("a commit with the new password", async || {
        store.commit(txn(vec![put("k", "2")])).await.is_ok()
    })
    .await;
    assert_eq!(value(&store, "k").await, Some("2".into()));
}

/// Every kind of call does what it does at the first try.
async fn works(store: &EtcdStore, lease: LeaseId, now: &str) {
    let before = store.revision().await.expect("read");
    store.lease_keep_alive(lease).await.expect("kept");
    let at = done(store, vec![put("k", now.to_owned())]).await;
    let watch = store.watch("k".into(), "l".into(), before).await;
    let batch = watch.expect("a watch").next().await.expect("it brings");
    assert_eq!(batch.revision, at, "{now}");
    assert!(value(store, "k").await.is_some_and(|value| value == now));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authentication_is_switched_on_and_off_under_an_open_store() {
    let cluster = Cluster::one();
    cluster.connect().await.close().await;
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "planes:one"],
        &["user", "grant-role", "planes", "root"],
    ] {
        cluster.ctl(arguments);
    }
    let options = EtcdOptions {
        user: Some(("planes".to_owned(), "one".into())),
        ..cluster.options()
    };
    let store = cluster.connect_with(options).await;
    let after = done(&store, vec![put("old", "0")]).await;
    let mut old = store
        .watch("old".into(), "p".into(), after)
        .await
        .expect("a watch");
    let lease = store.lease_grant(Duration::from_secs(600)).await;
    let lease = lease.expect("a lease");
    // Twice, because the second time the store has tokens of the first.
    for time in ["first", "second"] {
        cluster.ctl(&["auth", "enable"]);
        works(&store, lease, &format!("{time}, on")).await;
        cluster.ctl(&["--user=root:secret", "auth", "disable"]);
        works(&store, lease, &format!("{time}, off")).await;
    }
    let last = done(&store, vec![put("old", "1")]).await;
    let mut at = after;
    while at < last {
        at = old.next().await.expect("the watch goes on").revision;
    }
}
