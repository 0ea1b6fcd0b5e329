//! Decisions by the objects of a plane: they are made in the state that a request reads or writes
//! against.

use super::asking::{ANSWER, Slow};
use super::*;
use crate::PlaneAuthorizer;
use crate::metrics::Samples;
use crate::plan::{Attributes as Planned, CallOuts, Interrupted};
use crate::{ChainedAuthorizer, ResourceRequest};
use parking_lot::Mutex;
use polyplane_auth::{Attributes, Authorizer, Decision, Subject, Verdict};
use polyplane_plane::{Claim, Snapshot};

/// An authorizer that allows the users for whom the config map `grant` has `yes`.
struct Grants;

impl PlaneAuthorizer for Grants {
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision {
        let grant = cut.get(&Key::new("", "configmaps", Some("ns"), "grant"));
        let body = grant.map(|grant| tree(std::str::from_utf8(&grant.body()).expect("JSON")));
        let said = body.unwrap_or_default();
        match said.str_at(&["data", &attributes.user.name]) {
            "yes" => Decision::Allow,
            "never" => Decision::Deny("never".to_owned()),
            _ => Decision::NoOpinion("no grant".to_owned()),
        }
    }
}

async fn open(authorizers: Vec<ChainedAuthorizer>, admission: Vec<Arc<dyn Admission>>) -> Site {
    let site = Site::with(kinds(), admission, Authority::new(authorizers)).await;
    let grant = r#"{"metadata":{"name":"grant"},"data":{"jane":"yes","slow":"yes"}}"#;
    let made = site.send(Ask::create("configmaps", grant)).await;
    made.expect("it is new");
    site.make("x", "0").await;
    site
}

fn by_grants() -> Vec<ChainedAuthorizer> {
    vec![
        ChainedAuthorizer::fixed(Arc::new(Masters)),
        ChainedAuthorizer::of_cut(Arc::new(Grants)),
    ]
}

