//! Strategic merge patches give the same results as Go's.

use super::apply;
use crate::json;
use crate::json::to_string;
use crate::schema::fixture::{SCHEMAS, kind, vectors};
use crate::value::{Map, Value};

#[test]
fn results_and_errors_agree_with_go() {
    let (mut agreed, mut total) = (0, 0);
    let mut shown = Vec::new();
    for row in vectors("smp.jsonl.gz") {
        let id = kind(row.str_at(&["k"])).expect("vectors are of served kinds");
        total += 1;
        let got = match apply(&SCHEMAS, id, row["in"].clone(), row["patch"].clone()) {
            Ok(value) => to_string(&value),
            Err(error) => format!("error {error}"),
        };
        let wanted = match row.str_at(&["err"]) {
            "" => to_string(&row["out"]),
            error => format!("error {error}"),
        };
        if got == wanted {
            agreed += 1;
        } else if shown.len() < 3 {
            shown.push(format!(
                "{}\n  got  {got}\n  want {wanted}",
                to_string(&row["patch"])
            ));
        }
    }
    println!("patches: {agreed} of {total} agree");
    assert!(
        total > 200 && agreed == total,
        "{agreed} of {total} agree\n{}",
        shown.join("\n")
    );
}

#[test]
fn many_members_are_added_and_removed_like_few() {
    let id = kind("/v1/ConfigMap").expect("a core kind");
    for count in [3, 40] {
        let object = |value_of: &dyn Fn(usize) -> Option<Value>| {
            let members =
                (0..4 * count).filter_map(|at| Some((format!("k{at}"), value_of(at % 4)?)));
            json!({"data": (Value::Object(members.collect::<Map>()))})
        };
        // Of four members one stays, one is removed, one is set again and one is new.
        let old = object(&|part| (part < 3).then(|| "x".into()));
        let patch = object(&|part| match part {
            0 => None,
            1 => Some(Value::Null),
            _ => Some("x".into()),
        });
        let wanted = object(&|part| (part != 1).then(|| "x".into()));
        let merged = apply(&SCHEMAS, id, old, patch).expect("the patch fits");
        assert_eq!(merged, wanted);
    }
}
