//! The flags of the audit, by the names of kube-apiserver's. This module does not know what is
//! recorded.

use anyhow::{Context, bail};
use clap::Args;
use polyplane_audit::{Auditor, Log, LogOptions, Policy};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// Longest policy, in bytes. A longer file is not a policy.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Options of the audit, which are the same for all control planes and the root.
#[derive(Clone, Debug, Default, Args)]
pub struct AuditOptions {
    /// File with a Policy of audit.k8s.io/v1, which says what is recorded of which requests. Bodies of
    /// Secrets and tokens are recorded only by a rule that names their resource.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_AUDIT_POLICY_FILE",
        requires = "audit_log_path"
    )]
    pub audit_policy_file: Option<PathBuf>,
    /// File to which the owner of a control plane appends an event a line; `-` is standard output. No
    /// request waits for it: events that find no room are lost, and an event says how many.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_AUDIT_LOG_PATH",
        requires = "audit_policy_file"
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
}

impl AuditOptions {
    /// Reads the policy and opens the log; `None` if there is no audit.
    ///
    /// # Errors
    /// Returns an error that names the flag whose file cannot be used.
    pub fn open(&self) -> anyhow::Result<Option<Arc<Auditor>>> {
        let (Some(file), Some(path)) = (&self.audit_policy_file, &self.audit_log_path) else {
            return Ok(None);
        };
        let shown = file.display();
        let mut text = Vec::new();
        std::fs::File::open(file)
            .and_then(|opened| opened.take(POLICY_BYTES_MAX + 1).read_to_end(&mut text))
            .with_context(|| format!("--audit-policy-file: cannot read {shown}"))?;
        if text.len() as u64 > POLICY_BYTES_MAX {
            bail!(
                "--audit-policy-file: {shown} is longer than {POLICY_BYTES_MAX} bytes, so it is no policy"
            );
        }
        let policy = Policy::parse(&text);
        let policy = policy.with_context(|| format!("--audit-policy-file: {shown}"))?;
        let log = Log::open(&LogOptions {
            path: path.clone(),
            megabytes_max: self.audit_log_maxsize,
            kept_max: self.audit_log_maxbackup,
            days_max: self.audit_log_maxage,
        });
        let log = log.context("--audit-log-path")?;
        Ok(Some(Arc::new(Auditor::new(policy, log))))
    }
}

/// Writes what waits for the log. To be called once nothing is served any more.
pub async fn close(auditor: Option<Arc<Auditor>>) {
    if let Some(auditor) = auditor {
        let closed = tokio::task::spawn_blocking(move || auditor.close());
        if let Err(error) = closed.await {
            tracing::error!(%error, "the audit log was not closed");
        }
    }
}
