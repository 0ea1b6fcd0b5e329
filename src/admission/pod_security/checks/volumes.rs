//! Which volumes pods may use.

use super::super::evaluate::{Pod, Violation};
use super::{Values, plural, quoted, violation};
use polyplane_apimachinery::Value;

/// The volumes that the level `restricted` allows.
const ALLOWED: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Returns the name of a volume's source.
fn source(volume: &Value) -> &str {
    let members = volume.as_object().into_iter();
    let mut sources = members
        .flat_map(|members| members.iter())
        .filter(|(name, source)| *name != "name" && !source.is_null());
    sources.next().map_or("unknown", |(name, _)| name)
}

pub(crate) fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec.items_at(&["volumes"]).iter();
    let wrong = volumes.filter(|volume| volume.at(&["hostPath"]).is_some());
    let wrong: Vec<&str> = wrong.map(|volume| volume.str_at(&["name"])).collect();
    if wrong.is_empty() {
        return None;
    }
    let word = plural(wrong.len(), "volume", "volumes");
    violation("hostPath volumes", format!("{word} {}", quoted(&wrong)))
}

pub(crate) fn restricted(pod: &Pod<'_>) -> Option<Violation> {
    let (mut wrong, mut sources) = (Vec::new(), Values::new());
    for volume in pod.spec.items_at(&["volumes"]) {
        if ALLOWED
            .iter()
            .any(|allowed| volume.at(&[allowed]).is_some())
        {
            continue;
        }
        wrong.push(volume.str_at(&["name"]));
        sources.insert(source(volume));
    }
    if wrong.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural(wrong.len(), "volume", "volumes"),
        quoted(&wrong),
        plural(wrong.len(), "uses", "use"),
        plural(
            sources.len(),
            "restricted volume type",
            "restricted volume types"
        ),
        quoted(&sources)
    );
    violation("restricted volume types", detail)
}
