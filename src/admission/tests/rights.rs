//! Writes that need a right beside the one to the request itself, in a plane in memory.

#[path = "shared/tenant.rs"]
mod tenant;

use polyplane_admission::built_in;
use polyplane_apimachinery::json::to_vec;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{Attributes, Authorizer, Decision, Subject, UserInfo, Verdict};
use polyplane_registry::environment::System;
use polyplane_registry::{Authority, GrantedAccess, Registry, ResourceRequest, Tenant, Verb};
use std::sync::Arc;
use std::time::Duration;
use tenant::empty_tenant;
use tokio::time::Instant;

/// The PKCS#10 request of an Ed25519 key, which has signed it.
const PKCS10: &str = "MIGLMD8CAQAwDDEKMAgGA1UEAwwBeDAqMAUGAytlcAMhALV/EZ2ClKeOmTGxIedSRcsyEgoD/3zpXeuvtAMQ8gBAoAAwBQYDK2VwA0EATBzqepUyCrgCnwfJbpLNfDjcoc+eF8pDKUsLhRz6idC4b/v81fEmecowwkFoTNHB9W5vjY4UKB5e4GaHVsKlBw==";

/// Allows what it lists, each a user, a verb and a resource with the namespace and name of an object.
struct Rights(&'static [&'static str]);

impl Authorizer for Rights {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let Subject::Resource {
            group,
            resource,
            namespace,
            name,
            ..
        } = attributes.subject
        else {
            return Verdict::now(Decision::NoOpinion(String::new()));
        };
        let (user, verb) = (&attributes.user.name, attributes.verb);
        let asked = format!("{user} {verb} {resource}.{group} {namespace}/{name}");
        Verdict::now(if self.0.contains(&asked.as_str()) {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        })
    }
}

/// A registry with all plug-ins, and a plane with the namespace `ns`. Every request is granted; the rights
/// decide on what it needs beside that.
struct Site {
    registry: Registry,
    tenant: Tenant,
}

impl Site {
    async fn open(rights: Rights) -> Self {
        let registry = Registry::new(Arc::new(System), Authority::fixed(rights), Vec::new());
        let site = Self {
            registry: registry.admitting(built_in()),
            tenant: empty_tenant().await,
        };
        let namespace = json!({"metadata": {"name": "ns"}});
        let what = ("", "namespaces", "");
        site.write("admin", Verb::Create, what, "", &namespace)
            .await
            .expect("the namespace is new");
        site
    }

    /// Writes an object in version v1. The user `admin` is in `system:masters`.
    async fn write(
        &self,
        user: &str,
        verb: Verb,
        (group, resource, subresource): (&str, &str, &str),
        name: &str,
        body: &Value,
    ) -> Result<(), ApiError> {
        let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
        let groups: &[&str] = match user {
            "admin" => &["system:masters"],
            _ => &["dev"],
        };
        let content_type = match verb {
            Verb::Patch => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = ResourceRequest {
            verb,
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: (resource == "podcertificaterequests").then(|| "ns".into()),
            name: some(name),
            subresource: some(subresource),
            query: Vec::new(),
            accept: "application/json".to_owned(),
            content_type: Some(content_type.to_owned()),
            user_agent: "test".to_owned(),
            body: to_vec(body).into(),
            user: Arc::new(UserInfo::new(user, groups)),
            granted: GrantedAccess::of_every_cut(),
            deadline: Instant::now() + Duration::from_secs(60),
            seats: None,
            write_rate: None,
            annotations: None,
            token_reviewer: None,
        };
        self.registry.handle(&self.tenant, &request).await.map(drop)
    }
}

#[tokio::test]
async fn the_status_of_a_pod_certificate_request_needs_the_right_to_sign() {
    let site = Site::open(Rights(&[
        "signer sign signers.certificates.k8s.io /example.com/a",
        "domain sign signers.certificates.k8s.io /example.com/*",
        "other sign signers.certificates.k8s.io /example.com/b",
    ]))
    .await;
    for name in ["a", "b"] {
        let request = json!({"metadata": {"name": (name)}, "spec": {
            "signerName": "example.com/a", "podName": "p", "podUID": "u", "serviceAccountName": "s",
            "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u",
            "maxExpirationSeconds": 3600, "stubPKCS10Request": (PKCS10)}});
        let what = ("certificates.k8s.io", "podcertificaterequests", "");
        let made = site.write("admin", Verb::Create, what, "", &request).await;
        made.expect("it is sound");
    }
    let denied = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "Test",
        "message": "text", "lastTransitionTime": "2024-05-06T07:08:09Z"}]}});
    let what = ("certificates.k8s.io", "podcertificaterequests", "status");
    let patch = async |user: &str, name: &str, body: &Value| {
        site.write(user, Verb::Patch, what, name, body).await
    };
    for user in ["other", "nobody"] {
        let refused = patch(user, "a", &denied).await.expect_err("no right");
        let text = format!(
            "PodCertificateRequest.certificates.k8s.io \"a\" is invalid: spec.signerName: Forbidden: User \"{user}\" is not permitted to \"sign\" for signer \"example.com/a\""
        );
        assert_eq!((refused.code, refused.message), (422, text));
    }
    // What is wrong is said first, and what changes nothing needs no right.
    let wrong = json!({"status": {"conditions": [{"type": "Denied", "status": "False", "reason": "Test",
        "message": "text", "lastTransitionTime": "2024-05-06T07:08:09Z"}]}});
    let refused = patch("nobody", "a", &wrong).await.expect_err("it is wrong");
    assert!(
        refused.message.contains("status: Unsupported value"),
        "{refused}"
    );
    let same = patch("nobody", "a", &json!({})).await;
    same.expect("it changes nothing");
    for (user, name) in [("signer", "a"), ("domain", "b")] {
        let signed = patch(user, name, &denied).await;
        signed.expect("the right is held");
    }
}

