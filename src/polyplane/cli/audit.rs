//! The flags of the audit, by the names of kube-apiserver's. This module does not know what is
//! recorded.

use crate::audit::{AuditSettings, LogSettings, WebhookSettings};
use clap::{ArgAction, Args};
use polyplane_apimachinery::time::parse_duration;
use polyplane_audit::{BatchOptions, Format, Mode, SinkOptions, Throttle, Truncation};
use std::path::PathBuf;
use std::time::Duration;

/// Options of the audit, which are the same for all control planes and the root.
#[derive(Clone, Debug, Args)]
pub struct AuditOptions {
    /// File with a Policy of audit.k8s.io/v1, which says what is recorded of which requests. Bodies of
    /// Secrets and tokens are recorded only by a rule that names their resource.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_AUDIT_POLICY_FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// File to which the owner of a control plane appends an event a line; `-` is standard output. What
    /// the server does in a controller's place is recorded as that controller's requests.
    #[arg(
        long,
        value_name = "FILE",
        requires = "audit_policy_file",
        env = "POLYPLANE_AUDIT_LOG_PATH"
    )]
    pub audit_log_path: Option<PathBuf>,
    /// Megabytes from which the log is renamed and begun anew; 0 for never.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        env = "POLYPLANE_AUDIT_LOG_MAXSIZE"
    )]
    pub audit_log_maxsize: u64,
    /// Renamed logs that are kept; 0 for all.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        env = "POLYPLANE_AUDIT_LOG_MAXBACKUP"
    )]
    pub audit_log_maxbackup: usize,
    /// Days that renamed logs are kept; 0 for ever.
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 0,
        env = "POLYPLANE_AUDIT_LOG_MAXAGE"
    )]
    pub audit_log_maxage: u64,
    /// How events look in the log: json, or legacy for a text without bodies.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "json", value_parser = Format::ALL.map(Format::name),
        env = "POLYPLANE_AUDIT_LOG_FORMAT"
    )]
    pub audit_log_format: String,
    /// batch: events are written together, and no request waits; if more wait than
    /// --audit-log-batch-buffer-size, or than 32 MiB, the control plane with most loses its oldest, and an
    /// event says how many; kill -9 loses those of the last --audit-log-batch-max-wait. blocking: a request
    /// goes on once its arrival is written, and is answered once its end is; if that fails, an event says so
    /// later. blocking-strict: and a request whose arrival cannot be written fails with 500.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "batch", value_parser = Mode::ALL.map(Mode::name),
        env = "POLYPLANE_AUDIT_LOG_MODE"
    )]
    pub audit_log_mode: String,
    /// Events that may wait for the log in the mode batch.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 40_000,
        env = "POLYPLANE_AUDIT_LOG_BATCH_BUFFER_SIZE"
    )]
    pub audit_log_batch_buffer_size: usize,
    /// Events from which a batch is written at once.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 400,
        env = "POLYPLANE_AUDIT_LOG_BATCH_MAX_SIZE"
    )]
    pub audit_log_batch_max_size: usize,
    /// How long the first event of a batch waits for others.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = go_duration,
        default_value = "10ms",
        env = "POLYPLANE_AUDIT_LOG_BATCH_MAX_WAIT"
    )]
    pub audit_log_batch_max_wait: Duration,
    /// Whether batches of the log have a rate.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        env = "POLYPLANE_AUDIT_LOG_BATCH_THROTTLE_ENABLE"
    )]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches of the log a second.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 10.0,
        env = "POLYPLANE_AUDIT_LOG_BATCH_THROTTLE_QPS"
    )]
    pub audit_log_batch_throttle_qps: f32,
    /// Batches of the log that may be written at once.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 15,
        env = "POLYPLANE_AUDIT_LOG_BATCH_THROTTLE_BURST"
    )]
    pub audit_log_batch_throttle_burst: u32,
    /// Whether long events of the log lose their bodies.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        env = "POLYPLANE_AUDIT_LOG_TRUNCATE_ENABLED"
    )]
    pub audit_log_truncate_enabled: bool,
    /// Bytes of the longest event in the log. A longer one loses its bodies; one that is longer without them
    /// is lost and counted.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 102_400,
        env = "POLYPLANE_AUDIT_LOG_TRUNCATE_MAX_EVENT_SIZE"
    )]
    pub audit_log_truncate_max_event_size: usize,
    /// Bytes of the events in one batch of the log.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 10_485_760,
        env = "POLYPLANE_AUDIT_LOG_TRUNCATE_MAX_BATCH_SIZE"
    )]
    pub audit_log_truncate_max_batch_size: usize,
    /// Kubeconfig of a webhook to which the owner of a control plane posts events, as EventLists.
    #[arg(
        long,
        value_name = "FILE",
        requires = "audit_policy_file",
        env = "POLYPLANE_AUDIT_WEBHOOK_CONFIG_FILE"
    )]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Version of the events for the webhook.
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"],
        env = "POLYPLANE_AUDIT_WEBHOOK_VERSION"
    )]
    pub audit_webhook_version: String,
    /// As --audit-log-mode. In the mode batch a batch that the webhook does not take is sent five times in all;
    /// then its events are lost, and an event says how many. In the other modes requests wait for that long.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "batch", value_parser = Mode::ALL.map(Mode::name),
        env = "POLYPLANE_AUDIT_WEBHOOK_MODE"
    )]
    pub audit_webhook_mode: String,
    /// The pause before a batch that the webhook did not take is sent again. Each further one is 1.5 times as
    /// long.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = go_duration,
        default_value = "10s",
        env = "POLYPLANE_AUDIT_WEBHOOK_INITIAL_BACKOFF"
    )]
    pub audit_webhook_initial_backoff: Duration,
    /// Events that may wait for the webhook in the mode batch.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 10_000,
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_BUFFER_SIZE"
    )]
    pub audit_webhook_batch_buffer_size: usize,
    /// Events from which a batch is sent at once.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 400,
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_MAX_SIZE"
    )]
    pub audit_webhook_batch_max_size: usize,
    /// How long the first event of a batch waits for others.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = go_duration,
        default_value = "30s",
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_MAX_WAIT"
    )]
    pub audit_webhook_batch_max_wait: Duration,
    /// Whether batches for the webhook have a rate.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = true,
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_THROTTLE_ENABLE"
    )]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches for the webhook a second.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 10.0,
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_THROTTLE_QPS"
    )]
    pub audit_webhook_batch_throttle_qps: f32,
    /// Batches for the webhook that may be sent at once.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 15,
        env = "POLYPLANE_AUDIT_WEBHOOK_BATCH_THROTTLE_BURST"
    )]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Whether long events for the webhook lose their bodies.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        env = "POLYPLANE_AUDIT_WEBHOOK_TRUNCATE_ENABLED"
    )]
    pub audit_webhook_truncate_enabled: bool,
    /// Bytes of the longest event for the webhook. A longer one loses its bodies; one that is longer without
    /// them is lost and counted.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 102_400,
        env = "POLYPLANE_AUDIT_WEBHOOK_TRUNCATE_MAX_EVENT_SIZE"
    )]
    pub audit_webhook_truncate_max_event_size: usize,
    /// Bytes of the events in one batch for the webhook.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 10_485_760,
        env = "POLYPLANE_AUDIT_WEBHOOK_TRUNCATE_MAX_BATCH_SIZE"
    )]
    pub audit_webhook_truncate_max_batch_size: usize,
}

