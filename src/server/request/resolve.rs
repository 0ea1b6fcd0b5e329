//! The stage that resolves path and method to a verb of a kind that the plane serves.

use http::Method;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_registry::kinds::table::Subresource;
use polyplane_registry::{Kinds, Resource, Scope, Verb};

use crate::answer::respond::Refusal;
use crate::request::request_info::{CONNECTED, ResourceInfo};

/// What a path and a method ask for.
pub(crate) struct Resolved {
    /// The verb for the registry.
    pub verb: Verb,
    /// True if an object of the plane defines the kind.
    pub is_custom: bool,
}

/// Resolves path and method, if the plane serves the kind and the kind has the verb.
pub(crate) fn resolve(
    kinds: &Kinds,
    info: &ResourceInfo<'_>,
    method: &Method,
) -> Result<Resolved, Refusal> {
    if info.has_no_route {
        return Err(Refusal::no_such_path());
    }
    let known_group =
        info.prefix == "api" || (!info.group.is_empty() && kinds.has_group(info.group));
    if !known_group {
        return Err(Refusal::no_such_path());
    }
    let is_built_in = info.prefix == "api" || kinds.base().group(info.group).is_some();
    let row = kinds.resolve(info.group, info.version, info.resource);
    let row = row.ok_or_else(|| match is_built_in {
        true => no_such_resource(),
        // Upstream serves such a group by another server, which knows no other path.
        false => Refusal::no_such_path(),
    })?;
    let mut verb = resolve_verb(row, info, method);
    // Upstream warns of a deprecated custom kind before it looks for the verb and the subresource, and
    // of a built-in one after it.
    if let (Err(Refusal::Status(error)), Some(_), Some(warning)) =
        (&mut verb, &row.custom, &row.deprecation)
    {
        error.warnings.push(warning.to_string());
    }
    Ok(Resolved {
        verb: verb?,
        is_custom: row.custom.is_some(),
    })
}

/// Matches a path and method against a row as upstream's routes do.
fn resolve_verb(row: &Resource, info: &ResourceInfo<'_>, method: &Method) -> Result<Verb, Refusal> {
    let is_namespaces = row.name == "namespaces" && row.group.is_empty();
    let outside = row.scope == Scope::Namespaced && info.namespace.is_empty();
    let inside = row.scope == Scope::Cluster && !info.namespace.is_empty() && !is_namespaces;
    let is_legacy = info.verb_in_path.is_some();
    if inside || info.verb_in_path == Some("proxy") || (outside && !info.name.is_empty()) {
        return Err(elsewhere(row));
    }
    let across = outside && !matches!(info.verb, Some(Verb::List | Verb::Watch));
    // Upstream's server of custom kinds looks at the scope first, whatever the method is.
    if across && row.custom.is_some() {
        return Err(elsewhere(row));
    }
    // Kinds that are not listed have no path across namespaces, and those that are not watched no
    // legacy one.
    if (outside && !row.allows("list")) || (is_legacy && !row.allows("watch")) {
        return Err(elsewhere(row));
    }
    // Upstream finds no route for an unknown path, whatever the method is.
    let sub = subresource(row, info)?;
    let named = !info.name.is_empty() && !is_legacy;
    if sub.is_none() && (info.extra_segments > 0 || (named && !has_object_verbs(row))) {
        return Err(no_such_resource());
    }
    let is_only_proxied = matches!(*method, Method::HEAD | Method::OPTIONS);
    if is_only_proxied && sub.is_some() && info.subresource == "proxy" {
        return Ok(Verb::Connect);
    }
    let verb = match info.verb {
        // Upstream's server of custom kinds looks at the verb alone, which HEAD shares with GET, and all methods
        // of a path that names its verb. Built-in kinds have routes for methods, and none for HEAD.
        Some(verb) if row.custom.is_some() || *method != Method::HEAD => verb,
        _ => return Err(row.without_verb("").into()),
    };
    let has_method = match sub {
        Some(sub) => sub.verbs.iter().any(|known| known == verb.name()),
        None if is_legacy => row.custom.is_some() || matches!(*method, Method::GET | Method::HEAD),
        None if named => OBJECT_VERBS.contains(&verb),
        // The registry refuses these without a name.
        None => row.custom.is_some() || !matches!(verb, Verb::Update | Verb::Patch),
    };
    if !has_method {
        return Err(row.without_verb(verb.name()).into());
    }
    if sub.is_some() {
        let is_connected = CONNECTED.contains(&info.subresource);
        return Ok(if is_connected { Verb::Connect } else { verb });
    }
    // Upstream routes a watch like a list, authorizes it, and then reports that the kind has none.
    let listed = verb == Verb::Watch && !is_legacy && row.allows("list");
    if across || !(row.allows(verb.name()) || listed) {
        return Err(row.without_verb(verb.name()).into());
    }
    Ok(verb)
}

/// Verbs of the path of one object.
const OBJECT_VERBS: [Verb; 4] = [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete];

fn has_object_verbs(row: &Resource) -> bool {
    OBJECT_VERBS.iter().any(|verb| row.allows(verb.name()))
}

/// Returns the subresource that a path names; `None` if it names none.
fn subresource<'r>(
    row: &'r Resource,
    info: &ResourceInfo<'_>,
) -> Result<Option<&'r Subresource>, Refusal> {
    if info.subresource.is_empty() {
        return Ok(None);
    }
    let sub = row.subresource(info.subresource).ok_or_else(|| {
        let what = Qualified::new(&row.group, &row.name);
        match row.custom {
            Some(_) => ApiError::not_found(what, info.name).into(),
            None => no_such_resource(),
        }
    })?;
    if info.extra_segments > 0 && info.subresource != "proxy" {
        return Err(no_such_resource());
    }
    Ok(Some(sub))
}

/// Returns the answer for a path at which the objects of a kind cannot be, because they have a
/// namespace or have none.
fn elsewhere(row: &Resource) -> Refusal {
    match row.custom {
        Some(_) => Refusal::no_such_path(),
        None => no_such_resource(),
    }
}

fn no_such_resource() -> Refusal {
    ApiError::generic(404, "", Qualified::new("", ""), "", "").into()
}
