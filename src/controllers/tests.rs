//! Reconcilers that are called one by one, on a plane in memory with the layer of this program.

#[path = "api_services/tests.rs"]
mod api_services;
#[path = "protection/tests.rs"]
mod claims_in_use;
#[path = "dependents/tests.rs"]
mod displaced;
#[path = "namespaces/tests.rs"]
mod emptied;
#[path = "bootstrap_roles/tests.rs"]
mod roles;
#[path = "token_secrets/tests.rs"]
mod tracking;

use crate::client::{OwnClient, OwnRequest, tree};
use crate::dependents::{DependentWork, Dependents};
use crate::protection::ProtectedSet;
use crate::work::Progress;
use crate::{bootstrap_roles, definitions, namespaces, protection, restore, service_ranges};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{AllowAll, Authorizer};
use polyplane_batteries::bootstrap::{self, Release, params, ranges};
use polyplane_batteries::definition_status::CLEANUP;
use polyplane_batteries::kind_tables::{custom_kinds, tenant_kinds};
use polyplane_plane::{
    Committer, Flags, Key, Layers, ObjectRef, Plane, PlaneParams, Prefix, SoleHolder,
};
use polyplane_registry::environment::System;
use polyplane_registry::service_ranges::ServiceRange;
use polyplane_registry::services::Removal;
use polyplane_registry::settings::{BirthLayer, Lifetimes, PlaneSettings};
use polyplane_registry::{Authority, Registry, Resource, Shared, SwitchedOff, Tenant, Verb};
use polyplane_storage::{MemoryOptions, MemoryStore, Store};
use std::sync::Arc;
use std::time::SystemTime;

const MERGE: &str = "application/merge-patch+json";

/// A plane whose server is reached at a loopback address.
struct Site {
    client: OwnClient,
    tenant: Tenant,
}

impl Site {
    async fn open() -> Self {
        Self::under(AllowAll).await
    }

    /// Opens a plane in which an authorizer takes the place of the roles.
    async fn under(authorizer: impl Authorizer + 'static) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
        let guard = guard.expect("memory takes the fence");
        let layers = Layers::new(Arc::clone(&store));
        let layer = bootstrap::layer();
        let brought = layers.bring(&layer).await;
        brought.expect("memory takes the layer");
        let mut of_plane = PlaneParams {
            layers,
            indexes: polyplane_batteries::indexes(),
            derivation: Some(custom_kinds()),
            ..guard.empty_plane(Committer::new(store))
        };
        of_plane.record.layer = layer.hash().clone();
        let values = layer.params().map(|param| {
            let value = match param.as_str() {
                params::ADVERTISE_ADDRESS => "127.0.0.1",
                params::ADVERTISE_PORT => "6443",
                _ => "CERTIFICATE",
            };
            (param.to_string(), value.to_owned())
        });
        of_plane.record.params = values.collect();
        let plane = Plane::open(of_plane).await;
        let authority = Authority::fixed(authorizer);
        let registry = Registry::new(Arc::new(System), authority, Vec::new());
        Self {
            client: OwnClient::new(&Arc::new(registry), None),
            tenant: Tenant {
                name: "test".into(),
                plane: plane.expect("a new plane opens"),
                base: tenant_kinds(),
                settings: Arc::new(settings()),
            },
        }
    }

    fn row(&self, key: &Key) -> &Resource {
        let row = self.tenant.base.stored(key.group(), key.resource());
        row.expect("the kind is served")
    }

    async fn create(&self, key: &Key, mut body: Value) {
        body.set(&["metadata", "name"], key.name());
        let namespace = key.namespace().unwrap_or("");
        let create = OwnRequest {
            body: &body,
            ..OwnRequest::new(Verb::Create, self.row(key), namespace, "")
        };
        let created = create.send(&self.client, &self.tenant).await;
        created.expect("it is new");
    }

    async fn patch(&self, key: &Key, patch: Value) {
        let namespace = key.namespace().unwrap_or("");
        let patch = OwnRequest {
            content_type: MERGE,
            body: &patch,
            ..OwnRequest::new(Verb::Patch, self.row(key), namespace, key.name())
        };
        let patched = patch.send(&self.client, &self.tenant).await;
        patched.expect("it is valid");
    }

