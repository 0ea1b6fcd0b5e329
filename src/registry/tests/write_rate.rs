//! What a request that deletes many objects takes of its plane's rate of writes.

use super::*;
use crate::WriteRate;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A rate that leaves room for a number of writes.
#[derive(Debug)]
struct Left(AtomicUsize);

impl WriteRate for Left {
    fn take(&self) -> Result<(), ApiError> {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(ApiError::too_many_requests("at its limit", 1)),
        }
    }
}

impl Site {
    fn count(&self) -> usize {
        let maps = Prefix::namespaced("", "configmaps", "ns");
        self.tenant.plane.snapshot().count(&maps)
    }
}

#[tokio::test(start_paused = true)]
async fn each_object_of_a_collection_counts_as_a_write() {
    const ALL: usize = 70;
    let site = Site::open(Vec::new()).await;
    for number in 0..ALL {
        site.make(&format!("m{number}"), "x").await;
    }
    let rate = Arc::new(Left(AtomicUsize::new(40)));
    let mut request = Ask::new(Verb::DeleteCollection, "configmaps", None).request();
    request.write_rate = Some(Arc::clone(&rate) as _);
    let limited = site.registry.handle(&site.tenant, &request).await;
    let Err(limited) = limited else {
        panic!("the rate has no room for all");
    };
    assert_eq!(
        (limited.code, limited.retry_after_seconds()),
        (429, Some(1))
    );
    // The request was counted as the first of them.
    assert_eq!(site.count(), ALL - 41);

    rate.0.store(ALL, Ordering::Relaxed);
    let all = site.registry.handle(&site.tenant, &request).await;
    assert!(all.is_ok());
    assert_eq!(site.count(), 0);
    assert_eq!(rate.0.load(Ordering::Relaxed), ALL - (ALL - 41 - 1));
}
