//! Lists and initial events that are too long to be built at once: the bytes are the same as those
//! of a list that is built at once, they are sent in pieces, and the memory for them is limited in
//! bytes and in time.

use crate::shared::plane::Opening;
use crate::site::{self, Site, on_paused_clock};
use futures_util::StreamExt as _;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json, yaml};
use polyplane_auth::Masters;
use polyplane_plane::{LogBounds, Memory, Share};
use polyplane_registry::answer::negotiate;
use polyplane_registry::environment::{Environment, System};
use polyplane_registry::request::call::Call;
use polyplane_registry::request::options;
use polyplane_registry::select;
use polyplane_registry::verbs::list;
use polyplane_registry::{
    Answer, AnswerBody, Authority, ResourceRequest, Services, StreamEnd, Verb,
};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const OBJECTS: usize = 300;
/// Most bytes of a piece. The server ends a piece after the object that makes it exceed 64 KiB.
const PIECE_BYTES_MAX: usize = 80 << 10;
const PARTIAL: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PARTIAL_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// An environment in which the time does not change, so that equal requests have equal answers.
struct Still;

impl Environment for Still {
    fn now(&self) -> i64 {
        1_715_000_000
    }

    fn uid(&self) -> Str {
        System.uid()
    }

    fn random(&self, bytes: &mut [u8]) {
        System.random(bytes);
    }
}

async fn open(opening: Opening) -> Site {
    Site::with(Arc::new(Still), opening).await
}

fn request(verb: Verb, accept: &str, query: &[(&str, &str)]) -> ResourceRequest {
    let query = query.iter().map(|(name, value)| (*name, *value));
    ResourceRequest {
        query: query.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        accept: accept.to_owned(),
        ..site::request(verb, "configmaps")
    }
}

/// Returns the bytes of answers that are being sent.
fn held(site: &Site) -> usize {
    site.tenant.plane.memory().used(Share::Answers)
}

async fn fill(site: &Site) {
    for at in 0..OBJECTS {
        put(site, at, "first").await;
    }
}

async fn put(site: &Site, at: usize, round: &str) {
    let noise = format!("{at:03}{}", "v".repeat(3000));
    let labels = Value::Object([("odd", (at % 2).to_string())].into_iter().collect());
    let mut tree = json!({"data": {"noise": noise, "round": round}});
    tree.set(&["metadata", "labels"], labels);
    site.put("configmaps", &format!("m{at:03}"), tree).await;
}

fn parse(text: &[u8]) -> Value {
    let parsed = json::parse(text, &json::Limits::default());
    parsed.expect("it is JSON").value
}

async fn handle(site: &Site, request: &ResourceRequest) -> Result<Answer, ApiError> {
    site.registry.handle(&site.tenant, request).await
}

/// Returns all pieces of an answer, and whether it was streamed.
async fn pieces(answer: Answer) -> (Vec<Vec<u8>>, bool) {
    match answer.body {
        AnswerBody::Slices(slices) => (slices.iter().map(|s| s.to_vec()).collect(), false),
        AnswerBody::Stream(stream) => {
            let pieces = stream.map(|piece| piece.expect("it ends well").to_vec());
            (pieces.collect().await, true)
        }
        AnswerBody::Watch(_) | AnswerBody::Connect(_) => panic!("a list"),
    }
}