    async fn delete(&self, key: &Key) {
        let namespace = key.namespace().unwrap_or("");
        let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0i64});
        let delete = OwnRequest {
            body: &now,
            ..OwnRequest::new(Verb::Delete, self.row(key), namespace, key.name())
        };
        let deleted = delete.send(&self.client, &self.tenant).await;
        deleted.expect("it is there");
    }

    fn object(&self, key: &Key) -> Option<ObjectRef> {
        self.tenant.plane.snapshot().get(key)
    }

    fn tree(&self, key: &Key) -> Value {
        let object = self.object(key).expect("it is there");
        tree(&self.tenant.kinds(), &object).expect("it can be read")
    }

    /// Returns the tree of the object that the layer has at a key.
    fn layered(&self, key: &Key) -> Value {
        let object = self.tenant.plane.layer_object(key);
        let object = object.expect("the layer has it");
        tree(&self.tenant.kinds(), &object).expect("it can be read")
    }

    /// Deletes an object of the layer and lets it be created again.
    async fn restore(&self, key: &Key) {
        self.delete(key).await;
        assert!(self.object(key).is_none(), "{key:?}");
        let restored = restore::bootstrap(&self.client, &self.tenant, key).await;
        restored.expect("it can be created again");
    }

    /// Brings the bootstrap roles up to date, as when the plane is loaded.
    async fn load_roles(&self) {
        let release = Release::own();
        let done = bootstrap_roles::bring_up_to_date(&self.client, &release, &self.tenant).await;
        assert!(matches!(done, Ok(Progress::Done)));
    }

    /// Runs the reconciler of a protected object, which the last write must have called for.
    async fn protect(&self, key: &Key) -> Progress {
        let object = self.object(key).expect("it is there");
        let touched = protection::touched(&self.tenant, &object, false);
        assert!(touched.contains(key), "{key:?}");
        let is_deleted = object.flags().has(Flags::DELETING);
        let is_pending = protection::pending(&self.tenant).await.contains(key);
        assert_eq!(is_pending, is_deleted, "{key:?}");
        let settled = protection::settle(&self.client, &self.tenant, key).await;
        settled.expect("it can be written")
    }

    fn finalizers(&self, key: &Key) -> Vec<Value> {
        let object = self.tree(key);
        object.items_at(&["metadata", "finalizers"]).to_vec()
    }
}

fn settings() -> PlaneSettings {
    let (base, bits) = bootstrap::SERVICE_RANGE;
    PlaneSettings {
        service_ranges: ServiceRange::new(base, bits).into(),
        node_ports: (30000, 30003),
        serving_ca: Str::default(),
        endpoint: Str::default(),
        birth_layer: BirthLayer::fixed(""),
        records_say_access: Shared::fixed(true),
        records_say_issuers: Shared::fixed(true),
        records_say_suspension: Shared::fixed(true),
        records_say_client_cas: Shared::fixed(true),
        switched_off: SwitchedOff::none(),
        watch_seconds_min: 1800,
        lifetimes: Lifetimes::default(),
        privileged: polyplane_registry::settings::Privileged::Allowed,
    }
}

fn claim() -> (Key, Value) {
    let key = Key::new("", "persistentvolumeclaims", Some("default"), "c");
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    (key, json!({"spec": spec}))
}

#[tokio::test]
async fn a_storage_object_whose_finalizer_a_client_removed_gets_it_again() {
    let site = Site::open().await;
    let volume = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"}}});
    let class = json!({"driverName": "d.example.com", "parameters": {"k": "v"}});
    let (claim_key, claim) = claim();
    let volume_key = Key::new("", "persistentvolumes", None, "v");
    let class_key = Key::new("storage.k8s.io", "volumeattributesclasses", None, "a");
    for (key, body, finalizer) in [
        (claim_key, claim, "kubernetes.io/pvc-protection"),
        (volume_key, volume, "kubernetes.io/pv-protection"),
        (class_key, class, "kubernetes.io/vac-protection"),
    ] {
        // Without the admission plug-in, a new object has none.
        site.create(&key, body).await;
        assert!(matches!(site.protect(&key).await, Progress::Done));
        assert_eq!(site.finalizers(&key), [Value::string(finalizer)]);
        let object = site.object(&key).expect("it is there");
        assert!(!protection::touched(&site.tenant, &object, false).contains(&key));
        // Others stay, and it is added behind them.
        let other = json!({"metadata": {"finalizers": ["example.com/other"]}});
        site.patch(&key, other).await;
        assert!(matches!(site.protect(&key).await, Progress::Done));
        let both = ["example.com/other", finalizer].map(Value::string);
        assert_eq!(site.finalizers(&key), both);
    }
}

