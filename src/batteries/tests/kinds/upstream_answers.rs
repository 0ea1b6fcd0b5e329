//! Whole requests about built-in kinds whose answers were read in upstream's source, because no recording has them.

use crate::shared::recorded::parse;
use crate::site::{Site, on_paused_clock, request};
use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
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
