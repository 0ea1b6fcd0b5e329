//! A TCP proxy between a store and its etcd that can lose what it carries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LOSE_REQUESTS: u8 = 1;
const LOSE_REPLIES: u8 = 2;

/// See the module.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    lose: Arc<AtomicU8>,
    /// Counts up to cut all connections.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let lose = Arc::new(AtomicU8::new(0));
        let cuts = watch::Sender::new(0);
        let (losing, cutting) = (Arc::clone(&lose), cuts.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else {
                    continue;
                };
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                let (client_read, client_write) = client.into_split();
                let (server_read, server_write) = server.into_split();
                let requests = (client_read, server_write, LOSE_REQUESTS);
                let replies = (server_read, client_write, LOSE_REPLIES);
                for (from, to, bit) in [requests, replies] {
                    let mut cut = cutting.subscribe();
                    let losing = Arc::clone(&losing);
                    tokio::spawn(async move {
                        tokio::select! {
                            _ = cut.changed() => {}
                            () = carry(from, to, bit, &losing) => {}
                        }
                    });
                }
            }
        });
        Self { port, lose, cuts }
    }

    /// What the store sends does not arrive from now on.
    pub(crate) fn lose_requests(&self) {
        self.lose.store(LOSE_REQUESTS, Ordering::SeqCst);
    }

    /// What etcd answers does not arrive from now on.
    pub(crate) fn lose_replies(&self) {
        self.lose.store(LOSE_REPLIES, Ordering::SeqCst);
    }

    /// Cuts all connections; new ones lose nothing.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.lose.store(0, Ordering::SeqCst);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bit: u8, lose: &AtomicU8) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if lose.load(Ordering::SeqCst) & bit == 0 && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
