//! Admission plug-ins that change and refuse writes.

use super::*;
use crate::metrics::Samples;
use crate::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation};
use crate::request::options::Persistence;
use parking_lot::Mutex;
use polyplane_apimachinery::json;
use polyplane_plane::Claim;

/// A plug-in that changes every object in a known way, and records its input.
#[derive(Debug)]
struct Changing {
    change: fn(&mut Value),
    seen: Mutex<Vec<String>>,
}

impl Changing {
    fn by(change: fn(&mut Value)) -> Arc<Self> {
        Arc::new(Self {
            change,
            seen: Mutex::default(),
        })
    }

    fn note(&self, side: &str, what: &Attributes<'_>, object: Option<&Value>) {
        let mode = match what.options.persistence() {
            Persistence::Store => "",
            Persistence::DryRun => " dry",
        };
        let (old, new) = (what.old.is_some(), object.is_some());
        let text = format!(
            "{side}{mode} {:?} {} {old} {new}",
            what.operation, what.name
        );
        self.seen.lock().push(text);
    }
}

impl Admission for Changing {
    fn name(&self) -> &'static str {
        "Changing"
    }

    fn may_change_owners(&self) -> bool {
        true
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        if what.call.row.name == "namespaces" {
            return Ok(Mutated::Unchanged);
        }
        self.note("mutate", what, object.as_deref());
        Ok(match object {
            Some(object) if what.operation != Operation::Delete => {
                (self.change)(object);
                Mutated::Changed
            }
            _ => Mutated::Unchanged,
        })
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        if what.call.row.name != "namespaces" {
            self.note("validate", what, object);
        }
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_plug_in_adds_is_defaulted() {
    let add = |object: &mut Value| object.set(&["spec", "ports"], vec![json!({"port": 80})]);
    let site = Site::open(vec![Changing::by(add)]).await;
    let made = site.send(Ask::create("services", r#"{"metadata":{"name":"s"}}"#));
    let made = made.await.expect("it is sound");
    let port = &made["spec"].items_at(&["ports"])[0];
    assert_eq!(port.str_at(&["protocol"]), "TCP");
}

/// As in upstream's JSON, which has no other form for a time that is zero.
#[tokio::test(start_paused = true)]
async fn a_time_that_a_plug_in_makes_null_is_none() {
    let change = |object: &mut Value| {
        object.set(&["status", "phase"], "Failed");
        object.set(&["status", "startTime"], Value::Null);
    };
    let site = Site::open(vec![Changing::by(change)]).await;
    let made = site.send(Ask::create("pods", r#"{"metadata":{"name":"p"}}"#));
    let made = made.await.expect("it is sound");
    assert_eq!(made["status"], json!({"phase": "Failed"}));
}

#[tokio::test(start_paused = true)]
async fn owners_that_a_plug_in_spoils_are_kept_as_they_were() {
    let spoil = |object: &mut Value| {
        let nonsense = vec![json!({"manager": "m", "operation": "Nonsense"})];
        object.set(&["metadata", "managedFields"], nonsense);
    };
    let body = r#"{"metadata":{"name":"c"},"data":{"k":"1"}}"#;
    let sound = Site::open(Vec::new()).await;
    let spoilt = Site::open(vec![Changing::by(spoil)]).await;
    let mut owners = Vec::new();
    for site in [sound, spoilt] {
        let made = site.send(Ask::create("configmaps", body)).await;
        let made = made.expect("it is sound");
        let entry = &made["metadata"].items_at(&["managedFields"])[0];
        owners.push((entry["operation"].clone(), entry["fieldsV1"].clone()));
    }
    assert_eq!(owners[0], owners[1]);
    assert_eq!(owners[0].0.as_str(), Some("Update"));
}

#[tokio::test(start_paused = true)]
async fn what_a_plug_in_makes_is_validated() {
    let spoil = |object: &mut Value| object.set(&["metadata", "labels", "a"], "no label!");
    let site = Site::open(vec![Changing::by(spoil)]).await;
    let body = r#"{"metadata":{"name":"c"}}"#;
    let refused = site.send(Ask::create("configmaps", body)).await;
    assert_eq!(refused.expect_err("the label is bad").code, 422);
    let malform = |object: &mut Value| object.set(&["metadata", "labels"], 5i64);
    let site = Site::open(vec![Changing::by(malform)]).await;
    let refused = site.send(Ask::create("configmaps", body)).await;
    assert_eq!(refused.expect_err("labels are no number").code, 500);
    let rename = |object: &mut Value| object.set(&["metadata", "namespace"], "other");
    let site = Site::open(vec![Changing::by(rename)]).await;
    let refused = site.send(Ask::create("configmaps", body)).await;
    assert_eq!(refused.expect_err("it is elsewhere").code, 400);
    assert!(site.stored("configmaps", "c").is_none());
}

#[tokio::test(start_paused = true)]
async fn every_verb_passes_all_stages_and_a_dry_run_stores_nothing() {
    let nothing = Changing::by(|_| {});
    let site = Site::open(vec![Arc::clone(&nothing) as _]).await;
    let body = r#"{"metadata":{"name":"c"},"data":{"k":"1"}}"#;
    let put = |body: &str| {
        let mut put = Ask::new(Verb::Update, "configmaps", Some("c"));
        put.body = body.to_owned();
        put
    };
    let delete = || Ask::new(Verb::Delete, "configmaps", Some("c"));
    let create = || Ask::create("configmaps", body);
    let patch = || Ask::patch("c", r#"{"data":{"k":"2"}}"#);
    for ask in [
        create().dry(),
        create(),
        put(body).dry(),
        patch().dry(),
        delete().dry(),
    ] {
        site.send(ask).await.expect("it is sound");
    }
    assert_eq!(site.config_map("c").str_at(&["data", "k"]), "1");
    let seen = std::mem::take(&mut *nothing.seen.lock());
    assert_eq!(
        seen,
        [
            "mutate dry Create c false true",
            "validate dry Create c false true",
            "mutate Create c false true",
            "validate Create c false true",
            "mutate dry Update c true true",
            "validate dry Update c true true",
            "mutate dry Update c true true",
            "validate dry Update c true true",
            "mutate dry Delete c true false",
            "validate dry Delete c true false",
        ]
    );
    site.send(patch()).await.expect("it is there");
    site.send(delete()).await.expect("it is there");
    site.send(put(body)).await.expect("it is made");
    let seen = std::mem::take(&mut *nothing.seen.lock());
    assert_eq!(
        seen,
        [
            "mutate Update c true true",
            "validate Update c true true",
            "mutate Delete c true false",
            "validate Delete c true false",
            "mutate Create c false true",
            "validate Create c false true",
        ]
    );
}

/// A plug-in that refuses all that it acts on.
#[derive(Debug)]
struct Refusing(Interest);

impl Admission for Refusing {
    fn name(&self) -> &'static str {
        "Refusing"
    }

    fn interest(&self) -> Interest {
        self.0
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        if what.call.row.name == "namespaces" {
            return Ok(Vec::new());
        }
        Err(what.forbidden(object, format!("{:?}", self.0)).into())
    }
}

#[tokio::test(start_paused = true)]
async fn a_plug_in_acts_in_its_order_and_on_its_resources_only() {
    const SERVICES: Interest = Interest::Resources(&["services"]);
    let plugin = |interest| Arc::new(Refusing(interest)) as Arc<dyn Admission>;
    let site = Site::open(vec![plugin(SERVICES)]).await;
    let body = r#"{"metadata":{"name":"c"}}"#;
    let made = site.send(Ask::create("configmaps", body)).await;
    made.expect("nothing acts on it");
    let body = r#"{"metadata":{"generateName":"s-"},"spec":{"ports":[{"port":80}]}}"#;
    let refused = site.send(Ask::create("services", body)).await;
    let message = refused.expect_err("it is refused").message;
    assert!(message.starts_with("services \"s-"), "{message}");

    let site = Site::open(vec![plugin(Interest::Everything), plugin(SERVICES)]).await;
    for (resource, named) in [("configmaps", "Everything"), ("services", "Everything")] {
        let refused = site.send(Ask::create(resource, body)).await;
        let message = refused.expect_err("it is refused").message;
        assert!(message.ends_with(named), "{message}");
    }
    let site = Site::open(vec![plugin(SERVICES), plugin(Interest::Everything)]).await;
    let refused = site.send(Ask::create("services", body)).await;
    let message = refused.expect_err("it is refused").message;
    assert!(message.contains("Resources"), "{message}");
}

/// A plug-in that refuses to change an object whose data are `bad`, without any call.
#[derive(Debug)]
struct Strict;

impl Admission for Strict {
    fn name(&self) -> &'static str {
        "Strict"
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        _: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        match what.old {
            Some(old) if old.str_at(&["data", "k"]) == "bad" => {
                Err(ApiError::bad_request("refused").into())
            }
            _ => Ok(Vec::new()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_a_state_that_does_not_come_to_be_is_not_given() {
    let site = Site::open(vec![Arc::new(Strict)]).await;
    site.make("y", "0").await;
    let bad = || Ask::patch("y", r#"{"data":{"k":"bad"}}"#);
    let change = || Ask::patch("y", r#"{"data":{"more":"1"}}"#);
    let refused = site.unsettle(bad()).await;
    let written = site.send(change()).await;
    written.expect("what is refused was never there");
    refused
        .await
        .expect("no panic")
        .expect_err("the store is full");
    site.send(bad()).await.expect("the store has room again");
    let written = site.send(change()).await;
    assert_eq!(written.expect_err("it is refused").message, "refused");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_waits_for_the_version_of_a_commit_under_way() {
    let site = Site::open(Vec::new()).await;
    site.make("c", "0").await;
    let patch = |value: &str| Ask::patch("c", &format!(r#"{{"data":{{"k":"{value}"}}}}"#));
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(UNSETTLED));
    let written = site.spawn(patch("1"));
    sleep(UNSETTLED / 2).await;
    let shown = site.send(patch("2").dry()).await.expect("it is sound");
    let written = written.await.expect("no panic").expect("it is sound");
    let version = |object: &Value| object.str_at(&["metadata", "resourceVersion"]).to_owned();
    assert!(!version(&shown).is_empty());
    assert_eq!(version(&shown), version(&written));
}

/// A plug-in that refuses objects whose data are `bad`, and says which of its calls are measured.
#[derive(Debug)]
struct Timed(&'static str, Measured);

impl Admission for Timed {
    fn name(&self) -> &'static str {
        self.0
    }

    fn measured(&self) -> Measured {
        self.1
    }

    fn validate(
        &self,
        _: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        match object {
            Some(object) if object.str_at(&["data", "k"]) == "bad" => {
                Err(ApiError::bad_request("refused").into())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns how often each series of the metrics of admission was observed.
fn observed(site: &Site) -> Vec<String> {
    let mut observed = Vec::new();
    for family in site.registry.metrics() {
        let Samples::Histograms { samples, .. } = family.samples else {
            continue;
        };
        for (labels, sample) in samples {
            let labels = labels.iter().map(|(_, value)| value.as_ref());
            let labels = labels.collect::<Vec<&str>>().join(" ");
            observed.push(format!("{labels}: {}", sample.count()));
        }
    }
    observed
}

#[tokio::test(start_paused = true)]
async fn each_phase_and_the_calls_that_upstream_makes_are_measured() {
    const CREATE: &[Operation] = &[Operation::Create];
    const ALL: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete];
    let site = Site::open(vec![
        Arc::new(Timed("Own", Measured::NEVER)),
        Arc::new(Timed("Creates", Measured::both(CREATE))),
        Arc::new(Timed("All", Measured::validating(ALL))),
    ])
    .await;
    site.make("x", "0").await;
    site.send(Ask::patch("x", r#"{"data":{"k":"1"}}"#))
        .await
        .expect("it is sound");
    // The first plug-in refuses it, which is not measured.
    let refused = site.send(Ask::patch("x", r#"{"data":{"k":"bad"}}"#)).await;
    assert_eq!(refused.expect_err("it is bad").code, 400);
    let delete = Ask::new(Verb::Delete, "configmaps", Some("x"));
    site.send(delete).await.expect("it is there");
    assert_eq!(
        observed(&site),
        [
            // With the namespace of the site.
            "Creates CREATE false admit: 2",
            "NamespaceLifecycle CREATE false admit: 2",
            "Creates CREATE false validate: 2",
            "All CREATE false validate: 2",
            "All UPDATE false validate: 1",
            "All DELETE false validate: 1",
            "CREATE false admit: 2",
            "UPDATE false admit: 2",
            "DELETE false admit: 1",
            "CREATE false validate: 2",
            "UPDATE false validate: 1",
            "UPDATE true validate: 1",
            "DELETE false validate: 1",
        ]
    );
    // A refusal of a plug-in that is measured, and one of the namespace.
    let plugin = Arc::new(Timed("All", Measured::validating(ALL)));
    let site = Site::open(vec![plugin]).await;
    let bad = r#"{"metadata":{"name":"y"},"data":{"k":"bad"}}"#;
    let refused = site.send(Ask::create("configmaps", bad)).await;
    assert_eq!(refused.expect_err("it is bad").code, 400);
    let observed = observed(&site);
    for series in ["All CREATE true validate: 1", "CREATE true validate: 1"] {
        assert!(observed.iter().any(|one| one == series), "{observed:?}");
    }
}
