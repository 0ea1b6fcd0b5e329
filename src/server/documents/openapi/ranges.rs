//! The part of a document that a request names in its `Range` header, read as Go's `http.ServeContent` reads it.
//!
//! Several parts are answered with the whole document, which RFC 9110 allows and no client of upstream's documents
//! needs otherwise: each part would have to be unpacked from the document's beginning.

use std::ops::Range;

/// What is sent of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    Whole,
    Part(Range<usize>),
    /// All named parts begin behind the end of the document.
    Outside,
    Malformed,
}

/// Returns what the text of a `Range` header requests of a document that has `length` bytes.
pub(super) fn requested(text: &str, length: usize) -> Requested {
    let Some(list) = text.strip_prefix("bytes=") else {
        return Requested::Malformed;
    };
    let (mut first, mut count, mut is_outside) = (Requested::Whole, 0, false);
    for named in list
        .split(',')
        .map(str::trim)
        .filter(|named| !named.is_empty())
    {
        match part(named, length) {
            Requested::Malformed => return Requested::Malformed,
            Requested::Outside => is_outside = true,
            found => {
                first = found;
                count += 1;
            }
        }
    }
    match count {
        0 if is_outside => Requested::Outside,
        1 => first,
        _ => Requested::Whole,
    }
}

/// Reads one part: `FIRST-LAST`, `FIRST-` or `-COUNT`.
fn part(named: &str, length: usize) -> Requested {
    let Some((first, last)) = named.split_once('-') else {
        return Requested::Malformed;
    };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        let number = text.parse::<i64>().ok()?;
        usize::try_from(number).ok()
    };
    let range = match (number(first), number(last)) {
        (None, Some(count)) if first.is_empty() => length.saturating_sub(count)..length,
        (Some(first), _) if first >= length => return Requested::Outside,
        (Some(first), None) if last.is_empty() => first..length,
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        _ => return Requested::Malformed,
    };
    Requested::Part(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("bytes=0-9", Requested::Part(0..10)),
            ("bytes= 5 - 5 ,", Requested::Part(5..6)),
            ("bytes=90-", Requested::Part(90..100)),
            ("bytes=90-9223372036854775807", Requested::Part(90..100)),
            ("bytes=-4", Requested::Part(96..100)),
            ("bytes=-400", Requested::Part(0..100)),
            ("bytes=100-,7-8", Requested::Part(7..9)),
            ("bytes=0-9,20-29", Requested::Whole),
            ("bytes=", Requested::Whole),
            ("bytes=100-", Requested::Outside),
            ("bytes=100-x,200-300", Requested::Outside),
            ("bytes=9-0", Requested::Malformed),
            ("bytes=0-9,x", Requested::Malformed),
            ("bytes=-", Requested::Malformed),
            ("bytes=1--2", Requested::Malformed),
            ("bytes=90-9223372036854775808", Requested::Malformed),
            ("bytes 0-9", Requested::Malformed),
            ("lines=0-9", Requested::Malformed),
        ] {
            assert_eq!(requested(text, 100), expected, "{text}");
        }
    }
}