/// Returns a write that changes the grant of a user. Its own user needs no grant.
fn grant(of: &str, said: &str) -> Ask {
    Ask::patch("grant", &format!(r#"{{"data":{{"{of}":"{said}"}}}}"#))
}

impl Site {
    /// Returns a request of a user who is not a master, after the first check has allowed it.
    async fn enter(&self, ask: &Ask, who: &str) -> Result<ResourceRequest, ApiError> {
        let mut request = ask.request();
        let mut access_check = self.registry.access_check(&self.tenant, request.deadline);
        request.user = Arc::new(UserInfo::new(who, &[]));
        let subject = Subject::Resource {
            group: &request.group,
            version: &request.version,
            resource: &request.resource,
            subresource: "",
            namespace: "ns",
            name: request.name.as_deref().unwrap_or_default(),
            field_selector: "",
        };
        access_check
            .pass(&request.user, request.verb.name(), subject)
            .await?;
        request.granted = access_check.granted();
        Ok(request)
    }

    async fn answer(&self, request: &ResourceRequest) -> Result<(), ApiError> {
        let answered = self.registry.handle(&self.tenant, request).await;
        answered.map(drop)
    }

    fn answer_later(&self, request: ResourceRequest) -> JoinHandle<Result<(), ApiError>> {
        let site = self.clone();
        tokio::spawn(async move { site.answer(&request).await })
    }
}

fn reads() -> Vec<Ask> {
    let mut page = Ask::new(Verb::List, "configmaps", None);
    page.query.push(("limit".to_owned(), "1".to_owned()));
    let mut review = Ask::create(
        "selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    );
    review.group = "authorization.k8s.io";
    vec![
        Ask::new(Verb::Get, "configmaps", Some("x")),
        Ask::new(Verb::List, "configmaps", None),
        page,
        Ask::new(Verb::Watch, "configmaps", None),
        review,
    ]
}

#[tokio::test(start_paused = true)]
async fn a_read_is_decided_in_the_state_that_it_shows() {
    let site = open(by_grants(), Vec::new()).await;
    for ask in reads() {
        let verb = ask.verb.name();
        let first = site.enter(&ask, "jane").await.expect("there is a grant");
        let second = first.clone();
        site.answer(&first).await.expect(verb);
        site.send(grant("jane", "no")).await.expect("taken away");
        let refused = site.answer(&second).await.expect_err(verb);
        assert_eq!(refused.code, 403, "{verb}: {}", refused.message);
        let refused = site.enter(&ask, "jane").await.expect_err(verb);
        assert_eq!(refused.code, 403, "{verb}: {}", refused.message);
        assert!(
            refused.message.ends_with(": no grant"),
            "{}",
            refused.message
        );
        // The next request after the acknowledgement is decided by the new grant.
        site.send(grant("jane", "yes")).await.expect("given again");
        let again = site.enter(&ask, "jane").await.expect(verb);
        site.answer(&again).await.expect(verb);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_the_past_are_decided_by_what_is_granted_now() {
    let site = open(by_grants(), Vec::new()).await;
    let mut past = Ask::new(Verb::List, "configmaps", None);
    let version = site.tenant.plane.snapshot().version().to_string();
    past.query.push(("resourceVersion".to_owned(), version));
    past.query
        .push(("resourceVersionMatch".to_owned(), "Exact".to_owned()));
    let first = site.enter(&past, "jane").await.expect("there is a grant");
    site.answer(&first).await.expect("it is granted now");
    site.send(grant("jane", "no")).await.expect("taken away");
    let refused = site.answer(&first).await.expect_err("it was granted then");
    assert_eq!(refused.code, 403);
}

/// A plug-in that checks for each write whether its user may grant roles.
#[derive(Debug)]
struct Escalation;

#[async_trait]
impl Admission for Escalation {
    fn name(&self) -> &'static str {
        "Escalation"
    }

    fn validate(
        &self,
        what: &Planned<'_>,
        _: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let attributes = Attributes {
            user: &what.call.request.user,
            verb: "escalate",
            subject: Subject::Path("/roles"),
        };
        match call_outs.authorize(&attributes)? {
            Decision::Allow => Ok(Vec::new()),
            Decision::Deny(why) | Decision::NoOpinion(why) => {
                Err(ApiError::bad_request(format!("no escalation: {why}")).into())
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_is_decided_by_the_state_that_it_is_worked_out_against() {
    let site = open(by_grants(), vec![Arc::new(Escalation)]).await;
    let patch = |value: &str| Ask::patch("x", &format!(r#"{{"data":{{"k":"{value}"}}}}"#));
    let first = site.enter(&patch("1"), "jane").await.expect("granted");
    let second = site.enter(&patch("2"), "jane").await.expect("granted");
    // The write that removes the grant is accepted, and then refused by the store.
    let refused = site.unsettle(grant("jane", "no")).await;
    site.answer(&first)
        .await
        .expect("the grant was never taken away");
    refused
        .await
        .expect("no panic")
        .expect_err("the store is full");
    assert_eq!(site.config_map("x").str_at(&["data", "k"]), "1");
    // This time the store applies it. The answer waits until it has.
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(UNSETTLED));
    let begin = Instant::now();
    let taken = site.spawn(grant("jane", "no"));
    settle_down().await;
    let error = site.answer(&second).await.expect_err("no grant any more");
    assert_eq!((error.code, begin.elapsed()), (403, UNSETTLED));
    taken.await.expect("no panic").expect("it is stored");
    assert_eq!(site.config_map("x").str_at(&["data", "k"]), "1");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_worked_out_again_is_decided_again() {
    let slow = Arc::<Slow>::default();
    let site = open(by_grants(), vec![Arc::clone(&slow) as _]).await;
    let writes = [
        Ask::patch("x", r#"{"data":{"k":"1"}}"#),
        Ask::create("configmaps", r#"{"metadata":{"name":"new"}}"#),
        Ask::new(Verb::Delete, "configmaps", Some("x")),
    ];
    for (number, ask) in writes.iter().enumerate() {
        let verb = ask.verb.name();
        let request = site.enter(ask, "slow").await.expect(verb);
        let write = site.answer_later(request);
        sleep(ANSWER / 2).await;
        assert!(slow.asked().len() > number, "{verb} asks");
        site.send(grant("slow", "no")).await.expect("taken away");
        let refused = write.await.expect("no panic").expect_err(verb);
        assert_eq!(refused.code, 403, "{verb}: {}", refused.message);
        site.send(grant("slow", "yes")).await.expect("given again");
    }
    assert_eq!(site.config_map("x").str_at(&["data", "k"]), "0");
    assert!(site.stored("configmaps", "new").is_none());
    let request = site.enter(&writes[0], "slow").await.expect("granted");
    site.answer(&request).await.expect("and still is");
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_decided_once_although_the_grant_is_among_its_objects() {
    let site = open(by_grants(), Vec::new()).await;
    for number in 0..100 {
        // Some are behind the grant, in another part.
        let sorts = if number % 2 == 0 { "a" } else { "z" };
        site.make(&format!("{sorts}{number}"), "0").await;
    }
    let all = Ask::new(Verb::DeleteCollection, "configmaps", None);
    let request = site.enter(&all, "jane").await.expect("there is a grant");
    site.answer(&request).await.expect("it was decided");
    for name in ["grant", "a0", "x", "z99"] {
        assert!(site.stored("configmaps", name).is_none(), "{name}");
    }
    let refused = site.answer(&request).await;
    assert_eq!(refused.expect_err("there is no grant any more").code, 403);
}

/// An authorizer outside the plane, which takes a while and allows only `jane`.
#[derive(Default)]
struct Outside(Mutex<Vec<String>>);

impl Authorizer for Outside {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::later(async move {
            self.0.lock().push(attributes.verb.to_owned());
            sleep(ANSWER).await;
            match &*attributes.user.name {
                "jane" => Decision::Allow,
                _ => Decision::NoOpinion("not outside".to_owned()),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_asks_the_authority_of_its_request_and_waits_for_judges_outside() {
    let outside = Arc::<Outside>::default();
    let mut authorizers = by_grants();
    authorizers.push(ChainedAuthorizer::fixed(Arc::clone(&outside) as _));
    let site = open(authorizers, vec![Arc::new(Escalation)]).await;
    site.send(grant("jane", "no")).await.expect("taken away");
    let create = |name: &str| {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        Ask::create("configmaps", &body)
    };
    let seats = super::asking::Counted::new(1);
    let mut request = site.enter(&create("a"), "jane").await.expect("outside");
    request.seats = Some(Arc::clone(&seats) as _);
    site.answer(&request).await.expect("outside allows both");
    assert_eq!(*seats.left.lock(), 2, "it waits without a seat");
    assert_eq!(*outside.0.lock(), ["create", "create", "escalate"]);
    let refused = site.enter(&create("b"), "carl").await;
    let refused = refused.expect_err("nobody allows it").message;
    assert!(refused.ends_with(": no grant\nnot outside"), "{refused}");
    // The plane denies, so the authorizer outside is not called.
    outside.0.lock().clear();
    site.send(grant("jane", "never")).await.expect("denied");
    let refused = site.enter(&create("c"), "jane").await;
    assert_eq!(refused.expect_err("denied").code, 403);
    assert!(outside.0.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn judges_that_look_at_no_object_are_asked_at_the_door_only() {
    let outside = Arc::<Outside>::default();
    let site = open(
        vec![
            ChainedAuthorizer::fixed(Arc::new(Masters)),
            ChainedAuthorizer::fixed(Arc::clone(&outside) as _),
        ],
        Vec::new(),
    )
    .await;
    let request = site.enter(&reads()[0], "jane").await.expect("outside");
    site.answer(&request).await.expect("it was let in");
    assert_eq!(outside.0.lock().len(), 1);
}

/// An authorizer that allows everything but to create objects.
struct Changes;

impl PlaneAuthorizer for Changes {
    fn authorize_at(&self, _: &Snapshot, attributes: &Attributes<'_>) -> Decision {
        match attributes.verb {
            "create" => Decision::NoOpinion("no creator".to_owned()),
            _ => Decision::Allow,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_apply_that_creates_needs_the_right_to_create() {
    let authorizers = vec![
        ChainedAuthorizer::fixed(Arc::new(Masters)),
        ChainedAuthorizer::of_cut(Arc::new(Changes)),
    ];
    let site = open(authorizers, Vec::new()).await;
    let apply = |name: &str| {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"a":"1"}}}}"#
        );
        let mut ask = Ask::patch(name, &body);
        ask.content_type = Some("application/apply-patch+yaml");
        ask.query.push(("fieldManager".to_owned(), "ci".to_owned()));
        ask
    };
    let enter = async |ask: &Ask| site.enter(ask, "jane").await.expect("a change is allowed");
    let refused = site.answer(&enter(&apply("new")).await).await;
    let refused = refused.expect_err("it would be created");
    assert_eq!(refused.code, 403, "{}", refused.message);
    assert!(
        refused.message.ends_with(": no creator"),
        "{}",
        refused.message
    );
    let changed = site.answer(&enter(&apply("x")).await).await;
    changed.expect("it exists");
    let created = site.send(apply("new")).await;
    created.expect("a master may create");
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_counted_once_under_the_authorizer_that_made_it() {
    let authorizers = vec![
        ChainedAuthorizer::fixed(Arc::new(Masters)),
        ChainedAuthorizer::of_cut(Arc::new(Grants)).counted_as("Grants", "grants"),
        ChainedAuthorizer::fixed(Arc::<Outside>::default()).counted_as("Webhook", "outside"),
    ];
    let site = open(authorizers, Vec::new()).await;
    let counted = || {
        let decisions = site.registry.metrics().swap_remove(0);
        let Samples::Counters(samples) = decisions.samples else {
            panic!("no counters");
        };
        let shown = samples.into_iter().map(|(labels, count)| {
            let labels = labels.iter().map(|(_, value)| value.as_ref());
            (labels.collect::<Vec<&str>>().join(" "), count)
        });
        shown.collect::<Vec<(String, u64)>>()
    };
    // Masters have done all until here.
    assert_eq!(counted(), []);
    for ask in [
        reads().swap_remove(0),
        Ask::patch("x", r#"{"data":{"k":"1"}}"#),
    ] {
        let request = site.enter(&ask, "jane").await.expect("there is a grant");
        site.answer(&request).await.expect("it is allowed");
    }
    let allowed = |name: &str, count| (format!("allowed {name}"), count);
    assert_eq!(counted(), [allowed("grants Grants", 2)]);
    site.send(grant("jane", "no")).await.expect("taken away");
    let read = &reads()[0];
    site.enter(read, "jane").await.expect("outside");
    site.enter(read, "carl")
        .await
        .expect_err("nobody allows it");
    site.send(grant("jane", "never")).await.expect("denied");
    site.enter(read, "jane").await.expect_err("denied");
    assert_eq!(
        counted(),
        [
            allowed("grants Grants", 2),
            allowed("outside Webhook", 1),
            ("denied grants Grants".to_owned(), 1),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn reasons_stand_behind_the_names_of_configured_authorizers() {
    let reasons = async |second: ChainedAuthorizer| {
        let authorizers = vec![ChainedAuthorizer::fixed(Arc::new(Masters)), second];
        let site = open(authorizers, Vec::new()).await;
        let create = Ask::create("configmaps", r#"{"metadata":{"name":"new"}}"#);
        let refused = site.enter(&create, "jane").await;
        refused.expect_err("nobody allows it").message
    };
    let unnamed = reasons(ChainedAuthorizer::of_cut(Arc::new(Changes))).await;
    assert!(
        unnamed.ends_with("in the namespace \"ns\": no creator"),
        "{unnamed}"
    );
    let named = ChainedAuthorizer::of_cut(Arc::new(Changes)).counted_as("Webhook", "outside");
    let named = reasons(named).await;
    assert!(named.ends_with(": outside: no creator"), "{named}");
}
