//! Whole requests about built-in kinds whose answers were read in upstream's source, because no recording has them.

use crate::shared::recorded::parse;
use crate::site::{Site, on_paused_clock, request};
use bytes::Bytes;
use futures_util::StreamExt as _;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::Version;
use polyplane_registry::{AnswerBody, Resource, ResourceRequest, Scope, Verb};

/// The media type of a merge patch.
const MERGE: &str = "application/merge-patch+json";

/// Returns a request about an object of a row; its namespace is the default one, if the kind has namespaces.
fn about(verb: Verb, row: &Resource, name: &str, body: &str) -> ResourceRequest {
    let namespaced = row.scope == Scope::Namespaced;
    ResourceRequest {
        group: row.group.clone(),
        version: row.version.clone(),
        namespace: namespaced.then(|| "default".into()),
        name: Some(name.into()),
        body: Bytes::copy_from_slice(body.as_bytes()),
        ..request(verb, &row.name)
    }
}

/// Sends a request and returns the tree of its answer.
async fn send(site: &Site, request: &ResourceRequest) -> Result<Value, ApiError> {
    let answer = site.registry.handle(&site.tenant, request).await?;
    match answer.body {
        AnswerBody::Slices(slices) => Ok(parse(slices.concat())),
        AnswerBody::Stream(_) | AnswerBody::Watch(_) | AnswerBody::Connect(_) => {
            panic!("the answer is no stream")
        }
    }
}

/// The registry of `VolumeAttachment` keeps the managed fields of the update, which are nil here
/// (pkg/registry/storage/volumeattachment/strategy.go, `ResetObjectMetaForStatus`).
#[test]
fn an_object_whose_last_manager_loses_its_fields_through_the_status_has_no_managers() {
    on_paused_clock(async {
        let site = Site::open().await;
        let row = site
            .tenant
            .base
            .stored("storage.k8s.io", "volumeattachments");
        let row = row.expect("they are served");
        let mut object = parse(
            r#"{"metadata": {"name": "v", "uid": "u", "managedFields": [{
                    "apiVersion": "storage.k8s.io/v1", "fieldsType": "FieldsV1", "manager": "attacher",
                    "operation": "Update", "subresource": "status", "time": "2024-05-06T07:08:09Z",
                    "fieldsV1": {"f:status": {"f:attachmentMetadata": {".": {}, "f:a": {}}}}}]},
                "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "p"}},
                "status": {"attached": true, "attachmentMetadata": {"a": "b"}}}"#,
        );
        site.put_whole(row, object.clone()).await;
        let emptied = ResourceRequest {
            subresource: Some(Str::from("status")),
            content_type: Some(MERGE.to_owned()),
            ..about(
                Verb::Patch,
                row,
                "v",
                r#"{"status": {"attachmentMetadata": null}}"#,
            )
        };
        let answer = send(&site, &emptied).await.expect("it is there");
        drop(object.remove(&["status", "attachmentMetadata"]));
        assert_eq!(answer["status"], object["status"]);
        assert_eq!(answer["metadata"].get("managedFields"), None);
    });
}

/// Upstream's watch cache waits and says when to try again; its store does neither, and reads what the cache does not
/// hold, events, and lists of one object that name a version or a page (pkg/storage/cacher/delegator.go and
/// pkg/storage/etcd3/store.go in the module apiserver).
#[test]
fn a_list_of_the_future_says_when_to_try_again_if_upstreams_cache_would_answer() {
    on_paused_clock(async {
        let site = Site::open().await;
        let one = ("fieldSelector", "metadata.name=a");
        let exact = ("resourceVersionMatch", "Exact");
        let not_older = ("resourceVersionMatch", "NotOlderThan");
        let cases: [(_, &[_], _); 9] = [
            ("configmaps", &[], Some(1)),
            ("configmaps", &[exact], Some(1)),
            ("configmaps", &[not_older], Some(1)),
            ("configmaps", &[one], Some(1)),
            ("configmaps", &[one, not_older], Some(1)),
            ("configmaps", &[one, exact], None),
            ("configmaps", &[one, ("limit", "1")], None),
            ("events", &[], None),
            ("events", &[exact], None),
        ];
        for (resource, parameters, seconds) in cases {
            let mut list = request(Verb::List, resource);
            list.query = [("resourceVersion", "999999999")]
                .iter()
                .chain(parameters)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let error = send(&site, &list).await.expect_err("it is not reached");
            assert_eq!(error.code, 504, "{resource} {parameters:?}");
            let said = error.retry_after_seconds();
            assert_eq!(said, seconds, "{resource} {parameters:?}");
        }
    });
}

