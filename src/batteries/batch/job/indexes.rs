//! Lists of the indexes of an indexed Job, such as `1,3-5`.

/// Returns the number of indexes in the list, all of which must be below `completions`.
///
/// # Errors
/// Returns upstream's text about the first part that is invalid.
pub fn count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut last, mut total) = (None, 0);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!(
                "non-increasing order, previous: {last}, current: {first}"
            ));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first index in both lists; parts that cannot be parsed are skipped.
pub fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',')
            .filter_map(|part| interval(part, completions).ok())
            .collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut at, mut other) = (0, 0);
    while let (Some(one), Some(two)) = (completed.get(at), failed.get(other)) {
        if one.0 <= two.1 && two.0 <= one.1 {
            return Some(one.0.max(two.0));
        }
        if one.0 <= two.0 { at += 1 } else { other += 1 }
    }
    None
}

fn interval(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = part.split('-').collect();
    if limits.len() > 2 {
        return Err(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let first = index(limits[0], completions)?;
    let Some(end) = limits.get(1) else {
        return Ok((first, first));
    };
    let end = index(end, completions)?;
    if first >= end {
        return Err(format!(
            "non-increasing order, previous: {first}, current: {end}"
        ));
    }
    Ok((first, end))
}

fn index(text: &str, completions: i64) -> Result<i64, String> {
    match text.parse::<i64>() {
        Err(_) => Err(format!(
            "cannot convert string to integer for index: {text:?}"
        )),
        Ok(index) if index >= completions => Err(format!("too large index: {text:?}")),
        Ok(index) => Ok(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_indexes_are_counted_and_compared() {
        assert_eq!(count("0,2-4", 5), Ok(4));
        assert_eq!(count("", 5), Ok(0));
        assert_eq!(
            count("3,2", 5),
            Err("non-increasing order, previous: 3, current: 2".to_owned())
        );
        assert_eq!(count("7", 5), Err("too large index: \"7\"".to_owned()));
        assert_eq!(overlap("0-2", "4,2", 9), None);
        assert_eq!(overlap("0-2", "2,4", 9), Some(2));
    }
}
