//! Arguments that several commands share.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::forward::Rounds;
use crate::load::Pace;
use crate::scenarios::Effort;
use crate::target::Place;

/// The server under load.
#[derive(Args)]
pub struct ServerArguments {
    /// The server: kubeconfig, or kubeconfig:context
    #[arg(long)]
    pub kubeconfig: Place,
    /// Process ids of the server and its store; default: the pids or pid file beside the kubeconfig
    #[arg(long, value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// Connections
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
}

/// The effort of each scenario.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct EffortArguments {
    /// Streams over all connections
    #[arg(long, default_value_t = 32)]
    pub streams: u64,
    /// Requests a second in an open loop; default: a closed loop
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds of one block
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Watchers in watch-fanout and watch-single
    #[arg(long, default_value_t = 100)]
    pub watchers: u64,
    /// Send the load as a service account with a token and a role, not as the kubeconfig's user
    #[arg(long)]
    pub account: bool,
    /// Seconds of warming up before the first block
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
}

impl EffortArguments {
    /// Returns the effort of a measured block.
    pub fn effort(&self) -> Effort {
        Effort {
            streams: self.streams.max(1),
            pace: self
                .rate
                .map_or(Pace::Closed, |per_second| Pace::Open { per_second }),
            time: Duration::from_secs_f64(self.seconds),
            watchers: self.watchers,
        }
    }

    /// Returns the effort together with the number of rounds.
    pub fn rounds(&self, rounds: u32) -> Rounds {
        Rounds {
            rounds,
            effort: *self,
        }
    }

    /// Returns the effort of the warming up.
    pub fn warming(&self) -> Effort {
        Effort {
            time: Duration::from_secs_f64(self.warm_up),
            ..self.effort()
        }
    }
}
