//! Opens the audit that flags describe: the policy, the log, the webhook.
//!
//! Must not know flags; messages name those that the settings come from, which are kube-apiserver's.

use crate::cli::authentication::webhook_server;
use crate::cli::limited_file;
use anyhow::{Context, bail};
use polyplane_audit::{
    Auditor, Backend, Format, Log, LogOptions, Mode, Policy, SinkOptions, Webhook, WebhookOptions,
};
use polyplane_outbound::Caller;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest policy, in bytes. A longer file is not a policy.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// What is recorded, and where.
#[derive(Clone, Debug, Default)]
pub struct AuditSettings {
    /// The file of the policy; `None` to record nothing.
    pub policy: Option<PathBuf>,
    /// The log.
    pub log: Option<LogSettings>,
    /// The webhook.
    pub webhook: Option<WebhookSettings>,
}

/// The log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The file; `-` for standard output.
    pub path: PathBuf,
    /// How events look.
    pub format: Format,
    /// The length in megabytes from which the file is renamed; 0 for never.
    pub megabytes_max: u64,
    /// Renamed files that are kept; 0 for all.
    pub kept_max: usize,
    /// Days that renamed files are kept; 0 for ever.
    pub days_max: u64,
    /// When events are written.
    pub sink: SinkOptions,
}

/// The webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Its kubeconfig.
    pub config: PathBuf,
    /// The pause before a batch that it did not take is sent again.
    pub initial_backoff: Duration,
    /// When events are sent.
    pub sink: SinkOptions,
}

impl AuditSettings {
    /// Reads the policy, opens the log and starts the webhook; `None` if there is no audit. `caller`
    /// calls the webhook. Must be called in a runtime.
    ///
    /// # Errors
    /// Returns an error that names the flag whose file or value cannot be used.
    pub fn open(&self, caller: &Arc<Caller>) -> anyhow::Result<Option<Arc<Auditor>>> {
        let Some(file) = &self.policy else {
            return Ok(None);
        };
        let shown = || format!("--audit-policy-file: {}", file.display());
        if self.log.is_none() && self.webhook.is_none() {
            bail!(
                "{}: give --audit-log-path or --audit-webhook-config-file too",
                shown()
            );
        }
        let policy = limited_file::read(file, POLICY_BYTES_MAX).with_context(shown)?;
        let policy = Policy::parse(&policy).with_context(shown)?;
        let mut backends = Vec::new();
        if let Some(log) = &self.log {
            check("log", &log.sink)?;
            let log = Log::open(&LogOptions {
                path: log.path.clone(),
                format: log.format,
                megabytes_max: log.megabytes_max,
                kept_max: log.kept_max,
                days_max: log.days_max,
                sink: log.sink,
            });
            backends.push(Backend::Log(log.context("--audit-log-path")?));
        }
        if let Some(webhook) = &self.webhook {
            check("webhook", &webhook.sink)?;
            backends.push(Backend::Webhook(webhook.start(caller)?));
        }
        Ok(Some(Arc::new(Auditor::new(policy, backends))))
    }
}

impl WebhookSettings {
    fn start(&self, caller: &Arc<Caller>) -> anyhow::Result<Webhook> {
        let flag = "--audit-webhook-config-file";
        let server = webhook_server(&self.config).context(flag)?;
        let target = server.target(&caller.of_operator());
        let (target, headers) = target.context(flag)?;
        Ok(Webhook::start(WebhookOptions {
            target,
            headers,
            initial_backoff: self.initial_backoff,
            sink: self.sink,
        }))
    }
}

/// Checks the numbers that upstream checks.
fn check(backend: &str, sink: &SinkOptions) -> anyhow::Result<()> {
    if let Some(truncation) = sink.truncation {
        if truncation.event_bytes_max == 0 {
            bail!("--audit-{backend}-truncate-max-event-size: it must be a positive number");
        }
        if truncation.batch_bytes_max < truncation.event_bytes_max {
            bail!(
                "--audit-{backend}-truncate-max-batch-size: {} is less than the longest event, {}",
                truncation.batch_bytes_max,
                truncation.event_bytes_max
            );
        }
    }
    if sink.mode != Mode::Batch {
        // The others have no effect.
        return Ok(());
    }
    let batch = &sink.batch;
    for (name, is_positive) in [
        ("buffer-size", batch.waiting_max > 0),
        ("max-size", batch.events_max > 0),
        (
            "throttle-qps",
            batch
                .throttle
                .is_none_or(|throttle| throttle.per_second > 0.0),
        ),
        (
            "throttle-burst",
            batch.throttle.is_none_or(|throttle| throttle.burst > 0),
        ),
    ] {
        if !is_positive {
            bail!("--audit-{backend}-batch-{name}: it must be a positive number");
        }
    }
    Ok(())
}

/// Writes and sends what waits. To be called once nothing is served any more.
pub async fn close(auditor: Option<Arc<Auditor>>) {
    if let Some(auditor) = auditor {
        auditor.close().await;
    }
}
