//! `polyplane store copy`: copies a store into an empty one, in the foreground, until it is complete or
//! a signal stops it. A second signal stops it at once; either way the next run goes on.

use crate::cli::store_command::StoreCopyOptions;
use crate::process::{self, Signals};
use crate::replica::plane_directory;
use crate::store::location::{Location, Side};
use crate::store::progress::{Progress, size};
use anyhow::{Context, bail};
use polyplane_batteries::bootstrap::Release;
use polyplane_ownership::{CopyEnd, CopyError, CopyOptions, CopyState, StoreCopy};
use polyplane_storage::Store;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long the stores may take to close. Without the limit an etcd that does not answer would keep
/// the process alive.
const CLOSE: Duration = Duration::from_secs(10);

/// Copies a store.
///
/// # Errors
/// Returns the reason why the copy is not complete, in one line with what to do.
pub fn run(options: StoreCopyOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let level = std::env::var("POLYPLANE_LOG").unwrap_or_else(|_| "warn".to_owned());
    process::run(&level, copy(options, release))
}

async fn copy(options: StoreCopyOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let from = Location::parse(&options, Side::From)?;
    let to = Location::parse(&options, Side::To)?;
    if from.is_same(&to) {
        bail!("FROM and TO are the same store; give another, empty one as TO");
    }
    let mut signals = Signals::new()?;
    let source = from.open().await?;
    let target = to.open().await?;
    let stop = CancellationToken::new();
    let begun = CopyOptions {
        from: from.text().to_owned(),
        level: release.level(),
        layer: Arc::clone(release.layer()),
        rows: plane_directory::directory_prefix(),
        stop: stop.clone(),
        say_checking,
    };
    let copied = tokio::select! {
        // The signals first: a copy that has much to do must not hide them.
        biased;
        () = async {
            signals.next().await;
            stop.cancel();
            signals.next().await;
        } => Ok(CopyEnd::Stopped),
        copied = run_copy(&source, &target, begun, &stop, &to) => copied,
    };
    for store in [target, source] {
        if tokio::time::timeout(CLOSE, store.close()).await.is_err() {
            tracing::warn!("a store did not close in time");
        }
    }
    match copied.with_context(|| format!("cannot copy {} to {}", from.text(), to.text()))? {
        CopyEnd::Complete => Ok(()),
        CopyEnd::Stopped => {
            bail!("the copy was stopped; run the same command again, and it goes on")
        }
    }
}

async fn run_copy(
    source: &Arc<dyn Store>,
    target: &Arc<dyn Store>,
    options: CopyOptions,
    stop: &CancellationToken,
    to: &Location,
) -> anyhow::Result<CopyEnd> {
    let opened = StoreCopy::open(Arc::clone(source), Arc::clone(target), options).await;
    let mut copy = match opened {
        Err(CopyError::Stopped) => return Ok(CopyEnd::Stopped),
        opened => opened?,
    };
    to.note_begun().await?;
    let mut progress = Progress::new(copy.state());
    say_begun(&copy);
    let end = copy.run(stop, |state| progress.report(state)).await;
    progress.end();
    let end = end?;
    if end == CopyEnd::Complete {
        let CopyState { done, content, .. } = copy.state();
        let seconds = progress.elapsed().as_secs_f64();
        let mut out = std::io::stdout();
        let _ = writeln!(
            out,
            "copied {} planes with {} objects ({}) and {} revisions of history in {seconds:.1} s; {} is \
             complete and may be served",
            content.planes,
            content.objects,
            size(done.bytes),
            done.revisions,
            to.text()
        );
    }
    Ok(end)
}

/// Says why nothing is copied yet: all of a large store is read first.
fn say_checking() {
    // A closed standard error must not end the copy.
    let _ = writeln!(
        std::io::stderr(),
        "checking that the target takes all records of the source"
    );
}

/// Says how far the copy is when this process begins with it. What the line says is in the target: a run that
/// is killed from here on is continued by the next one.
fn say_begun(copy: &StoreCopy) {
    // A closed standard error must not end the copy.
    let _ = writeln!(
        std::io::stderr(),
        "{}",
        begun(&copy.state(), copy.is_resumed())
    );
}

/// Returns the first line of a copy. The objects at the beginning of history are copied first, and what
/// the history adds to them after that, so they are fewer or more than those which the last line counts.
fn begun(state: &CopyState, is_resumed: bool) -> String {
    let CopyState {
        done,
        total,
        content,
    } = state;
    match is_resumed {
        true => format!(
            "going on with the copy of {} planes with {} objects: {} of {} objects at the beginning of history \
             and {} of {} revisions of history are there",
            content.planes,
            content.objects,
            done.objects,
            total.objects,
            done.revisions,
            total.revisions
        ),
        false => format!(
            "the copy of {} planes with {} objects begins: {} objects at the beginning of history and {} \
             revisions of history",
            content.planes, content.objects, total.objects, total.revisions
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_ownership::CopyFigures;

    #[test]
    fn the_first_line_counts_what_the_last_one_counts() {
        let figures = |planes, objects, revisions| CopyFigures {
            planes,
            objects,
            bytes: 0,
            revisions,
        };
        let state = CopyState {
            done: figures(0, 7, 2),
            total: figures(3, 40, 12),
            content: figures(4, 52, 0),
        };
        assert_eq!(
            begun(&state, false),
            "the copy of 4 planes with 52 objects begins: 40 objects at the beginning of history and 12 revisions \
             of history"
        );
        assert_eq!(
            begun(&state, true),
            "going on with the copy of 4 planes with 52 objects: 7 of 40 objects at the beginning of history and \
             2 of 12 revisions of history are there"
        );
    }
}
