//! Keys of objects: `<group>/<resource>/<namespace>/<name>`, cluster-scoped ones without the
//! namespace part, compared as bytes.
//!
//! Group and resource are those of storage. A name never holds a `/`; the code that parses input has
//! checked that.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The key of one object in a plane.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// The beginning of the keys of one resource, or of one namespace of it. Ends with `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<[u8]>);

impl Key {
    /// Returns the key of an object. `namespace` is `None` for cluster-scoped resources.
    #[must_use]
    pub fn new(group: &str, resource: &str, namespace: Option<&str>, name: &str) -> Self {
        Self(match namespace {
            Some(namespace) => joined(&[group, resource, namespace, name]),
            None => joined(&[group, resource, name]),
        })
    }

    /// Returns the key with these bytes, if they have the form of one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let slashes = bytes.iter().filter(|byte| **byte == b'/').count();
        (matches!(slashes, 2 | 3) && std::str::from_utf8(bytes).is_ok()).then(|| Self(bytes.into()))
    }

    /// Returns the key as bytes; keys are ordered by them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the API group of storage, empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.text().split('/').next().unwrap_or_default()
    }

    /// Returns the resource of storage.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.text().split('/').nth(1).unwrap_or_default()
    }

    /// Returns whether the object is of this resource of storage.
    #[must_use]
    pub fn is_of(&self, group: &str, resource: &str) -> bool {
        let rest = self.0.strip_prefix(group.as_bytes());
        let rest = rest.and_then(|rest| rest.strip_prefix(b"/"));
        let rest = rest.and_then(|rest| rest.strip_prefix(resource.as_bytes()));
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Returns the part behind the resource: `<namespace>/<name>` or `<name>`.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.text()[resource_len(&self.0)..]
    }

    /// Returns the namespace, unless the object is cluster-scoped.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.rest().split_once('/').map(|(namespace, _)| namespace)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        let rest = self.rest();
        rest.split_once('/').map_or(rest, |(_, name)| name)
    }

    /// Returns the prefix of the object's resource.
    #[must_use]
    pub fn resource_prefix(&self) -> Prefix {
        Prefix(self.0[..resource_len(&self.0)].into())
    }

    pub(crate) fn shared(&self) -> &Arc<[u8]> {
        &self.0
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.0).expect("keys are made from str only")
    }
}

impl Prefix {
    /// Returns the prefix of all objects of a resource.
    #[must_use]
    pub fn resource(group: &str, resource: &str) -> Self {
        Self(joined(&[group, resource, ""]))
    }

    /// Returns whether this is the prefix of all objects of the given resource.
    #[must_use]
    pub fn is_resource(&self, group: &str, resource: &str) -> bool {
        self.has_parts(&[group, resource])
    }

    /// Returns the prefix of all objects of a resource in one namespace.
    #[must_use]
    pub fn namespaced(group: &str, resource: &str, namespace: &str) -> Self {
        Self(joined(&[group, resource, namespace, ""]))
    }

    /// Returns whether this is the prefix of all objects of the given resource in the namespace.
    #[must_use]
    pub fn is_namespaced(&self, group: &str, resource: &str, namespace: &str) -> bool {
        self.has_parts(&[group, resource, namespace])
    }

    fn has_parts(&self, parts: &[&str]) -> bool {
        let rest = parts.iter().try_fold(&*self.0, |rest, part| {
            rest.strip_prefix(part.as_bytes())?.strip_prefix(b"/")
        });
        rest.is_some_and(<[u8]>::is_empty)
    }

    /// Returns the prefix of the objects of this resource in one namespace.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Self {
        let parts = [self.of_resource(), namespace.as_bytes(), &b"/"[..]];
        Self(parts.concat().into())
    }

    /// Returns the prefix as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether a key begins with this prefix.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }

    /// Returns the bytes of the resource alone.
    pub(crate) fn of_resource(&self) -> &[u8] {
        &self.0[..resource_len(&self.0)]
    }

    pub(crate) fn shared(&self) -> &Arc<[u8]> {
        &self.0
    }

    /// Returns the prefix of the whole resource.
    #[must_use]
    pub fn resource_prefix(&self) -> Self {
        let resource = self.of_resource();
        if resource.len() == self.0.len() {
            return self.clone();
        }
        Self(resource.into())
    }
}

/// Returns the number of bytes of `<group>/<resource>/` at the beginning of a key or prefix.
pub(crate) fn resource_len(bytes: &[u8]) -> usize {
    let mut slashes = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'/' {
            slashes += 1;
            if slashes == 2 {
                return at + 1;
            }
        }
    }
    bytes.len()
}

/// Returns these parts with `/` between them.
fn joined(parts: &[&str]) -> Arc<[u8]> {
    parts.join("/").into_bytes().into()
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Prefix {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_its_parts_apart() {
        let key = Key::new("apps", "deployments", Some("ns"), "web");
        assert_eq!(key.as_bytes(), b"apps/deployments/ns/web");
        assert_eq!((key.group(), key.resource()), ("apps", "deployments"));
        assert_eq!((key.namespace(), key.name()), (Some("ns"), "web"));
        assert!(key.resource_prefix().contains(&key));
        assert!(key.is_of("apps", "deployments"));
        for (group, resource) in [("apps", "deployment"), ("app", "deployments"), ("", "apps")] {
            assert!(!key.is_of(group, resource));
        }
        let namespaced = Prefix::namespaced("apps", "deployments", "ns");
        assert!(namespaced.contains(&key) && namespaced == key.resource_prefix().namespace("ns"));
        assert!(namespaced.is_namespaced("apps", "deployments", "ns"));
        assert!(!namespaced.is_namespaced("apps", "deployments", "n"));
        assert!(!namespaced.is_resource("apps", "deployments"));
        assert!(!Prefix::namespaced("apps", "deployments", "n").contains(&key));
        let (whole, in_ns) = (key.resource_prefix(), Prefix::namespaced("a", "b", "ns"));
        assert_eq!(whole, Prefix::resource("apps", "deployments"));
        assert_eq!(
            (in_ns.as_bytes(), in_ns.of_resource()),
            (&b"a/b/ns/"[..], &b"a/b/"[..])
        );
        assert_eq!(Prefix::resource("a", "b").namespace("ns"), in_ns);

        let key = Key::new("", "namespaces", None, "default");
        assert_eq!(key.as_bytes(), b"/namespaces/default");
        assert_eq!((key.namespace(), key.name()), (None, "default"));
        assert_eq!(key.rest(), "default");
        assert!(key.is_of("", "namespaces") && !key.is_of("", ""));
    }

    #[test]
    fn order_is_that_of_the_joined_bytes() {
        let dash = Key::new("", "configmaps", Some("a-b"), "x");
        let plain = Key::new("", "configmaps", Some("a"), "x");
        assert!(dash < plain, "`-` sorts before `/`");
    }
}
