//! Tests of what the documents say about operations.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use polyplane_apimachinery::Str;

use super::reply::http_date;
use super::*;
use crate::documents::OPEN_API_BYTES_MAX;
use crate::documents::discovery::hash;
use crate::documents::tests::{ROWS, making, schemas, served, table};

fn built_in() -> ServedGroups {
    table(ROWS, &schemas(), 1)
}

/// Returns a document as one tree.
fn tree(document: Node<'_>) -> Value {
    match document {
        Node::Value(value) => value,
        Node::Made(make) => make(),
        Node::Members(members) => {
            let members = members.into_iter();
            Value::Object(members.map(|(name, node)| (name, tree(node))).collect())
        }
    }
}

/// Returns the document of version 2.
fn version2(served: Served<'_>) -> Value {
    tree(everything(served, &Descriptions::shared()))
}

/// Returns a document of version 3.
fn version3(served: Served<'_>, name: &str) -> Value {
    let found = Part::all(served).find(|part| part.name() == name);
    let found = found.unwrap_or_else(|| panic!("there is no {name}"));
    tree(found.make(served.table, &Descriptions::shared()))
}

/// Returns the operation of a method at a path.
fn operation<'d>(document: &'d Value, path: &str, method: &str) -> &'d Value {
    let found = document.at(&["paths", path, method]);
    found.unwrap_or_else(|| panic!("there is no {method} {path}"))
}

