//! Reads verb, resource and object from a path and a method, without knowing which kinds exist.
//!
//! It follows upstream's reading of paths exactly, because authorization and audit see the result.
//! All texts borrow from the path; an ordinary request allocates nothing.

use std::borrow::Cow;

use http::{StatusCode, Uri};
use polyplane_apimachinery::field_selector::FieldSelector;
use polyplane_apimachinery::quote::quote;
use polyplane_registry::Verb;
use polyplane_registry::request::parameters::{FIELD_SELECTOR, Query, WATCH};

use crate::answer::respond::Refusal;

/// A request as authorization sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestInfo<'a> {
    /// A path that is not an API resource.
    Path(&'a str),
    /// An API resource.
    Resource(ResourceInfo<'a>),
}

/// The parts of a resource path. Absent parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceInfo<'a> {
    /// The verb; `None` for unknown methods.
    pub verb: Option<Verb>,
    /// The verb that the path names (`/watch/`, `/proxy/`).
    pub verb_in_path: Option<&'a str>,
    /// `api` or `apis`.
    pub prefix: &'a str,
    /// The group; empty for core.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The plural name of the resource.
    pub resource: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The number of segments that follow the subresource.
    pub extra_segments: usize,
    /// True if the path begins with several slashes. Upstream authorizes such a path as if it had one, and
    /// then has no route for it.
    pub has_no_route: bool,
}

/// An error: the path ends after a verb and names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to determine kind and namespace from url")]
pub(crate) struct NothingNamed;

impl NothingNamed {
    /// Returns the refusal. As upstream's, it is the page of a server that failed: nobody has been proven
    /// yet, and no form of an answer has been chosen.
    pub(crate) fn refusal(self, uri: &Uri) -> Refusal {
        // Without scheme and host, which HTTP/2 adds.
        let uri = uri.path_and_query().map_or("", |target| target.as_str());
        let text = format!(
            "Internal Server Error: {}: failed to create RequestInfo: {self}, {uri}\n",
            quote(uri)
        );
        let harmless = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        Refusal::Text(StatusCode::INTERNAL_SERVER_ERROR, harmless.into())
    }
}

/// Subresources of a namespace, as opposed to resources inside it.
const NAMESPACE_SUBRESOURCES: &[&str] = &["status", "finalize"];
const VERBS_IN_PATH: &[&str] = &["proxy", "watch"];
/// Subresources that connect to another server.
pub(crate) const CONNECTED: &[&str] = &["attach", "exec", "portforward", "proxy"];
/// Subresources that stay open for as long as the client wants.
const LONG_RUNNING: &[&str] = &["attach", "exec", "proxy", "log", "portforward"];

impl<'a> RequestInfo<'a> {
    /// Parses `path`, which is decoded and without the plane's prefix. `query` decides between list
    /// and watch.
    ///
    /// # Errors
    /// Returns an error if the path ends after a verb.
    pub(crate) fn parse(
        method: &http::Method,
        path: &'a str,
        query: &Query,
    ) -> Result<Self, NothingNamed> {
        let trimmed = path.trim_matches('/');
        let mut parts = Segments::new(trimmed);
        let prefix = parts.next().unwrap_or("");
        let least = match prefix {
            "api" => 2,
            "apis" => 3,
            _ => return Ok(Self::Path(path)),
        };
        if parts.clone().count() < least {
            return Ok(Self::Path(path));
        }
        let group = if prefix == "apis" {
            parts.next().unwrap_or("")
        } else {
            ""
        };
        let mut info = ResourceInfo {
            prefix,
            group,
            version: parts.next().unwrap_or(""),
            verb: verb_of(method),
            has_no_route: path.starts_with("//"),
            ..ResourceInfo::default()
        };
        if let Some(verb) = parts.peek().filter(|part| VERBS_IN_PATH.contains(part)) {
            parts.next();
            if parts.peek().is_none() {
                return Err(NothingNamed);
            }
            info.verb_in_path = Some(verb);
            info.verb = Some(if verb == "watch" {
                Verb::Watch
            } else {
                Verb::Connect
            });
        }
        info.take_object(parts);
        info.refine(query);
        Ok(Self::Resource(info))
    }
}

