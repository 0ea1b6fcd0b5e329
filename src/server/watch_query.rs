//! The query of a watch on its way to another replica, and of the rest of a watch.
//!
//! A peer is always asked for bookmarks, and for one behind the initial events, so that the watch
//! can go on elsewhere at any time; what the client did not ask for is hidden from it. Parameters
//! that have no part in this stay as the client wrote them.

use std::time::Duration;

use crate::relay::{Lines, Wish};
use crate::route::decode_key;

const VERSION: &str = "resourceVersion";
const VERSION_MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";
const BOOKMARKS: &str = "allowWatchBookmarks";
const TIMEOUT: &str = "timeoutSeconds";

/// A watch as a peer is asked for it.
pub(crate) struct WatchQuery {
    /// The raw query.
    pub query: String,
    /// What is done with its stream.
    pub lines: Lines,
}

/// Rewrites the `raw` query of a client's watch, whose pairs are `parsed`.
pub(crate) fn forwarded(raw: Option<&str>, parsed: &[(String, String)]) -> WatchQuery {
    let text = |name: &str| {
        let found = parsed.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    };
    let is_on = |name| text(name).and_then(flag);
    let version = text(VERSION).unwrap_or("");
    let initial = is_on(INITIAL);
    let (bookmarks, asked) = (is_on(BOOKMARKS) == Some(true), text(INITIAL).is_some());
    let plain = !asked && text(VERSION_MATCH).is_none() && text("continue").is_none();
    let begins_with_all = plain && matches!(version, "" | "0");
    let mut query = without(raw, &[BOOKMARKS]);
    add(&mut query, BOOKMARKS, "true");
    if begins_with_all {
        add(&mut query, INITIAL, "true");
        add(&mut query, VERSION_MATCH, "NotOlderThan");
    }
    let wish = match bookmarks {
        false => Wish::None,
        true if begins_with_all => Wish::AfterInitial,
        true => Wish::All,
    };
    let told = match initial {
        Some(true) => None,
        Some(false) | None => version.parse().ok().filter(|version| *version > 0),
    };
    WatchQuery {
        query,
        lines: Lines::new(wish, told),
    }
}

/// The query of what comes after version `told`, for a client that asked `raw` some time `ago`.
pub(crate) fn rest(raw: Option<&str>, told: u64, ago: Duration) -> String {
    let seconds = raw
        .into_iter()
        .flat_map(|raw| raw.split('&'))
        .filter_map(|pair| pair.strip_prefix("timeoutSeconds="))
        .find_map(|value| value.parse::<u64>().ok())
        .filter(|seconds| *seconds > 0);
    let mut query = without(raw, &[VERSION, VERSION_MATCH, INITIAL, TIMEOUT]);
    add(&mut query, VERSION, &told.to_string());
    if let Some(seconds) = seconds {
        let left = seconds.saturating_sub(ago.as_secs()).max(1);
        add(&mut query, TIMEOUT, &left.to_string());
    }
    query
}

/// A boolean as Go reads one.
fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn without(raw: Option<&str>, names: &[&str]) -> String {
    let stays = |pair: &&str| {
        let key = pair.split('=').next().unwrap_or("");
        let key = decode_key(key);
        !pair.is_empty() && key.is_none_or(|key| !names.contains(&key.as_str()))
    };
    let pairs: Vec<&str> = raw.unwrap_or("").split('&').filter(stays).collect();
    pairs.join("&")
}

/// Adds a pair in front: the first of several counts.
fn add(query: &mut String, name: &str, value: &str) {
    let rest = std::mem::take(query);
    query.push_str(name);
    query.push('=');
    query.push_str(value);
    if !rest.is_empty() {
        query.push('&');
        query.push_str(&rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::parse_query;

    fn of(raw: &str) -> String {
        forwarded(Some(raw), &parse_query(Some(raw))).query
    }

    #[test]
    fn peers_are_asked_for_bookmarks_and_an_end_of_the_beginning() {
        let all = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true&\
                   allowWatchBookmarks=true&watch=1&labelSelector=a%3Db";
        assert_eq!(of("watch=1&labelSelector=a%3Db"), all);
        assert_eq!(
            of("watch=1&resourceVersion=7&allowWatchBookmarks=false"),
            "allowWatchBookmarks=true&watch=1&resourceVersion=7"
        );
        let wrong = "watch=1&resourceVersionMatch=Exact";
        assert_eq!(of(wrong), format!("allowWatchBookmarks=true&{wrong}"));
    }

    #[test]
    fn the_rest_begins_at_a_version_and_ends_in_time() {
        let raw = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&\
                   resource%56ersion=3&timeoutSeconds=100&fieldSelector=x";
        assert_eq!(
            rest(Some(raw), 42, Duration::from_secs(30)),
            "timeoutSeconds=70&resourceVersion=42&watch=1&fieldSelector=x"
        );
        let late = rest(Some("timeoutSeconds=5"), 1, Duration::from_secs(60));
        assert_eq!(late, "timeoutSeconds=1&resourceVersion=1");
    }
}
