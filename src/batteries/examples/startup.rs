//! Measures the time from the start of a process until the built-in kinds are ready and a plane can
//! be served: `cargo run --release -p polyplane-batteries --example startup`.

use std::time::Instant;

use polyplane_batteries::{bootstrap, kind_tables};

fn main() {
    let mut last = Instant::now();
    let mut line = |what: &str| {
        println!("{what:24} {:>8.0} µs", last.elapsed().as_secs_f64() * 1e6);
        last = Instant::now();
    };
    let schemas = kind_tables::schemas();
    line("kind_tables::schemas");
    let kinds = kind_tables::tenant_kinds();
    line("kind_tables::tenant_kinds");
    let objects = bootstrap::objects();
    line("bootstrap::objects");
    let layer = bootstrap::layer();
    line("bootstrap::layer");
    assert!(schemas.len() > kinds.resources().len() && layer.len() == objects.len());
}
