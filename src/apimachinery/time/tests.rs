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

#[test]
fn both_forms_of_a_time_show_its_date_in_every_year() {
    let days = (-800_000..3_000_000).step_by(997);
    for (number, day) in (0..).zip(days) {
        let time = Timestamp {
            seconds: day * 86_400 + number * 61 % 86_400,
            nanoseconds: (number as u32).wrapping_mul(7_919_000) % 1_000_000_000,
        };
        let civil = time.civil();
        let whole = format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            civil.year, civil.month, civil.day, civil.hour, civil.minute, civil.second
        );
        assert_eq!(time.to_rfc3339(), format!("{whole}Z"));
        let fraction = format!("{:06}Z", time.nanoseconds / 1000);
        assert_eq!(time.to_rfc3339_micro(), format!("{whole}.{fraction}"));
    }
}
