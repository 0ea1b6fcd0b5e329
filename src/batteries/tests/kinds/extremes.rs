//! Parameters that no honest client sends: each is refused with upstream's text or answered.
//! Nothing panics, and no answer is a server error.

use crate::site::{Site, on_paused_clock, request};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, json};
use polyplane_plane::ExpiredCause;
use polyplane_registry::environment::{Environment as _, System};
use polyplane_registry::request::parameters::ROWS;
use polyplane_registry::{AnswerBody, ResourceRequest, Verb};
use proptest::prelude::*;
use std::time::Duration;

const NUMBERS: &[i64] = &[
    i64::MIN,
    i64::MIN + 1,
    -253_402_300_800,
    -1,
    0,
    1,
    9_223_372_036,
    9_223_372_037,
    253_402_300_800,
    i64::MAX - 1,
    i64::MAX,
];

/// Returns texts that are numbers, nearly numbers, or not numbers at all.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = NUMBERS.iter().map(i64::to_string).collect();
    let others = [
        "",
        "+1",
        "-0",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "1e400",
        "NaN",
        "\0",
        "yes",
        "Exact",
        "NotOlderThan",
        "All",
        "Orphan",
        "99999999999h",
        "metadata.name=a",
        "a=b",
        "....",
        "e30",
        "%",
    ];
    texts.extend(others.map(str::to_owned));
    texts
}

/// Returns page tokens with versions and times of which no page was made.
fn tokens() -> Vec<String> {
    let mut texts = Vec::new();
    for version in NUMBERS {
        for age in [i64::MIN, 0, i64::MAX] {
            for start in ["a\0", "default/a\0", "/", "\u{10FFFF}"] {
                let token = format!(
                    r#"{{"v":"meta.k8s.io/v1","rv":{version},"start":{start:?},"t":{age}}}"#
                );
                texts.push(URL_SAFE_NO_PAD.encode(token.replace("\\0", "\\u0000")));
            }
        }
    }
    texts
}

/// Stores a pod that runs on a node, so that its deletion has a grace period.
async fn run_pod(site: &Site, name: &str) {
    let container = json!({"name": "c", "image": "i"});
    let spec = json!({"nodeName": "n", "containers": [container]});
    site.put("pods", name, json!({"spec": spec})).await;
}

async fn ask(
    site: &Site,
    verb: Verb,
    (resource, name): (&str, Option<&str>),
    query: &[(String, String)],
    body: String,
) -> Result<Vec<u8>, ApiError> {
    let request = ResourceRequest {
        name: name.map(Str::from),
        query: query.to_vec(),
        body: Bytes::from(body),
        ..request(verb, resource)
    };
    let answer = site.registry.handle(&site.tenant, &request).await?;
    Ok(match answer.body {
        AnswerBody::Slices(slices) => slices.concat(),
        AnswerBody::Stream(_) | AnswerBody::Connect(_) => panic!("no list is long"),
        AnswerBody::Watch(mut stream) => {
            let soon = tokio::time::timeout(Duration::from_secs(10), stream.next());
            match soon.await {
                Ok(Some(frame)) => frame.expect("it does not move").bytes.to_vec(),
                Ok(None) | Err(_) => Vec::new(),
            }
        }
    })
}

/// Returns whether an error blames the client. Upstream answers 500 to an invalid version at the
/// start of a watch or a get; all other errors must be 4xx.
fn is_refusal(error: &ApiError) -> bool {
    let is_upstreams = error.reason == Reason::Unknown
        && error
            .message
            .starts_with("resourceVersion: Invalid value: ");
    is_upstreams || error.code < 500 || error.code == 504
}

async fn ask_all(site: &Site, query: &[(String, String)], made: &mut usize) {
    let body = || r#"{"metadata":{"generateName":"x-"}}"#.to_owned();
    let config_maps = ("configmaps", None);
    for (verb, what, body) in [
        (Verb::List, config_maps, String::new()),
        (Verb::Watch, config_maps, String::new()),
        (Verb::Get, ("configmaps", Some("a")), String::new()),
        (Verb::Create, config_maps, body()),
        (Verb::Delete, ("configmaps", Some("gone")), String::new()),
    ] {
        if let Err(error) = ask(site, verb, what, query, body).await {
            assert!(is_refusal(&error), "{verb:?} {query:?}: {error:?}");
        }
    }
    *made += 1;
    let pod = format!("p{made}");
    run_pod(site, &pod).await;
    let pod = ("pods", Some(pod.as_str()));
    if let Err(error) = ask(site, Verb::Delete, pod, query, String::new()).await {
        assert!(is_refusal(&error), "delete {query:?}: {error:?}");
    }
}

