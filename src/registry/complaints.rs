//! The bound of the complaints in one answer: see [`polyplane_apimachinery::complaints`].

use polyplane_apimachinery::complaints::Room;
use polyplane_apimachinery::field_error::FieldError;

/// Completes the complaints, and drops those for which one answer has no room. What would have been told about
/// those is not made.
pub fn bound(errors: &mut Vec<FieldError>, complete: impl Fn(&mut FieldError)) {
    let mut room = Room::default();
    let beyond = errors.iter_mut().position(|error| {
        complete(error);
        let bytes = error.to_string().len();
        !room.take(bytes)
    });
    if let Some(beyond) = beyond {
        errors.truncate(beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::complaints::{BYTES_MAX, COUNT_MAX};
    use polyplane_apimachinery::field_error::Path;

    fn bounded(count: usize, text: &str) -> usize {
        let error = FieldError::required(&Path::new("spec"), text);
        let mut errors = vec![error; count];
        bound(&mut errors, |_| {});
        errors.len()
    }

    #[test]
    fn the_number_and_the_length_of_complaints_are_bounded() {
        assert_eq!(bounded(100, "no"), 100);
        assert_eq!(bounded(COUNT_MAX + 5, "no"), COUNT_MAX);
        let long = "x".repeat(BYTES_MAX / 4);
        assert_eq!(bounded(9, &long), 4);
        // Somebody has to be told why the object is refused.
        assert_eq!(bounded(2, &long.repeat(8)), 1);
    }
}