#[test]
fn dates_are_written_as_headers_write_them() {
    let at = |seconds| {
        let date = http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        date.to_str().expect("ASCII").to_owned()
    };
    assert_eq!(at(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(at(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
    assert_eq!(at(1_795_204_799), "Fri, 20 Nov 2026 19:59:59 GMT");
}

#[test]
fn deletions_are_documented_with_the_answers_that_upstream_documents() {
    let table = built_in();
    let (second, third) = (version2(served(&table)), version3(served(&table), "api/v1"));
    let status_object = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
    let account = "io.k8s.api.core.v1.ServiceAccount";
    for (resource, answer) in [
        ("namespaces", status_object),
        ("namespaces/{namespace}/configmaps", status_object),
        ("namespaces/{namespace}/serviceaccounts", account),
    ] {
        let path = format!("/api/v1/{resource}/{{name}}");
        for status in ["200", "202"] {
            let delete = operation(&second, &path, "delete");
            let documented = delete.str_at(&["responses", status, "schema", "$ref"]);
            assert_eq!(documented, format!("#/definitions/{answer}"), "{path}");
            let delete = operation(&third, &path, "delete");
            let content = ["responses", status, "content", JSON, "schema", "$ref"];
            let wanted = format!("#/components/schemas/{answer}");
            assert_eq!(delete.str_at(&content), wanted, "{path}");
        }
    }
}

#[test]
fn a_log_is_documented_as_text_and_a_connection_as_anything() {
    let table = built_in();
    let (second, third) = (version2(served(&table)), version3(served(&table), "api/v1"));
    let log = [
        JSON,
        "application/vnd.kubernetes.protobuf",
        "application/yaml",
        "text/plain",
    ];
    for (name, wanted) in [("log", &log[..]), ("exec", &["*/*"][..])] {
        let path = format!("/api/v1/namespaces/{{namespace}}/pods/{{name}}/{name}");
        let produced = operation(&second, &path, "get").items_at(&["produces"]);
        let mut produced: Vec<_> = produced.iter().filter_map(Value::as_str).collect();
        produced.sort_unstable();
        assert_eq!(produced, wanted, "{path}");
        let content = operation(&third, &path, "get").at(&["responses", "200", "content"]);
        let content = content.and_then(Value::as_object).expect("there is one");
        let mut types: Vec<_> = content.keys().collect();
        types.sort_unstable();
        assert_eq!(types, wanted, "{path}");
    }
}

#[test]
fn planes_that_issue_tokens_document_how_to_verify_them() {
    let table = built_in();
    let issuing = served(&table);
    let other = Served {
        issues_tokens: false,
        ..issuing
    };
    for (name, id, tag, media_type) in [
        (
            ".well-known/openid-configuration",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            JSON,
        ),
        (
            "openid/v1/jwks",
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            "application/jwk-set+json",
        ),
    ] {
        let path = format!("/{name}/");
        let third = version3(issuing, name);
        assert_eq!(third.at(&["components", "schemas"]), None, "none is named");
        let second = version2(issuing);
        for document in [&second, &third] {
            let get = operation(document, &path, "get");
            assert_eq!(get.str_at(&["operationId"]), id);
            assert_eq!(get.items_at(&["tags"]), [Value::string(tag)]);
        }
        let get = operation(&second, &path, "get");
        assert_eq!(get.items_at(&["produces"]), [Value::string(media_type)]);
        assert_eq!(get.at(&["consumes"]), None);
        let get = operation(&third, &path, "get");
        let schema = ["responses", "200", "content", media_type, "schema", "type"];
        assert_eq!(get.str_at(&schema), "string");
        assert!(Part::all(other).all(|part| part.name() != name), "{name}");
        assert_eq!(version2(other).at(&["paths", path.as_str()]), None);
    }
    let documents = OpenApiDocuments::new(OPEN_API_BYTES_MAX);
    let making = making(&documents);
    let etag = |made: Result<Arc<Document>, ApiError>| made.expect("there is no limit").etag();
    let indexes = [issuing, other].map(|served| etag(index(served, making)));
    assert_ne!(indexes[0], indexes[1], "the cache keeps them apart");
    let forms = [issuing, other].map(|served| etag(whole(served, making, Form::Json)));
    assert_ne!(forms[0], forms[1], "the cache keeps them apart");
}

#[test]
fn version_two_writes_common_parameters_once() {
    let table = built_in();
    let document = version2(served(&table));
    let shared = document.at(&["parameters"]).and_then(Value::as_object);
    let shared = shared.expect("some are common");
    let (mut referred, mut kept) = (BTreeSet::new(), BTreeSet::new());
    let mut look = |parameters: &[Value]| {
        for parameter in parameters {
            match parameter.str_at(&["$ref"]).strip_prefix("#/parameters/") {
                Some(name) => drop(referred.insert(name.to_owned())),
                None => drop(kept.insert(parameter.str_at(&["name"]).to_owned())),
            }
        }
    };
    let paths = document.at(&["paths"]).and_then(Value::as_object);
    for item in paths.expect("there are paths").values() {
        look(item.items_at(&["parameters"]));
        let members = item.as_object().expect("a path has operations");
        for operation in members.values() {
            look(operation.items_at(&["parameters"]));
        }
    }
    assert!(referred.iter().map(String::as_str).eq(shared.keys()));
    // Clients look for two of them in the operation; the others differ from kind to kind.
    let wanted = ["body", "dryRun", "fieldValidation", "name"];
    assert!(kept.iter().eq(wanted), "{kept:?}");
    let limit = shared.get("limit-query-integer").expect("lists have it");
    assert_eq!(limit.str_at(&["name"]), "limit");
}

#[test]
fn descriptions_end_with_the_values_that_a_field_may_have() {
    let table = built_in();
    let second = version2(served(&table));
    let text = |name: &str, field: &str| {
        let name = format!("io.k8s.api.core.v1.{name}");
        let path = [
            "definitions",
            name.as_str(),
            "properties",
            field,
            "description",
        ];
        second.str_at(&path).to_owned()
    };
    let policy = text("Container", "imagePullPolicy");
    let values =
        "\n\nPossible enum values:\n - `\"Always\"`\n - `\"IfNotPresent\"`\n - `\"Never\"`";
    let described = policy.strip_suffix(values);
    assert!(described.is_some_and(|text| !text.is_empty()), "{policy}");
    // As upstream, not those of a list's items.
    for (name, field) in [
        ("Container", "image"),
        ("PersistentVolumeClaimSpec", "accessModes"),
    ] {
        let text = text(name, field);
        assert!(
            !text.is_empty() && !text.contains("Possible enum"),
            "{text}"
        );
    }
}

#[test]
fn the_scheme_of_credentials_is_described() {
    let table = built_in();
    let (second, third) = (
        version2(served(&table)),
        version3(served(&table), "version"),
    );
    for (document, path) in [
        (&second, &["securityDefinitions", "BearerToken"][..]),
        (
            &third,
            &["components", "securitySchemes", "BearerToken"][..],
        ),
    ] {
        let scheme = document.at(path).expect("there is one");
        let text = scheme.str_at(&["description"]);
        assert_eq!(text, "Bearer Token authentication");
    }
}

#[test]
fn a_reference_is_in_all_of_only_beside_something_else() {
    let table = built_in();
    let third = version3(served(&table), "apis/apiextensions.k8s.io/v1");
    let schema = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let property = |name: &str| {
        let path = ["components", "schemas", schema, "properties", name];
        third.at(&path).expect("a property").clone()
    };
    let bare = property("not");
    assert!(bare.get("$ref").is_some() && bare.get("allOf").is_none());
    let described = property("default");
    assert!(described.get("allOf").is_some() && described.get("$ref").is_none());
}

#[test]
fn the_version_has_defaults_in_version_three_alone() {
    let table = built_in();
    let third = version3(served(&table), "version");
    let second = version2(served(&table));
    let default = |document: &Value, place: &[&str], name: &str| {
        let mut path = place.to_vec();
        path.extend([VERSION_INFO, "properties", name, "default"]);
        document.at(&path).cloned()
    };
    let (of_third, of_second) = (&["components", "schemas"], &["definitions"]);
    let empty = Some(Value::string(""));
    assert_eq!(default(&third, of_third, "major"), empty);
    assert_eq!(default(&third, of_third, "emulationMajor"), None);
    assert_eq!(default(&second, of_second, "major"), None);
}

#[test]
fn metadata_of_signing_requests_is_not_described() {
    let table = built_in();
    let second = version2(served(&table));
    let text = |kind: &str| {
        let path = ["definitions", kind, "properties", "metadata", "description"];
        second.str_at(&path).to_owned()
    };
    let request = "io.k8s.api.certificates.v1.CertificateSigningRequest";
    assert_eq!(text(request), "");
    assert_eq!(text(&format!("{request}List")), "");
    assert!(!text("io.k8s.api.core.v1.PodList").is_empty());
}

/// Bytes in which some indexes and documents find room, but not all documents of the built-in kinds.
const FEW_BYTES: usize = 64 << 10;

/// Returns how many documents were made for an index, itself included.
fn made_for_index(of: Served<'_>, documents: &OpenApiDocuments) -> u64 {
    let earlier = documents.made();
    index(of, making(documents)).expect("there is no limit");
    documents.made() - earlier
}

/// A plane with thousands of versions has more documents than fit into the cache. Each change of a definition, and
/// each request for the index, made all of them anew.
#[test]
fn an_index_makes_only_the_documents_whose_hashes_are_not_known() {
    let schemas = schemas();
    let scope = r#""kind":"Deployment","namespaced":"#;
    let changed = ROWS.replacen(&format!("{scope}true"), &format!("{scope}false"), 1);
    assert_ne!(changed, ROWS);
    let (before, after) = (table(ROWS, &schemas, 1), table(&changed, &schemas, 2));
    let (first, second) = (served(&before), served(&after));
    let documents = OpenApiDocuments::new(FEW_BYTES);
    let all = Part::all(first).count();
    let made = usize::try_from(made_for_index(first, &documents));
    assert_eq!(made, Ok(all + 1), "each document and the index");
    let is_kept = |part: &Part<'_>| documents.cache.find(part.content(&before)).is_some();
    let kept = Part::all(first).filter(is_kept).count();
    assert!(kept < all, "all documents fit in");
    assert_eq!(made_for_index(first, &documents), 0);
    let without_tokens = Served {
        issues_tokens: false,
        ..first
    };
    let made = made_for_index(without_tokens, &documents);
    assert_eq!(made, 1, "the index");
    let made = made_for_index(second, &documents);
    assert_eq!(made, 2, "the changed document and the index");
    let both = Part::all(first).zip(Part::all(second));
    let making = making(&documents);
    let differ = both.filter(|(one, other)| {
        let hashes = [one.hash(&before, making), other.hash(&after, making)];
        let [one, other] = hashes.map(|hash| hash.expect("there is no limit"));
        one != other
    });
    let names: Vec<String> = differ.map(|(one, _)| one.name()).collect();
    assert_eq!(names, ["apis/apps/v1"]);
}

#[test]
fn a_document_that_was_dropped_is_made_again_with_the_hash_of_its_bytes() {
    let table = built_in();
    // Keeps no document.
    let documents = OpenApiDocuments::new(0);
    for name in ["version", "apis/apps/v1"] {
        let part = Part::all(served(&table)).find(|part| part.name() == name);
        let part = part.expect("it is built in");
        let tag = format!(
            "\"{}\"",
            hash(&json::to_vec(&version3(served(&table), name)))
        );
        let earlier = documents.made();
        let making = making(&documents);
        let etag = |made: Result<Arc<Document>, ApiError>| made.expect("there is no limit").etag();
        let text = || etag(part.document(&table, making));
        let binary = || etag(part.binary(&table, making));
        assert_eq!([text(), binary(), text()], [&*tag; 3], "{name}");
        // With the hash, protobuf is made without the JSON.
        assert_eq!(documents.made() - earlier, 3, "{name}");
    }
}

#[test]
fn a_change_that_no_document_shows_changes_no_hash() {
    let (documents, schemas) = (OpenApiDocuments::new(OPEN_API_BYTES_MAX), schemas());
    let changed = ROWS.replacen(r#""shortNames":["deploy"]"#, r#""shortNames":["dp"]"#, 1);
    assert_ne!(changed, ROWS);
    let tables = [ROWS, changed.as_str()].map(|rows| table(rows, &schemas, 1));
    assert_ne!(tables[0].content, tables[1].content);
    let index = |table| index(served(table), making(&documents));
    let tags = tables.each_ref().map(|table| {
        let index = index(table).expect("there is no limit");
        index.etag()
    });
    assert_eq!(tags[0], tags[1]);
}

/// What a document of version 3 would be if a kind that an object defines had as large a schema as `bytes`.
fn with_a_large_member(bytes: usize) -> Node<'static> {
    let schema = move || json!({"description": ("<x>".repeat(bytes / 3)), "type": "object"});
    let custom = Members::from([
        ("a.Large".into(), Node::made(schema)),
        ("b.Small".into(), Node::made(|| json!({"type": "string"}))),
    ]);
    let items = vec![operations::of_group("example.com")];
    write::version3(&schemas(), ("example.com", "v1"), items, custom)
}

/// Clients compare documents by their hashes, so the way in which a document is written must not show in it.
#[test]
fn a_document_that_is_written_member_by_member_has_the_bytes_of_the_whole_tree() {
    let whole = tree(with_a_large_member(200_000));
    let (mut pieces, mut last) = (Vec::new(), Vec::new());
    let mut pass_on = |piece: &[u8]| pieces.push(piece.to_vec());
    with_a_large_member(200_000).write_json(&mut last, &mut pass_on);
    assert!(!pieces.is_empty(), "it is passed on while it is written");
    pieces.push(last);
    let plain = pieces.concat();
    assert!(plain == json::to_vec(&whole));
    let packed = Packer::json(with_a_large_member(200_000)).finish(JSON, Held::default());
    assert_eq!((packed.length, packed.hash), (plain.len(), hash(&plain)));
    let encoded = proto::version3(with_a_large_member(200_000)).into_parts();
    let at_once = proto::version3(Node::Value(whole)).into_parts();
    assert!(encoded.concat() == at_once.concat());
    let table = built_in();
    let descriptions = Descriptions::shared();
    let everything = || everything(served(&table), &descriptions);
    let encoded = proto::version2(everything()).into_parts();
    let at_once = proto::version2(Node::Value(tree(everything()))).into_parts();
    assert!(encoded.concat() == at_once.concat());
}

/// Of hundreds of large definitions, one at a time is in memory as a tree.
#[test]
fn each_definition_is_made_once_the_ones_before_it_are_written() {
    let made = Cell::new(0);
    let count = &made;
    let members = (0..10).map(|at: u8| {
        let make = move || {
            count.set(count.get() + 1);
            Value::string("x".repeat(100_000))
        };
        (Str::from(format!("a{at}")), Node::made(make))
    });
    let document = Node::Members(members.collect());
    let mut made_at = Vec::new();
    document.write_json(&mut Vec::new(), &mut |_: &[u8]| made_at.push(made.get()));
    assert_eq!(made_at, (1..=10).collect::<Vec<_>>());
}
