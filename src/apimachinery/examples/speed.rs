//! Measures how long the work on one object takes: `cargo run --release -p polyplane-apimachinery
//! --example speed`. Each line is the fastest of several rounds, which is the time on an
//! undisturbed machine.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::schema::decode::Empties;

/// The same allocator as in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(folder.join("../batteries/data/schemas.json"))?;
    let first = Instant::now();
    let schemas = Schemas::parse(&data)?;
    line("Schemas::parse, first", data.len(), first.elapsed());
    line(
        "Schemas::parse",
        data.len(),
        best(20, 1, || Schemas::parse(&data)),
    );
    for (kind, text) in [("Pod", POD.to_owned()), ("ConfigMap", config_map())] {
        let text = text.as_bytes();
        let id = schemas
            .kind("", "v1", kind)
            .ok_or("the kind is not served")?;
        let limits = Limits::default();
        let tree = json::parse(text, &limits)?.value;
        line(
            &format!("{kind}: json::parse"),
            text.len(),
            best(50, 500, || json::parse(text, &limits)),
        );
        let copied = best(50, 500, || tree.clone());
        line(&format!("{kind}: clone of the tree"), text.len(), copied);
        let decoded = best(50, 500, || {
            let mut tree = tree.clone();
            schemas.decode(id, &mut tree, Empties::Null).map(|_| tree)
        });
        line(
            &format!("{kind}: decode"),
            text.len(),
            decoded.saturating_sub(copied),
        );
        let mut defaulted = tree.clone();
        schemas.decode(id, &mut defaulted, Empties::Null)?;
        schemas.apply_defaults(id, &mut defaulted);
        let defaults = best(50, 500, || schemas.apply_defaults(id, &mut defaulted));
        line(&format!("{kind}: apply_defaults"), text.len(), defaults);
        let encoded = best(50, 500, || schemas.encode_stored(id, &tree));
        line(&format!("{kind}: encode_stored"), text.len(), encoded);
        let both = decoded.saturating_sub(copied) + encoded;
        line(&format!("{kind}: decode + encode"), text.len(), both);
    }
    Ok(())
}

fn line(what: &str, bytes: usize, time: Duration) {
    println!(
        "{what:28} {bytes:>8} bytes {:>10.2} µs",
        time.as_secs_f64() * 1e6
    );
}

/// Returns the time of one call in the fastest of `rounds` rounds of `calls` calls.
fn best<T>(rounds: usize, calls: u32, mut call: impl FnMut() -> T) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..calls {
            drop(black_box(call()));
        }
        least = least.min(start.elapsed() / calls);
    }
    least
}

/// Returns a ConfigMap of one kilobyte.
fn config_map() -> String {
    let data: Vec<String> = (0..12)
        .map(|at| {
            format!(
                "\"key-{at}.conf\":\"value of number {at}, {}\"",
                "x".repeat(40)
            )
        })
        .collect();
    format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"settings\",\"namespace\":\"default\",\
         \"labels\":{{\"app\":\"web\"}}}},\"data\":{{{}}}}}",
        data.join(",")
    )
}

/// A Pod as clients often get it.
const POD: &str = include_str!("pod.json");
