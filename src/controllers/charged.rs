//! What a run of a reconciler costs its plane.
//!
//! Requests of the plane wait for it too: what is done for a plane counts as its own work.

use std::future::poll_fn;

use futures_util::future::BoxFuture;
use polyplane_fairness::{CpuTimer, PlaneMeter, Precision};

/// Does the work of a plane, and charges the plane for each poll of it.
pub(crate) async fn charged<T>(meter: &PlaneMeter, mut work: BoxFuture<'_, T>) -> T {
    poll_fn(|context| {
        let timer = CpuTimer::start(Precision::Exact);
        let polled = work.as_mut().poll(context);
        let nanos = timer.stop().cpu_nanos;
        meter.charge(nanos);
        meter.flow().charge(nanos);
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plane_pays_for_its_runs() {
        let meter = PlaneMeter::default();
        charged(&meter, Box::pin(async {})).await;
        assert!(meter.usage().cpu_nanos > 0);
    }
}