#[test]
fn every_parameter_takes_every_text() {
    on_paused_clock(async {
        let site = Site::open().await;
        site.put("configmaps", "a", json!({"data": {"k": "v"}}))
            .await;
        site.put("configmaps", "b", json!({"data": {"k": "v"}}))
            .await;
        let mut made = 0;
        for row in ROWS {
            let tokens = if row.name == "continue" {
                tokens()
            } else {
                Vec::new()
            };
            for text in texts().into_iter().chain(tokens) {
                let query = [(row.name.to_owned(), text)];
                ask_all(&site, &query, &mut made).await;
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parameters_take_texts_in_any_company(
        picked in proptest::collection::vec((0..ROWS.len(), 0..texts().len() + tokens().len()), 1..5),
    ) {
        on_paused_clock(async {
            let site = Site::open().await;
            let texts: Vec<String> = texts().into_iter().chain(tokens()).collect();
            let pair = |(row, text): &(usize, usize)| (ROWS[*row].name.to_owned(), texts[*text].clone());
            let query: Vec<_> = picked.iter().map(pair).collect();
            ask_all(&site, &query, &mut 0).await;
        });
    }
}

#[test]
fn a_grace_period_of_any_length_leaves_a_time_that_can_be_read() {
    on_paused_clock(async {
        let site = Site::open().await;
        for (at, first) in NUMBERS.iter().enumerate() {
            for second in NUMBERS {
                let name = format!("p{at}");
                run_pod(&site, &name).await;
                for grace in [first, second] {
                    let body = format!(r#"{{"gracePeriodSeconds":{grace}}}"#);
                    let pod = ("pods", Some(name.as_str()));
                    let answer = match ask(&site, Verb::Delete, pod, &[], body).await {
                        Ok(answer) => answer,
                        // The first deletion did not wait.
                        Err(error) if error.code == 404 => continue,
                        Err(error) => panic!("{first} {second}: {error:?}"),
                    };
                    let answer: serde_json::Value =
                        serde_json::from_slice(&answer).expect("an object");
                    let time = answer["metadata"]["deletionTimestamp"].as_str();
                    let time = time.expect("it is being deleted");
                    assert!(Timestamp::parse(time).is_ok(), "{first} {second}: {time}");
                }
            }
        }
    });
}

/// The pages of a list show one state for as long as the log keeps events; a later page is refused
/// with a token that continues in the newest state.
#[test]
fn a_page_token_has_its_time() {
    on_paused_clock(async {
        let site = Site::open().await;
        for name in ["a", "b"] {
            site.put("configmaps", name, json!({"data": {"k": "v"}}))
                .await;
        }
        let version = site.tenant.plane.snapshot().version().raw();
        let now = System.now();
        let page = |version: i64, made: i64| {
            let token =
                format!(r#"{{"v":"meta.k8s.io/v1","rv":{version},"start":"a\u0000","t":{made}}}"#);
            [("continue".to_owned(), URL_SAFE_NO_PAD.encode(token))]
        };
        let rest = async |query: &[(String, String)]| {
            let answer = ask(
                &site,
                Verb::List,
                ("configmaps", None),
                query,
                String::new(),
            );
            answer.await.map(|body| {
                let list: serde_json::Value = serde_json::from_slice(&body).expect("a list");
                list["items"].as_array().map(Vec::len)
            })
        };
        let version = i64::try_from(version).expect("a small plane");
        // One token has two minutes left; the other is four minutes too old.
        assert_eq!(
            rest(&page(version, now - 180)).await.expect("fine"),
            Some(1)
        );
        let refused = rest(&page(version, now - 540)).await.expect_err("too old");
        assert_eq!((refused.code, refused.reason), (410, Reason::Expired));
        let cause = ExpiredCause::TokenAge.to_string();
        assert!(refused.message.contains(&cause), "{}", refused.message);
        let again = refused.continue_token.expect("there is a way on");
        let again = [("continue".to_owned(), again.into_string())];
        assert_eq!(rest(&again).await.expect("fine"), Some(1));
    });
}
