//! What a request waits for, and the answer if that does not come before its deadline.

use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{NotAnswerable, Plane};
use tokio::time::Instant;

/// Waits until this replica may answer from memory.
///
/// # Errors
/// Returns 503 if the plane has another owner, or the read lease is not proven before the deadline.
pub async fn answerable_by(plane: &Plane, deadline: Instant) -> Result<(), ApiError> {
    plane
        .answerable(deadline)
        .await
        .map_err(|error| match error {
            NotAnswerable::Lost => ApiError::moved(),
            other => ApiError::service_unavailable(format!(
                "the control plane cannot be read here: {other}"
            )),
        })
}

/// Reports that the request's time is over.
pub fn out_of_time() -> ApiError {
    ApiError::timeout("request did not complete within the allotted timeout", 0)
}