/// Returns the list as it is built at once.
async fn built_whole(site: &Site, request: &ResourceRequest) -> Vec<u8> {
    let row = (site.tenant.base).resolve("", "v1", "configmaps");
    let row = row.expect("the kind is there");
    let services = Arc::new(Services {
        environment: Arc::new(Still),
        authority: Authority::fixed(Masters),
        observers: Vec::new(),
        admission: Default::default(),
        external: Vec::new(),
        components: None,
        tokens: None,
        credentials: None,
        field_sets: Default::default(),
        selectors: Default::default(),
    });
    let call = Call::new(&site.tenant, request, row, &services);
    let wish = negotiate::output(&call, negotiate::Conversions::Offered).expect("offered");
    let options = options::ListOptions::parse(request, options::ListPurpose::List);
    let options = options.expect("sound");
    let selection = select::Selection::of(&call, &options);
    let selection = selection.expect("sound");
    let prefix = select::prefix(&call);
    let page = list::page(&call, &options, &prefix).await.expect("there");
    let items = list::collect(&call, &selection, &prefix, &page).await;
    let written = list::whole::write(&call, wish, &items, &page).await;
    match written.expect("sound") {
        AnswerBody::Slices(slices) => slices.concat(),
        AnswerBody::Stream(_) | AnswerBody::Watch(_) | AnswerBody::Connect(_) => {
            panic!("it was to be built whole")
        }
    }
}

/// Returns the text of a list's items.
fn items_of(list: &[u8]) -> String {
    let text = String::from_utf8(list.to_vec()).expect("JSON is UTF-8");
    let start = ["\"items\":[", "\"rows\":["].iter();
    let start = start.filter_map(|mark| Some(text.find(mark)? + mark.len()));
    let start = start.min().expect("it has items");
    text[start..text.len() - "]}\n".len()].to_owned()
}

/// Returns the list collected from pages that are short enough to be built at once.
async fn gathered(site: &Site, accept: &str, query: &[(&str, &str)]) -> String {
    let mut items = Vec::new();
    let mut token = String::new();
    loop {
        let mut query = query.to_vec();
        query.extend([("limit", "40"), ("continue", token.as_str())]);
        let answer = handle(site, &request(Verb::List, accept, &query)).await;
        let (page, is_streamed) = pieces(answer.expect("sound")).await;
        assert!(!is_streamed);
        let page = page.concat();
        items.push(items_of(&page));
        let page = parse(&page);
        match page.str_at(&["metadata", "continue"]) {
            "" => return items.join(","),
            next => token = next.to_owned(),
        }
    }
}

#[test]
fn a_streamed_list_has_the_bytes_of_a_whole_one() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        let shapes: [(&str, &[(&str, &str)]); 8] = [
            ("application/json", &[]),
            (PARTIAL, &[]),
            (TABLE, &[]),
            (TABLE, &[("includeObject", "None")]),
            (TABLE, &[("includeObject", "Object")]),
            ("application/yaml", &[]),
            (PROTOBUF, &[]),
            (PARTIAL_PROTOBUF, &[]),
        ];
        let selectors: [&[(&str, &str)]; 3] = [
            &[],
            &[("labelSelector", "odd=1")],
            &[("fieldSelector", "metadata.name!=m017")],
        ];
        let mut streamed = 0;
        for (accept, include) in shapes {
            for selector in selectors {
                for limit in ["0", "1", "120", "149", "299", "300", "1000"] {
                    let mut query = [include, selector].concat();
                    query.push(("limit", limit));
                    let request = request(Verb::List, accept, &query);
                    let answer = handle(&site, &request).await.expect("sound");
                    let (pieces, is_streamed) = pieces(answer).await;
                    let whole = built_whole(&site, &request).await;
                    assert_eq!(pieces.concat(), whole, "{accept} {query:?}");
                    assert!(is_streamed || limit == "1", "{accept} {query:?}");
                    if !is_streamed {
                        continue;
                    }
                    streamed += 1;
                    let longest = pieces.iter().map(Vec::len).max();
                    assert!(longest <= Some(PIECE_BYTES_MAX), "{longest:?}");
                    if limit == "0" && accept.starts_with("application/json") {
                        let query = [include, selector].concat();
                        let short = gathered(&site, accept, &query).await;
                        assert_eq!(items_of(&whole), short, "{accept} {query:?}");
                    }
                }
            }
        }
        assert_eq!(streamed, 8 * 3 * 6);
        assert_eq!(held(&site), 0);
    });
}

