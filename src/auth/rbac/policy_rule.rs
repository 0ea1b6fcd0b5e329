//! Rules of roles, and which requests they match.

use polyplane_apimachinery::{Str, Value};

use crate::authorizer::{Attributes, Subject};

/// In each list of a rule but the names, the item that matches everything.
pub(crate) const ALL: &str = "*";

/// Verbs that have a bit of their own in each rule. Other verbs are compared as texts.
const COMMON_VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];
/// The bit of [`ALL`] in a rule's verbs.
const ALL_VERBS: u16 = 1 << 15;

/// A verb, looked up once per decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb<'a> {
    text: &'a str,
    /// The bits of which a rule that matches has one; without a bit of a common verb the text has
    /// to be compared too.
    bits: u16,
}

impl<'a> Verb<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let bits = bit(text) | ALL_VERBS;
        Self { text, bits }
    }

    fn is_common(self) -> bool {
        self.bits != ALL_VERBS
    }
}

/// Returns the bit of a common verb, and 0 for any other.
fn bit(verb: &str) -> u16 {
    let at = COMMON_VERBS.iter().position(|common| *common == verb);
    at.map_or(0, |at| 1 << at)
}

/// One rule of a role: it allows its verbs on its resources, or on its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    verbs: Box<[Str]>,
    api_groups: Box<[Str]>,
    resources: Box<[Str]>,
    resource_names: Box<[Str]>,
    non_resource_urls: Box<[Str]>,
    /// The common verbs among `verbs`, and [`ALL_VERBS`].
    verb_bits: u16,
}

impl PolicyRule {
    /// Reads a rule of a Role or ClusterRole.
    #[must_use]
    pub fn from_value(rule: &Value) -> Self {
        let texts = |name: &str| {
            let items = rule.items_at(&[name]).iter();
            items
                .map(|item| item.as_str().unwrap_or("").into())
                .collect()
        };
        let verbs: Box<[Str]> = texts("verbs");
        let verb_bits = verbs.iter().fold(0, |bits, verb| {
            bits | if verb == ALL { ALL_VERBS } else { bit(verb) }
        });
        Self {
            verbs,
            api_groups: texts("apiGroups"),
            resources: texts("resources"),
            resource_names: texts("resourceNames"),
            non_resource_urls: texts("nonResourceURLs"),
            verb_bits,
        }
    }

    /// Returns the rule as a Role has it. Empty lists are left out, except `verbs`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut rule = Value::object();
        let lists = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ];
        for (name, list) in lists {
            if !list.is_empty() || name == "verbs" {
                let items = list.iter().cloned().map(Value::String);
                rule.set(&[name], Value::Array(items.collect()));
            }
        }
        rule
    }

    /// Returns how many texts a decision may have to compare, and one for the rule.
    pub(crate) fn weight(&self) -> usize {
        let lists = [
            &self.verbs,
            &self.api_groups,
            &self.resources,
            &self.resource_names,
            &self.non_resource_urls,
        ];
        1 + lists.iter().map(|list| list.len()).sum::<usize>()
    }

    /// Returns about how many bytes the rule takes in an object.
    pub(crate) fn bytes(&self) -> usize {
        let lists = [
            &self.verbs,
            &self.api_groups,
            &self.resources,
            &self.resource_names,
            &self.non_resource_urls,
        ];
        let texts = lists.into_iter().flat_map(|list| list.iter());
        // The quotes and a comma; and what the shortest valid rule has besides.
        30 + texts.map(|text| text.len() + 3).sum::<usize>()
    }

    /// Returns the verbs.
    #[must_use]
    pub fn verbs(&self) -> &[Str] {
        &self.verbs
    }

    /// Returns the API groups.
    #[must_use]
    pub fn api_groups(&self) -> &[Str] {
        &self.api_groups
    }

    /// Returns the resources, as `pods`, `pods/log`, `*/scale` or `*`.
    #[must_use]
    pub fn resources(&self) -> &[Str] {
        &self.resources
    }

    /// Returns the names of objects to which the rule is limited; none if it applies to all.
    #[must_use]
    pub fn resource_names(&self) -> &[Str] {
        &self.resource_names
    }

    /// Returns the paths. A trailing `*` stands for any rest.
    #[must_use]
    pub fn non_resource_urls(&self) -> &[Str] {
        &self.non_resource_urls
    }

    /// Returns whether the rule allows a request, whoever makes it.
    #[must_use]
    pub fn allows_request(&self, attributes: &Attributes<'_>) -> bool {
        self.allows(Verb::new(attributes.verb), &attributes.subject)
    }

    /// Returns whether the rule allows `verb` on `subject`.
    pub(crate) fn allows(&self, verb: Verb<'_>, subject: &Subject<'_>) -> bool {
        let has_verb =
            self.verb_bits & verb.bits != 0 || (!verb.is_common() && has(&self.verbs, verb.text));
        has_verb
            && match *subject {
                Subject::Resource {
                    group,
                    resource,
                    subresource,
                    name,
                    ..
                } => {
                    let mut resources = self.resources.iter();
                    let mut groups = self.api_groups.iter();
                    groups.any(|own| own == ALL || own == group)
                        && resources.any(|own| resource_matches(own, resource, subresource))
                        && (self.resource_names.is_empty() || has(&self.resource_names, name))
                }
                Subject::Path(path) => {
                    let mut urls = self.non_resource_urls.iter();
                    urls.any(|own| path_matches(own, path))
                }
            }
    }
}

fn has(list: &[Str], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

/// Returns whether an item of a rule's resources matches a resource and its subresource, which is
/// empty for the resource itself.
fn resource_matches(item: &str, resource: &str, subresource: &str) -> bool {
    if item == ALL {
        return true;
    }
    if subresource.is_empty() {
        return item == resource;
    }
    let Some(rest) = item.strip_suffix(subresource) else {
        return false;
    };
    rest == "*/" || rest.strip_suffix('/') == Some(resource)
}

/// Returns whether an item of a rule's paths matches a path.
pub(crate) fn path_matches(item: &str, path: &str) -> bool {
    item == path || (item.ends_with('*') && path.starts_with(item.trim_end_matches('*')))
}