impl<'a> ResourceInfo<'a> {
    fn take_object(&mut self, mut parts: Segments<'a>) {
        if parts.peek() == Some("namespaces") {
            let mut inner = parts.clone();
            inner.next();
            if let Some(namespace) = inner.next() {
                self.namespace = namespace;
                match inner.peek() {
                    Some(next) if !NAMESPACE_SUBRESOURCES.contains(&next) => parts = inner,
                    _ => {}
                }
            }
        }
        self.resource = parts.next().unwrap_or("");
        self.name = parts.next().unwrap_or("");
        if self.verb_in_path.is_none() {
            self.subresource = parts.next().unwrap_or("");
        }
        self.extra_segments = parts.count();
    }

    fn refine(&mut self, query: &Query) {
        if !self.name.is_empty() || self.verb_in_path.is_some() {
            return;
        }
        match self.verb {
            Some(Verb::Get) => {
                self.verb = Some(match WATCH.read(query) {
                    Some(true) => Verb::Watch,
                    Some(false) | None => Verb::List,
                });
            }
            Some(Verb::Delete) => self.verb = Some(Verb::DeleteCollection),
            _ => {}
        }
    }

    /// Returns the verb as authorization names it.
    pub(crate) fn verb_name(&self) -> &'a str {
        match (self.verb_in_path, self.verb) {
            (Some(verb), _) => verb,
            (None, Some(verb)) => verb.name(),
            (None, None) => "",
        }
    }

    /// Returns true for requests that have no deadline and do not count as in flight.
    pub(crate) fn is_long_running(&self) -> bool {
        matches!(self.verb, Some(Verb::Watch | Verb::Connect))
            || LONG_RUNNING.contains(&self.subresource)
    }

    /// Returns whether the request streams to and from a pod.
    pub(crate) fn opens_a_stream(&self) -> bool {
        self.prefix == "api"
            && self.resource == "pods"
            && matches!(self.subresource, "attach" | "exec" | "portforward")
    }

    /// Returns the field selector that authorization sees: that of a collection. As upstream, it sees none
    /// of a path that names the verb.
    pub(crate) fn authorized_fields(&self, query: &'a Query) -> &'a str {
        match (self.verb_in_path, self.verb) {
            (None, Some(Verb::List | Verb::Watch | Verb::DeleteCollection)) => {
                FIELD_SELECTOR.read(query)
            }
            _ => "",
        }
    }

    /// Returns the name that authorization sees: the one in the path, or the one to which a field
    /// selector restricts the list, unless the path names the verb.
    pub(crate) fn authorized_name(&self, query: &Query) -> Cow<'a, str> {
        let is_list =
            self.verb_in_path.is_none() && matches!(self.verb, Some(Verb::List | Verb::Watch));
        if !self.name.is_empty() || !is_list {
            return Cow::Borrowed(self.name);
        }
        match FIELD_SELECTOR.read(query) {
            "" => Cow::Borrowed(""),
            text => Cow::Owned(pinned_name(text).unwrap_or_default()),
        }
    }
}

/// Returns the name to which a field selector restricts a list. It is parsed as the list itself
/// parses it, because any other reading could authorize one name and list others.
fn pinned_name(selector: &str) -> Option<String> {
    let selector = FieldSelector::parse(selector).ok()?;
    let name = selector.requires_exact_match("metadata.name")?;
    let is_segment = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%']);
    is_segment.then(|| name.to_owned())
}

fn verb_of(method: &http::Method) -> Option<Verb> {
    match *method {
        http::Method::GET | http::Method::HEAD => Some(Verb::Get),
        http::Method::POST => Some(Verb::Create),
        http::Method::PUT => Some(Verb::Update),
        http::Method::PATCH => Some(Verb::Patch),
        http::Method::DELETE => Some(Verb::Delete),
        _ => None,
    }
}

/// The segments of a path, with a look at the next one.
#[derive(Clone)]
struct Segments<'a> {
    rest: Option<&'a str>,
}

impl<'a> Segments<'a> {
    fn new(trimmed: &'a str) -> Self {
        Self {
            rest: (!trimmed.is_empty()).then_some(trimmed),
        }
    }

    fn peek(&self) -> Option<&'a str> {
        self.clone().next()
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        match rest.split_once('/') {
            Some((first, behind)) => {
                self.rest = Some(behind);
                Some(first)
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn resource<'a>(method: &Method, path: &'a str, query: &str) -> ResourceInfo<'a> {
        match RequestInfo::parse(
            method,
            path,
            &crate::request::route::parse_query(Some(query)),
        ) {
            Ok(RequestInfo::Resource(info)) => info,
            other => panic!("{path}: {other:?}"),
        }
    }

