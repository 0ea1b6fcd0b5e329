//! Writes the table of descriptions, compressed, for `lib.rs` to include: upstream's, and those of the
//! kinds of this project from `polyplane.txt`.
//!
//! The texts are in the code of `k8s-openapi`, as JSON schemas of its types. A schema names those of
//! its fields, so the kinds and a few types that only requests and answers have lead to all others.

use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use k8s_openapi::schemars::SchemaGenerator;
use serde_json::{Map, Value};

/// Separates the fields of a record; `lib.rs` has the same.
const UNIT: char = '\u{1f}';
/// Separates records.
const RECORD: char = '\u{1e}';
/// What is said about the types of this project. A line is the name of a type, or of a type and a
/// field, a colon, and the text.
const OWN: &str = include_str!("polyplane.txt");
/// The package of these types.
const OWN_PACKAGE: &str = "dev.polyplane.v1alpha1";

/// Adds types with everything that they refer to.
macro_rules! add {
    ($generator:ident, $($group:ident)::+: $($name:ident)+) => {{
        use k8s_openapi::$($group)::+ as group;
        $(let _reference = $generator.subschema_for::<group::$name>();)+
    }};
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=polyplane.txt");
    let mut generator = SchemaGenerator::default();
    add_workloads(&mut generator);
    add_policies(&mut generator);
    add_infrastructure(&mut generator);
    add_machinery(&mut generator);
    let table = table(&generator.take_definitions(false));
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(table.as_bytes())
        .expect("writing into memory does not fail");
    let packed = encoder.finish().expect("writing into memory does not fail");
    let folder = std::env::var_os("OUT_DIR").expect("cargo says where to write");
    let path = Path::new(&folder).join("descriptions.deflate");
    std::fs::write(path, packed).expect("the folder that cargo names can be written to");
}

fn add_workloads(to: &mut SchemaGenerator) {
    add!(to, api::core::v1: Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node
        PersistentVolume PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret
        Service ServiceAccount);
    add!(to, api::apps::v1: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet);
    add!(to, api::autoscaling::v1: HorizontalPodAutoscaler Scale);
    add!(to, api::autoscaling::v2: HorizontalPodAutoscaler);
    add!(to, api::batch::v1: CronJob Job);
    add!(to, api::discovery::v1: EndpointSlice);
    add!(to, api::events::v1: Event);
    add!(to, api::lifecycle::v1alpha1: Eviction EvictionRequest);
    add!(to, api::policy::v1: Eviction PodDisruptionBudget);
    add!(to, api::scheduling::v1: PriorityClass);
    add!(to, api::scheduling::v1alpha3: CompositePodGroup PodGroup Workload);
    add!(to, api::scheduling::v1beta1: PodGroup Workload);
}

fn add_policies(to: &mut SchemaGenerator) {
    add!(to, api::admissionregistration::v1: MutatingAdmissionPolicy MutatingAdmissionPolicyBinding
        MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
        ValidatingWebhookConfiguration);
    add!(to, api::admissionregistration::v1alpha1: MutatingAdmissionPolicy
        MutatingAdmissionPolicyBinding);
    add!(to, api::admissionregistration::v1beta1: MutatingAdmissionPolicy
        MutatingAdmissionPolicyBinding);
    add!(to, api::authentication::v1: SelfSubjectReview TokenRequest TokenReview);
    add!(to, api::authorization::v1: LocalSubjectAccessReview SelfSubjectAccessReview
        SelfSubjectRulesReview SubjectAccessReview);
    add!(to, api::certificates::v1: CertificateSigningRequest ClusterTrustBundle
        PodCertificateRequest);
    add!(to, api::certificates::v1beta1: ClusterTrustBundle PodCertificateRequest);
    add!(to, api::flowcontrol::v1: FlowSchema PriorityLevelConfiguration);
    add!(to, api::rbac::v1: ClusterRole ClusterRoleBinding Role RoleBinding);
}

fn add_infrastructure(to: &mut SchemaGenerator) {
    add!(to, api::apiserverinternal::v1alpha1: StorageVersion);
    add!(to, api::coordination::v1: Lease);
    add!(to, api::coordination::v1alpha2: LeaseCandidate);
    add!(to, api::coordination::v1beta1: LeaseCandidate);
    add!(to, api::networking::v1: IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR);
    add!(to, api::node::v1: RuntimeClass);
    add!(to, api::resource::v1: DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate
        ResourceSlice);
    add!(to, api::resource::v1alpha3: DeviceTaintRule ResourcePoolStatusRequest);
    add!(to, api::resource::v1beta1: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice);
    add!(to, api::resource::v1beta2: DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate
        ResourceSlice);
    add!(to, api::storage::v1: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment
        VolumeAttributesClass);
    add!(to, api::storagemigration::v1: StorageVersionMigration);
    add!(to, api::storagemigration::v1beta1: StorageVersionMigration);
}

fn add_machinery(to: &mut SchemaGenerator) {
    add!(to, apiextensions_apiserver::pkg::apis::apiextensions::v1: CustomResourceDefinition);
    add!(to, apimachinery::pkg::apis::meta::v1: APIGroup APIGroupList APIResourceList APIVersions
        DeleteOptions ListMeta MicroTime Patch Status);
    add!(to, apimachinery::pkg::version: Info);
    add!(to, kube_aggregator::pkg::apis::apiregistration::v1: APIService);
    let _reference =
        to.subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::WatchEvent<()>>();
}

/// Returns the records of this project's kinds, as [`table`] does.
fn own() -> impl Iterator<Item = [String; 3]> {
    OWN.lines().map(|line| {
        let (name, text) = line.split_once(": ").expect("a name and a text");
        let (definition, field) = name.split_once('.').unwrap_or((name, ""));
        let definition = format!("{OWN_PACKAGE}.{definition}");
        [definition, field.to_owned(), text.to_owned()]
    })
}

/// Returns the records of all schemas, ordered by definition and field: name of the definition, name
/// of the field (empty for the definition itself), description.
fn table(schemas: &Map<String, Value>) -> String {
    let mut records: Vec<[String; 3]> = own().collect();
    let mut add = |definition: &str, field: &str, schema: &Value| {
        if let Some(text) = schema["description"].as_str() {
            let record = [definition, field, text];
            let separators = [UNIT, RECORD];
            assert!(
                record.iter().all(|part| !part.contains(separators)),
                "{definition} {field}: a separator in the text"
            );
            records.push(record.map(str::to_owned));
        }
    };
    for (name, schema) in schemas {
        add(name, "", schema);
        let fields = schema["properties"].as_object();
        for (field, schema) in fields.into_iter().flatten() {
            add(name, field, schema);
        }
    }
    records.sort();
    let lines = records.iter().map(|record| record.join(&UNIT.to_string()));
    lines.collect::<Vec<_>>().join(&RECORD.to_string())
}
