//! The node authorizer against the recorded answers of upstream's own (`go run ./nodes` in
//! `src/batteries/generate`).

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use flate2::read::GzDecoder;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{Attributes, Decision, Subject, UserInfo};
use polyplane_batteries::node_access::NodeAuthorizer;
use polyplane_plane::{
    Committer, Flags, Key, NewObject, Operation, Plane, PlaneParams, SoleHolder, Write,
};
use polyplane_registry::PlaneAuthorizer;
use polyplane_storage::{MemoryOptions, MemoryStore, Store};

/// The lists of objects in a recorded world, each with its group and resource.
const LISTS: [(&str, &str); 5] = [
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
    ("certificates.k8s.io", "podcertificaterequests"),
];

fn worlds() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes/decisions.jsonl.gz");
    let file = std::fs::File::open(path).expect("the recorded answers are there");
    let mut text = String::new();
    let mut expanded = GzDecoder::new(file);
    expanded.read_to_string(&mut text).expect("it is text");
    let limits = Limits::default();
    let parse = |line: &str| json::parse(line.as_bytes(), &limits).expect("JSON").value;
    text.lines().map(parse).collect()
}

/// Returns a plane in memory with no object.
async fn empty_plane() -> Arc<Plane> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
    let guard = guard.expect("memory takes the fence");
    let plane = Plane::open(PlaneParams {
        indexes: polyplane_batteries::indexes(),
        ..guard.empty_plane(Committer::new(store))
    });
    plane.await.expect("an empty plane opens")
}

fn key_of(group: &str, resource: &str, object: &Value) -> Key {
    let namespace = object.str_at(&["metadata", "namespace"]);
    let namespace = (!namespace.is_empty()).then_some(namespace);
    Key::new(
        group,
        resource,
        namespace,
        object.str_at(&["metadata", "name"]),
    )
}

fn put(key: Key, object: &Value) -> Operation {
    let mut metadata = object["metadata"].clone();
    drop(metadata.remove(&["creationTimestamp"]));
    let metadata = json::to_vec(&metadata);
    let mut head = b"{\"metadata\":".to_vec();
    head.extend_from_slice(&metadata[..metadata.len() - 1]);
    head.push(b',');
    let version_slot = head.len();
    head.extend_from_slice(b"\"x\":0}");
    for part in ["spec", "status"] {
        if let Some(value) = object.get(part) {
            head.extend_from_slice(format!(",\"{part}\":").as_bytes());
            head.extend_from_slice(&json::to_vec(value));
        }
    }
    head.push(b'}');
    Operation::Put {
        key,
        object: NewObject {
            body: head.into(),
            version_slot,
            labels: None,
            storage_version: "v1".into(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

async fn write(plane: &Arc<Plane>, operation: Operation) {
    let write = Write {
        operations: vec![operation],
        ..Write::default()
    };
    plane.submit(write).await.expect("memory takes it");
}

fn user_of(question: &Value) -> UserInfo {
    let groups = question.items_at(&["groups"]).iter();
    UserInfo {
        name: question.str_at(&["user"]).into(),
        groups: groups
            .filter_map(|group| group.as_str().map(Str::from))
            .collect(),
        ..UserInfo::default()
    }
}

fn subject_of(question: &Value) -> Subject<'_> {
    let part = |name: &str| question.str_at(&[name]);
    match part("path") {
        "" => Subject::Resource {
            group: part("group"),
            version: part("version"),
            resource: part("resource"),
            subresource: part("subresource"),
            namespace: part("namespace"),
            name: part("name"),
            field_selector: part("fields"),
        },
        path => Subject::Path(path),
    }
}

fn answer(authorizer: &NodeAuthorizer, plane: &Plane, question: &Value) -> (bool, String) {
    let attributes = Attributes {
        user: &user_of(question),
        verb: question.str_at(&["verb"]),
        subject: subject_of(question),
    };
    match authorizer.authorize_at(&plane.snapshot(), &attributes) {
        Decision::Allow => (true, String::new()),
        Decision::NoOpinion(why) | Decision::Deny(why) => {
            let why = why.strip_prefix("node: ").unwrap_or(&why);
            (false, why.to_owned())
        }
    }
}

/// The twelve thousand recorded questions are about objects that were written one after the other,
/// and are asked again once the pods are gone: no relation by a pod outlives it.
#[tokio::test]
async fn kubelets_may_do_what_upstream_lets_them_do() {
    let authorizer = NodeAuthorizer::default();
    let (mut asked, mut allowed) = (0, 0);
    for world in worlds() {
        let plane = empty_plane().await;
        for (group, resource) in LISTS {
            for object in world.items_at(&[resource]) {
                let operation = put(key_of(group, resource, object), object);
                write(&plane, operation).await;
            }
        }
        for question in world.items_at(&["questions"]) {
            let wanted = (question.bool_at(&["allowed"]), question.str_at(&["reason"]));
            let (is_allowed, why) = answer(&authorizer, &plane, question);
            assert_eq!((is_allowed, why.as_str()), wanted, "{question:?}");
            asked += 1;
            allowed += usize::from(is_allowed);
        }
        for pod in world.items_at(&["pods"]) {
            let key = key_of("", "pods", pod);
            write(&plane, Operation::Delete { key }).await;
        }
        let by_pods = [
            "secrets",
            "configmaps",
            "persistentvolumeclaims",
            "persistentvolumes",
        ];
        for question in world.items_at(&["questions"]) {
            if by_pods.contains(&question.str_at(&["resource"]))
                && question.str_at(&["group"]).is_empty()
            {
                assert!(!answer(&authorizer, &plane, question).0, "{question:?}");
            }
        }
    }
    println!("{asked} questions, {allowed} allowed");
    assert!(asked >= 10_000 && allowed * 4 > asked, "{asked} {allowed}");
}
