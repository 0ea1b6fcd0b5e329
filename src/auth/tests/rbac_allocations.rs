//! A decision that allows allocates nothing.

use polyplane_apimachinery::json;
use polyplane_auth::rbac::binding::ObjectName;
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_auth::{Attributes, Decision, Subject, UserInfo};

fn put(index: &mut Index, resource: RbacResource, namespace: &str, name: &str, text: &str) {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    let object = parsed.expect("test JSON parses").value;
    index.put(resource, ObjectName { namespace, name }, &object);
}

#[test]
fn an_allowed_request_allocates_nothing() {
    let mut index = Index::default();
    let role = r#"{"rules":[{"verbs":["get","rewind"],"apiGroups":["apps"],"resources":["*/scale","pods/log"],"resourceNames":["web"]},
        {"verbs":["get"],"nonResourceURLs":["/metrics/*"]}]}"#;
    let binding = r#"{"roleRef":{"kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"ServiceAccount","namespace":"ns","name":"a-robot-with-a-long-name"}]}"#;
    put(&mut index, RbacResource::Role, "", "reader", role);
    put(&mut index, RbacResource::Binding, "", "readers", binding);
    put(&mut index, RbacResource::Binding, "ns", "readers", binding);
    // A binding of a missing role, which a refusal has to name.
    let lost = r#"{"roleRef":{"kind":"Role","name":"lost"},"subjects":[{"kind":"Group","name":"system:serviceaccounts"}]}"#;
    put(&mut index, RbacResource::Binding, "ns", "lost", lost);
    let user = UserInfo::new(
        "system:serviceaccount:ns:a-robot-with-a-long-name",
        &[
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
            "system:authenticated",
        ],
    );
    let resource = |subresource, name| Subject::Resource {
        group: "apps",
        version: "v1",
        resource: "deployments",
        subresource,
        namespace: "ns",
        name,
        field_selector: "",
    };
    let asked = [
        ("get", resource("scale", "web"), true),
        ("rewind", resource("scale", "web"), true),
        ("get", Subject::Path("/metrics/slis"), true),
        ("get", resource("scale", "other"), false),
    ];
    for (verb, subject, allowed) in asked {
        let attributes = Attributes {
            user: &user,
            verb,
            subject,
        };
        let mut decision = None;
        let counted = allocation_counter::measure(|| decision = Some(index.decide(&attributes)));
        assert_eq!(decision == Some(Decision::Allow), allowed, "{attributes:?}");
        // The refusal shows that allocations are counted.
        assert_eq!(counted.count_total == 0, allowed, "{attributes:?}");
    }
}
