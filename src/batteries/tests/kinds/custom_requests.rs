//! Requests for objects of a kind that the plane defines, through the life of its definition.

use crate::shared::plane::Opening;
use crate::site::{Site, request};
use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::Masters;
use polyplane_batteries::kind_tables::custom_kinds;
use polyplane_registry::environment::System;
use polyplane_registry::plan::{Attributes, CallOuts, Interrupted, Mutated};
use polyplane_registry::{
    Admission, AnswerBody, Authority, Registry, Requester, ResourceRequest, Verb,
};
use std::sync::Arc;

const GROUP: &str = "example.com";
/// The group and the resource of definitions, and those of the objects.
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const WIDGETS: (&str, &str) = (GROUP, "widgets");
/// The name of the definition.
const DEFINITION: &str = "widgets.example.com";

/// Returns the definition, which serves its only version or not.
fn definition(served: bool) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer", "default": 3}}}}});
    let version = json!({"name": "v1", "served": (served), "storage": true,
        "schema": {"openAPIV3Schema": (schema)}});
    json!({"metadata": {"name": (DEFINITION)}, "spec": {"group": (GROUP), "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": [(version)]}})
}

/// A site whose plane has the definition.
struct Shop(Site);

impl Shop {
    async fn open(admission: Vec<Arc<dyn Admission>>) -> Self {
        let opening = Opening {
            derivation: Some(custom_kinds()),
            ..Opening::default()
        };
        let mut site = Site::with(Arc::new(System), opening).await;
        let registry = Registry::new(Arc::new(System), Authority::fixed(Masters), Vec::new());
        site.registry = registry.admitting(admission);
        let shop = Self(site);
        let served = definition(true);
        let made = shop.ask(Verb::Create, DEFINITIONS, "", &served).await;
        made.expect("it is sound");
        shop
    }

    async fn ask(
        &self,
        verb: Verb,
        what: (&str, &str),
        name: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        self.ask_as(Requester::Client, verb, what, name, body).await
    }

    async fn ask_as(
        &self,
        requester: Requester,
        verb: Verb,
        (group, resource): (&str, &str),
        name: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let content_type = match verb {
            Verb::Patch => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = ResourceRequest {
            group: group.into(),
            namespace: None,
            name: (!name.is_empty()).then(|| name.into()),
            content_type: Some(content_type.into()),
            body: match body {
                Value::Null => Bytes::new(),
                body => json::to_string(body).into(),
            },
            ..request(verb, resource)
        };
        let Site { registry, tenant } = &self.0;
        let answer = registry.handle_for(requester, tenant, &request).await?;
        let AnswerBody::Slices(slices) = answer.body else {
            panic!("not a watch");
        };
        let bytes = slices.concat();
        let parsed = json::parse(&bytes, &Default::default());
        Ok(parsed.expect("answers are JSON").value)
    }

    /// Creates or replaces the object `w` by one that names this kind.
    async fn write(&self, verb: Verb, kind: &str) -> Result<Value, ApiError> {
        let object = json!({"apiVersion": "example.com/v1", "kind": (kind),
            "metadata": {"name": "w"}, "spec": {}});
        let name = match verb {
            Verb::Create => "",
            _ => "w",
        };
        self.ask(verb, WIDGETS, name, &object).await
    }

    /// Returns code and message with which an object of another kind is refused.
    async fn refusal(&self, verb: Verb) -> (u16, String) {
        let refused = self.write(verb, "Gadget").await;
        let refused = refused.expect_err("it is no widget");
        (refused.code, refused.message)
    }
}

#[tokio::test]
async fn an_object_of_another_kind_is_refused_after_its_place_and_its_definition() {
    let shop = Shop::open(Vec::new()).await;
    let (code, message) = shop.refusal(Verb::Create).await;
    assert_eq!(code, 422);
    assert!(message.contains("must be Widget"), "{message}");
    assert_eq!(shop.refusal(Verb::Update).await.0, 404);
    let made = shop.write(Verb::Create, "Widget").await;
    made.expect("it is a widget");
    assert_eq!(shop.refusal(Verb::Update).await.0, 422);

    let nothing = Value::Null;
    let deleted = shop
        .ask(Verb::Delete, DEFINITIONS, DEFINITION, &nothing)
        .await;
    deleted.expect("it is there");
    let (code, message) = shop.refusal(Verb::Create).await;
    assert_eq!(code, 403);
    let terminating = "create not allowed while custom resource definition is terminating";
    assert!(message.ends_with(terminating), "{message}");
    assert_eq!(shop.refusal(Verb::Update).await.0, 422);
}

#[tokio::test]
async fn objects_of_a_kind_that_no_version_serves_are_there_for_the_server_only() {
    let shop = Shop::open(Vec::new()).await;
    let made = shop.write(Verb::Create, "Widget").await;
    made.expect("it is a widget");
    let patch = definition(false);
    let patched = shop.ask(Verb::Patch, DEFINITIONS, DEFINITION, &patch).await;
    patched.expect("a definition may serve no version");

    let kinds = shop.0.tenant.kinds();
    assert!(!kinds.has_group(GROUP) && kinds.served().group(GROUP).is_none());
    assert!(kinds.resolve(GROUP, "v1", "widgets").is_none());
    assert!(kinds.stored_resources().all(|row| row.group != GROUP));
    let nothing = Value::Null;
    for verb in [Verb::List, Verb::DeleteCollection] {
        let refused = shop.ask(verb, WIDGETS, "", &nothing).await;
        assert_eq!(refused.err().map(|error| error.code), Some(404));
    }
    for (verb, count) in [
        (Verb::List, 1),
        (Verb::DeleteCollection, 1),
        (Verb::List, 0),
    ] {
        let listed = shop.ask_as(Requester::Server, verb, WIDGETS, "", &nothing);
        let listed = listed.await.expect("the server sees them");
        assert_eq!(listed.items_at(&["items"]).len(), count);
    }
}

/// A plug-in that adds a member which the schema does not have, and one that is null.
#[derive(Debug)]
struct Adding;

impl Admission for Adding {
    fn name(&self) -> &'static str {
        "Adding"
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        match object {
            Some(object) if what.call.row.name == "widgets" => {
                object.set(&["spec", "size"], Value::Null);
                object.set(&["spec", "unknown"], 1i64);
                Ok(Mutated::Changed)
            }
            _ => Ok(Mutated::Unchanged),
        }
    }
}

#[tokio::test]
async fn a_custom_object_that_a_plug_in_has_changed_is_decoded_by_its_schema() {
    let shop = Shop::open(vec![Arc::new(Adding)]).await;
    let made = shop.write(Verb::Create, "Widget").await;
    let made = made.expect("it is a widget");
    assert_eq!(made["spec"], json!({"size": 3}));
}
