//! What browsers get: HSTS on every answer, and CORS for allowed origins.

use http::{Method, StatusCode};
use polyplane_server::{BrowserOptions, Browsers};

use crate::client::{Client, PROTOCOLS, Reply};
use crate::fake::{start, start_with};
use crate::ring::Ring;

const HSTS: &str = "max-age=31536000; includeSubDomains";
const ALLOWED: &str = "https://console.example.com:8443";
const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
const CORS: [&str; 5] = [
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-allow-credentials",
];

fn browsers() -> Browsers {
    let options = BrowserOptions {
        hsts_directives: vec![
            "max-age=31536000".to_owned(),
            "includeSubDomains".to_owned(),
        ],
        cors_allowed_origins: vec![r"//console\.example\.com(:|$)".to_owned()],
    };
    options.complete().expect("sound")
}

/// Checks that an answer has the headers of CORS for this origin, or none of them.
fn expect_cors(reply: &Reply, origin: Option<&str>) {
    assert_eq!(
        reply.header("access-control-allow-origin"),
        origin.unwrap_or("")
    );
    let has = CORS.map(|name| reply.headers.contains_key(name));
    assert_eq!(has, [origin.is_some(); 5], "{reply:?}");
}

#[tokio::test]
async fn every_answer_has_hsts_and_allowed_origins_have_cors() {
    let server = start_with(|config| config.browsers = browsers()).await;
    for protocol in PROTOCOLS {
        let mut admin = Client::admin(&server, protocol).await;
        let mut stranger = Client::with(&server, protocol, None, None).await;
        for (is_admin, path, status) in [
            (true, "/api/v1", StatusCode::OK),
            (true, "/nowhere", StatusCode::NOT_FOUND),
            (true, "/clusters/%zz/api", StatusCode::NOT_FOUND),
            (false, "/healthz", StatusCode::OK),
            (false, "/api/v1", StatusCode::UNAUTHORIZED),
        ] {
            let client = match is_admin {
                true => &mut admin,
                false => &mut stranger,
            };
            for (given, expected) in [
                (None, None),
                (Some("https://evil.example.com"), None),
                (Some(ALLOWED), Some(ALLOWED)),
            ] {
                let headers = Vec::from_iter(given.map(|origin| ("origin", origin)));
                let reply = client.send(Method::GET, path, &headers, "").await;
                assert_eq!(reply.status, status, "{path}");
                assert_eq!(reply.header("strict-transport-security"), HSTS, "{path}");
                expect_cors(&reply, expected);
            }
        }
    }
}

#[tokio::test]
async fn a_browser_that_asks_first_is_answered_before_it_is_proven() {
    let server = start_with(|config| config.browsers = browsers()).await;
    for protocol in PROTOCOLS {
        let mut stranger = Client::with(&server, protocol, None, None).await;
        let ask = [
            ("origin", ALLOWED),
            ("access-control-request-method", "PUT"),
        ];
        for path in ["/api/v1", "/clusters/missing/api/v1"] {
            let reply = stranger.send(Method::OPTIONS, path, &ask, "").await;
            assert_eq!(reply.status, StatusCode::NO_CONTENT);
            assert!(reply.body.is_empty() && !reply.header("audit-id").is_empty());
            assert_eq!(reply.header("strict-transport-security"), HSTS);
            expect_cors(&reply, Some(ALLOWED));
        }
        let other = [("origin", "https://console.example.com.evil")];
        let reply = stranger.send(Method::OPTIONS, "/api/v1", &other, "").await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
        expect_cors(&reply, None);
    }
}

#[tokio::test]
async fn an_answer_of_another_replica_has_the_headers_of_the_receiver() {
    let ring = Ring::start_with(2, |config| config.browsers = browsers()).await;
    for replica in [0, 1] {
        let mut client = ring.client(replica).await;
        let headers = [("origin", ALLOWED)];
        let reply = client.send(Method::GET, POD, &headers, "").await;
        assert_eq!(reply.header("strict-transport-security"), HSTS);
        assert_eq!(reply.headers.get_all(CORS[0]).iter().count(), 1);
        expect_cors(&reply, Some(ALLOWED));
    }
}

#[tokio::test]
async fn without_the_options_no_answer_has_such_headers() {
    let server = start().await;
    let mut admin = Client::admin(&server, PROTOCOLS[1]).await;
    let headers = [("origin", ALLOWED)];
    let reply = admin.send(Method::GET, "/api/v1", &headers, "").await;
    assert!(!reply.headers.contains_key("strict-transport-security"));
    expect_cors(&reply, None);
}
