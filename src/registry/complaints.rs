//! The bound of the complaints about one object. An object of some megabytes may break a rule a million times, and a
//! complaint may name everything that would have been right, so that all of them together are no answer.

use polyplane_apimachinery::field_error::FieldError;

/// Most complaints in one answer; further ones are left out. With more, an answer would be larger than the object.
const COUNT_MAX: usize = 10_000;
/// Most bytes of their texts.
const BYTES_MAX: usize = 1 << 20;

/// The room that is left for complaints.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    count: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            count: COUNT_MAX,
            bytes: BYTES_MAX,
        }
    }
}

impl Room {
    /// Takes the room of a complaint with a text of this length. Returns false if there is none left; the last
    /// complaint may be longer than what is left.
    pub fn take(&mut self, bytes: usize) -> bool {
        let is_left = self.count > 0 && self.bytes > 0;
        if is_left {
            self.count -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        is_left
    }
}

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
