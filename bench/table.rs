//! Markdown tables made from result files, so that no figure is typed by hand.
//!
//! In a document, a line `<!-- bench table NAME… -->` and a line `<!-- end -->` enclose the tables of
//! the named files in bench/results. `bench table --update DOCUMENT` writes what belongs between.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::memory_by_object::Weighed;
use crate::report::Spread;
use crate::results::{Kind, Measured, Results, Samples, folder};
use crate::verdict::{Interval, Verdict};

const BEGIN: &str = "<!-- bench table ";
const END: &str = "<!-- end -->";

/// Which tables are printed or written.
#[derive(Args)]
pub struct TableArguments {
    /// Result files
    files: Vec<PathBuf>,
    /// Write the tables into these documents, between the marks that name result files
    #[arg(long, value_name = "DOCUMENT")]
    update: Vec<PathBuf>,
}

/// Prints the tables of the files and updates the documents.
///
/// # Errors
/// Returns an error if a file is no result, or a document lacks the end of a table.
pub fn table(arguments: &TableArguments) -> Result<()> {
    for file in &arguments.files {
        println!("{}", markdown(&Results::read(file)?));
    }
    for document in &arguments.update {
        let text = std::fs::read_to_string(document)
            .with_context(|| format!("cannot read {}", document.display()))?;
        std::fs::write(document, updated(&text, &folder())?)?;
    }
    Ok(())
}

/// Returns the document with the present tables between its marks.
fn updated(document: &str, results: &Path) -> Result<String> {
    let mut text = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(names) = line.strip_prefix(BEGIN) else {
            continue;
        };
        let names = names.trim_end_matches("-->").split_whitespace();
        for name in names {
            let path = results.join(format!("{name}.json"));
            text.push('\n');
            text.push_str(&markdown(&Results::read(&path)?));
        }
        text.push('\n');
        let end = lines.find(|line| *line == END);
        text.push_str(end.with_context(|| format!("no {END} after {line}"))?);
        text.push('\n');
    }
    Ok(text)
}