impl AuditOptions {
    /// Returns what the flags say.
    #[must_use]
    pub fn settings(&self) -> AuditSettings {
        AuditSettings {
            policy: self.audit_policy_file.clone(),
            log: self.audit_log_path.clone().map(|path| LogSettings {
                path,
                format: Format::named(&self.audit_log_format).unwrap_or(Format::Json),
                megabytes_max: self.audit_log_maxsize,
                kept_max: self.audit_log_maxbackup,
                days_max: self.audit_log_maxage,
                sink: self.log_sink(),
            }),
            webhook: self
                .audit_webhook_config_file
                .clone()
                .map(|config| WebhookSettings {
                    config,
                    initial_backoff: self.audit_webhook_initial_backoff,
                    sink: self.webhook_sink(),
                }),
        }
    }

    fn log_sink(&self) -> SinkOptions {
        SinkOptions {
            mode: Mode::named(&self.audit_log_mode).unwrap_or(Mode::Batch),
            batch: BatchOptions {
                waiting_max: self.audit_log_batch_buffer_size,
                events_max: self.audit_log_batch_max_size,
                wait_max: self.audit_log_batch_max_wait,
                throttle: self.audit_log_batch_throttle_enable.then_some(Throttle {
                    per_second: self.audit_log_batch_throttle_qps,
                    burst: self.audit_log_batch_throttle_burst,
                }),
            },
            truncation: self.audit_log_truncate_enabled.then_some(Truncation {
                event_bytes_max: self.audit_log_truncate_max_event_size,
                batch_bytes_max: self.audit_log_truncate_max_batch_size,
            }),
        }
    }

    fn webhook_sink(&self) -> SinkOptions {
        SinkOptions {
            mode: Mode::named(&self.audit_webhook_mode).unwrap_or(Mode::Batch),
            batch: BatchOptions {
                waiting_max: self.audit_webhook_batch_buffer_size,
                events_max: self.audit_webhook_batch_max_size,
                wait_max: self.audit_webhook_batch_max_wait,
                throttle: self
                    .audit_webhook_batch_throttle_enable
                    .then_some(Throttle {
                        per_second: self.audit_webhook_batch_throttle_qps,
                        burst: self.audit_webhook_batch_throttle_burst,
                    }),
            },
            truncation: self.audit_webhook_truncate_enabled.then_some(Truncation {
                event_bytes_max: self.audit_webhook_truncate_max_event_size,
                batch_bytes_max: self.audit_webhook_truncate_max_batch_size,
            }),
        }
    }
}

/// Reads a duration as Go does, such as `10ms` or `1m30s`.
///
/// # Errors
/// Returns what is wrong with the text.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse_duration(text).map_err(|error| error.to_string())?;
    let nanoseconds = u64::try_from(nanoseconds).map_err(|_| format!("{text:?} is negative"))?;
    Ok(Duration::from_nanos(nanoseconds))
}
