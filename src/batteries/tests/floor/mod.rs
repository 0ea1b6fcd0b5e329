//! The shares of equal answers, and their recorded minimums.

use super::shared::recorded::parse;
use super::show;
use polyplane_apimachinery::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The parts of an answer that are compared.
pub const MEASURES: [&str; 6] = [
    "defaults", "prepare", "errors", "texts", "columns", "decode",
];

/// The number of equal cases, and the number of all cases.
#[derive(Clone, Copy, Default)]
pub struct Share {
    pub agree: usize,
    pub all: usize,
}

impl Share {
    fn per_mille(self) -> usize {
        (self.agree * 1000).checked_div(self.all).unwrap_or(1000)
    }
}

/// Prints the shares for each file, and for each folder together.
pub fn report(shares: &BTreeMap<String, [Share; 6]>) {
    println!(
        "{:60} {}",
        "share that agrees with upstream, %",
        MEASURES.map(|name| format!("{name:>15}")).join("")
    );
    for (name, share) in shares {
        println!("{name:60} {}", cells(share));
    }
    for (title, upstream) in [("all random", false), ("all of upstream's tests", true)] {
        let mut total = [Share::default(); 6];
        for (name, share) in shares {
            if name.starts_with("upstream/") != upstream {
                continue;
            }
            for (sum, share) in total.iter_mut().zip(share) {
                sum.agree += share.agree;
                sum.all += share.all;
            }
        }
        println!("{title:60} {}", cells(&total));
    }
}

fn cells(shares: &[Share; 6]) -> String {
    let cell = |share: &Share| match share.all {
        0 => format!("{:>15}", "-"),
        all => {
            let (whole, tenth) = (share.per_mille() / 10, share.per_mille() % 10);
            format!("{whole:>8}.{tenth} /{all:>4}")
        }
    };
    shares.iter().map(cell).collect()
}

/// Compares with the shares recorded in `floor.json`, or records them.
pub fn check_floor(shares: &BTreeMap<String, [Share; 6]>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/floor.json");
    if std::env::var_os("RECORD").is_some() {
        let mut lines = Vec::new();
        for (name, share) in shares {
            let members: Map = MEASURES
                .iter()
                .zip(share)
                .map(|(measure, share)| (*measure, share.per_mille() as i64))
                .collect();
            lines.push(format!("{name:?}:{}", show(&Value::Object(members))));
        }
        let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
        std::fs::write(&path, text).expect("the floor can be written");
        return;
    }
    let text = std::fs::read_to_string(&path).expect("the floor is recorded");
    let floor = parse(&text);
    let mut fallen = Vec::new();
    for (name, share) in shares {
        for (measure, share) in MEASURES.iter().zip(share) {
            // A file without a recorded minimum must not pass unmeasured.
            let least = floor.int_at(&[name, measure]).unwrap_or(1001);
            if (share.per_mille() as i64) < least {
                fallen.push(format!(
                    "{name} {measure}: {} of 1000, recorded {least}",
                    share.per_mille()
                ));
            }
        }
    }
    assert!(
        fallen.is_empty(),
        "agreement has fallen:\n{}",
        fallen.join("\n")
    );
}