#[test]
fn a_list_in_yaml_is_the_one_in_json_however_long() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        for shape in [
            "",
            ";as=Table;g=meta.k8s.io;v=v1",
            ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        ] {
            for query in [
                ("limit", "2"),
                ("limit", "200"),
                ("limit", "0"),
                ("labelSelector", "none=there"),
            ] {
                let list = async |form: &str| {
                    let request =
                        request(Verb::List, &format!("application/{form}{shape}"), &[query]);
                    let answer = handle(&site, &request).await.expect("sound");
                    pieces(answer).await.0.concat()
                };
                let mut wanted = Vec::new();
                yaml::write(&parse(&list("json").await), &mut wanted);
                let written = String::from_utf8(list("yaml").await).expect("UTF-8");
                let wanted = String::from_utf8(wanted).expect("UTF-8");
                assert!(written == wanted, "{shape} {query:?}: {written:.400}");
            }
        }
    });
}

#[test]
fn a_streamed_list_shows_one_cut_whatever_is_written_meanwhile() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        let request = request(Verb::List, "", &[]);
        let whole = built_whole(&site, &request).await;
        let answer = handle(&site, &request).await.expect("sound");
        for at in 0..OBJECTS {
            put(&site, at, "second").await;
        }
        assert!(pieces(answer).await.0.concat() == whole);
    });
}

#[test]
fn a_share_that_is_full_refuses_a_long_list_before_its_first_byte() {
    on_paused_clock(async {
        let site = open(Opening {
            memory: Memory::with_limits(|_| 1 << 20),
            ..Opening::default()
        })
        .await;
        fill(&site).await;
        let request = request(Verb::List, "", &[]);
        let first = handle(&site, &request).await.expect("there is room");
        let refused = handle(&site, &request).await.err().expect("there is none");
        assert_eq!(
            (refused.code, refused.retry_after_seconds()),
            (429, Some(1))
        );
        let delete = ResourceRequest {
            verb: Verb::DeleteCollection,
            ..request.clone()
        };
        let refused = handle(&site, &delete).await.err().expect("there is none");
        assert_eq!(refused.code, 429);
        drop(first);
        let answer = handle(&site, &request).await.expect("there is room again");
        let list = parse(&pieces(answer).await.0.concat());
        assert_eq!(
            list.items_at(&["items"]).len(),
            OBJECTS,
            "nothing was deleted"
        );
        let answer = handle(&site, &delete).await.expect("there is room");
        let deleted = parse(&pieces(answer).await.0.concat());
        assert_eq!(deleted.items_at(&["items"]).len(), OBJECTS);
        assert_eq!(held(&site), 0);
    });
}

#[test]
fn a_long_selector_by_fields_counts_while_its_watch_is_open() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        let terms = (0..1000).map(|at| format!("metadata.name!=n{at}"));
        let selector = terms.collect::<Vec<String>>().join(",");
        let watch = request(Verb::Watch, "", &[("fieldSelector", selector.as_str())]);
        let answer = handle(&site, &watch).await.expect("there is room");
        let counted = || site.tenant.plane.memory().used(Share::Selectors);
        assert!(counted() > selector.len());
        drop(answer);
        assert_eq!(counted(), 0);
    });
}

#[test]
fn a_list_ends_when_its_cut_pins_too_much() {
    on_paused_clock(async {
        let log = LogBounds {
            bytes_max: 100_000,
            ..LogBounds::default()
        };
        let site = open(Opening {
            memory: Memory::with_limits(|_| 1 << 20),
            log,
            ..Opening::default()
        })
        .await;
        fill(&site).await;
        let answer = handle(&site, &request(Verb::List, "", &[])).await;
        let AnswerBody::Stream(mut stream) = answer.expect("there is room").body else {
            panic!("it is long");
        };
        assert!(stream.next().await.is_some_and(|piece| piece.is_ok()));
        for at in 0..OBJECTS {
            put(&site, at, "second").await;
        }
        let rest: Vec<_> = stream.collect().await;
        assert!(matches!(rest[..], [Err(StreamEnd::Full)]), "{rest:?}");
        assert_eq!(held(&site), 0);
    });
}

