//! The lines of events, byte for byte.

use std::time::Duration;

use polyplane_apimachinery::Value;
use polyplane_auth::{Attributes, Subject};

use super::*;
use crate::policy::Policy;

fn plan(level: &str, user: &UserInfo) -> Plan {
    let policy = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: {level}\n");
    let policy = Policy::parse(policy.as_bytes()).expect("a policy");
    policy.plan(&Attributes {
        user,
        verb: "create",
        subject: Subject::Path("/"),
    })
}

/// An event with everything that one can have.
fn full(level: &str) -> Event {
    let mut user = UserInfo::new("jane \"j\"", &["dev", "system:authenticated"]);
    user.uid = "7".into();
    user.extra = vec![("scopes".into(), vec!["a".into(), "b".into()])];
    let user = Arc::new(user);
    let head = Head {
        audit_id: "id-1",
        uri: "/api/v1/namespaces/n/pods?fieldManager=<me>",
        verb: "create",
        user: &user,
        sources: Sources::from_iter([
            [192, 0, 2, 7].into(),
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]),
            [192, 0, 2, 7].into(),
        ]),
        user_agent: "kubectl/1",
        object: Some(Object {
            group: "apps",
            version: "v1",
            resource: "pods",
            subresource: "status",
            namespace: "n",
            name: "",
        }),
        plane: PlaneName {
            name: "team-a",
            id: "0b1c",
        },
        received: SystemTime::UNIX_EPOCH + Duration::new(1_800_000_000, 1_234_567),
    };
    let legacy = Some(Box::new(LegacyHead::new(&head)));
    let mut event = Event::new(plan(level, &user), head, legacy);
    event.impersonated = Some(Arc::new(UserInfo::new("root", &[])));
    event.created = "p".into();
    event.decided(true, "");
    event.decided(false, "RBAC: role \"r\" not found");
    event.show_request(Some(Value::object()), 2, Some(("Pod", "v1")));
    event.show_response(None, 2);
    event.outcome = Some(Outcome {
        code: 403,
        status: Bytes::from_static(br#"{"code":403}"#),
    });
    event
}

fn line(event: &Event, stage: Stage, bodies: Bodies) -> String {
    let now = SystemTime::UNIX_EPOCH + Duration::new(1_800_000_001, 0);
    let line = event.line(stage, now, bodies);
    let text = String::from_utf8(line).expect("text");
    text.strip_suffix('\n').expect("a whole line").to_owned()
}