/// Returns the table of a result, with a line about the run below it.
pub fn markdown(results: &Results) -> String {
    let name = |side: usize| {
        let side = results.sides.get(side);
        side.map_or("", |side| side.name.as_str())
    };
    let pair = ["scenario", name(0), name(1), "ratio, median (range)"];
    let heads: &[&str] = match results.command {
        Kind::Builds => &["scenario", "a, CPU", "b, CPU", "b/a", "a/a", "verdict"],
        Kind::Compare | Kind::AgainstBare => &pair,
        Kind::MemoryByObject => &[
            "resource",
            "after",
            "objects",
            "memory",
            "history",
            "own bytes",
            "bytes per object",
            "above its own",
        ],
        Kind::Neighbour => &[
            "request",
            "alone, p50, p99",
            "beside",
            "bare, alone",
            "bare, beside",
            "p99 beside / bare beside",
            "memory",
        ],
    };
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let mut text = row(&heads);
    text.push_str(&row(&vec!["---".to_owned(); heads.len()]).replace(' ', ""));
    for measured in &results.scenarios {
        let cells = match results.command {
            Kind::Builds => build_cells(measured),
            Kind::Compare | Kind::AgainstBare | Kind::MemoryByObject => pair_cells(measured),
            Kind::Neighbour => neighbour_cells(measured),
        };
        text.push_str(&row(&cells));
    }
    let weighed = results.memory.iter().flat_map(Weighed::rows);
    weighed.for_each(|cells| text.push_str(&row(&cells)));
    text.push('\n');
    text.push_str(&caption(results));
    text
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn build_cells(measured: &Measured) -> Vec<String> {
    let interval = |interval: &Option<Interval>| match interval {
        Some(Interval {
            median, low, high, ..
        }) => format!("{median:.3} ({low:.3}–{high:.3})"),
        None => "unknown".to_owned(),
    };
    vec![
        measured.scenario.clone(),
        micros_of(measured, 0),
        micros_of(measured, 1),
        interval(&measured.ratio),
        interval(&measured.twin),
        measured.verdict.map_or("", Verdict::word).to_owned(),
    ]
}

fn pair_cells(measured: &Measured) -> Vec<String> {
    vec![
        measured.scenario.clone(),
        micros_of(measured, 0),
        micros_of(measured, 1),
        ratio_of(measured),
    ]
}

fn ratio_of(measured: &Measured) -> String {
    let Some(ratio) = &measured.ratio else {
        return "unknown".to_owned();
    };
    let Interval {
        median, min, max, ..
    } = ratio;
    // Two places where a tenth would hide a difference that matters.
    let places = if *median < 5.0 { 2 } else { 1 };
    format!("{median:.places$}× ({min:.places$}–{max:.places$})")
}

fn neighbour_cells(measured: &Measured) -> Vec<String> {
    let milliseconds = |values: &[f64]| {
        let spread = Spread::of(values.to_vec());
        spread.map_or(0.0, |spread| spread.median / 1000.0)
    };
    let latency = |side: &Samples| {
        let (p50, p99) = (
            milliseconds(&side.p50_micros),
            milliseconds(&side.p99_micros),
        );
        format!("{p50:.1}, {p99:.1} ms")
    };
    let resident = measured
        .samples
        .iter()
        .flat_map(|side| &side.resident_bytes);
    let resident = resident.max().map_or(0, |bytes| bytes >> 20);
    let mut cells = vec![measured.scenario.clone()];
    cells.extend(measured.samples.iter().map(latency));
    cells.extend([ratio_of(measured), format!("{resident} MiB")]);
    cells
}

/// Returns the median CPU time of an operation on one side.
pub fn micros_of(measured: &Measured, side: usize) -> String {
    let samples = measured.samples.get(side);
    let values = samples.map(Samples::micros_per_operation);
    match values.and_then(Spread::of) {
        Some(Spread { median, .. }) => format!("{} µs", digits(median)),
        None => "unknown".to_owned(),
    }
}

/// Returns a number with three digits that count, and a space between thousands.
fn digits(value: f64) -> String {
    match value {
        small if small < 9.995 => format!("{small:.2}"),
        medium if medium < 99.95 => format!("{medium:.1}"),
        large => {
            let plain = format!("{large:.0}");
            let mut text = String::new();
            for (at, digit) in plain.char_indices() {
                if at > 0 && (plain.len() - at).is_multiple_of(3) {
                    text.push(' ');
                }
                text.push(digit);
            }
            text
        }
    }
}

/// Returns what the figures are, and where and when they were measured.
fn caption(results: &Results) -> String {
    let meaning = match results.command {
        Kind::Builds => {
            "CPU per operation of the server and its store; operations per CPU second of b over a, and of a second instance of a over the first: median (95 % interval)"
        }
        Kind::Compare => {
            "CPU per operation of the server and its store; operations per CPU second of the first over the second"
        }
        Kind::AgainstBare => "CPU per operation, and the first over the second",
        Kind::Neighbour => {
            "Latency of a modest plane, medians of the rounds; the ratio of the p99 beside the aggressor, median (range); the most resident memory of the server"
        }
        Kind::MemoryByObject => {
            "Anonymous memory of the server; bytes per object since the start, and how many of them are not those of a GET of it"
        }
    };
    let effort = &results.arguments["effort"];
    let number = |name: &str| effort[name].as_f64().unwrap_or_default();
    let rounds = results.scenarios.first();
    let rounds = rounds.map_or(0, |measured| measured.order.len());
    let rate = effort["rate"].as_f64();
    let rate = rate.map_or_else(String::new, |rate| format!(", {rate} requests a second"));
    let load = match results.command {
        Kind::MemoryByObject => {
            let churn = results.arguments["churn"].as_u64().unwrap_or_default();
            format!("Churn: {churn} % patched, as many deleted and created anew")
        }
        Kind::Neighbour => format!(
            "{rounds} rounds of {} s, {} GETs and {} CREATEs a second beside {} streams",
            number("seconds"),
            results.arguments["gets"],
            results.arguments["creates"],
            number("streams")
        ),
        Kind::Builds | Kind::Compare | Kind::AgainstBare => format!(
            "{rounds} rounds of {} s, {} streams{rate}",
            number("seconds"),
            number("streams")
        ),
    };
    let machine = &results.machine;
    format!(
        "{meaning}. {load}; {} cores, {}, Linux {}, fdatasync {:.0} µs, load {} before; {}{}, {}.\n",
        machine.cores,
        machine.cpu,
        machine.kernel,
        machine.fdatasync_micros.p50,
        machine.load_before,
        results.commit,
        if results.is_optimized {
            ""
        } else {
            ", NOT AN OPTIMIZED BENCH"
        },
        results.date
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn a_table_has_a_row_with_a_verdict_for_each_scenario() {
        let text = markdown(&results(6));
        assert!(text.starts_with("| scenario | a, CPU |"), "{text}");
        assert!(text.contains("\n|---|---|"), "{text}");
        assert!(text.contains("abc, NOT AN OPTIMIZED BENCH, 2026"), "{text}");
        assert!(
            text.contains("| create | 100 µs | 200 µs | 0.500 (0.500–0.500) |"),
            "{text}"
        );
        assert!(
            text.contains("| SLOWER |") && text.contains("| same |"),
            "{text}"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [3.25, 9.999, 31.44, 99.96, 1234.4, 1e6].map(digits),
            ["3.25", "10.0", "31.4", "100", "1 234", "1 000 000"]
        );
    }

    #[test]
    fn only_what_lies_between_the_marks_changes() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let text = serde_json::to_string(&results(6)).expect("JSON");
        std::fs::write(folder.path().join("x.json"), text).expect("write");
        let document = format!("before\n{BEGIN}x -->\nold\n{END}\nafter\n");
        let new = updated(&document, folder.path()).expect("a table");
        assert!(
            new.starts_with(&format!("before\n{BEGIN}x -->\n\n| scenario")),
            "{new}"
        );
        assert!(new.ends_with(&format!("\n\n{END}\nafter\n")), "{new}");
        assert!(!new.contains("old"), "{new}");
        assert_eq!(updated(&new, folder.path()).expect("a table"), new);
        assert!(updated(&format!("{BEGIN}x -->\n"), folder.path()).is_err());
        assert!(updated(&format!("{BEGIN}y -->\n{END}\n"), folder.path()).is_err());
    }

    #[test]
    fn the_tables_of_the_documents_are_those_of_their_result_files() {
        for name in ["bench/RESULTS.md", "README.md"] {
            let path = polyplane_tests::golden::folder().join("..").join(name);
            let text = std::fs::read_to_string(path).expect("a document of the tree");
            let new = updated(&text, &folder()).expect("its result files");
            assert_eq!(new, text, "run `bench table --update {name}`");
        }
    }
}
