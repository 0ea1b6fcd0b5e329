//! Measures decisions with the bootstrap policy of upstream plus 1 000 roles and 1 000 bindings:
//! `cargo run --release -p polyplane-auth --example rbac_decisions`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use polyplane_apimachinery::{Value, json};
use polyplane_auth::rbac::binding::{Binding, ObjectName};
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_auth::rbac::role::Role;
use polyplane_auth::{Attributes, SYSTEM_MASTERS, Subject, UserInfo};

const NAMESPACES: usize = 50;
const OWN: usize = 1_000;
const ROUNDS: u32 = 200_000;
/// Each figure is the smallest of so many.
const SAMPLES: usize = 7;

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("it is JSON").value
}

fn bootstrap() -> Index {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/bootstrap.json");
    let data = std::fs::read_to_string(path).expect("the generated data is there");
    let mut index = Index::default();
    for item in tree(&data).as_array().unwrap_or_default() {
        let resource = RbacResource::of(item.str_at(&["group"]), item.str_at(&["resource"]));
        let name = ObjectName {
            namespace: item.str_at(&["namespace"]),
            name: item.str_at(&["name"]),
        };
        if let Some(resource) = resource {
            index.put(resource, name, &item["object"]);
        }
    }
    index
}

/// Puts a role and a binding of it, as a team would have them.
fn put(index: &mut Index, at: usize) {
    let namespace = format!("team-{}", at % NAMESPACES);
    // Every other role is a ClusterRole, and every fourth binding one of the cluster.
    let (in_cluster, role_in_cluster) = (at.is_multiple_of(4), at.is_multiple_of(2));
    let name = format!("role-{at}");
    let role = tree(
        r#"{"rules":[
        {"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods","pods/log","services","configmaps"]},
        {"verbs":["*"],"apiGroups":["apps"],"resources":["deployments","statefulsets","*/scale"]},
        {"verbs":["get","update"],"apiGroups":[""],"resources":["secrets"],"resourceNames":["one","two"]}]}"#,
    );
    let of = |cluster: bool| if cluster { "" } else { namespace.as_str() };
    let role_name = ObjectName {
        namespace: of(role_in_cluster),
        name: &name,
    };
    index.put_role(role_name, Role::from_value(&role));
    let kind = if role_in_cluster {
        "ClusterRole"
    } else {
        "Role"
    };
    let binding = tree(&format!(
        r#"{{"roleRef":{{"kind":"{kind}","name":"{name}"}},"subjects":[
        {{"kind":"User","name":"user-{at}"}},{{"kind":"Group","name":"group-{}"}},
        {{"kind":"ServiceAccount","namespace":"{namespace}","name":"robot-{at}"}}]}}"#,
        at % 100
    ));
    let binding_name = ObjectName {
        namespace: of(in_cluster),
        name: &name,
    };
    index.put_binding(Binding::from_value(binding_name, &binding));
}

fn resource<'a>(group: &'a str, resource: &'a str, namespace: &'a str) -> Subject<'a> {
    Subject::Resource {
        group,
        version: "v1",
        resource,
        subresource: "",
        namespace,
        name: "web",
        field_selector: "",
    }
}

fn account(namespace: &str, name: &str) -> UserInfo {
    let groups = [
        "system:serviceaccounts",
        &format!("system:serviceaccounts:{namespace}"),
        "system:authenticated",
    ];
    UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), &groups)
}

/// Returns nanoseconds and allocations of one decision.
fn measure(index: &Index, attributes: &Attributes<'_>) -> (f64, u64) {
    let mut best = f64::INFINITY;
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            black_box(index.authorize(black_box(attributes)));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            black_box(index.authorize(black_box(attributes)));
        }
    });
    (best, counted.count_total / 100)
}

fn show(index: &Index, what: &str, user: &UserInfo, verb: &str, subject: Subject<'_>) {
    let attributes = Attributes {
        user,
        verb,
        subject,
    };
    let allowed = index.authorize(&attributes).is_some();
    let (nanos, allocations) = measure(index, &attributes);
    let outcome = if allowed { "allowed" } else { "refused" };
    println!("{what:<58} {outcome} {nanos:>8.0} ns {allocations:>3} allocations");
}

fn main() {
    let start = Instant::now();
    let layer = bootstrap();
    println!("bootstrap policy read and indexed: {:?}", start.elapsed());
    let mut index = layer.clone();
    let start = Instant::now();
    (0..OWN).for_each(|at| put(&mut index, at));
    let each = start.elapsed() / OWN as u32;
    println!("a role and a binding parsed and put: {each:?}");

    let team = account("team-1", "robot-1");
    let pods = resource("", "pods", "team-1");
    show(
        &index,
        "service account, Role in its namespace: get pods",
        &team,
        "get",
        pods,
    );
    let scale = resource("batch", "jobs", "team-1");
    show(
        &index,
        "service account, nothing: get jobs",
        &team,
        "get",
        scale,
    );
    let jane = UserInfo::new("user-4", &["system:authenticated"]);
    show(
        &index,
        "user, ClusterRoleBinding: list pods",
        &jane,
        "list",
        pods,
    );
    let member = UserInfo::new(
        "nobody",
        &["group-4", "group-5", "group-6", "system:authenticated"],
    );
    show(
        &index,
        "user of 3 groups, 30 bindings: get jobs",
        &member,
        "get",
        scale,
    );
    let scheduler = UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
    show(
        &index,
        "kube-scheduler: watch pods",
        &scheduler,
        "watch",
        resource("", "pods", ""),
    );
    let collector = account("kube-system", "generic-garbage-collector");
    show(
        &index,
        "garbage collector: patch widgets",
        &collector,
        "patch",
        resource("x.io", "widgets", "a"),
    );
    let master = UserInfo::new("admin", &[SYSTEM_MASTERS, "system:authenticated"]);
    show(
        &index,
        "cluster-admin by group: delete secrets",
        &master,
        "delete",
        resource("", "secrets", "a"),
    );
    show(
        &index,
        "anybody: GET /apis/apps/v1",
        &jane,
        "get",
        Subject::Path("/apis/apps/v1"),
    );

    let mut plane = layer.clone();
    let counted = allocation_counter::measure(|| put(&mut plane, 1));
    println!(
        "difference of a plane with 1 role and 1 binding: {} bytes",
        counted.bytes_current
    );
    let counted = allocation_counter::measure(|| put(&mut index, OWN + 1));
    println!(
        "one more of each in a plane with {OWN}: {} bytes",
        counted.bytes_current
    );
}
