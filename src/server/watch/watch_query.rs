//! Rewrites the query of a watch, to forward it to another replica or to resume it there.
//!
//! A forwarded watch always requests bookmarks, and one after the initial events, so that the watch
//! can resume at another replica at any time; [`ClientPosition`] hides the bookmarks that the
//! client did not request. The table of parameters names those that are rewritten; the others stay
//! as the client wrote them.

use std::time::Duration;

use polyplane_apimachinery::strconv;
use polyplane_registry::request::parameters;
use polyplane_registry::request::parameters::{
    ALLOW_WATCH_BOOKMARKS, CONTINUE, Hop, Query, RESOURCE_VERSION, RESOURCE_VERSION_MATCH, ROWS,
    Row, SEND_INITIAL_EVENTS, TIMEOUT_SECONDS, WATCH,
};

use crate::request::route::{decode_key, parse_query};
use crate::watch::position::{BookmarkFilter, ClientPosition};

/// A watch in the form in which it is forwarded to a peer.
pub(crate) struct WatchQuery {
    /// The raw query.
    pub query: String,
    /// The position at which the client begins.
    pub position: ClientPosition,
}

/// Rewrites the `raw` query of a client's watch, whose pairs are `parsed`.
pub(crate) fn forwarded(raw: Option<&str>, parsed: &Query) -> WatchQuery {
    let version = RESOURCE_VERSION.read(parsed);
    let initial = SEND_INITIAL_EVENTS.read(parsed);
    let bookmarks = ALLOW_WATCH_BOOKMARKS.read(parsed) == Some(true);
    let is_given = RESOURCE_VERSION_MATCH
        .given(parsed)
        .or(CONTINUE.given(parsed));
    let plain = initial.is_none() && is_given.is_none();
    let begins_with_all = plain && matches!(version, "" | "0");
    let mut query = without(raw, |row| matches!(row.hop, Hop::Always(_)));
    for row in ROWS {
        if let Hop::Always(text) = row.hop {
            add(&mut query, row, text);
        }
    }
    // The options of a legacy path are checked as those of a list unless the query says that it is a
    // watch, and no list sends initial events.
    match WATCH.read(parsed) {
        None | Some(false) if begins_with_all => add(&mut query, WATCH.row(), "true"),
        None => add(&mut query, WATCH.row(), "false"),
        Some(_) => {}
    }
    if begins_with_all {
        add(&mut query, SEND_INITIAL_EVENTS.row(), "true");
        add(&mut query, RESOURCE_VERSION_MATCH.row(), "NotOlderThan");
    }
    let bookmarks_shown = match bookmarks {
        false => BookmarkFilter::None,
        // The bookmark behind the present objects is sent only to a client whose query says that it watches.
        true if begins_with_all && WATCH.read(parsed) != Some(true) => BookmarkFilter::AfterInitial,
        true => BookmarkFilter::All,
    };
    let sent_up_to = match initial {
        Some(true) => None,
        Some(false) | None => strconv::parse_uint(version)
            .ok()
            .filter(|version| *version > 0),
    };
    WatchQuery {
        query,
        position: ClientPosition::new(bookmarks_shown, sent_up_to),
    }
}

/// Returns a query that resumes a watch after version `sent_up_to`. The watch began `ago` with the
/// query `raw`.
pub(crate) fn rest(raw: Option<&str>, sent_up_to: u64, ago: Duration) -> String {
    let seconds = TIMEOUT_SECONDS.read(&parse_query(raw)).ok().flatten();
    let mut query = without(raw, |row| match row.hop {
        Hop::AsSent | Hop::Always(_) => false,
        Hop::BeginningOnly | Hop::Position | Hop::TimeLeft => true,
    });
    add(&mut query, RESOURCE_VERSION.row(), &sent_up_to.to_string());
    if let Some(seconds) = seconds.filter(|seconds| *seconds != 0) {
        let ago = i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
        let left = seconds.saturating_sub(ago).max(1);
        add(&mut query, TIMEOUT_SECONDS.row(), &left.to_string());
    }
    query
}

