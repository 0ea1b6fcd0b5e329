//! Properties and recorded vectors of this module.

use super::*;
use crate::field_error::Path;
use crate::vectors::{assert_none, compare, vectors};

const DEPLOYMENTS: Qualified<'_> = Qualified::new("apps", "deployments");
const WHY: &str = "why <not>";

fn made(name: &str) -> ApiError {
    let spec = Path::new("spec");
    let none = Qualified::default();
    match name {
        "not_found" => ApiError::not_found(DEPLOYMENTS, "a\"b"),
        "not_found_core" => ApiError::not_found(Qualified::new("", "pods"), "x"),
        "already_exists" => ApiError::already_exists(DEPLOYMENTS, "x"),
        "generate_name" => ApiError::generate_name_conflict(DEPLOYMENTS, "x", 1),
        "unauthorized" => ApiError::unauthorized(""),
        "unauthorized_text" => ApiError::unauthorized("Unauthorized"),
        "forbidden" => ApiError::forbidden(DEPLOYMENTS, "x", WHY),
        "forbidden_list" => ApiError::forbidden(DEPLOYMENTS, "", WHY),
        "forbidden_none" => ApiError::forbidden(none, "", WHY),
        "conflict" => ApiError::conflict(DEPLOYMENTS, "x", WHY),
        "gone" => ApiError::gone("g"),
        "expired" => ApiError::expired("g"),
        "invalid" => {
            let item = spec.index(1);
            let required = FieldError::required(&spec.child("a"), "");
            let invalid = FieldError::invalid(&item.key("k"), "v", "bad");
            ApiError::invalid(
                Qualified::new("apps", "Deployment"),
                "x",
                &[required.clone(), invalid, required],
            )
        }
        "invalid_none" => ApiError::invalid(Qualified::new("apps", "Deployment"), "", &[]),
        "bad_request" => ApiError::bad_request("b"),
        "too_many" => ApiError::too_many_requests("t", 3),
        "unavailable" => ApiError::service_unavailable("s"),
        "method" => ApiError::method_not_supported(DEPLOYMENTS, "delete"),
        "server_timeout" => ApiError::server_timeout(DEPLOYMENTS, "get", 2),
        "internal" => ApiError::internal(WHY),
        "timeout" => ApiError::timeout("t", 0),
        "too_large" => ApiError::request_entity_too_large("limit is 3"),
        "generic_409_post" => ApiError::generic(409, "POST", DEPLOYMENTS, "", "msg"),
        "generic_404_none" => ApiError::generic(404, "GET", none, "", ""),
        _ => {
            let code = name
                .strip_prefix("generic_")
                .and_then(|code| code.parse().ok())
                .expect("a known name");
            ApiError::unexpected_response(code, "GET", DEPLOYMENTS, "x", "msg")
        }
    }
}

#[test]
fn every_error_is_written_as_upstream_writes_it() {
    let all = vectors("status");
    let mut differences = Vec::new();
    for vector in &all {
        let name = vector.str_at(&["name"]);
        let ours = String::from_utf8(made(name).to_json()).expect("text");
        compare(&mut differences, name, vector.str_at(&["json"]), &ours);
    }
    assert_none("status", all.len(), &differences);
}

#[test]
fn a_deletion_answers_success_with_the_uid() {
    let mut out = Vec::new();
    Success::deleted(DEPLOYMENTS, "x", "u").write(&mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"x","group":"apps","kind":"deployments","uid":"u"}}"#
    );
}

#[test]
fn an_expired_list_carries_its_token() {
    let json = ApiError::expired("old").with_continue("abc").to_json();
    assert_eq!(
        String::from_utf8_lossy(&json),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{"continue":"abc"},"status":"Failure","message":"old","reason":"Expired","code":410}"#
    );
}
