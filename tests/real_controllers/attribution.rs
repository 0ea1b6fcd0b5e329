//! Who made each change: a user, by the audit log, or the plane's owner, whose own changes have no
//! event of a client.
//!
//! This module owns the log's form. A change that a replica makes while it is killed, so that nobody gets an
//! answer, may have no event.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use polyplane_tests::ring::collection::{Event, Told};
use serde_json::Value;

/// What is recorded: all changes but those of leases and events, with what they led to.
pub const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, verbs: [get, list, watch]}
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: events.k8s.io}
  - {group: coordination.k8s.io}
- {level: RequestResponse, verbs: [create, update, patch]}
- {level: Metadata}
"#;

/// The name of the server for itself as a client.
const SERVER: &str = "polyplane";

/// A change that a user requested and that was not refused, as far as is known.
#[derive(Clone, Debug)]
pub struct Request {
    plane: String,
    /// The user, without what all service accounts of the system begin with.
    pub user: String,
    verb: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    /// The object after it; null if the answer is none.
    after: Value,
    /// True if nobody waited for the answer any more, so that it is not known what the request led to.
    is_cut: bool,
}

/// The code of a request whose client, or the replica that forwarded it, went away.
const CLIENT_CLOSED: u64 = 499;

/// Reads the logs of all replicas in a folder.
///
/// # Errors
/// Returns an error if a log cannot be read, or says that it lost events.
pub fn read(folder: &Path) -> Result<Vec<Request>> {
    let mut requests = Vec::new();
    for log in std::fs::read_dir(folder)? {
        let text = std::fs::read(log?.path())?;
        // A line that was cut by the end of its process is no JSON.
        for event in text
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
        {
            requests.extend(request(&event)?);
        }
    }
    Ok(requests)
}

fn request(event: &Value) -> Result<Option<Request>> {
    let annotations = &event["annotations"];
    ensure!(
        annotations["polyplane.dev/lost-events"].is_null(),
        "the log lost events: {event}"
    );
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let code = event["responseStatus"]["code"].as_u64().unwrap_or(0);
    let is_cut = code == CLIENT_CLOSED;
    let may_change = is_cut || (200..300).contains(&code);
    if !may_change || object.is_null() || event["userAgent"] == SERVER {
        return Ok(None);
    }
    let after = &event["responseObject"];
    let name = match text(&object["name"]) {
        name if name.is_empty() => text(&after["metadata"]["name"]),
        name => name,
    };
    let user = text(&event["user"]["username"]);
    Ok(Some(Request {
        plane: text(&annotations["polyplane.dev/control-plane"]),
        user: user
            .trim_start_matches("system:serviceaccount:kube-system:")
            .to_owned(),
        verb: text(&event["verb"]),
        resource: text(&object["resource"]),
        subresource: text(&object["subresource"]),
        namespace: text(&object["namespace"]),
        name,
        after: after.clone(),
        is_cut,
    }))
}

impl Attribution {
    /// Returns the changes of users, and those of the owner.
    pub fn totals(&self) -> (usize, usize) {
        (self.users.values().sum(), self.server.values().sum())
    }
}

impl Request {
    fn version(&self) -> Option<u64> {
        self.after["metadata"]["resourceVersion"]
            .as_str()?
            .parse()
            .ok()
    }

    /// Returns whether it can have removed the object, now or once somebody takes the last finalizer.
    fn removes(&self) -> bool {
        let metadata = &self.after["metadata"];
        let is_last = !metadata["deletionTimestamp"].is_null() && metadata["finalizers"].is_null();
        is_last
            || self.verb.starts_with("delete")
            || ["eviction", "finalize"].contains(&self.subresource.as_str())
    }

    fn is_of_all(&self) -> bool {
        self.verb == "deletecollection"
    }
}

/// Who changed the collections of a plane.
#[derive(Debug, Default)]
pub struct Attribution {
    /// Changes by user.
    pub users: BTreeMap<String, usize>,
    /// Changes of the owner: resource, type of the event, and number.
    pub server: BTreeMap<(String, String), usize>,
    /// Changes around the end of a replica that nobody's request explains.
    pub around_kills: usize,
}

/// The versions of a plane after the first of two, up to the second.
pub type Span = (u64, u64);

fn within(span: &Span, version: u64) -> bool {
    span.0 < version && version <= span.1
}

/// The requests of one plane, as a change is looked up in them.
struct Known<'a> {
    by_version: BTreeMap<u64, &'a Request>,
    /// By resource and name; deletions of whole collections have no name.
    removals: BTreeMap<(&'a str, &'a str), &'a Request>,
    bindings: BTreeMap<&'a str, &'a Request>,
    /// Requests of which it is not known what they led to, by resource and name.
    cut: BTreeMap<(String, String), Vec<&'a Request>>,
}

