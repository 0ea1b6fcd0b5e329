//! The bound of the texts in one answer. What validation finds is bounded before, but the text of a value may be longer
//! than the value: see [`polyplane_apimachinery::complaints`].

use polyplane_apimachinery::complaints::{Complaints, Room};
use polyplane_apimachinery::field_error::FieldError;

/// Completes the complaints, and drops those for which one answer has no room. What would have been told about
/// those is not made.
pub fn bound(errors: Complaints, complete: impl Fn(&mut FieldError)) -> Complaints {
    let mut room = Room::default();
    let completed = errors.into_iter().map(|mut error| {
        complete(&mut error);
        error
    });
    completed
        .take_while(|error| room.take(error.to_string().len()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::complaints::BYTES_MAX;
    use polyplane_apimachinery::field_error::{Bad, Path};

    fn bounded(count: usize, text: &str) -> usize {
        let error = FieldError::invalid(&Path::new("spec"), 1i64, "no");
        let errors = std::iter::repeat_n(error, count).collect();
        let show = |error: &mut FieldError| error.bad = Bad::Shown(text.into());
        bound(errors, show).len()
    }

    #[test]
    fn complaints_are_bounded_by_the_texts_of_their_values() {
        assert_eq!(bounded(100, "no"), 100);
        let long = "x".repeat(BYTES_MAX / 4);
        assert_eq!(bounded(9, &long), 4);
        // Somebody has to be told why the object is refused.
        assert_eq!(bounded(2, &long.repeat(8)), 1);
    }
}
