//! One server under load: its endpoint, its processes, its connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use polyplane_tests::kubeconfig::Endpoint;

use crate::lane::Lane;
use crate::load::{Load, Outcome, run};
use crate::proc::{CpuTime, Process, beside};
use crate::report::{Block, Usage};

/// A kubeconfig file with an optional context, written `file[:context]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub kubeconfig: PathBuf,
    /// The context; the current one if absent.
    pub context: Option<String>,
}

impl std::str::FromStr for Place {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (file, context) = match text.rsplit_once(':') {
            Some((file, context)) => (file, Some(context.to_owned())),
            None => (text, None),
        };
        Ok(Self {
            kubeconfig: PathBuf::from(file),
            context,
        })
    }
}

/// A server under load.
pub struct Target {
    /// The label in reports.
    pub label: String,
    /// The server's processes.
    pub processes: Vec<Process>,
    /// The open connections.
    pub lanes: Vec<Arc<Lane>>,
}

impl Target {
    /// Connects to the server. Without `pids`, the processes are looked up beside the kubeconfig.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or a process does not exist.
    pub async fn open(label: &str, place: &Place, pids: &[u32], lanes: usize) -> Result<Self> {
        let endpoint = Endpoint::from_kubeconfig(&place.kubeconfig, place.context.as_deref())?;
        let processes = match pids {
            [] => beside(&place.kubeconfig)?,
            pids => pids
                .iter()
                .map(|pid| Process::find(*pid))
                .collect::<Result<_>>()?,
        };
        Self::connect(label, &endpoint, processes, lanes).await
    }

    /// Connects to an endpoint.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub async fn connect(
        label: &str,
        endpoint: &Endpoint,
        processes: Vec<Process>,
        lanes: usize,
    ) -> Result<Self> {
        let mut open = Vec::new();
        for _ in 0..lanes.max(1) {
            open.push(Arc::new(Lane::open(endpoint).await?));
        }
        Ok(Self {
            label: label.to_owned(),
            processes,
            lanes: open,
        })
    }

    /// Returns the same server with as many connections, all new. A server closes connections that
    /// a load with few streams left idle, so each scenario begins with this.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub async fn reconnected(&self) -> Result<Self> {
        let mut lanes = Vec::new();
        for lane in &self.lanes {
            lanes.push(Arc::new(Lane::open(lane.endpoint()).await?));
        }
        Ok(Self {
            label: self.label.clone(),
            processes: self.processes.clone(),
            lanes,
        })
    }

    /// Returns the first connection, for preparations.
    pub fn lane(&self) -> &Lane {
        &self.lanes[0]
    }

    /// Reads the CPU time of each process and of this one.
    ///
    /// # Errors
    /// Returns an error if a process has ended.
    pub fn meter(&self) -> Result<Meter> {
        let server = self
            .processes
            .iter()
            .map(Process::cpu)
            .collect::<Result<_>>()?;
        Ok(Meter {
            server,
            client: Process::own().cpu()?,
        })
    }

    /// Runs one block of a load.
    ///
    /// # Errors
    /// Returns an error if no request was answered, or a process has ended.
    pub async fn block(&self, scenario: &str, load: &Load) -> Result<Block> {
        let before = self.meter()?;
        let outcome = run(&self.lanes, load).await;
        let after = self.meter()?;
        self.result(scenario, &outcome, &before, &after)
    }

    /// Makes the report of a block: rates and latency from `outcome`, and the CPU time per
    /// operation from the two meters.
    ///
    /// # Errors
    /// Returns an error if no operation succeeded.
    pub fn result(
        &self,
        scenario: &str,
        outcome: &Outcome,
        before: &Meter,
        after: &Meter,
    ) -> Result<Block> {
        let operations = outcome.latencies.len();
        if operations == 0 {
            let error = outcome
                .first_error
                .as_deref()
                .unwrap_or("no operation was done");
            bail!("{}, {scenario}: {error}", self.label);
        }
        let each = |used: Duration| used.as_secs_f64() * 1e6 / operations as f64;
        let times = before.server.iter().zip(&after.server);
        let server = self
            .processes
            .iter()
            .zip(times)
            .map(|(process, (before, after))| Usage {
                name: process.name.clone(),
                micros_per_operation: each(after.since(before)),
            });
        Ok(Block {
            scenario: scenario.to_owned(),
            operations,
            errors: outcome.errors,
            first_error: outcome.first_error.clone(),
            per_second: operations as f64 / outcome.wall.as_secs_f64(),
            megabytes_per_second: outcome.bytes as f64 / 1e6 / outcome.wall.as_secs_f64(),
            latency: outcome.latencies.quantiles(),
            server: server.collect(),
            client: Usage {
                name: "bench".to_owned(),
                micros_per_operation: each(after.client.since(&before.client)),
            },
        })
    }
}

/// CPU times at one moment.
pub struct Meter {
    server: Vec<CpuTime>,
    client: CpuTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_and_perhaps_a_context() {
        let place: Place = "/a/kubeconfig:root".parse().expect("infallible");
        assert_eq!(place.kubeconfig, PathBuf::from("/a/kubeconfig"));
        assert_eq!(place.context.as_deref(), Some("root"));
        let place: Place = "kubeconfig".parse().expect("infallible");
        assert_eq!(place.context, None);
    }
}
