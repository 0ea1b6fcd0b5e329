//! The parts of points and spans of time.

use crate::library::{Context, Library};
use crate::time::Civil;
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        timestamp_to_year: getFullYear:(timestamp) -> int
        timestamp_to_year_with_tz: getFullYear:(timestamp, string) -> int
        timestamp_to_month: getMonth:(timestamp) -> int
        timestamp_to_month_with_tz: getMonth:(timestamp, string) -> int
        timestamp_to_day_of_year: getDayOfYear:(timestamp) -> int
        timestamp_to_day_of_year_with_tz: getDayOfYear:(timestamp, string) -> int
        timestamp_to_day_of_month: getDayOfMonth:(timestamp) -> int
        timestamp_to_day_of_month_with_tz: getDayOfMonth:(timestamp, string) -> int
        timestamp_to_day_of_month_1_based: getDate:(timestamp) -> int
        timestamp_to_day_of_month_1_based_with_tz: getDate:(timestamp, string) -> int
        timestamp_to_day_of_week: getDayOfWeek:(timestamp) -> int
        timestamp_to_day_of_week_with_tz: getDayOfWeek:(timestamp, string) -> int
        timestamp_to_hours: getHours:(timestamp) -> int
        timestamp_to_hours_with_tz: getHours:(timestamp, string) -> int
        duration_to_hours: getHours:(duration) -> int
        timestamp_to_minutes: getMinutes:(timestamp) -> int
        timestamp_to_minutes_with_tz: getMinutes:(timestamp, string) -> int
        duration_to_minutes: getMinutes:(duration) -> int
        timestamp_to_seconds: getSeconds:(timestamp) -> int
        timestamp_to_seconds_tz: getSeconds:(timestamp, string) -> int
        duration_to_seconds: getSeconds:(duration) -> int
        timestamp_to_milliseconds: getMilliseconds:(timestamp) -> int
        timestamp_to_milliseconds_with_tz: getMilliseconds:(timestamp, string) -> int
        duration_to_milliseconds: getMilliseconds:(duration) -> int",
    runs: &[
        ("getFullYear", |context, args| {
            part(context, args, |at| at.year)
        }),
        ("getMonth", |context, args| {
            part(context, args, |at| at.month - 1)
        }),
        ("getDayOfYear", |context, args| {
            part(context, args, |at| at.day_of_year - 1)
        }),
        ("getDayOfMonth", |context, args| {
            part(context, args, |at| at.day - 1)
        }),
        ("getDate", |context, args| part(context, args, |at| at.day)),
        ("getDayOfWeek", |context, args| {
            part(context, args, |at| at.weekday)
        }),
        ("getHours", |context, args| {
            span(args, 3_600_000_000_000).map_or_else(|| part(context, args, |at| at.hour), Ok)
        }),
        ("getMinutes", |context, args| {
            span(args, 60_000_000_000).map_or_else(|| part(context, args, |at| at.minute), Ok)
        }),
        ("getSeconds", |context, args| {
            span(args, 1_000_000_000).map_or_else(|| part(context, args, |at| at.second), Ok)
        }),
        ("getMilliseconds", |context, args| {
            span(args, 1_000_000).map_or_else(|| part(context, args, |at| at.nanos / 1_000_000), Ok)
        }),
    ],
    types: &[],
};

/// Returns a span in a unit of nanoseconds.
fn span<'a>(args: &[Value<'a>], unit: i64) -> Option<Value<'a>> {
    match args {
        [Value::Duration(nanos)] => Some(Value::Int(nanos / unit)),
        _ => None,
    }
}

/// Returns a part of a point in time, in UTC or a named zone.
fn part<'a>(context: Context<'_>, args: &[Value<'a>], of: fn(&Civil) -> i64) -> Outcome<'a> {
    let (at, offset) = match args {
        // Without a zone the environment of Kubernetes takes UTC, not the zone it was written in.
        [Value::Timestamp(at)] => (at, 0),
        [Value::Timestamp(at), Value::String(zone)] => {
            (at, context.environment.zone(zone, at.order().0)?)
        }
        _ => return Err(Fault::no_overload()),
    };
    Ok(Value::Int(of(&at.civil(offset))))
}
