//! The server on etcd beside a bare client that sends etcd the same transactions, and beside the
//! server on its embedded store: what a shared store costs the server itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, Compare, CompareOp, KvClient, Txn, TxnOp};
use http::Method;

use crate::arguments::EffortArguments;
use crate::interleave::{Plan, prepare_and_run};
use crate::lane::{Content, Lane};
use crate::proc::Process;
use crate::report::Block;
use crate::ring::Ring;
use crate::scenarios::Scenario;
use crate::servers::{Build, Plane, Server};

/// Transactions that the bare client has in flight, as many as a server has.
const IN_FLIGHT: usize = 8;
/// Bytes of each value, as long as the stored form of the ConfigMap that `create` sends.
const VALUE_BYTES: usize = 1_250;
/// The keys that each transaction compares, as one of the server does: a fence and a member.
const COMPARED: [&str; 2] = ["bare/fence", "bare/member"];

/// Prints what a CREATE takes of the server on etcd, beyond a bare client of etcd and beyond the
/// server on its embedded store.
///
/// # Errors
/// Returns an error if a server does not start, or a request failed.
pub async fn against_etcd(rounds: u32, effort: &EffortArguments) -> Result<()> {
    let ring = Ring::start(1).await?;
    let on_etcd = ring.target(0, "root", 4).await?;
    let metrics = ring.lane(0, "").await?;
    let bare = BareClient::connect(&ring.etcd_url()).await?;
    let embedded = Server::start("embedded", &Build::current(None)?, Plane::Root).await?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        let before = Written::read(&metrics).await?;
        let plan = Plan {
            rounds: round..round + 1,
            effort,
        };
        let targets = [&on_etcd, &embedded.plane];
        let blocks = prepare_and_run(Scenario::Create, &targets, &plan, None).await?;
        let [[on_etcd], [embedded]] = &blocks.iter().map(Vec::as_slice).collect::<Vec<_>>()[..]
        else {
            anyhow::bail!("a round has one block of each side");
        };
        let per_transaction = Written::read(&metrics).await?.since(before);
        ensure!(
            on_etcd.errors + embedded.errors == 0,
            "requests failed: {:?}",
            on_etcd.first_error
        );
        samples.push(Sample {
            server: micros_of(on_etcd, |name| name != "etcd"),
            embedded: micros_of(embedded, |_| true),
            bare: bare.run(per_transaction, effort.effort().time).await?,
            per_transaction,
        });
        samples.last().inspect(|sample| println!("{sample:.1?}"));
    }
    let median = |of: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "create on etcd: the server takes {:.1} µs an operation, a bare client {:.1} µs with {:.1} puts \
         in a transaction, the server on its embedded store {:.1} µs; on etcd beyond the bare client, \
         against embedded: {:.1} µs",
        median(|sample| sample.server),
        median(|sample| sample.bare),
        median(|sample| sample.per_transaction),
        median(|sample| sample.embedded),
        median(|sample| sample.server - sample.bare - sample.embedded),
    );
    embedded.stop().await
}

/// CPU microseconds per operation in one round.
#[derive(Debug)]
struct Sample {
    /// The server on etcd, without etcd.
    server: f64,
    /// The server on its embedded store.
    embedded: f64,
    /// The bare client, without etcd.
    bare: f64,
    /// Writes of one transaction of the server on etcd.
    per_transaction: f64,
}

fn micros_of(block: &Block, counts: impl Fn(&str) -> bool) -> f64 {
    let counted = block.server.iter().filter(|usage| counts(&usage.name));
    counted.map(|usage| usage.micros_per_operation).sum()
}

/// Numbers of writes and of transactions so far, from a server's metrics.
#[derive(Clone, Copy)]
struct Written {
    writes: f64,
    transactions: f64,
}

impl Written {
    async fn read(lane: &Lane) -> Result<Self> {
        let text = lane.call(Method::GET, "/metrics", Content::None).await?;
        let text = std::str::from_utf8(&text)?;
        let number = |name: &str| -> Result<f64> {
            let mut words = text.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = words
                .find(|(word, _)| *word == name)
                .with_context(|| format!("the server has no metric {name}"))?;
            Ok(value.parse()?)
        };
        Ok(Self {
            writes: number("polyplane_commit_writes_sum")?,
            transactions: number("polyplane_commit_writes_count")?,
        })
    }

    /// Returns the mean number of writes in one transaction since an earlier reading.
    fn since(self, before: Self) -> f64 {
        (self.writes - before.writes) / (self.transactions - before.transactions).max(1.0)
    }
}

/// A client of etcd that does nothing but send transactions.
struct BareClient {
    kv: KvClient,
    /// The revisions of the keys that are compared.
    revisions: [i64; 2],
}

impl BareClient {
    async fn connect(url: &str) -> Result<Self> {
        let mut kv = Client::connect([url], None).await?.kv_client();
        let mut revisions = [0; 2];
        for (key, revision) in COMPARED.iter().zip(&mut revisions) {
            let put = kv.put(*key, "1", None).await?;
            *revision = put.header().context("a reply has a header")?.revision();
        }
        Ok(Self { kv, revisions })
    }

    /// Sends transactions with `per_transaction` puts on average, and returns the CPU microseconds of
    /// this process for each put.
    async fn run(&self, per_transaction: f64, time: Duration) -> Result<f64> {
        let puts = AtomicU64::new(0);
        let transactions = AtomicU64::new(0);
        let until = Instant::now() + time;
        let before = Process::own().cpu()?;
        let senders = (0..IN_FLIGHT).map(|_| async {
            let mut kv = self.kv.clone();
            while Instant::now() < until {
                let at = transactions.fetch_add(1, Ordering::Relaxed);
                let through = |count: u64| (count as f64 * per_transaction) as u64;
                let keys = through(at)..through(at + 1).max(through(at) + 1);
                puts.fetch_add(keys.end - keys.start, Ordering::Relaxed);
                let reply = kv.txn(self.transaction(keys)).await?;
                ensure!(reply.succeeded(), "etcd refused a transaction");
            }
            Ok(())
        });
        futures_util::future::try_join_all(senders).await?;
        let took = Process::own().cpu()?.since(&before);
        Ok(took.as_secs_f64() * 1e6 / puts.into_inner().max(1) as f64)
    }

    fn transaction(&self, keys: std::ops::Range<u64>) -> Txn {
        let compares = COMPARED.iter().zip(self.revisions);
        let compares =
            compares.map(|(key, revision)| Compare::mod_revision(*key, CompareOp::Equal, revision));
        let puts = keys.map(|number| {
            let key = format!("bare/core/configmaps/space/object-{number:08}");
            TxnOp::put(key, vec![b'x'; VALUE_BYTES], None)
        });
        let puts: Vec<TxnOp> = puts.collect();
        Txn::new().when(compares.collect::<Vec<_>>()).and_then(puts)
    }
}
