//! The memory of long answers on their way to clients, which counts in the share of answers.

use crate::answer::AnswerBody;
use crate::request::call::Call;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Reservation, Share};

/// Bytes below which an answer is not counted in the memory budget, because counting would cost more
/// than it is worth.
pub const HELD_BYTES_MIN: usize = 16 << 10;
/// `Retry-After`, in seconds, for a client that found the share of answers full.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Reserves the memory of an answer that is about to be made.
///
/// # Errors
/// Returns 429 if the answers on their way to clients fill their share, or the plane's part of it.
pub fn room(call: &Call<'_>, bytes: usize) -> Result<Reservation, ApiError> {
    let hold = call.tenant.plane.take_memory(Share::Answers, bytes);
    hold.ok_or_else(full)
}

/// The error of an answer for which there is no memory.
pub fn full() -> ApiError {
    let text = "The server has no memory for a further long answer, please try again later.";
    ApiError::too_many_requests(text, RETRY_AFTER_SECONDS)
}

/// Returns a body that holds its memory until its last slice is sent.
pub fn hold_until_sent(mut body: AnswerBody, hold: Option<Reservation>) -> AnswerBody {
    if let (AnswerBody::Slices(slices), Some(hold)) = (&mut body, hold) {
        let last = slices.pop().unwrap_or_default();
        slices.push(hold.keep(last));
    }
    body
}
