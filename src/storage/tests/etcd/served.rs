//! The etcd of the drop-in: a memory store behind etcd's API passes the suite that real etcd passes.

use super::*;
use polyplane_storage::{EtcdServer, MemoryOptions, MemoryStore};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

struct Served {
    endpoint: String,
    task: JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = listener.local_addr().expect("bound").to_string();
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let server = EtcdServer::new(store).await.expect("an empty store");
        Self {
            endpoint,
            task: tokio::spawn(server.run(vec![listener])),
        }
    }

    async fn connect(&self, prefix: &str) -> Arc<EtcdStore> {
        let options = EtcdOptions {
            endpoints: vec![self.endpoint.clone()],
            prefix: Bytes::copy_from_slice(prefix.as_bytes()),
            ..EtcdOptions::default()
        };
        EtcdStore::connect(options).await.expect("it answers")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_memory_store_behind_etcds_api_conforms() {
    let served = Arc::new(Served::start().await);
    let mut number = 0;
    conformance::run(|| {
        number += 1;
        let served = Arc::clone(&served);
        let prefix = format!("/case-{number}/");
        async move { served.connect(&prefix).await as Arc<dyn Store> }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lease_ends_with_the_connection_of_its_replica() {
    let served = Served::start().await;
    let (first, second) = (served.connect("/a/").await, served.connect("/a/").await);
    let lease = first
        .lease_grant(Duration::from_secs(3600))
        .await
        .expect("granted");
    let op = Op::Put {
        key: "member".into(),
        value: "first".into(),
        lease: Some(lease),
    };
    done(&first, vec![op, put("other", "stays")]).await;
    assert!(value(&second, "member").await.is_some());
    first.close().await;
    drop(first);
    eventually("the key goes with its replica", async || {
        value(&second, "member").await.is_none()
    })
    .await;
    assert_eq!(
        value(&second, "other").await.as_deref(),
        Some(&b"stays"[..])
    );
}
