//! The user that the headers of a request name.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::HeaderMap;
use polyplane_apimachinery::names;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{NODE_PREFIX, service_account_of};

use crate::request::route::decode;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// A user as headers name it: nothing is added that follows from the name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WantedUser {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further values by key, keys in byte order.
    pub extra: Vec<(String, Vec<String>)>,
}

impl WantedUser {
    /// Returns the user that `headers` name; `None` if they name nobody.
    ///
    /// # Errors
    /// Returns 400 if they name groups, a uid or extra values, but no user.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let texts = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .collect()
        };
        let first = |name: &str| texts(name).into_iter().next().unwrap_or_default();
        let mut wanted = Self {
            name: first(USER),
            uid: first(UID),
            groups: texts(GROUP),
            extra: Vec::new(),
        };
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                wanted.add_extra(unescape(key), texts(name.as_str()));
            }
        }
        wanted.extra.sort();
        if !wanted.name.is_empty() {
            return Ok(Some(wanted));
        }
        if wanted.only_name_is_set() {
            return Ok(None);
        }
        let asked = wanted.in_go_syntax();
        Err(ApiError::bad_request(format!(
            "requested {asked} without impersonating a user name"
        )))
    }

    /// Adds values of a key. Two headers may name one key, in different escapes.
    fn add_extra(&mut self, key: String, mut values: Vec<String>) {
        match self.extra.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.append(&mut values),
            None => self.extra.push((key, values)),
        }
    }

    /// Returns whether all but the name follows from the name.
    pub(super) fn only_name_is_set(&self) -> bool {
        self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty()
    }

    /// Returns the name of the node whose kubelet the user is.
    pub(super) fn node(&self) -> Option<&str> {
        node_of(&self.name)
    }

    /// Returns namespace and name of the service account that the user is.
    pub(super) fn service_account(&self) -> Option<(&str, &str)> {
        service_account_of(&self.name)
    }

    /// Returns the user as Go prints it, which is what upstream's text of a 400 has.
    fn in_go_syntax(&self) -> String {
        let list = |texts: &[String]| {
            let quoted: Vec<_> = texts.iter().map(|text| quote(text)).collect();
            match quoted.is_empty() {
                true => "[]string(nil)".to_owned(),
                false => format!("[]string{{{}}}", quoted.join(", ")),
            }
        };
        let mut extra = String::from("map[string][]string");
        match self.extra.is_empty() {
            true => extra.push_str("(nil)"),
            false => {
                let entries = self.extra.iter();
                let entries: Vec<_> = entries
                    .map(|(key, values)| format!("{}:{}", quote(key), list(values)))
                    .collect();
                // Writing to a string does not fail.
                let _ = write!(extra, "{{{}}}", entries.join(", "));
            }
        }
        format!(
            "&user.DefaultInfo{{Name:{}, UID:{}, Groups:{}, Extra:{extra}}}",
            quote(&self.name),
            quote(&self.uid),
            list(&self.groups)
        )
    }
}

/// Returns the name of the node that a user name means, if a node can have that name.
fn node_of(user: &str) -> Option<&str> {
    let name = user.strip_prefix(NODE_PREFIX)?;
    names::dns1123_subdomain(name).is_empty().then_some(name)
}

fn unescape(key: &str) -> String {
    decode(key).map_or_else(|_| key.to_owned(), Cow::into_owned)
}
