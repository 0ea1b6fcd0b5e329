//! Variants of an example object: members left out, items added, values changed, empty lists and
//! maps.

use serde_json::{Map, Value, json};

use crate::dice::Dice;

/// Members that stay, because without them an object is refused.
const KEPT: [&str; 8] = [
    "apiVersion",
    "kind",
    "name",
    "metadata",
    "variables",
    "validations",
    "mutations",
    "objectSelector",
];
/// Members that stay as they are: expressions, which the server does not compile yet, and what keeps
/// webhooks away from the objects of other sequences.
const FIXED: [&str; 4] = ["variables", "validations", "mutations", "objectSelector"];
/// Members that identify an item of a list.
const IDENTITIES: [&str; 7] = [
    "name",
    "key",
    "port",
    "containerPort",
    "mountPath",
    "ip",
    "type",
];
/// Members that may have any text.
const FREE: [&str; 7] = [
    "value",
    "message",
    "reason",
    "image",
    "note",
    "description",
    "holderIdentity",
];
/// Members that do not become empty: the root, and lists and maps whose absence and emptiness the reference tells apart though it stores both alike. An
/// empty list of scaling policies is refused, an absent map of allocatable resources has a default.
const NEVER_EMPTY: [&str; 3] = ["", "policies", "allocatable"];
/// Annotation of `kubectl apply` without `--server-side`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How much a variant differs from the example, in percent of its places.
#[derive(Clone, Copy, Debug)]
pub struct Boldness {
    /// Members and items that are left out.
    pub drop: usize,
    /// Values that change, and lists and maps that get another item.
    pub change: usize,
    /// Lists, maps and values that become empty or null.
    pub empty: usize,
}

impl Boldness {
    /// Returns one of several.
    pub fn any(dice: &mut Dice) -> Self {
        let (drop, change, empty) =
            *dice.pick(&[(0, 0, 0), (10, 5, 0), (30, 5, 0), (10, 5, 3), (5, 20, 1)]);
        Self {
            drop,
            change,
            empty,
        }
    }
}

/// Returns a variant of an example object.
pub fn variant(dice: &mut Dice, example: &Value, boldness: Boldness) -> Value {
    let mut object = example.clone();
    walk(dice, &mut object, "", boldness);
    vary_metadata(dice, &mut object, example);
    object
}

/// Varies an object that a server has answered; what the server decides stays.
pub fn edit(seed: u64, live: &Value) -> Value {
    let mut dice = Dice::new(seed);
    let mut object = live.clone();
    let boldness = Boldness::any(&mut dice);
    if let Some(members) = object.as_object_mut() {
        for (name, member) in members.iter_mut() {
            // The servers know their users by other names, so this member is not the same.
            let is_signed = name == "spec" && live["kind"] == "CertificateSigningRequest";
            if !KEPT.contains(&name.as_str()) && !is_signed {
                walk(&mut dice, member, name, boldness);
            }
        }
    }
    for (name, value) in labels(&mut dice) {
        object["metadata"]["labels"][name] = value;
    }
    match dice.below(20) {
        0 => object["metadata"]["managedFields"] = json!([]),
        1 => object["metadata"]["managedFields"] = json!([{}]),
        2 => {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
        }
        _ => {}
    }
    object
}

/// Returns whether a member may be taken away.
pub fn may_go(name: &str) -> bool {
    !KEPT.contains(&name)
}

/// Returns labels.
pub fn labels(dice: &mut Dice) -> Map<String, Value> {
    texts(dice, &["x", "y", "z"])
}

fn texts(dice: &mut Dice, names: &[&str]) -> Map<String, Value> {
    let names = dice.some(names);
    let entry = |name: &str| (name.to_owned(), json!(*dice.pick(&["1", "2", "3"])));
    names.into_iter().map(entry).collect()
}