    fn row(info: &ResourceInfo<'_>) -> String {
        format!(
            "{} {}/{} ns={} {} {} {}",
            info.verb_name(),
            info.group,
            info.version,
            info.namespace,
            info.resource,
            info.name,
            info.subresource
        )
    }

    /// Covers the cases of upstream's own test.
    #[test]
    fn paths_are_read_as_upstream_reads_them() {
        let cases = [
            ("GET", "/api/v1/namespaces", "list /v1 ns= namespaces  "),
            (
                "GET",
                "/api/v1/namespaces/other",
                "get /v1 ns=other namespaces other ",
            ),
            (
                "GET",
                "/api/v1/namespaces/other/pods",
                "list /v1 ns=other pods  ",
            ),
            (
                "GET",
                "/api/v1/namespaces/other/pods/foo",
                "get /v1 ns=other pods foo ",
            ),
            (
                "HEAD",
                "/api/v1/namespaces/other/pods/foo",
                "get /v1 ns=other pods foo ",
            ),
            ("GET", "/api/v1/pods", "list /v1 ns= pods  "),
            (
                "GET",
                "/api/v1/namespaces/other/pods/foo/log",
                "get /v1 ns=other pods foo log",
            ),
            (
                "GET",
                "/api/v1/proxy/namespaces/other/pods/foo",
                "proxy /v1 ns=other pods foo ",
            ),
            ("GET", "/api/v1/proxy/pods/foo", "proxy /v1 ns= pods foo "),
            ("GET", "/api/v1/watch/pods", "watch /v1 ns= pods  "),
            (
                "GET",
                "/api/v1/watch/namespaces/other/pods",
                "watch /v1 ns=other pods  ",
            ),
            (
                "GET",
                "/api/v1/namespaces/ns/status",
                "get /v1 ns=ns namespaces ns status",
            ),
            (
                "PUT",
                "/api/v1/namespaces/ns/finalize",
                "update /v1 ns=ns namespaces ns finalize",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/other/pods",
                "deletecollection /v1 ns=other pods  ",
            ),
            ("DELETE", "/api/v1/nodes/n", "delete /v1 ns= nodes n "),
            (
                "POST",
                "/apis/batch/v1/namespaces/other/jobs",
                "create batch/v1 ns=other jobs  ",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/o/deployments/d/scale",
                "patch apps/v1 ns=o deployments d scale",
            ),
            (
                "GET",
                "/api/v1/namespaces/clusters",
                "get /v1 ns=clusters namespaces clusters ",
            ),
            (
                "GET",
                "/apis/apps/v1/clusters/x",
                "get apps/v1 ns= clusters x ",
            ),
            ("OPTIONS", "/api/v1/pods", " /v1 ns= pods  "),
            ("GET", "/api/v1/pods/", "list /v1 ns= pods  "),
        ];
        for (method, path, expected) in cases {
            let method = method.parse().expect("a method");
            assert_eq!(
                row(&resource(&method, path, "")),
                expected,
                "{method} {path}"
            );
        }
    }