#[test]
fn the_answer_with_a_large_object_counts_until_it_is_sent() {
    on_paused_clock(async {
        let memory = Memory::with_limits(|_| 1 << 20);
        let site = open(Opening {
            memory,
            ..Opening::default()
        })
        .await;
        let tree = json!({"data": {"text": ("v".repeat(200_000).as_str())}});
        site.put("configmaps", "large", tree).await;
        assert_eq!(held(&site), 0);
        for accept in ["application/json", "application/yaml", PROTOBUF] {
            let get = ResourceRequest {
                name: Some("large".into()),
                ..request(Verb::Get, accept, &[])
            };
            let mut unread = Vec::new();
            let refused = loop {
                match handle(&site, &get).await {
                    Ok(answer) => unread.push(answer),
                    Err(error) => break error,
                }
                assert!(unread.len() < 6, "they are five times the share");
            };
            assert_eq!(refused.code, 429);
            assert!(held(&site) > 200_000 * unread.len());
            drop(unread);
            assert_eq!(held(&site), 0);
        }
    });
}

/// Small objects without labels, whose work is that of several polls.
const OTHERS: usize = 2500;

/// Stores small objects between two of those that [`fill`] stores.
async fn fill_gap(site: &Site) {
    for at in 0..OTHERS {
        let name = format!("m149-{at:04}");
        let tree = json!({"data": {"small": "yes"}});
        site.put("configmaps", &name, tree).await;
    }
}

/// Returns what `work` returns, and how many times it was polled.
async fn polled<T>(work: impl Future<Output = T>) -> (T, usize) {
    let (mut work, mut polls) = (pin!(work), 0);
    let done = poll_fn(|context| {
        polls += 1;
        work.as_mut().poll(context)
    })
    .await;
    (done, polls)
}

#[test]
fn a_list_that_selects_none_of_many_objects_takes_several_polls() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill_gap(&site).await;
        let list = async |query: &[(&str, &str)]| {
            let request = request(Verb::List, "", query);
            let (answer, polls) = polled(handle(&site, &request)).await;
            let list = parse(&pieces(answer.expect("sound")).await.0.concat());
            (list.items_at(&["items"]).len(), polls)
        };
        let (one, least) = list(&[("limit", "1")]).await;
        let (hundred, of_hundred) = list(&[("limit", "100")]).await;
        assert_eq!((one, hundred), (1, 100));
        assert_eq!(of_hundred, least, "a short list is made at once");
        for query in [
            [("labelSelector", "none=there"), ("limit", "0")],
            [("labelSelector", "none=there"), ("limit", "10")],
        ] {
            let (found, polls) = list(&query).await;
            assert_eq!(found, 0);
            assert!(polls >= least + 2, "{polls} polls, at least {least}");
        }
        assert_eq!(list(&[]).await.0, OTHERS);
    });
}

#[test]
fn a_streamed_list_over_many_objects_that_match_nothing_has_the_bytes_of_a_whole_one() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        fill_gap(&site).await;
        let accepts = [
            "application/json",
            PARTIAL,
            TABLE,
            "application/yaml",
            PROTOBUF,
            PARTIAL_PROTOBUF,
        ];
        for accept in accepts {
            for limit in ["0", "120", "149"] {
                let query = [("labelSelector", "odd=1"), ("limit", limit)];
                let request = request(Verb::List, accept, &query);
                // A short list's first piece is all of it, and made with the answer.
                let (answer, first) = polled(handle(&site, &request)).await;
                let ((pieces, is_streamed), later) = polled(pieces(answer.expect("sound"))).await;
                assert!(is_streamed);
                assert!(
                    first + later > 3,
                    "{accept} {limit}: {first} + {later} polls"
                );
                assert!(pieces.iter().all(|piece| !piece.is_empty()));
                let whole = built_whole(&site, &request).await;
                assert!(pieces.concat() == whole, "{accept} {limit}");
            }
        }
        assert_eq!(held(&site), 0);
    });
}