impl<'a> Known<'a> {
    fn of(plane: &str, requests: &'a [Request]) -> Self {
        let own = || requests.iter().filter(|request| request.plane == plane);
        let removals = own().filter(|one| one.removes()).map(|one| {
            let name = if one.is_of_all() {
                ""
            } else {
                one.name.as_str()
            };
            ((one.resource.as_str(), name), one)
        });
        let mut cut: BTreeMap<_, Vec<&Request>> = BTreeMap::new();
        for one in own().filter(|one| one.is_cut) {
            let key = (one.resource.clone(), one.name.clone());
            cut.entry(key).or_default().push(one);
        }
        let bindings = own().filter(|one| one.resource == "pods" && one.subresource == "binding");
        Self {
            by_version: own()
                .filter_map(|one| Some((one.version()?, one)))
                .collect(),
            removals: removals.collect(),
            bindings: bindings.map(|one| (one.name.as_str(), one)).collect(),
            cut,
        }
    }

    /// Returns the request that explains an event. A binding explains one change of its pod, and a request
    /// that was cut off one change of its object.
    fn explains(
        &mut self,
        resource: &str,
        event: &Event,
        with_collections: bool,
    ) -> Option<&'a Request> {
        let name = event.name.as_str();
        if let Some(request) = self.by_version.get(&event.version) {
            return Some(*request);
        }
        let key = (resource.to_owned(), name.to_owned());
        if event.kind != "DELETED"
            && let Some(request) = self.cut.get_mut(&key).and_then(Vec::pop)
        {
            return Some(request);
        }
        if event.kind == "ADDED" {
            return None;
        }
        if resource == "pods"
            && event.kind == "MODIFIED"
            && let Some(request) = self.bindings.remove(name)
        {
            return Some(request);
        }
        let of_all = || {
            with_collections
                .then(|| self.removals.get(&(resource, "")))
                .flatten()
        };
        self.removals
            .get(&(resource, name))
            .or_else(of_all)
            .copied()
    }
}

/// Says who made the changes within a span that the watches of a plane told. Deletions of whole
/// collections explain the end of any object, so they count only once there are some.
pub fn attribute(
    plane: &str,
    requests: &[Request],
    told: &[(&str, Told)],
    windows: &[Span],
    (span, with_collections): (Span, bool),
) -> Attribution {
    let mut known = Known::of(plane, requests);
    let mut found = Attribution::default();
    for (resource, told) in told {
        for event in told
            .events
            .iter()
            .filter(|event| within(&span, event.version))
        {
            match known.explains(resource, event, with_collections) {
                Some(request) => *found.users.entry(request.user.clone()).or_default() += 1,
                None if windows.iter().any(|window| within(window, event.version)) => {
                    found.around_kills += 1
                }
                None => {
                    let key = ((*resource).to_owned(), event.kind.clone());
                    *found.server.entry(key).or_default() += 1;
                }
            }
        }
    }
    found
}

/// Returns the users who changed something in a plane.
pub fn writers<'a>(plane: &str, requests: &'a [Request]) -> BTreeSet<&'a str> {
    let own = requests.iter().filter(|request| request.plane == plane);
    own.map(|request| request.user.as_str()).collect()
}

/// Checks that each pod of a StatefulSet was created after the one before it was ready.
///
/// # Errors
/// Returns an error with the pod that came too early.
pub fn in_order(plane: &str, requests: &[Request], namespace: &str, pods: &[&str]) -> Result<()> {
    let of = |name: &str, wanted: &dyn Fn(&Request) -> bool| {
        let own = requests
            .iter()
            .filter(|one| one.plane == plane && one.resource == "pods");
        let own = own.filter(|one| one.namespace == namespace && one.name == name && wanted(one));
        own.filter_map(Request::version).min()
    };
    let is_ready = |request: &Request| {
        let mut conditions = request.after["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    for pair in pods.windows(2) {
        let ready =
            of(pair[0], &is_ready).with_context(|| format!("{} was never ready", pair[0]))?;
        let created = of(pair[1], &|one| {
            one.verb == "create" && one.subresource.is_empty()
        });
        let created = created.with_context(|| format!("{} was never created", pair[1]))?;
        ensure!(
            ready < created,
            "{plane}: {} was created before {} was ready",
            pair[1],
            pair[0]
        );
    }
    Ok(())
}