#[tokio::test]
async fn a_policy_and_its_binding_need_the_right_to_read_their_parameters() {
    let site = Site::open(Rights(&[
        "reader get configmaps. */*",
        "one get configmaps. ns/x",
        "lister list configmaps. /",
        "vague get *.example.com */*",
    ]))
    .await;
    let group = "admissionregistration.k8s.io";
    let (policies, bindings) = (
        (group, "validatingadmissionpolicies", ""),
        (group, "validatingadmissionpolicybindings", ""),
    );
    let policy = |name: &str, api_version: &str, kind: &str| {
        json!({"metadata": {"name": (name)}, "spec": {
            "paramKind": {"apiVersion": (api_version), "kind": (kind)},
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"]}]},
            "validations": [{"expression": "true"}]}})
    };
    let binding = |name: &str, policy: &str, reference: Value| {
        json!({"metadata": {"name": (name)}, "spec": {"policyName": (policy),
            "validationActions": ["Deny"], "paramRef": (reference)}})
    };
    let create = async |user: &str, what: (&str, &str, &str), body: &Value| {
        let made = site.write(user, Verb::Create, what, "", body).await;
        made.map_err(|error| (error.code, error.message))
    };
    let refused = |kind: &str, name: &str, why: &str| -> Result<(), (u16, String)> {
        let text = format!("{kind}.{group} \"{name}\" is invalid: spec.{why}");
        Err((422, text))
    };

    let of_maps = policy("maps", "v1", "ConfigMap");
    let why = "paramKind: Forbidden: user &{one  [dev] map[]} must have \"get\" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)";
    let answer = create("one", policies, &of_maps).await;
    assert_eq!(answer, refused("ValidatingAdmissionPolicy", "maps", why));
    assert_eq!(create("reader", policies, &of_maps).await, Ok(()));
    let unknown = policy("widgets", "example.com/v1", "Widget");
    let answer = create("reader", policies, &unknown).await;
    answer.expect_err("it needs the right to read the whole group");
    assert_eq!(create("vague", policies, &unknown).await, Ok(()));
    // An update that leaves the kind as it is needs no right.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = site.write("nobody", Verb::Patch, policies, "maps", &label);
    labelled.await.expect("the parameters are those of before");

    let named = json!({"name": "x", "namespace": "ns", "parameterNotFoundAction": "Deny"});
    let bound = binding("named", "maps", named.clone());
    let why = "paramRef: Forbidden: user &{nobody  [dev] map[]} does not have \"get\" permission on the object referenced by paramRef";
    let answer = create("nobody", bindings, &bound).await;
    let kind = "ValidatingAdmissionPolicyBinding";
    assert_eq!(answer, refused(kind, "named", why));
    assert_eq!(create("one", bindings, &bound).await, Ok(()));
    let all = json!({"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Deny"});
    let bound = binding("all", "maps", all);
    let answer = create("one", bindings, &bound).await;
    answer.expect_err("it needs the right to list");
    assert_eq!(create("lister", bindings, &bound).await, Ok(()));
    // What a policy that does not exist refers to may be anything.
    let bound = binding("early", "absent", named);
    let why = "paramRef: Forbidden: unable to get policy absent to determine minimum required permissions and user &{one  [dev] map[]} does not have \"get\" permission for all groups, versions and resources";
    let answer = create("one", bindings, &bound).await;
    assert_eq!(answer, refused(kind, "early", why));
    assert_eq!(create("admin", bindings, &bound).await, Ok(()));
}