#[tokio::test]
async fn a_claim_stays_while_a_pod_uses_it_whatever_became_of_its_finalizer() {
    let site = Site::open().await;
    let (key, body) = claim();
    site.create(&key, body).await;
    let pod_key = Key::new("", "pods", Some("default"), "p");
    let pod = json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}});
    site.create(&pod_key, pod).await;
    assert!(matches!(site.protect(&key).await, Progress::Done));
    site.patch(&key, json!({"metadata": {"finalizers": null}}))
        .await;
    assert!(matches!(site.protect(&key).await, Progress::Done));
    site.delete(&key).await;
    assert!(matches!(site.protect(&key).await, Progress::Waiting));
    assert!(site.object(&key).is_some());
    site.delete(&pod_key).await;
    assert!(matches!(site.protect(&key).await, Progress::Done));
    assert!(site.object(&key).is_none());
}

#[tokio::test]
async fn a_namespace_fails_if_a_pod_without_finalizers_remains_after_its_grace() {
    let site = Site::open().await;
    let key = Key::new("", "pods", Some("default"), "p");
    let pod = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30i64,
        "containers": [{"name": "c", "image": "i"}]}});
    site.create(&key, pod).await;
    let failure = |seconds_ago: i64| {
        let deleted = Timestamp {
            seconds: Timestamp::from(SystemTime::now()).seconds - seconds_ago,
            nanoseconds: 0,
        };
        let namespace = json!({"metadata": {"name": "default",
            "deletionTimestamp": (deleted.to_rfc3339())}});
        let pods = [site.object(&key).expect("it is there")];
        let failure = namespaces::overdue_pods(&site.tenant.kinds(), &namespace, &pods);
        failure.expect("it can be read").unwrap_or_default()
    };
    assert_eq!(failure(5), "", "it may still end");
    let upstreams =
        "unexpected items still remain in namespace: default for gvr: /v1, Resource=pods";
    assert_eq!(failure(60), upstreams);
    let kept = json!({"metadata": {"finalizers": ["example.com/other"]}});
    site.patch(&key, kept).await;
    assert_eq!(failure(60), "", "the finalizer keeps it");
}

#[tokio::test]
async fn the_write_of_a_claim_leaves_the_search_for_deleted_classes_to_a_reconciler() {
    let site = Site::open().await;
    let (claim_key, body) = claim();
    site.create(&claim_key, body).await;
    let claim = site.object(&claim_key).expect("it is there");
    let freed = || protection::freed(&site.tenant, &claim, false);
    assert_eq!(freed(), None, "there is no class");
    let class_key = Key::new("storage.k8s.io", "volumeattributesclasses", None, "a");
    let class = json!({"metadata": {"finalizers": ["kubernetes.io/vac-protection"]},
        "driverName": "d.example.com", "parameters": {"k": "v"}});
    site.create(&class_key, class).await;
    let set = ProtectedSet::AttributesClasses;
    assert_eq!(freed().as_ref(), Some(&set));
    assert!(protection::pending_of(&site.tenant, &set).await.is_empty());
    site.delete(&class_key).await;
    assert_eq!(
        protection::pending_of(&site.tenant, &set).await,
        [class_key]
    );
}