    #[test]
    fn other_paths_are_no_resources() {
        for path in [
            "/",
            "",
            "/api",
            "/api/",
            "/api/v1",
            "/apis/apps",
            "/apis/apps/v1",
            "/healthz",
            "/version",
            "/clusters/a/api/v1/pods",
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &[]);
            assert_eq!(info, Ok(RequestInfo::Path(path)));
        }
        assert_eq!(
            RequestInfo::parse(&Method::GET, "/api/v1/watch", &[]),
            Err(NothingNamed)
        );
        assert_eq!(
            RequestInfo::parse(&Method::GET, "/apis/apps/v1/proxy", &[]),
            Err(NothingNamed)
        );
    }

    #[test]
    fn a_path_that_names_nothing_is_refused_with_a_harmless_page() {
        let uri = Uri::from_static("https://host/api/v1/watch?a=%3C&b=1");
        let Refusal::Text(status, page) = NothingNamed.refusal(&uri) else {
            panic!("it is a page");
        };
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            page,
            "Internal Server Error: \"/api/v1/watch?a=%3C&amp;b=1\": failed to create RequestInfo: \
             unable to determine kind and namespace from url, /api/v1/watch?a=%3C&amp;b=1\n"
        );
    }

    /// Upstream splits paths as text: what is empty between two slashes is a segment, and dots mean nothing.
    #[test]
    fn slashes_and_dots_are_read_as_upstream_reads_them() {
        for (path, expected) in [
            ("//api/v1/pods", "list /v1 ns= pods  "),
            ("/api/v1/pods//", "list /v1 ns= pods  "),
            ("/api//v1/pods", "get / ns= v1 pods "),
            ("/api/v1//pods", "get /v1 ns=  pods "),
            ("/api/v1/namespaces//pods", "list /v1 ns= pods  "),
            ("/api/v1/namespaces//pods/a", "get /v1 ns= pods a "),
            ("/api/v1/namespaces/a//pods", "get /v1 ns=a  pods "),
            ("/api/v1/../v1/pods", "get /v1 ns= .. v1 pods"),
            (
                "/apis//apps/v1/deployments",
                "get /apps ns= v1 deployments ",
            ),
            (
                "/apis/apps//v1/deployments",
                "get apps/ ns= v1 deployments ",
            ),
        ] {
            let info = resource(&Method::GET, path, "");
            assert_eq!(row(&info), expected, "{path}");
            assert_eq!(info.has_no_route, path.starts_with("//"), "{path}");
        }
    }

    #[test]
    fn the_watch_parameter_decides_between_list_and_watch() {
        for (query, verb) in [
            ("watch=1", Verb::Watch),
            ("watch=true", Verb::Watch),
            ("watch", Verb::Watch),
            ("watch=0", Verb::List),
            ("watch=False", Verb::List),
            ("", Verb::List),
            ("watch=yes", Verb::Watch),
        ] {
            assert_eq!(
                resource(&Method::GET, "/api/v1/pods", query).verb,
                Some(verb),
                "{query}"
            );
        }
        let single = resource(&Method::GET, "/api/v1/namespaces/a/pods/b", "watch=1");
        assert_eq!(single.verb, Some(Verb::Get));
    }

    #[test]
    fn a_pinned_name_is_what_is_authorized() {
        let query =
            crate::request::route::parse_query(Some("fieldSelector=a%3Db,metadata.name%3Dx"));
        let info = resource(&Method::GET, "/api/v1/pods", "");
        assert_eq!(info.authorized_name(&query), "x");
        // Selectors with commas inside their terms, or with other operators: all of these list more
        // than one name.
        for selector in [
            "metadata.name!%3Dx",
            "metadata.namespace!%3Da%5C,metadata.name%3Dx",
            "metadata.name%3Dx%5C,",
            "metadata.name%3Dx%2Fy",
            "metadata.name%3D..",
            "metadata.name%3Dx,broken",
        ] {
            let text = format!("fieldSelector={selector}");
            let query = crate::request::route::parse_query(Some(&text));
            assert_ne!(info.authorized_name(&query), "x", "{selector}");
        }
        let created = resource(&Method::POST, "/api/v1/pods", "");
        assert_eq!(created.authorized_name(&query), "");
    }

    /// Upstream does not read selectors of such paths for authorization: whoever may see one object alone
    /// may not watch it by them.
    #[test]
    fn a_path_that_names_its_verb_is_authorized_without_a_selector() {
        let text = "watch=1&fieldSelector=metadata.name%3Dx";
        let query = crate::request::route::parse_query(Some(text));
        for (path, name, fields) in [
            ("/api/v1/pods", "x", "metadata.name=x"),
            ("/api/v1/watch/pods", "", ""),
            ("/api/v1/watch/namespaces/a/pods", "", ""),
            ("/api/v1/watch/namespaces/a/pods/b", "b", ""),
        ] {
            let info = resource(&Method::GET, path, text);
            assert_eq!(info.verb_name(), "watch", "{path}");
            assert_eq!(info.authorized_name(&query), name, "{path}");
            assert_eq!(info.authorized_fields(&query), fields, "{path}");
        }
    }

    #[test]
    fn tunnels_and_watches_run_long() {
        let path = "/api/v1/namespaces/a/pods/b/exec";
        assert!(resource(&Method::POST, path, "").is_long_running());
        assert!(resource(&Method::GET, "/api/v1/pods", "watch=1").is_long_running());
        assert!(!resource(&Method::GET, "/api/v1/pods", "").is_long_running());
    }
}
