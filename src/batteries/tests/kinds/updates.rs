//! Changes that are none, because upstream compares the old and the new object by what they mean, and
//! changes that are some, because it compares them as Go does.

use crate::core_kinds::{on, with_context};
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::schema::decode::{Empties, Numbers};
use polyplane_apimachinery::{Value, json};
use polyplane_registry::plan::prepare;

/// Returns the generation of an object, as a change from `old` to `new` leaves it, and what is said about fields that
/// may not change.
fn changed(group: &str, resource: &str, old: &Value, new: &Value) -> (Option<i64>, Vec<String>) {
    on(group, resource, |row| {
        let [mut old, mut new] = [old, new].map(|tree| {
            let mut tree = tree.clone();
            prepare::default(row, row.definition, &mut tree).expect("it is small");
            let decoded = row.schemas.decode(row.definition, &mut tree, Empties::Null);
            decoded.expect("it fits its schema");
            tree
        });
        old.set(&["metadata", "generation"], 1i64);
        with_context("", |context| {
            prepare::update(row, context, &mut new, &old);
            let found = prepare::validate_update(row, context, &new, &old);
            let texts = found.iter().map(FieldError::to_string);
            let refused = texts.filter(|text| {
                text.contains("immutable") || text.contains("may not change fields")
            });
            let generation = new.int_at(&["metadata", "generation"]);
            (generation, refused.collect())
        })
    })
}

/// A function that makes an object of a kind with a quantity.
type Make<'m> = &'m dyn Fn(&str) -> Value;

/// Upstream compares quantities by their amount.
#[test]
fn a_quantity_written_in_another_way_is_no_change() {
    let pods = |size: &str| {
        let volume = json!({"name": "scratch", "emptyDir": {"sizeLimit": size}});
        json!({"containers": [{"name": "main", "image": "nginx"}], "volumes": [volume]})
    };
    let claims = |size: &str| {
        let resources = json!({"requests": {"storage": size}});
        json!([{"metadata": {"name": "data"}, "spec": {"resources": resources}}])
    };
    let devices = |size: &str| {
        let request = json!({"count": 1i64, "capacity": {"requests": {"memory": size}}});
        json!({"devices": {"requests": [{"name": "gpu", "exactly": request}]}})
    };
    let with = |spec: Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let template = |size: &str| json!({"spec": (pods(size))});
    let kinds: [(&str, &str, bool, Make<'_>); 8] = [
        ("", "pods", true, &|size: &str| with(pods(size))),
        (
            "",
            "podtemplates",
            true,
            &|size: &str| json!({"metadata": {"name": "a"}, "template": (template(size))}),
        ),
        ("apps", "deployments", true, &|size: &str| {
            with(json!({"template": (template(size))}))
        }),
        ("apps", "daemonsets", true, &|size: &str| {
            with(json!({"template": (template(size))}))
        }),
        ("apps", "statefulsets", true, &|size: &str| {
            with(json!({"volumeClaimTemplates": (claims(size))}))
        }),
        ("batch", "jobs", true, &|size: &str| {
            with(json!({"template": (template(size))}))
        }),
        ("", "persistentvolumeclaims", false, &|size: &str| {
            with(json!({"resources": {"limits": {"storage": size}}}))
        }),
        (
            "resource.k8s.io",
            "resourceclaimtemplates",
            false,
            &|size: &str| with(json!({"spec": (devices(size))})),
        ),
    ];
    for (group, resource, counts, make) in kinds {
        let old = make("1Gi");
        let (generation, refused) = changed(group, resource, &old, &make("1073741824"));
        assert_eq!((generation, refused), (Some(1), Vec::new()), "{resource}");
        let (generation, refused) = changed(group, resource, &old, &make("2Gi"));
        assert_eq!(generation == Some(2), counts, "{resource}");
        let free = matches!(resource, "podtemplates" | "deployments" | "daemonsets");
        assert_eq!(refused.is_empty(), free, "{resource}");
    }
}

#[test]
fn a_template_of_a_daemon_set_counts_amounts_and_not_their_texts() {
    let set = |size: &str| {
        let volume = json!({"name": "scratch", "emptyDir": {"sizeLimit": size}});
        json!({"spec": {"template": {"spec": {"volumes": [volume]}}}})
    };
    let old = set("1Gi");
    on("apps", "daemonsets", |row| {
        for (size, counted) in [("1073741824", "0"), ("2Gi", "1")] {
            let mut new = set(size);
            with_context("", |context| {
                row.strategy.prepare_update(context, &mut new, &old)
            });
            let annotations = &new["metadata"]["annotations"];
            let found = annotations.str_at(&["deprecated.daemonset.template.generation"]);
            assert_eq!(found, counted, "{size}");
        }
    });
}

/// Upstream compares these maps as Go does, for which an empty one is not none.
#[test]
fn an_immutable_object_without_data_takes_no_empty_data() {
    for (resource, field) in [
        ("configmaps", "data"),
        ("configmaps", "binaryData"),
        ("secrets", "data"),
    ] {
        let refusals = |sent: Option<Value>| {
            let mut old = json!({"metadata": {"name": "a"}, "immutable": true});
            let mut new = old.clone();
            if let Some(sent) = sent {
                new.set(&[field], sent);
            }
            on("", resource, |row| {
                let decoded = row.schemas.decode(row.definition, &mut old, Empties::Null);
                decoded.expect("it fits its schema");
                let decoded =
                    row.schemas
                        .decode_unless_said(row.definition, &mut new, Numbers::AsWritten);
                decoded.expect("it fits its schema");
                let found = with_context("", |context| {
                    prepare::validate_update(row, context, &new, &old)
                });
                let texts = found.iter().map(FieldError::to_string);
                texts
                    .filter(|text| text.contains("`immutable` is set"))
                    .collect::<Vec<_>>()
            })
        };
        assert!(refusals(None).is_empty(), "{resource}");
        let refused = refusals(Some(json!({})));
        assert_eq!(refused.len(), 1, "{resource}: {refused:?}");
        assert!(refused[0].starts_with(field), "{refused:?}");
    }
}
