//! The flags of the audit, with upstream's defaults.

use crate::audit::{AuditSettings, LogSettings, WebhookSettings};
use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use polyplane_audit::{BatchOptions, Format, Mode, SinkOptions, Throttle, Truncation};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The flags that have a meaning.
pub(super) const FLAGS: [&str; 29] = [
    "audit-log-batch-buffer-size",
    "audit-log-batch-max-size",
    "audit-log-batch-max-wait",
    "audit-log-batch-throttle-burst",
    "audit-log-batch-throttle-enable",
    "audit-log-batch-throttle-qps",
    "audit-log-format",
    "audit-log-maxage",
    "audit-log-maxbackup",
    "audit-log-maxsize",
    "audit-log-mode",
    "audit-log-path",
    "audit-log-truncate-enabled",
    "audit-log-truncate-max-batch-size",
    "audit-log-truncate-max-event-size",
    "audit-policy-file",
    "audit-webhook-batch-buffer-size",
    "audit-webhook-batch-max-size",
    "audit-webhook-batch-max-wait",
    "audit-webhook-batch-throttle-burst",
    "audit-webhook-batch-throttle-enable",
    "audit-webhook-batch-throttle-qps",
    "audit-webhook-config-file",
    "audit-webhook-initial-backoff",
    "audit-webhook-mode",
    "audit-webhook-truncate-enabled",
    "audit-webhook-truncate-max-batch-size",
    "audit-webhook-truncate-max-event-size",
    "audit-webhook-version",
];

/// What differs between the backends.
struct Defaults {
    mode: Mode,
    events_max: usize,
    wait_max: Duration,
    has_rate: bool,
}

const OF_LOG: Defaults = Defaults {
    mode: Mode::Blocking,
    events_max: 1,
    wait_max: Duration::ZERO,
    has_rate: false,
};
const OF_WEBHOOK: Defaults = Defaults {
    mode: Mode::Batch,
    events_max: 400,
    wait_max: Duration::from_secs(30),
    has_rate: true,
};

/// Returns what the flags say.
pub(super) fn settings(flags: &Flags, problems: &mut Problems) -> AuditSettings {
    let webhook = sink(flags, "webhook", &OF_WEBHOOK, problems);
    let initial_backoff = problems.duration(
        flags,
        "audit-webhook-initial-backoff",
        Duration::from_secs(10),
    );
    if let Some(version) = flags.text("audit-webhook-version")
        && version != "audit.k8s.io/v1"
    {
        problems.add("invalid group version, allowed versions are [\"audit.k8s.io/v1\"]");
    }
    let settings = AuditSettings {
        policy: path(flags, "audit-policy-file"),
        log: path(flags, "audit-log-path").map(|path| LogSettings {
            path,
            format: format(flags, problems),
            megabytes_max: problems.parsed(flags, "audit-log-maxsize", 100),
            kept_max: problems.parsed(flags, "audit-log-maxbackup", 100),
            days_max: problems.parsed(flags, "audit-log-maxage", 366),
            sink: sink(flags, "log", &OF_LOG, problems),
        }),
        webhook: path(flags, "audit-webhook-config-file").map(|config| WebhookSettings {
            config,
            initial_backoff,
            sink: webhook,
        }),
    };
    if settings.policy.is_none() {
        // As upstream: without a policy the backends get nothing.
        return AuditSettings::default();
    }
    if settings.log.is_none() && settings.webhook.is_none() {
        tracing::info!("--audit-policy-file has no effect: no flag says where events go");
        return AuditSettings::default();
    }
    settings
}

fn format(flags: &Flags, problems: &mut Problems) -> Format {
    let Some(text) = flags.text("audit-log-format") else {
        return Format::Json;
    };
    Format::named(text).unwrap_or_else(|| {
        problems.add(format!(
            "invalid audit log format {text}, allowed formats are \"legacy,json\""
        ));
        Format::Json
    })
}

fn sink(flags: &Flags, name: &str, defaults: &Defaults, problems: &mut Problems) -> SinkOptions {
    let flag = |end: &str| format!("audit-{name}-{end}");
    let mode = match flags.text(&flag("mode")) {
        None => defaults.mode,
        Some(text) => Mode::named(text).unwrap_or_else(|| {
            problems.add(format!(
                "invalid audit {name} mode {text}, allowed modes are \"batch,blocking,blocking-strict\""
            ));
            defaults.mode
        }),
    };
    let throttle = Throttle {
        per_second: number(flags, &flag("batch-throttle-qps"), 10.0, problems),
        burst: number(flags, &flag("batch-throttle-burst"), 15, problems),
    };
    let truncation = Truncation {
        event_bytes_max: number(flags, &flag("truncate-max-event-size"), 100 << 10, problems),
        batch_bytes_max: number(flags, &flag("truncate-max-batch-size"), 10 << 20, problems),
    };
    let has_rate = flags.switch(&flag("batch-throttle-enable"), defaults.has_rate);
    let truncates = flags.switch(&flag("truncate-enabled"), false);
    SinkOptions {
        mode,
        batch: BatchOptions {
            waiting_max: number(flags, &flag("batch-buffer-size"), 10_000, problems),
            events_max: number(
                flags,
                &flag("batch-max-size"),
                defaults.events_max,
                problems,
            ),
            wait_max: problems.duration(flags, &flag("batch-max-wait"), defaults.wait_max),
            throttle: has_rate.then_some(throttle),
        },
        truncation: truncates.then_some(truncation),
    }
}

fn number<T: FromStr>(flags: &Flags, flag: &str, default: T, problems: &mut Problems) -> T
where
    T::Err: Display,
{
    problems.parsed(flags, flag, default)
}
