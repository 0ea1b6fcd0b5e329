//! The scale of custom objects, whose places the definition of their kind names.

use super::scale_metadata;
use crate::kinds::custom::ScalePaths;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Value, json};

/// The number by which a write sees that an object has no wanted number of replicas. The client has to name
/// another one.
const UNSET: i64 = i32::MIN as i64;

/// Whether an object has the wanted number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replicas {
    /// It has.
    Set,
    /// It has not, so they show as zero.
    Missing,
}

/// Returns the Scale of an object, and whether the object has the wanted number of replicas.
///
/// # Errors
/// Returns 500 if something else than a number or a text is in one of the places.
pub(super) fn of(object: &Value, paths: &ScalePaths) -> Result<(Value, Replicas), ApiError> {
    let mut scale = scale_metadata(object);
    let wanted = number(object, &paths.spec_replicas)?;
    let spec = match wanted {
        None | Some(0) => Value::object(),
        Some(replicas) => json!({"replicas": (replicas)}),
    };
    scale.set(&["spec"], spec);
    let observed = number(object, &paths.status_replicas)?.unwrap_or(0);
    scale.set(&["status", "replicas"], observed);
    if let Some(path) = &paths.selector {
        match at(object, path) {
            None => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::String(text)) => scale.set(&["status", "selector"], text.clone()),
            Some(other) => return Err(wrong(path, other, "string")),
        }
    }
    let is_set = match wanted {
        Some(_) => Replicas::Set,
        None => Replicas::Missing,
    };
    Ok((scale, is_set))
}

/// Returns the Scale of an object as the one who changes it sees it: an object without the wanted number of
/// replicas shows one that no Scale may have.
///
/// # Errors
/// See [`of`].
pub(super) fn before_change(object: &Value, paths: &ScalePaths) -> Result<Value, ApiError> {
    let (mut scale, replicas) = of(object, paths)?;
    if replicas == Replicas::Missing {
        scale.set(&["spec", "replicas"], UNSET);
    }
    Ok(scale)
}

/// Sets the wanted number of replicas of an object.
///
/// # Errors
/// Returns 400 if the number is still that of an object without one, 500 if a member on the way is no object.
pub(super) fn put(object: &mut Value, paths: &ScalePaths, replicas: i64) -> Result<(), ApiError> {
    if replicas == UNSET {
        let text = format!(
            "the spec replicas field {} cannot be empty",
            quote(&format!(".{}", paths.spec_replicas))
        );
        return Err(ApiError::bad_request(text));
    }
    let path: Vec<&str> = paths.spec_replicas.split('.').collect();
    for end in 1..path.len() {
        if let Some(member) = object.at(&path[..end])
            && member.as_object().is_none()
        {
            let text = format!(
                "value cannot be set because .{} is not a map[string]interface{{}}",
                path[..end].join(".")
            );
            return Err(ApiError::new(Reason::Unknown, text));
        }
    }
    object.set(&path, replicas);
    Ok(())
}

fn at<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    let mut names = path.split('.');
    names.try_fold(object, |value, name| value.get(name))
}

fn number(object: &Value, path: &str) -> Result<Option<i64>, ApiError> {
    match at(object, path) {
        None => Ok(None),
        Some(Value::Int(number)) => Ok(Some(*number)),
        Some(other) => Err(wrong(path, other, "int64")),
    }
}

fn wrong(path: &str, value: &Value, wanted: &str) -> ApiError {
    let text = format!(
        ".{path} accessor error: {} is of the type {}, expected {wanted}",
        value.go_text(),
        value.go_type()
    );
    ApiError::new(Reason::Unknown, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_leaves_an_object_without_replicas_is_refused() {
        let paths = ScalePaths {
            spec_replicas: "spec.size".into(),
            status_replicas: "status.size".into(),
            selector: None,
        };
        let mut object = json!({"metadata": {"name": "a"}, "spec": {}});
        let before = before_change(&object, &paths).expect("it has a scale");
        let unset = before.int_at(&["spec", "replicas"]).expect("it is shown");
        assert_eq!(unset, -2_147_483_648);
        let error = put(&mut object, &paths, unset).expect_err("nobody has named a number");
        let text = "the spec replicas field \".spec.size\" cannot be empty";
        assert_eq!((error.code, error.message.as_str()), (400, text));
        put(&mut object, &paths, 0).expect("it is a number");
        let before = before_change(&object, &paths).expect("it has a scale");
        assert_eq!(before["spec"], json!({}));
    }

    #[test]
    fn a_value_that_is_no_number_is_shown_as_go_prints_it() {
        let paths = ScalePaths {
            spec_replicas: "spec.size".into(),
            status_replicas: "status.size".into(),
            selector: None,
        };
        for (value, shown) in [
            (json!(1e20), "1e+20 is of the type float64"),
            (json!("ten"), "ten is of the type string"),
        ] {
            let object = json!({"metadata": {"name": "a"}, "spec": {"size": value}});
            let error = of(&object, &paths).expect_err("it is no integer");
            let text = format!(".spec.size accessor error: {shown}, expected int64");
            assert_eq!(error.message, text);
        }
    }
}
