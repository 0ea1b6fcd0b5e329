//! Measures how long field management of one Deployment takes: `cargo run --release -p
//! polyplane-managedfields --example field_sets`. Each line is the fastest of several rounds, which is the
//! time on an undisturbed machine.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::value::Value;
use polyplane_managedfields::{
    Answers, Applied, Conversion, Duplicates, FieldSet, Filter, Force, Managers, Position, Step,
    Versions, Write, apply, compare, field_set, merge, reconcile, update, validate,
};

/// The same allocator as in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Deployments<'s>(Position<BuiltIn<'s>>);

impl<'s> Versions<'s> for Deployments<'s> {
    type Shape = BuiltIn<'s>;

    fn position(&self, _version: &str) -> Option<Position<BuiltIn<'s>>> {
        Some(self.0)
    }

    fn filter(&self, _version: &str) -> Option<&Filter> {
        None
    }

    fn convert(&self, _object: &Value, _from: &str, _to: &str) -> Conversion {
        Conversion::Same
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(folder.join("../batteries/data/schemas.json"))?;
    let schemas = Schemas::parse(&data)?;
    let id = schemas.kind("apps", "v1", "Deployment");
    let at = Position::root(BuiltIn::root(&schemas, id.ok_or("no Deployment")?));
    let live = json::parse(DEPLOYMENT.as_bytes(), &Limits::default())?.value;
    let set = field_set(at, &live);
    let text = set.to_json();
    println!(
        "object {} B, set {} paths, {} B",
        DEPLOYMENT.len(),
        set.len(),
        text.len()
    );
    line("clone of the tree", || live.clone());
    line("validate", || validate(at, &live, Duplicates::Refused));
    line("field_set", || field_set(at, &live));
    line("FieldSet::to_json", || set.to_json());
    line("FieldSet::from_json", || FieldSet::from_json(&text));
    line("reconcile", || reconcile(at, &set));
    line("merge with itself", || merge(at, &live, &live));
    let equal = live.clone();
    line("compare, equal", || compare(at, &live, &equal));
    let mut scaled = live.clone();
    scaled.set(&["spec", "replicas"], 5i64);
    line("compare, replicas", || compare(at, &live, &scaled));
    let mut image = live.clone();
    image["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .and_then(|containers| containers.first_mut())
        .ok_or("no container")?
        .set(&["image"], "nginx:2");
    line("compare, image", || compare(at, &live, &image));
    line("compare, new", || compare(at, &Value::Null, &live));

    let versions = Deployments(at);
    let mut managers = Managers::default();
    for manager in ["ci", "operator", "other"] {
        let write = write(&versions, manager, &live, &managers);
        let applied = apply(write, &live, Force::Yes, &Answers::default())?;
        if let Step::Done(Applied { managers: now, .. }) = applied {
            managers = now;
        }
    }
    let write = write(&versions, "ci", &live, &managers);
    let answers = Answers::default();
    line("update, equal, 3 managers", || {
        update(write, &equal, &answers)
    });
    line("update, replicas, 3 managers", || {
        update(write, &scaled, &answers)
    });
    line("update, image, 3 managers", || {
        update(write, &image, &answers)
    });
    line("apply again, 3 managers", || {
        apply(write, &live, Force::No, &answers)
    });
    line("apply, image, 3 managers", || {
        apply(write, &image, Force::Yes, &answers)
    });
    let mut less = live.clone();
    less.remove(&["spec", "template", "spec", "terminationGracePeriodSeconds"]);
    line("apply less, 3 managers", || {
        apply(write, &less, Force::No, &answers)
    });
    Ok(())
}

fn write<'a, V>(
    versions: &'a V,
    manager: &'a str,
    live: &'a Value,
    managers: &'a Managers,
) -> Write<'a, V> {
    Write {
        versions,
        version: "apps/v1",
        manager,
        live,
        managers,
    }
}

/// Prints the time of one call.
fn line<T>(name: &str, mut work: impl FnMut() -> T) {
    const CALLS: u32 = 500;
    let mut best = Duration::MAX;
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(work());
        }
        best = best.min(start.elapsed() / CALLS);
    }
    println!("{name:32} {:>8} ns", best.as_nanos());
}

const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default",
"labels":{"app":"web","tier":"front","version":"v1"},"annotations":{"deployment.kubernetes.io/revision":"1","team":"shop"}},
"spec":{"replicas":3,"revisionHistoryLimit":10,"progressDeadlineSeconds":600,"selector":{"matchLabels":{"app":"web"}},
"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":"25%"}},
"template":{"metadata":{"labels":{"app":"web","tier":"front"}},"spec":{"restartPolicy":"Always","dnsPolicy":"ClusterFirst",
"schedulerName":"default-scheduler","serviceAccountName":"web","terminationGracePeriodSeconds":30,"securityContext":{"runAsNonRoot":true},
"containers":[{"name":"web","image":"nginx:1","imagePullPolicy":"IfNotPresent","terminationMessagePath":"/dev/termination-log",
"terminationMessagePolicy":"File","ports":[{"name":"http","containerPort":80,"protocol":"TCP"},{"name":"metrics","containerPort":9090,"protocol":"TCP"}],
"env":[{"name":"A","value":"1"},{"name":"B","value":"2"},{"name":"C","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}}],
"resources":{"limits":{"cpu":"1","memory":"512Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},
"livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"periodSeconds":10,"failureThreshold":3,"successThreshold":1,"timeoutSeconds":1},
"readinessProbe":{"httpGet":{"path":"/ready","port":"http","scheme":"HTTP"},"periodSeconds":5,"failureThreshold":3,"successThreshold":1,"timeoutSeconds":1},
"volumeMounts":[{"name":"config","mountPath":"/etc/web"},{"name":"cache","mountPath":"/var/cache"}]},
{"name":"sidecar","image":"proxy:1","imagePullPolicy":"IfNotPresent","terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File",
"args":["--config","/etc/proxy.yaml"],"resources":{"limits":{"cpu":"200m","memory":"64Mi"}}}],
"volumes":[{"name":"config","configMap":{"name":"web","defaultMode":420}},{"name":"cache","emptyDir":{}}]}}}}"#;
