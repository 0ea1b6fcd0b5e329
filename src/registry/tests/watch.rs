//! The positions that go with the bytes of a watch, and the memory of its selectors.

use super::{Ask, Site, settle_down, tree};
use crate::{Answer, AnswerBody, ResourceRequest, Verb, WatchChunk, WatchProgress};
use futures_util::StreamExt as _;
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Share;
use std::sync::Arc;
use tokio::time::Instant;

const VERSION: [&str; 3] = ["object", "metadata", "resourceVersion"];

/// Returns a watch of the config maps that begins with the present objects and has bookmarks.
fn watch(accept: &str, selector: &str) -> ResourceRequest {
    let mut ask = Ask::new(Verb::Watch, "configmaps", None);
    let query = [
        ("sendInitialEvents", "true"),
        ("resourceVersionMatch", "NotOlderThan"),
        ("allowWatchBookmarks", "true"),
        ("labelSelector", selector),
    ];
    ask.query = query
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    ResourceRequest {
        accept: accept.to_owned(),
        ..ask.request()
    }
}

/// Returns the position that the lines of a chunk give to a client which has read them.
fn said(chunk: &WatchChunk, amid_initial: bool) -> (WatchProgress, usize) {
    let text = std::str::from_utf8(&chunk.bytes).expect("text");
    assert!(text.ends_with('\n'), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.last().expect("a line").as_bytes();
    // A replica that gets no version beside the bytes reads it from the bytes like this.
    let version = scan::string_at(last, &VERSION).expect("a version");
    let version = version.parse().expect("a number");
    let progress = match scan::string_at(last, &["type"]).as_deref().expect("a type") {
        "BOOKMARK" => {
            assert_eq!(lines.len(), 1, "a bookmark is alone");
            WatchProgress::Bookmark(version)
        }
        _ if amid_initial => WatchProgress::Initial,
        _ => WatchProgress::Events(version),
    };
    (progress, lines.len())
}

async fn write(site: &Site) {
    // The six objects together exceed one chunk.
    for at in 0..6 {
        site.make(&format!("long-{at}"), &"x".repeat(30_000)).await;
    }
    for label in ["seen", "unseen", "seen"] {
        let body = format!(r#"{{"metadata":{{"labels":{{"is":"{label}"}}}}}}"#);
        let patched = site.send(Ask::patch("long-3", &body)).await;
        patched.expect("it is there");
    }
    let delete = Ask::new(Verb::Delete, "configmaps", Some("long-3"));
    site.send(delete).await.expect("it is there");
    site.make("unlabelled", "last").await;
}

#[tokio::test(start_paused = true)]
async fn the_version_beside_the_bytes_is_the_one_in_the_bytes() {
    let of = |what: &str| format!("application/json;as={what};g=meta.k8s.io;v=v1");
    for accept in [String::new(), of("PartialObjectMetadata"), of("Table")] {
        for (selector, events) in [("", 11), ("is=seen", 4)] {
            let site = Site::open(Vec::new()).await;
            for name in ["b", "a"] {
                site.make(name, "first").await;
            }
            let labelled = r#"{"metadata":{"labels":{"is":"seen"}}}"#;
            let patched = site.send(Ask::patch("b", labelled)).await;
            patched.expect("it is there");
            let request = watch(&accept, selector);
            let answer = site.registry.handle(&site.tenant, &request).await;
            let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
                panic!("a watch");
            };
            write(&site).await;
            settle_down().await;
            let (mut bookmarks, mut counted, mut newest) = (0, 0, 0);
            while bookmarks < 2 {
                let chunk = chunks.next().await.expect("it goes on").expect("a chunk");
                let (said, lines) = said(&chunk, bookmarks == 0);
                assert_eq!(chunk.progress, said, "{accept} {selector}");
                match said {
                    WatchProgress::Initial => {}
                    WatchProgress::Bookmark(version) => {
                        assert!(version >= newest);
                        bookmarks += 1;
                    }
                    WatchProgress::Events(version) => {
                        assert!(version > newest);
                        newest = version;
                        counted += lines;
                    }
                    WatchProgress::Failed => panic!("it goes on"),
                }
            }
            assert_eq!(counted, events, "{accept} {selector}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_no_version_to_resume_after() {
    let site = Site::open(Vec::new()).await;
    let mut ask = Ask::new(Verb::Watch, "configmaps", None);
    ask.query = vec![("resourceVersion".to_owned(), "1000000".to_owned())];
    let answer = site.registry.handle(&site.tenant, &ask.request()).await;
    let AnswerBody::Watch(mut chunks) = answer.expect("it waits for the version").body else {
        panic!("a watch");
    };
    let last = chunks.next().await.expect("an error").expect("a chunk");
    assert_eq!(last.progress, WatchProgress::Failed);
    assert!(last.bytes.starts_with(b"{\"type\":\"ERROR\""));
    assert!(chunks.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_row_that_ends_the_initial_ones_always_says_so() {
    let accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    for (include, kind) in [
        ("", "PartialObjectMetadata"),
        ("Metadata", "PartialObjectMetadata"),
        ("None", "PartialObjectMetadata"),
        ("Object", "ConfigMap"),
    ] {
        let site = Site::open(Vec::new()).await;
        let mut request = watch(accept, "");
        let include_object = ("includeObject".to_owned(), include.to_owned());
        request.query.push(include_object);
        let answer = site.registry.handle(&site.tenant, &request).await;
        let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
            panic!("a watch");
        };
        let chunk = chunks.next().await.expect("a bookmark").expect("a chunk");
        let event = tree(std::str::from_utf8(&chunk.bytes).expect("text").trim());
        assert_eq!(event.str_at(&["type"]), "BOOKMARK");
        let shown = &event["object"].items_at(&["rows"])[0]["object"];
        assert_eq!(shown.str_at(&["kind"]), kind, "{include}");
        let end = ["metadata", "annotations", "k8s.io/initial-events-end"];
        assert_eq!(shown.str_at(&end), "true", "{include}");
    }
}

/// Returns the annotation of each bookmark of a watch until its end.
async fn bookmarks_of(query: &str) -> Vec<String> {
    let site = Site::open(Vec::new()).await;
    let mut ask = Ask::new(Verb::Watch, "configmaps", None);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    ask.query = pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let answer = site.registry.handle(&site.tenant, &ask.request()).await;
    let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
        panic!("a watch");
    };
    let mut found = Vec::new();
    while let Some(Ok(chunk)) = chunks.next().await {
        let event = tree(std::str::from_utf8(&chunk.bytes).expect("text").trim());
        assert_eq!(event.str_at(&["type"]), "BOOKMARK");
        let end = ["metadata", "annotations", "k8s.io/initial-events-end"];
        found.push(event["object"].str_at(&end).to_owned());
    }
    found
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_begins_with_all_objects_says_where_they_end() {
    let cases: [(&str, &[&str]); 3] = [
        ("watch=true", &["true"]),
        ("watch=1&resourceVersion=0", &["true"]),
        // Only the path says that it is a watch.
        ("resourceVersion=0", &[]),
    ];
    for (query, wanted) in cases {
        let query = format!("{query}&allowWatchBookmarks=true&timeoutSeconds=1");
        assert_eq!(bookmarks_of(&query).await, wanted, "{query}");
    }
    // A watch that is not short ends with a bookmark too.
    let query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=3";
    assert_eq!(bookmarks_of(query).await, ["true", ""]);
    let query = "watch=true&timeoutSeconds=3";
    assert!(bookmarks_of(query).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_event_is_shown_to_who_wants_a_list() {
    let site = Site::open(Vec::new()).await;
    site.make("a", "first").await;
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let request = watch(accept, "");
    let answer = site.registry.handle(&site.tenant, &request).await;
    let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
        panic!("a watch");
    };
    assert!(chunks.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_only_the_path_names_has_the_options_of_a_list() {
    let site = Site::open(Vec::new()).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (query, code) in [
        (format!("watch=false&{initial}"), Some(422)),
        (format!("watch=true&{initial}"), None),
        ("watch=false&continue=x".to_owned(), None),
        ("watch=true&continue=x".to_owned(), Some(422)),
        ("watch=false".to_owned(), None),
    ] {
        let mut ask = Ask::new(Verb::Watch, "configmaps", Some("a"));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        ask.query = pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let answer = site.registry.handle(&site.tenant, &ask.request()).await;
        assert_eq!(answer.err().map(|error| error.code), code, "{query}");
    }
}

/// Returns a selector of some kilobytes.
fn long_selector(label: &str) -> String {
    let values: Vec<String> = (0..1000).map(|at| format!("value-{at}")).collect();
    format!("{label} in ({})", values.join(","))
}

async fn open(site: &Site, request: ResourceRequest) -> Result<Answer, ApiError> {
    site.registry.handle(&site.tenant, &request).await
}

/// Returns the bytes of the selectors that open watches of a plane keep.
fn held(site: &Site) -> usize {
    site.tenant.plane.memory().used(Share::Selectors)
}

#[tokio::test]
async fn long_selectors_of_watches_count_in_the_memory_budget_and_equal_ones_count_once() {
    let site = Site::open(Vec::new()).await;
    let short = open(&site, watch("", "is=seen")).await.expect("it begins");
    assert_eq!(held(&site), 0);
    let long = long_selector("is");
    let first = open(&site, watch("", &long)).await.expect("it begins");
    let bytes = held(&site);
    assert!(bytes > long.len(), "{bytes}");
    let equal = open(&site, watch("", &long)).await.expect("it begins");
    assert_eq!(held(&site), bytes);
    drop(first);
    assert_eq!(held(&site), bytes, "one watch has it still");
    let other = watch("", &long_selector("was"));
    let other = open(&site, other).await.expect("it begins");
    assert!(held(&site) > bytes);
    drop((short, equal, other));
    assert_eq!(held(&site), 0);
    let again = open(&site, watch("", &long)).await.expect("it begins");
    assert_eq!(held(&site), bytes);
    drop(again);
    let recorded = ResourceRequest {
        annotations: Some(Arc::default()),
        ..watch("", &long)
    };
    let recorded = open(&site, recorded).await.expect("it begins");
    assert!(held(&site) > bytes + long.len(), "the record has its text");
    drop(recorded);
    assert_eq!(held(&site), 0);
}

#[tokio::test]
async fn a_long_selector_is_refused_while_there_is_no_memory_for_it() {
    let site = Site::open(Vec::new()).await;
    let memory = Arc::clone(site.tenant.plane.memory());
    let full = memory.take(Share::Selectors, memory.limit(Share::Selectors));
    let full = full.expect("nobody has any of it");
    let long = watch("", &long_selector("is"));
    let refused = open(&site, long.clone()).await.err().expect("no memory");
    let refusal = (refused.code, refused.retry_after_seconds());
    assert_eq!(refusal, (429, Some(1)));
    let short = open(&site, watch("", "is=seen")).await;
    drop(short.expect("it needs none"));
    drop(full);
    drop(open(&site, long).await.expect("there is memory again"));
    assert_eq!(held(&site), 0);
}

#[test]
fn a_stream_keeps_no_text_of_its_request() {
    let request = ResourceRequest {
        user_agent: "long".to_owned(),
        content_type: Some("long".to_owned()),
        body: "long".into(),
        ..watch("long", "long")
    };
    let kept = request.for_stream(Instant::now());
    assert_eq!((&*kept.accept, &*kept.user_agent), ("", ""));
    assert_eq!((kept.content_type, kept.query.len()), (None, 0));
    assert!(kept.body.is_empty());
}
