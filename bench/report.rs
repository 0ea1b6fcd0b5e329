//! The results of a run, for people and for programs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Latencies of single operations.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<u64>);

impl Latencies {
    /// Adds one latency.
    pub fn add(&mut self, latency: Duration) {
        self.0
            .push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all latencies of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns the number of latencies.
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns p50, p90, p99 and the largest latency.
    pub fn quantiles(&self) -> Quantiles {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        // The smallest value that is not below the share. With few values, p99 is therefore the
        // largest.
        let at = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted
                .get(rank.max(1) - 1)
                .map_or(0.0, |nanos| *nanos as f64 / 1000.0)
        };
        Quantiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The latency that half of all do not exceed.
    pub p50: f64,
    /// The latency that 90 % do not exceed.
    pub p90: f64,
    /// The latency that 99 % do not exceed.
    pub p99: f64,
    /// The largest latency.
    pub max: f64,
}

/// CPU time of one process during a block.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// The name that the kernel shows for the process.
    pub name: String,
    /// CPU microseconds per operation.
    pub micros_per_operation: f64,
}

/// The results of one block of one scenario against one endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Block {
    /// The scenario.
    pub scenario: String,
    /// The number of successful operations.
    pub operations: u64,
    /// The number of operations that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Operations a second.
    pub per_second: f64,
    /// Megabytes of bodies a second.
    pub megabytes_per_second: f64,
    /// Latency in microseconds.
    pub latency: Quantiles,
    /// The server's processes, its store among them.
    pub server: Vec<Usage>,
    /// The load generator.
    pub client: Usage,
}

impl Block {
    /// Returns the CPU microseconds per operation of all the server's processes; `None` if none of
    /// them is known.
    pub fn server_micros(&self) -> Option<f64> {
        let sum = self
            .server
            .iter()
            .map(|usage| usage.micros_per_operation)
            .sum();
        (!self.server.is_empty()).then_some(sum)
    }

    /// Prints the block in a few lines.
    pub fn print(&self, label: &str) {
        println!(
            "{label}{}: {} operations, {:.0}/s, {:.1} MB/s, {} errors",
            self.scenario, self.operations, self.per_second, self.megabytes_per_second, self.errors
        );
        let server = match self.server_micros() {
            None => "unknown (no pids)".to_owned(),
            Some(sum) => {
                let each = self
                    .server
                    .iter()
                    .map(|usage| format!("{} {:.1}", usage.name, usage.micros_per_operation));
                format!("{sum:.1} µs ({})", each.collect::<Vec<_>>().join(", "))
            }
        };
        println!(
            "  CPU per operation: server {server}, client {:.1} µs",
            self.client.micros_per_operation
        );
        println!("  latency: {}", quantiles_text(&self.latency));
        if let Some(error) = &self.first_error {
            println!(
                "  first error: {}",
                error.chars().take(300).collect::<String>()
            );
        }
    }
}

/// Returns quantiles as a line for people.
pub fn quantiles_text(quantiles: &Quantiles) -> String {
    let Quantiles { p50, p90, p99, max } = quantiles;
    format!("p50 {p50:.0} µs, p90 {p90:.0} µs, p99 {p99:.0} µs, max {max:.0} µs")
}

/// The spread of a ratio over several rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Returns median, smallest and largest of the finite values; `None` if no value is finite.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self {
            median,
            min: values[0],
            max: values[values.len() - 1],
        })
    }
}

/// The form in which results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Prints a block in the chosen form.
pub fn show(format: Format, label: &str, block: &Block) {
    match format {
        Format::Text => block.print(label),
        Format::Json => {
            let mut value = serde_json::to_value(block).unwrap_or_default();
            value["label"] = Value::from(label.trim_end_matches([':', ' ']));
            println!("{value}");
        }
    }
}

/// Prints quantiles of a named quantity in the chosen form.
pub fn show_quantiles(format: Format, what: &str, latencies: &Latencies) {
    let quantiles = latencies.quantiles();
    match format {
        Format::Text => println!(
            "{what} (n={}): {}",
            latencies.len(),
            quantiles_text(&quantiles)
        ),
        Format::Json => {
            println!(
                "{}",
                json!({"what": what, "count": latencies.len(), "micros": quantiles})
            );
        }
    }
}

/// Prints one number in the chosen form.
pub fn show_number(format: Format, what: &str, unit: &str, value: f64) {
    match format {
        Format::Text => println!("{what}: {value:.2} {unit}"),
        Format::Json => println!("{}", json!({"what": what, "unit": unit, "value": value})),
    }
}

/// Prints a spread over rounds in the chosen form, if there is one.
pub fn show_spread(format: Format, what: &str, unit: &str, spread: Option<Spread>) {
    let Some(Spread { median, min, max }) = spread else {
        return;
    };
    match format {
        Format::Text => println!("{what}: {median:.2} {unit} ({min:.2} to {max:.2})"),
        Format::Json => println!(
            "{}",
            json!({"what": what, "unit": unit, "median": median, "min": min, "max": max})
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let mut latencies = Latencies::default();
        for micros in 1..=100 {
            latencies.add(Duration::from_micros(micros));
        }
        let quantiles = latencies.quantiles();
        assert_eq!(
            quantiles,
            Quantiles {
                p50: 50.0,
                p90: 90.0,
                p99: 99.0,
                max: 100.0
            }
        );
        assert_eq!(Latencies::default().quantiles().max, 0.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, f64::NAN, 3.0]).expect("values");
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 4.0));
        assert!(Spread::of(Vec::new()).is_none());
    }
}