fn vary_metadata(dice: &mut Dice, object: &mut Value, example: &Value) {
    let metadata = &mut object["metadata"];
    *metadata = json!({"name": example["metadata"]["name"]});
    if dice.chance(60) {
        metadata["labels"] = Value::Object(labels(dice));
    }
    if dice.chance(40) {
        metadata["annotations"] = Value::Object(texts(dice, &["a", "b", "c"]));
    }
    if dice.chance(35) {
        let some = dice.some(&["p", "q", "r"]);
        let finalizers = some.into_iter().map(|name| format!("example.com/{name}"));
        metadata["finalizers"] = finalizers.collect();
    }
    if dice.chance(15) {
        metadata["ownerReferences"] = owners(dice);
    }
    for (name, empty) in [
        ("labels", json!({})),
        ("annotations", json!({})),
        ("finalizers", json!([])),
    ] {
        if dice.chance(2) {
            metadata[name] = empty;
        }
    }
}

fn owners(dice: &mut Dice) -> Value {
    let owner = |number: u32, block: bool| {
        let uid = format!("11111111-2222-3333-4444-{number:012}");
        json!({"apiVersion": "example.com/v1", "kind": "Owner", "name": format!("o{number}"), "uid": uid, "blockOwnerDeletion": block})
    };
    let some = dice.some(&[1, 2, 3]);
    some.into_iter()
        .map(|number| owner(number, dice.chance(50)))
        .collect()
}

/// Gives an object the annotation of client-side apply.
pub fn note_last_applied(object: &mut Value, applied: &Value) {
    object["metadata"]["annotations"][LAST_APPLIED] = json!(applied.to_string());
}

fn walk(dice: &mut Dice, value: &mut Value, key: &str, boldness: Boldness) {
    if FIXED.contains(&key) {
        return;
    }
    if value.is_object() || value.is_array() {
        let percent = boldness.empty;
        if !NEVER_EMPTY.contains(&key) && dice.chance(percent) {
            *value = match (dice.chance(20), &*value) {
                (true, _) => Value::Null,
                (false, Value::Array(_)) => json!([]),
                (false, _) => json!({}),
            };
            return;
        }
    }
    match value {
        Value::Object(members) => {
            members.retain(|name, _| KEPT.contains(&name.as_str()) || !dice.chance(boldness.drop));
            for (name, member) in members.iter_mut() {
                if name != "metadata" || !key.is_empty() {
                    walk(dice, member, name, boldness);
                }
            }
            let is_map = !members.is_empty() && members.values().all(Value::is_string);
            if is_map && !members.contains_key("name") && dice.chance(boldness.change) {
                members.insert(
                    (*dice.pick(&["x", "y", "z"])).to_owned(),
                    json!(*dice.pick(&["1", "2"])),
                );
            }
        }
        Value::Array(items) => vary_items(dice, items, key, boldness),
        Value::Number(number) if dice.chance(boldness.change) => {
            if let Some(known) = number.as_i64() {
                *value = json!(known + 1);
            }
        }
        Value::Bool(truth) if dice.chance(boldness.change / 2) => *truth = !*truth,
        Value::String(text) if FREE.contains(&key) && dice.chance(boldness.change) => {
            text.push('1');
        }
        _ => {}
    }
}

fn vary_items(dice: &mut Dice, items: &mut Vec<Value>, key: &str, boldness: Boldness) {
    let mut kept = usize::from(NEVER_EMPTY.contains(&key));
    items.retain(|_| {
        let stays = !dice.chance(boldness.drop / 2) || kept > 0;
        kept = kept.saturating_sub(1);
        stays
    });
    for item in items.iter_mut() {
        walk(dice, item, key, boldness);
    }
    if !items.is_empty() && dice.chance(boldness.change) {
        let mut item = dice.pick(items).clone();
        if rename(&mut item) {
            items.push(item);
        }
    }
    if items.len() > 1 && dice.chance(boldness.change / 2) {
        items.rotate_left(1);
    }
}

/// Gives an item another identity. Returns false if it has none.
fn rename(item: &mut Value) -> bool {
    let mut renamed = false;
    let change = |value: &mut Value| match value {
        Value::String(text) => {
            text.push('2');
            true
        }
        Value::Number(number) => {
            let next = number.as_i64().unwrap_or_default() + 1;
            *value = json!(next);
            true
        }
        _ => false,
    };
    match item {
        Value::Object(members) => {
            for name in IDENTITIES {
                if let Some(member) = members.get_mut(name) {
                    renamed |= change(member);
                }
            }
        }
        other => renamed = change(other),
    }
    renamed
}
