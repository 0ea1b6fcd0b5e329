//! Schedules in the five fields of cron, with the texts of the parser that upstream uses.

use polyplane_apimachinery::time::parse_duration;

struct Bounds {
    least: u64,
    most: u64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds {
        least: 0,
        most: 59,
        names: &[],
    },
    Bounds {
        least: 0,
        most: 23,
        names: &[],
    },
    Bounds {
        least: 1,
        most: 31,
        names: &[],
    },
    Bounds {
        least: 1,
        most: 12,
        names: &MONTHS,
    },
    Bounds {
        least: 0,
        most: 6,
        names: &DAYS,
    },
];
const DESCRIPTORS: [&str; 7] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
];

/// Validates a schedule; returns the complaint about it, if there is one.
pub fn complaint(schedule: &str) -> Option<String> {
    check(schedule).err()
}

/// Returns true for the name of a known time zone.
pub fn is_zone(name: &str) -> bool {
    match name {
        "" | "UTC" => true,
        _ => jiff::tz::TimeZone::get(name).is_ok_and(|zone| zone.iana_name() == Some(name)),
    }
}

fn check(schedule: &str) -> Result<(), String> {
    if schedule.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let mut rest = schedule;
    if schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=") {
        let (prefix, after) = schedule.split_once(' ').unwrap_or((schedule, ""));
        let name = prefix.split_once('=').map_or("", |(_, name)| name);
        if !is_zone(name) {
            return Err(format!(
                "provided bad location {name}: unknown time zone {name}"
            ));
        }
        rest = after.trim();
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let found = fields.len();
        return Err(format!(
            "expected exactly {} fields, found {found}: [{}]",
            FIELDS.len(),
            fields.join(" ")
        ));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            check_range(range, bounds)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(every) => match parse_duration(every) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("failed to parse duration {text}: {error}")),
        },
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

fn check_range(text: &str, bounds: &Bounds) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (bounds.least, bounds.most)
    } else {
        let start = named_number(ends[0], bounds)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, named_number(end, bounds)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = bounds.most;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.least {
        return Err(format!(
            "beginning of range ({start}) below minimum ({}): {text}",
            bounds.least
        ));
    }
    if end > bounds.most {
        return Err(format!(
            "end of range ({end}) above maximum ({}): {text}",
            bounds.most
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn named_number(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(at) => Ok(at as u64 + bounds.least),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        ));
    }
    match text.parse::<i64>() {
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: value out of range"
        )),
        Ok(number) => u64::try_from(number)
            .map_err(|_| format!("negative number ({number}) not allowed: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_cron_reads_them() {
        for good in [
            "* * * * *",
            "*/5 0-3,7 1 jan-MAR sun",
            "@hourly",
            "@every 1h30m",
            "TZ=UTC 0 1 * * ?",
        ] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for (bad, text) in [
            ("a b", "expected exactly 5 fields, found 2: [a b]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(complaint(bad).as_deref(), Some(text));
        }
    }
}