#[tokio::test]
async fn the_end_of_a_pod_with_many_volumes_leaves_the_search_for_claims_to_a_reconciler() {
    let site = Site::open().await;
    let pod_key = |name: &str| Key::new("", "pods", Some("default"), name);
    for (name, count) in [("few", 3), ("many", 100)] {
        let volumes = (0..count).map(|number| {
            json!({"name": (format!("v{number}")),
                "persistentVolumeClaim": {"claimName": (format!("c{number}"))}})
        });
        let volumes: Vec<Value> = volumes.collect();
        let pod =
            json!({"spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}});
        site.create(&pod_key(name), pod).await;
        let pod = site.object(&pod_key(name)).expect("it is there");
        let freed = protection::freed(&site.tenant, &pod, true);
        let is_many = freed == Some(ProtectedSet::Claims("default".into()));
        assert_eq!(is_many, name == "many", "{name}");
    }
}

#[tokio::test]
async fn the_dependents_of_an_owner_that_is_gone_are_searched_by_a_reconciler() {
    const MANY: usize = 600;
    let site = Site::open().await;
    let map = |name: &str| Key::new("", "configmaps", Some("default"), name);
    let owner_key = map("owner");
    site.create(&owner_key, json!({})).await;
    let owner = site.object(&owner_key).expect("it is there");
    let uid = Str::from(site.tree(&owner_key).str_at(&["metadata", "uid"]));
    let reference =
        |uid: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid});
    let dependents = Dependents::default();
    let written = async |key: &Key, owners: Vec<Value>| {
        site.create(key, json!({"metadata": {"ownerReferences": owners}}))
            .await;
        let object = site.object(key).expect("it is there");
        dependents.written(&site.tenant, &object, Removal::Pending)
    };
    for number in 0..MANY {
        let work = written(&map(&format!("d{number}")), vec![reference(&uid)]).await;
        assert!(work.is_empty(), "{work:?}");
    }
    // Whether each of so many owners exists is for the reconciler to find out.
    let key = map("x");
    let mut owners = vec![reference(&uid)];
    owners.extend((0..30).map(|number| reference(&format!("uid-{number}"))));
    let work = written(&key, owners).await;
    assert_eq!(work, [DependentWork::Dependent(key)]);

    site.delete(&owner_key).await;
    let work = dependents.written(&site.tenant, &owner, Removal::Gone);
    assert_eq!(work, [DependentWork::DependentsOf(uid.clone())]);
    let (mut found, mut after) = (0, None);
    loop {
        let some = dependents.of(&site.tenant, &uid, after.as_ref());
        found += some.len();
        after = some.into_iter().next_back();
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, MANY + 1);
}

#[tokio::test]
async fn the_endpoints_of_the_server_come_back_even_with_an_address_that_no_client_may_write() {
    let site = Site::open().await;
    for (group, resource, place) in [
        ("", "endpoints", "subsets"),
        ("discovery.k8s.io", "endpointslices", "endpoints"),
    ] {
        let key = Key::new(group, resource, Some("default"), "kubernetes");
        let born = site.layered(&key);
        assert_eq!(site.tree(&key), born);
        site.restore(&key).await;
        let restored = site.tree(&key);
        assert_eq!(restored[place], born[place]);
        let metadata = |object: &Value, field: &str| object["metadata"][field].clone();
        assert_eq!(metadata(&restored, "labels"), metadata(&born, "labels"));
        for new in ["uid", "resourceVersion", "creationTimestamp"] {
            assert_ne!(metadata(&restored, new), metadata(&born, new), "{new}");
        }
        let owners = |object: &Value| {
            let mut entries = metadata(object, "managedFields");
            let entry = entries
                .as_array_mut()
                .and_then(|entries| entries.first_mut());
            drop(entry.expect("the server owns it").remove(&["time"]));
            entries
        };
        assert_eq!(owners(&restored), owners(&born));
        // Once more, now that it is the plane's own object.
        site.restore(&key).await;
        assert_eq!(site.tree(&key)[place], born[place]);
    }
}

#[tokio::test]
async fn the_service_cidr_says_again_that_it_is_ready_after_it_was_deleted() {
    let site = Site::open().await;
    let key = ranges::service_cidr();
    assert!(service_ranges::is_subject(&key));
    assert!(!service_ranges::has_work(&site.tenant));
    let conditions = |object: &Value| {
        let conditions = object.items_at(&["status", "conditions"]).iter();
        let text = |condition: &Value, field| Str::from(condition.str_at(&[field]));
        let texts = conditions.map(|condition| {
            ["type", "status", "reason", "message"].map(|field| text(condition, field))
        });
        texts.collect::<Vec<[Str; 4]>>()
    };
    let born = conditions(&site.layered(&key));
    assert_eq!(born.len(), 1);
    site.restore(&key).await;
    assert!(service_ranges::has_work(&site.tenant));
    let settled = service_ranges::settle(&site.client, &site.tenant).await;
    settled.expect("it can be written");
    assert_eq!(conditions(&site.tree(&key)), born);
    assert!(!service_ranges::has_work(&site.tenant));
}

/// Returns the key and the body of a definition that somebody else's finalizer keeps.
fn held_definition(plural: &str) -> (Key, Value) {
    let name = format!("{plural}.example.com");
    let key = Key::new(definitions::GROUP, definitions::RESOURCE, None, &name);
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    let names = json!({"plural": plural, "kind": "Widget"});
    let definition = json!({"metadata": {"finalizers": ["example.com/hold"]},
        "spec": {"group": "example.com", "names": names, "scope": "Cluster", "versions": [version]}});
    (key, definition)
}

