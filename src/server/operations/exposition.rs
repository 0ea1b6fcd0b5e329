//! Metrics in the text format of Prometheus.

use std::fmt::{Display, Write as _};

use polyplane_registry::metrics::{Family, Labels, Samples};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that may also fall.
    Gauge,
    /// A distribution: numbers of observations by bucket.
    Histogram,
}

/// The metrics written so far, as text.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family; the calls of [`Self::sample`] that follow add its samples.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds one sample to the family `name`.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        self.labels(labels, None);
        self.line(format_args!(" {value}\n"));
    }

    /// Adds metrics with all their samples.
    pub fn families(&mut self, families: &[Family]) {
        for Family {
            name,
            help,
            samples,
        } in families
        {
            match samples {
                Samples::Counters(numbers) | Samples::Gauges(numbers) => {
                    let kind = match samples {
                        Samples::Gauges(_) => Kind::Gauge,
                        _ => Kind::Counter,
                    };
                    self.family(name, kind, help);
                    for (labels, number) in numbers {
                        self.sample(name, &borrowed(labels), number);
                    }
                }
                Samples::Histograms { bounds, samples } => {
                    self.family(name, Kind::Histogram, help);
                    let bounds = bounds.iter().map(|bound| bound.as_secs_f64().to_string());
                    let bounds: Vec<String> = bounds.collect();
                    for (labels, observed) in samples {
                        let buckets = bounds.iter().cloned().zip(observed.buckets.iter().copied());
                        let totals = (observed.seconds, observed.count());
                        self.histogram(name, &borrowed(labels), buckets, totals);
                    }
                }
            }
        }
    }

    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (String, u64)>,
        (sum, count): (impl Display, u64),
    ) {
        let mut below = 0;
        for (bound, own) in buckets {
            below += own;
            self.line(format_args!("{name}_bucket"));
            self.labels(labels, Some(&bound));
            self.line(format_args!(" {below}\n"));
        }
        self.line(format_args!("{name}_bucket"));
        self.labels(labels, Some("+Inf"));
        self.line(format_args!(" {count}\n"));
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn labels(&mut self, labels: &[(&str, &str)], bound: Option<&str>) {
        let bound = bound.map(|bound| ("le", bound));
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(bound) {
            self.text.push(separator);
            self.text.push_str(name);
            self.text.push_str("=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text
            .write_fmt(arguments)
            .expect("a String takes all text");
    }

    /// Adds the metrics of the process: CPU, memory, open files, start time.
    pub(crate) fn process(&mut self) {
        use prometheus::core::Collector as _;
        self.collected(&prometheus::process_collector::ProcessCollector::for_self().collect());
    }

    /// Adds metrics that the Prometheus library has collected.
    pub fn collected(&mut self, families: &[prometheus::proto::MetricFamily]) {
        match prometheus::TextEncoder::new().encode_to_string(families) {
            Ok(text) => self.text.push_str(&text),
            Err(error) => tracing::warn!(%error, "some metrics cannot be shown"),
        }
    }

    /// Returns the text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

fn borrowed(labels: &Labels) -> Vec<(&str, &str)> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| (*name, value.as_ref()))
        .collect()
}