#[test]
fn initial_events_over_many_objects_that_match_nothing_take_several_polls() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        fill_gap(&site).await;
        let selector = ("labelSelector", "odd=1");
        let whole = built_whole(&site, &request(Verb::List, "", &[selector])).await;
        let list = parse(&whole);
        let query = [&INITIAL[..], &[selector]].concat();
        let watch = handle(&site, &request(Verb::Watch, "", &query)).await;
        let ((events, _), polls) = polled(events(watch.expect("sound"))).await;
        assert!(polls > 2, "{polls} polls");
        let name = |of: &Value| of.str_at(&["metadata", "name"]).to_owned();
        let shown: Vec<String> = events
            .iter()
            .filter(|event| event.str_at(&["type"]) == "ADDED")
            .filter_map(|event| event.get("object").map(name))
            .collect();
        let listed: Vec<String> = list.items_at(&["items"]).iter().map(name).collect();
        assert!(shown == listed, "{} of {}", shown.len(), listed.len());
        assert_eq!(events.len(), listed.len() + 1, "a bookmark ends them");
        assert_eq!(held(&site), 0);
    });
}

/// Returns the events of a watch until its bookmark or its end, and the longest piece.
async fn events(answer: Answer) -> (Vec<Value>, usize) {
    let AnswerBody::Watch(mut stream) = answer.body else {
        panic!("a watch is a stream");
    };
    let (mut events, mut longest) = (Vec::new(), 0);
    while let Some(piece) = stream.next().await {
        let piece = piece.expect("it goes on").bytes;
        longest = longest.max(piece.len());
        let lines = piece.split(|byte| *byte == b'\n');
        events.extend(lines.filter(|line| !line.is_empty()).map(parse));
        if events.last().map(|event: &Value| event.str_at(&["type"])) == Some("BOOKMARK") {
            break;
        }
    }
    (events, longest)
}

const INITIAL: [(&str, &str); 3] = [
    ("sendInitialEvents", "true"),
    ("resourceVersionMatch", "NotOlderThan"),
    ("allowWatchBookmarks", "true"),
];

#[test]
fn initial_events_are_written_as_they_are_read() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        let whole = built_whole(&site, &request(Verb::List, "", &[])).await;
        let list = parse(&whole);
        let watch = handle(&site, &request(Verb::Watch, "", &INITIAL)).await;
        let watch = watch.expect("sound");
        assert!(held(&site) > 0, "it is written later");
        for at in 0..OBJECTS {
            put(&site, at, "second").await;
        }
        let (mut events, longest) = events(watch).await;
        assert!(longest <= PIECE_BYTES_MAX, "{longest}");
        let end = events.pop().expect("it has an end");
        let version = |of: &Value| of.str_at(&["metadata", "resourceVersion"]).to_owned();
        let marked = end.get("object").expect("a bookmark has an object");
        assert_eq!(version(marked), version(&list));
        assert_eq!(events.len(), OBJECTS);
        for (event, item) in events.iter().zip(list.items_at(&["items"])) {
            assert_eq!(event.str_at(&["type"]), "ADDED");
            let object = event.get("object").expect("it has an object");
            assert_eq!(object.get("metadata"), item.get("metadata"));
            assert_eq!(object.get("data"), item.get("data"));
        }
        assert_eq!(held(&site), 0);
    });
}

#[test]
fn a_watch_whose_initial_events_nobody_reads_gives_its_cut_back() {
    on_paused_clock(async {
        let site = open(Opening::default()).await;
        fill(&site).await;
        let watch = handle(&site, &request(Verb::Watch, "", &INITIAL)).await;
        let watch = watch.expect("sound");
        assert!(held(&site) > 0);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(held(&site), 0);
        let (events, _) = events(watch).await;
        let last = events.last().expect("it began");
        assert_eq!(last.str_at(&["type"]), "ERROR");
        assert_eq!(last.int_at(&["object", "code"]), Some(410));
    });
}