#[tokio::test]
async fn a_deleted_definition_says_what_became_of_its_objects_and_takes_new_names() {
    let site = Site::open().await;
    let terminating = |key: &Key| {
        let object = site.tree(key);
        let mut conditions = object.items_at(&["status", "conditions"]).iter();
        let found = conditions.find(|one| one.str_at(&["type"]) == "Terminating");
        let found = found.expect("it says so");
        ["status", "reason", "message"].map(|field| Str::from(found.str_at(&[field])))
    };
    let (established, body) = held_definition("widgets");
    site.create(&established, body).await;
    // The first definition has its kind.
    let (refused, body) = held_definition("gadgets");
    site.create(&refused, body).await;
    for (key, reason, message) in [
        (
            &refused,
            "NeverEstablished",
            "resource was never established",
        ),
        (
            &established,
            "InstanceDeletionCompleted",
            "removed all instances",
        ),
    ] {
        site.delete(key).await;
        let [status, pending, _] = terminating(key);
        assert_eq!([&*status, &*pending], ["True", "InstanceDeletionPending"]);
        assert!(site.finalizers(key).contains(&Value::string(CLEANUP)));
        site.patch(key, json!({"spec": {"names": {"shortNames": ["wd"]}}}))
            .await;
        let accepted = site.tree(key)["status"]["acceptedNames"].clone();
        assert_eq!(accepted["shortNames"], json!(["wd"]));
        let settled = definitions::settle(&site.client, &site.tenant, key.name()).await;
        settled.expect("it can be written");
        // It is still there for another finalizer.
        assert_eq!(
            terminating(key).map(String::from),
            ["False", reason, message]
        );
        assert_eq!(site.finalizers(key), [Value::string("example.com/hold")]);
        site.patch(key, json!({"metadata": {"finalizers": null}}))
            .await;
        assert!(site.object(key).is_none());
    }
}

#[tokio::test]
async fn a_deleted_definition_that_serves_no_version_takes_its_objects_with_it() {
    let site = Site::open().await;
    let (key, body) = held_definition("widgets");
    let mut versions = body["spec"]["versions"].clone();
    site.create(&key, body).await;
    let kinds = site.tenant.kinds();
    let row = kinds.resolve("example.com", "v1", "widgets");
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let create = OwnRequest {
        body: &widget,
        ..OwnRequest::new(Verb::Create, row.expect("it is served"), "", "")
    };
    let created = create.send(&site.client, &site.tenant).await;
    created.expect("it is new");
    let count = || {
        let prefix = Prefix::resource("example.com", "widgets");
        site.tenant.plane.snapshot().count(&prefix)
    };

    for version in versions.as_array_mut().into_iter().flatten() {
        version.set(&["served"], false);
    }
    site.patch(&key, json!({"spec": {"versions": (versions)}}))
        .await;
    let kinds = site.tenant.kinds();
    assert!(kinds.resolve("example.com", "v1", "widgets").is_none());
    assert_eq!(count(), 1);
    site.delete(&key).await;
    let settled = definitions::settle(&site.client, &site.tenant, key.name()).await;
    assert!(matches!(settled, Ok(Progress::Done)));
    assert_eq!(count(), 0);
    assert_eq!(site.finalizers(&key), [Value::string("example.com/hold")]);
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn rbac(resource: &str, namespace: Option<&str>, name: &str) -> Key {
    Key::new(RBAC, resource, namespace, name)
}

#[tokio::test]
async fn a_deleted_service_comes_back_whichever_of_it_and_its_address_is_restored_first() {
    let site = Site::open().await;
    let service = Key::new("", "services", Some("default"), "kubernetes");
    let layered = site.layered(&service);
    let address = layered.str_at(&["spec", "clusterIP"]);
    let address = Key::new("networking.k8s.io", "ipaddresses", None, address);
    for order in [[&service, &address], [&address, &service]] {
        site.delete(&service).await;
        assert!(site.object(&service).is_none() && site.object(&address).is_none());
        for key in order {
            let done = restore::bootstrap(&site.client, &site.tenant, key).await;
            assert!(matches!(done, Ok(Progress::Done)), "{key:?}");
        }
        assert!(site.object(&service).is_some() && site.object(&address).is_some());
        site.delete(&address).await;
        let done = restore::bootstrap(&site.client, &site.tenant, &address).await;
        assert!(matches!(done, Ok(Progress::Done)));
        assert!(site.object(&address).is_some(), "it was deleted alone");
    }
}