/// Returns the pairs of a query that are none of the `rewritten` parameters.
fn without(raw: Option<&str>, rewritten: impl Fn(&Row) -> bool) -> String {
    let stays = |pair: &&str| {
        let key = decode_key(pair.split('=').next().unwrap_or(""));
        let row = key.and_then(|key| parameters::named(&key));
        !pair.is_empty() && !row.is_some_and(&rewritten)
    };
    let pairs: Vec<&str> = raw.unwrap_or("").split('&').filter(stays).collect();
    pairs.join("&")
}

/// Adds a pair at the front, because the first of several pairs counts.
fn add(query: &mut String, row: &Row, value: &str) {
    let rest = std::mem::take(query);
    query.push_str(row.name);
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
        // That of a legacy path, which says by itself that it is a watch.
        assert_eq!(
            of("labelSelector=a%3Db"),
            "resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true&\
             allowWatchBookmarks=true&labelSelector=a%3Db"
        );
        let list = "watch=false&allowWatchBookmarks=true&continue=x";
        assert_eq!(of("continue=x"), list);
        let wrong = "watch=1&resourceVersionMatch=Exact";
        assert_eq!(of(wrong), format!("allowWatchBookmarks=true&{wrong}"));
    }

    #[test]
    fn the_bookmark_behind_the_present_objects_is_shown_to_who_says_that_it_watches() {
        for (raw, shown) in [
            ("watch=1&allowWatchBookmarks=1", BookmarkFilter::All),
            ("allowWatchBookmarks=1", BookmarkFilter::AfterInitial),
            ("watch=1", BookmarkFilter::None),
        ] {
            let position = forwarded(Some(raw), &parse_query(Some(raw))).position;
            assert_eq!(position.bookmarks_shown(), shown, "{raw}");
        }
    }

    #[test]
    fn the_rest_begins_at_a_version_and_ends_in_time() {
        let raw = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&\
                   resource%56ersion=3&timeoutSeconds=100&fieldSelector=x";
        assert_eq!(
            rest(Some(raw), 42, Duration::from_secs(30)),
            "timeoutSeconds=70&resourceVersion=42&watch=1&fieldSelector=x"
        );
        let of = |raw| rest(Some(raw), 1, Duration::from_secs(60));
        for (raw, rest) in [
            ("timeoutSeconds=5", "timeoutSeconds=1&resourceVersion=1"),
            ("timeout%53econds=70", "timeoutSeconds=10&resourceVersion=1"),
            (
                "timeoutSeconds=%37%30",
                "timeoutSeconds=10&resourceVersion=1",
            ),
            ("timeoutSeconds=0", "resourceVersion=1"),
            ("timeoutSeconds=0&timeoutSeconds=70", "resourceVersion=1"),
            (
                "timeoutSeconds=9223372036854775807",
                "timeoutSeconds=9223372036854775747&resourceVersion=1",
            ),
            (
                "timeoutSeconds=-9223372036854775808",
                "timeoutSeconds=1&resourceVersion=1",
            ),
        ] {
            assert_eq!(of(raw), rest, "{raw}");
        }
    }

    /// The rewriting replica, the peer and the registry all read the same query in the same way.
    #[test]
    fn all_read_one_text_alike() {
        for text in [
            "", "0", "1", "t", "f", "true", "TRUE", "FaLsE", "yes", "no", "+1",
        ] {
            let raw = format!("watch=1&resourceVersion=7&sendInitialEvents={text}");
            let parsed = parse_query(Some(&raw));
            let sent = forwarded(Some(&raw), &parsed);
            let at_peer = parse_query(Some(&sent.query));
            let read = SEND_INITIAL_EVENTS.read(&parsed);
            assert_eq!(SEND_INITIAL_EVENTS.read(&at_peer), read, "{text:?}");
            assert_eq!(ALLOW_WATCH_BOOKMARKS.read(&at_peer), Some(true));
            // A watch that begins with the present state has no position until a bookmark ends the
            // initial events.
            let sent_up_to = (read == Some(false)).then_some(7);
            assert_eq!(sent.position.sent_up_to(), sent_up_to, "{text:?}");
            let raw = format!("watch=1&resourceVersion=7&allowWatchBookmarks={text}");
            let parsed = parse_query(Some(&raw));
            let bookmarks_shown = forwarded(Some(&raw), &parsed).position.bookmarks_shown();
            let welcome = ALLOW_WATCH_BOOKMARKS.read(&parsed) == Some(true);
            assert_eq!(bookmarks_shown == BookmarkFilter::All, welcome, "{text:?}");
        }
    }
}
