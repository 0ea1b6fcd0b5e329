//! Authentication and impersonation: which callers are admitted, and as which user.

use std::sync::atomic::Ordering;

use http::{Method, StatusCode};
use polyplane_auth::SYSTEM_MASTERS;

use crate::client::{Client, PROTOCOLS, Protocol};
use crate::fake::{CROWDED, start};

#[tokio::test]
async fn nothing_and_nonsense_are_unauthorized_and_wake_nothing() {
    let server = start().await;
    let paths = [
        "/api",
        "/apis",
        "/",
        "/metrics",
        "/api/v1/pods",
        "/nowhere",
        "/openapi/v3",
        "/clusters/team-a/api",
        "/clusters/team-z/api",
        "/healthz/store",
        "/readyz/ping",
    ];
    for token in [None, Some("nonsense"), Some("")] {
        let mut client = Client::with(&server, Protocol::Http2, token, None).await;
        for path in paths {
            let reply = client.get(path).await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(reply.json()["message"], "Unauthorized");
            assert_eq!(reply.json()["code"], 401);
            assert!(!reply.headers.contains_key("x-kubernetes-pf-flowschema-uid"));
        }
    }
    assert_eq!(server.woken.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn strangers_read_health_and_version_without_waking_anything() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::with(&server, protocol, None, None).await;
        for path in ["/healthz", "/livez", "/readyz", "/clusters/root/readyz"] {
            let reply = client.get(path).await;
            assert_eq!(
                (reply.status, reply.text()),
                (StatusCode::OK, "ok"),
                "{path}"
            );
        }
        let version = client.get("/version").await;
        assert_eq!(version.json()["gitVersion"], "v1.37.0+polyplane");
        assert_eq!(
            (&version.json()["major"], &version.json()["minor"]),
            (&"1".into(), &"37".into())
        );
        let post = client.send(Method::POST, "/version", &[], "").await;
        assert_eq!(post.status, StatusCode::FORBIDDEN);
        let wrong = Client::with(&server, protocol, Some("nonsense"), None)
            .await
            .get("/version")
            .await;
        assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(server.woken.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn members_may_discover_and_nothing_else() {
    let server = start().await;
    let mut client = Client::with(&server, Protocol::Http2, Some("member"), None).await;
    for path in ["/api", "/apis/apps/v1", "/openapi/v3", "/version"] {
        assert_eq!(client.get(path).await.status, StatusCode::OK, "{path}");
    }
    let refused = client.get("/api/v1/namespaces/ns/pods/a").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.json()["message"],
        "pods \"a\" is forbidden: User \"jane\" cannot get resource \"pods\" in API group \"\" in the namespace \"ns\""
    );
    assert_eq!(refused.json()["details"]["kind"], "pods");
    let path = client.get("/metrics").await;
    assert_eq!(
        path.json()["message"],
        "forbidden: User \"jane\" cannot get path \"/metrics\""
    );
    // The answer must not show a caller without rights whether a kind exists.
    assert_eq!(
        client.get("/api/v1/strange").await.status,
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn a_certificate_counts_where_its_ca_does() {
    let server = start().await;
    let other = server
        .other_ca
        .issue_client("bea", &[SYSTEM_MASTERS])
        .expect("issued");
    for protocol in PROTOCOLS {
        let mut own = Client::with(&server, protocol, None, Some(&server.admin)).await;
        let mut foreign = Client::with(&server, protocol, None, Some(&other)).await;
        for _ in 0..2 {
            let reply = own.get("/clusters/team-a/api/v1/pods").await;
            assert_eq!(
                (reply.status, &reply.json()["user"]),
                (StatusCode::OK, &"admin".into())
            );
            let reply = foreign.get("/clusters/team-b/api/v1/pods").await;
            assert_eq!(
                (reply.status, &reply.json()["user"]),
                (StatusCode::OK, &"bea".into())
            );
            for (client, path) in [(&mut own, "/clusters/team-b/api"), (&mut foreign, "/api")] {
                assert_eq!(client.get(path).await.status, StatusCode::UNAUTHORIZED);
            }
        }
        assert_eq!(
            foreign.get("/version").await.status,
            StatusCode::UNAUTHORIZED
        );
    }
}

#[tokio::test]
async fn a_token_outweighs_a_certificate_of_another_ca() {
    let server = start().await;
    let other = server.other_ca.issue_client("bea", &[]).expect("issued");
    let token = Some(server.pki.admin_token());
    let mut client = Client::with(&server, Protocol::Http2, token, Some(&other)).await;
    let reply = client.get("/api/v1/pods").await;
    assert_eq!(reply.json()["user"], "admin");
}

#[tokio::test]
async fn masters_may_act_as_others_and_others_may_not() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let jane = [
        ("impersonate-user", "joe"),
        ("impersonate-group", SYSTEM_MASTERS),
    ];
    let reply = client.send(Method::GET, "/api/v1/pods", &jane, "").await;
    assert_eq!(reply.json()["user"], "joe");
    let plain = client
        .send(Method::GET, "/api/v1/pods", &jane[..1], "")
        .await;
    assert_eq!(plain.status, StatusCode::FORBIDDEN);
    let mut member = Client::with(&server, Protocol::Http2, Some("member"), None).await;
    let refused = member.send(Method::GET, "/api/v1/pods", &jane, "").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    // The text is that of the mode that was tried first.
    assert_eq!(refused.json()["details"]["kind"], "pods");
}

#[tokio::test]
async fn a_user_in_a_thousand_groups_is_served_with_either_protocol() {
    let server = start().await;
    let groups: Vec<_> = (0..1000).map(|at| format!("group-{at}")).collect();
    let mut headers = vec![
        ("impersonate-user", "joe"),
        ("impersonate-group", SYSTEM_MASTERS),
    ];
    headers.extend(
        groups
            .iter()
            .map(|group| ("impersonate-group", group.as_str())),
    );
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let reply = client.send(Method::GET, "/api/v1/pods", &headers, "").await;
        assert_eq!(reply.status, StatusCode::OK, "{protocol:?}");
        assert_eq!(reply.json()["user"], "joe", "{protocol:?}");
    }
}

#[tokio::test]
async fn a_caller_whose_token_is_not_judged_is_put_off_alike_at_each_name() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut user = Client::with(&server, protocol, Some(CROWDED), None).await;
        let mut bodies = Vec::new();
        for plane in [
            "",
            "/clusters/team-a",
            "/clusters/missing",
            "/clusters/unheard",
        ] {
            let reply = user.get(&format!("{plane}/api/v1/pods")).await;
            assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{plane}");
            assert_eq!(reply.header("retry-after"), "1");
            bodies.push(reply.body);
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1);
    }
    assert_eq!(server.waits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn callers_whose_tokens_are_not_judged_for_lack_of_a_place_count_as_rejected() {
    let server = start().await;
    let paths = [
        "/api/v1/pods",
        "/clusters/team-a/api/v1/pods",
        // No plane can have the name.
        "/clusters/A/api/v1/pods",
    ];
    for (token, status) in [
        (CROWDED, StatusCode::TOO_MANY_REQUESTS),
        ("nonsense", StatusCode::UNAUTHORIZED),
    ] {
        let mut user = Client::with(&server, Protocol::Http2, Some(token), None).await;
        for path in paths {
            assert_eq!(user.get(path).await.status, status, "{token} {path}");
        }
    }
    let mut admin = Client::admin(&server, Protocol::Http2).await;
    let metrics = admin.get("/metrics").await;
    let counted = "\npolyplane_rejected_requests_total 3\n";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}