#[test]
fn a_line_has_what_is_known_at_its_stage() {
    let event = full("RequestResponse");
    let begin = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id-1","stage":"#;
    let who = r#","requestURI":"/api/v1/namespaces/n/pods?fieldManager=\u003cme\u003e","verb":"create","user":{"username":"jane \"j\"","uid":"7","groups":["dev","system:authenticated"],"extra":{"scopes":["a","b"]}}"#;
    let made_as = r#","impersonatedUser":{"username":"root"}"#;
    let from = r#","sourceIPs":["192.0.2.7","fd00::1"],"userAgent":"kubectl/1","objectRef":{"resource":"pods","namespace":"n","apiGroup":"apps","apiVersion":"v1","subresource":"status""#;
    let ended =
        r#","responseStatus":{"code":403},"requestObject":{"apiVersion":"v1","kind":"Pod"}"#;
    let at = r#","requestReceivedTimestamp":"2027-01-15T08:00:00.001234Z","stageTimestamp":"2027-01-15T08:00:01.000000Z","annotations":{"#;
    let plane =
        r#""polyplane.dev/control-plane":"team-a","polyplane.dev/control-plane-id":"0b1c"}}"#;
    let decision = r#""authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"RBAC: role \"r\" not found","#;
    let left_out = r#""polyplane.dev/response-left-out":"true","#;
    let truncated = r#""audit.k8s.io/truncated":"true","#;
    assert_eq!(
        line(&event, Stage::RequestReceived, Bodies::Whole),
        format!(r#"{begin}"RequestReceived"{who}{from}}}{at}{plane}"#)
    );
    let named = r#","name":"p"}"#;
    assert_eq!(
        line(&event, Stage::ResponseComplete, Bodies::Whole),
        format!(
            r#"{begin}"ResponseComplete"{who}{made_as}{from}{named}{ended}{at}{decision}{left_out}{plane}"#
        )
    );
    let status = r#","responseStatus":{"code":403}"#;
    assert_eq!(
        line(&event, Stage::ResponseComplete, Bodies::Truncated),
        format!(
            r#"{begin}"ResponseComplete"{who}{made_as}{from}{named}{status}{at}{decision}{left_out}{truncated}{plane}"#
        )
    );
    let (open, rest) = item(
        br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"None"}
"#,
    );
    assert_eq!([open, rest].concat(), br#"{"level":"None"}"#);
}

#[test]
fn bodies_are_as_many_as_the_level_says() {
    for (level, bodies) in [("Metadata", 0), ("Request", 1), ("RequestResponse", 2)] {
        let mut event = full(level);
        event.show_response(Some(Value::object()), 2);
        let line = line(&event, Stage::ResponseComplete, Bodies::Whole);
        let found = ["requestObject", "responseObject"]
            .iter()
            .filter(|name| line.contains(*name));
        assert_eq!(found.count(), bodies, "{level}: {line}");
    }
}

#[test]
fn a_request_without_plane_object_and_user_has_a_line_too() {
    let user = Arc::new(UserInfo::default());
    let head = Head {
        audit_id: "id",
        uri: "/",
        verb: "get",
        user: &user,
        sources: Sources::default(),
        user_agent: "",
        object: None,
        plane: PlaneName::default(),
        received: SystemTime::UNIX_EPOCH,
    };
    let mut event = Event::new(plan("Metadata", &user), head, None);
    event.outcome = Some(Outcome {
        code: 401,
        status: Bytes::new(),
    });
    let line = line(&event, Stage::ResponseStarted, Bodies::Whole);
    let middle = r#""user":{},"responseStatus":{"metadata":{},"code":401},"requestReceivedTimestamp":"1970-01-01T00:00:00.000000Z""#;
    assert!(line.contains(middle), "{line}");
    assert_eq!(event.plane().id, "");
}

#[test]
fn the_legacy_text_quotes_as_go_does() {
    let event = full("Metadata");
    let legacy = event.legacy.as_ref().expect("it was requested");
    let text = |stage| String::from_utf8(legacy.line(&event, stage)).expect("text");
    let head = r#"2027-01-15T08:00:00.001234567Z AUDIT: id="id-1" stage="#;
    let who = r#" ip="192.0.2.7" method="create" user="jane \"j\"" groups="\"dev\",\"system:authenticated\"""#;
    let rest = r#" user-agent="kubectl/1" namespace="n" uri="/api/v1/namespaces/n/pods?fieldManager=<me>" response="#;
    assert_eq!(
        text(Stage::RequestReceived),
        format!(
            "{head}\"RequestReceived\"{who} as=\"<self>\" asgroups=\"<lookup>\"{rest}\"<deferred>\"\n"
        )
    );
    assert_eq!(
        text(Stage::ResponseComplete),
        format!("{head}\"ResponseComplete\"{who} as=\"root\" asgroups=\"<lookup>\"{rest}\"403\"\n")
    );
}

#[test]
fn long_annotations_are_cut_between_characters() {
    let mut event = full("Metadata");
    event.annotate("example.com/long", &"ä".repeat(20_000));
    event.annotate("example.com/even", &format!("x{}", "ä".repeat(20_000)));
    let line = line(&event, Stage::ResponseComplete, Bodies::Whole);
    assert!(line.contains(&format!(
        r#""example.com/long":"{}","#,
        "ä".repeat(16 << 10)
    )));
    let odd = (16 << 10) - 1;
    assert!(line.contains(&format!(r#""example.com/even":"x{}","#, "ä".repeat(odd))));
}