/// Upstream reads one key if the selection names an object and there is no page token, else a range of keys
/// (`MatchesSingle` in pkg/storage/selection_predicate.go of the module apiserver).
#[test]
fn a_list_of_one_object_has_the_newest_version_in_spite_of_a_limit() {
    on_paused_clock(async {
        let site = Site::open().await;
        let object = parse(r#"{"data": {"k": "1"}}"#);
        site.put("configmaps", "a", object.clone()).await;
        let version = newest(&site).to_string();
        site.put("configmaps", "b", object).await;
        let list = |name: &str, value: &str| {
            let mut list = request(Verb::List, "configmaps");
            list.query = [
                ("fieldSelector", "metadata.name=a"),
                ("resourceVersion", version.as_str()),
                (name, value),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            list
        };
        let limited = list("limit", "1");
        let answer = send(&site, &limited).await.expect("it is reached");
        assert_eq!(answer.items_at(&["items"]).len(), 1);
        let shown = answer.str_at(&["metadata", "resourceVersion"]);
        assert_eq!(shown, newest(&site).to_string());
        let paged = list("continue", "no token");
        let error = send(&site, &paged).await.expect_err("the token is read");
        assert_eq!(error.code, 400);
    });
}

/// The complaint shows the driver of upstream's internal type as it was sent (`ValidateCSINodeUpdate` in
/// pkg/apis/storage/validation/validation.go).
#[test]
fn a_driver_of_a_csi_node_that_may_not_change_is_shown_with_an_empty_list_of_keys() {
    on_paused_clock(async {
        let site = Site::open().await;
        let row = site.tenant.base.stored("storage.k8s.io", "csinodes");
        let row = row.expect("they are served");
        let object = parse(
            r#"{"metadata": {"name": "n", "uid": "u"},
                "spec": {"drivers": [{"name": "d.example.com", "nodeID": "a", "topologyKeys": []}]}}"#,
        );
        site.put_whole(row, object).await;
        for (keys, shown) in [(r#", "topologyKeys": []"#, "[]"), ("", "null")] {
            let body = format!(
                r#"{{"spec": {{"drivers": [{{"name": "d.example.com", "nodeID": "b"{keys}}}]}}}}"#
            );
            let changed = ResourceRequest {
                content_type: Some(MERGE.to_owned()),
                ..about(Verb::Patch, row, "n", &body)
            };
            let error = send(&site, &changed).await.expect_err("it may not change");
            let why = format!(
                r#"CSINode.storage.k8s.io "n" is invalid: spec.drivers: Invalid value: {{"Name":"d.example.com","NodeID":"b","TopologyKeys":{shown},"Allocatable":null}}: field is immutable"#
            );
            assert_eq!(error.message, why);
        }
    });
}

/// A bookmark is an object without content of upstream's internal type, as its conversion shows it
/// (pkg/storage/cacher/cacher.go of the module apiserver, pkg/apis/apps/v1/conversion.go).
#[test]
fn a_bookmark_of_a_workload_has_what_the_conversion_from_the_internal_type_adds() {
    on_paused_clock(async {
        let site = Site::open().await;
        let generation = [
            "metadata",
            "annotations",
            "deprecated.daemonset.template.generation",
        ];
        let replicas = ["spec", "replicas"];
        let cases: [(&str, &[&str], Value); 4] = [
            ("deployments", &replicas, 0i64.into()),
            ("replicasets", &replicas, 0i64.into()),
            ("statefulsets", &replicas, 0i64.into()),
            ("daemonsets", &generation, "0".into()),
        ];
        for (resource, path, added) in cases {
            let mut watch = request(Verb::Watch, resource);
            watch.group = "apps".into();
            watch.query = [("watch", "true"), ("allowWatchBookmarks", "true")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            let answer = site.registry.handle(&site.tenant, &watch).await;
            let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
                panic!("a watch");
            };
            let chunk = chunks.next().await.expect("a bookmark").expect("a chunk");
            let event = parse(chunk.bytes.trim_ascii());
            assert_eq!(event.str_at(&["type"]), "BOOKMARK");
            assert_eq!(event["object"].at(path), Some(&added), "{resource}");
        }
    });
}

/// Returns the version of the plane's newest commit.
fn newest(site: &Site) -> Version {
    site.tenant.plane.snapshot().version()
}
