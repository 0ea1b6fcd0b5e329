//! Properties and recorded vectors of this module.

use super::*;
use crate::vectors::{assert_none, compare, vectors};

#[test]
fn times_are_read_and_printed_as_go_does() {
    let all = vectors("time");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        match Timestamp::parse(input) {
            Ok(time) => {
                let go = format!(
                    "{} {:?} {:?}",
                    vector.str_at(&["out"]),
                    vector.int_at(&["unix"]),
                    vector.int_at(&["nano"])
                );
                let ours = format!(
                    "{} {:?} {:?}",
                    time.to_rfc3339(),
                    Some(time.seconds),
                    Some(i64::from(time.nanoseconds))
                );
                compare(&mut differences, input, &go, &ours);
            }
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
        match Timestamp::parse_micro(input) {
            Ok(time) => compare(
                &mut differences,
                input,
                vector.str_at(&["mout"]),
                &time.to_rfc3339_micro(),
            ),
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["merr"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("time", all.len(), &differences);
}

#[test]
fn durations_are_read_and_printed_as_go_does() {
    let all = vectors("duration");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        match parse_duration(input) {
            Ok(nanoseconds) => {
                let go = format!(
                    "{:?} {} {}",
                    vector.int_at(&["n"]),
                    vector.str_at(&["out"]),
                    vector.str_at(&["human"])
                );
                let ours = format!(
                    "{:?} {} {}",
                    Some(nanoseconds),
                    duration_text(nanoseconds),
                    human_duration(nanoseconds)
                );
                compare(&mut differences, input, &go, &ours);
            }
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("duration", all.len(), &differences);
}
