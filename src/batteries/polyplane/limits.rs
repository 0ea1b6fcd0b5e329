//! `spec.limits` of a ControlPlane: how much the plane may use of the replica that owns it, and how much
//! it may store.

use crate::polyplane::not_read_by_all;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, json};
use polyplane_fairness::PlaneLimits;

/// Highest limit. A higher one would limit nothing, and the sums that use it must not overflow.
const MAX: i64 = 1 << 50;
/// The fields, each with the lowest value that it may have. A rate of zero would lock everybody out
/// without saying so; who wants that takes the grants away.
const FIELDS: [(&str, i64); 5] = [
    ("requestsPerSecond", 1),
    ("writesPerSecond", 1),
    ("watches", 0),
    ("objects", 0),
    ("bytes", 0),
];

/// Reads what the directory keeps of a ControlPlane. A limit that cannot be read is none, because the
/// server has validated it when it was written.
#[must_use]
pub fn read(raw: &[u8]) -> PlaneLimits {
    let Some(limits) = json::scan::find(raw, &["limits"]) else {
        return PlaneLimits::NONE;
    };
    let parsed = json::parse(&raw[limits], &json::Limits::default());
    let tree = parsed.map_or_else(|_| Value::object(), |parsed| parsed.value);
    let [
        requests_per_second,
        writes_per_second,
        watches,
        objects,
        bytes,
    ] = FIELDS.map(|(field, _)| {
        tree.int_at(&[field])
            .and_then(|limit| u64::try_from(limit).ok())
    });
    PlaneLimits {
        requests_per_second,
        writes_per_second,
        watches,
        objects,
        bytes,
    }
}

/// Returns what is wrong with `spec.limits`. Before all programs of the ring read it, it may not be
/// set: an older one would ignore it, and drop it with its next write.
pub(crate) fn errors(object: &Value, is_read_by_all: bool) -> Complaints {
    let Some(limits) = object.at(&["spec", "limits"]) else {
        return Complaints::default();
    };
    let path = Path::new("spec");
    let path = path.child("limits");
    if !is_read_by_all {
        return Complaints::from([not_read_by_all(&path)]);
    }
    let mut errors = Complaints::default();
    for (field, min) in FIELDS {
        if let Some(limit) = limits.int_at(&[field])
            && !(min..=MAX).contains(&limit)
        {
            let why = format!("must be between {min} and {MAX}, inclusive");
            errors.push(FieldError::invalid(&path.child(field), limit, why));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polyplane::access;

    #[test]
    fn the_directory_keeps_the_limits() {
        let body = br#"{"spec":{"limits":{"requestsPerSecond":50,"objects":0,"bytes":268435456}}}"#;
        let limits = read(&access::raw(body));
        let expected = PlaneLimits {
            requests_per_second: Some(50),
            objects: Some(0),
            bytes: Some(256 << 20),
            ..PlaneLimits::NONE
        };
        assert_eq!(limits, expected);
        assert_eq!(read(&access::raw(b"{\"spec\":{}}")), PlaneLimits::NONE);
    }

    #[test]
    fn a_rate_of_zero_and_a_negative_limit_are_refused() {
        let object = json!({"spec": {"limits": {
            "requestsPerSecond": 0i64,
            "writesPerSecond": 1i64,
            "objects": (-1i64),
            "watches": 0i64
        }}});
        let errors_of = |is_read_by_all| errors(&object, is_read_by_all);
        let said = format!("{:?}", errors_of(true));
        assert_eq!(errors_of(true).len(), 2, "{said}");
        assert!(
            said.contains("requestsPerSecond") && said.contains("objects"),
            "{said}"
        );
        assert_eq!(errors_of(false).len(), 1);
    }
}
