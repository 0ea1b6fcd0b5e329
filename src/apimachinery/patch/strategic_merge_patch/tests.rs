//! Strategic merge patches give the same results as Go's.

use super::apply;
use crate::json::to_string;
use crate::schema::fixture::{SCHEMAS, kind, vectors};

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
