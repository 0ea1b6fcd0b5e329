//! All kinds of a plane by group and version, in the order of discovery.

use crate::kinds::Kinds;
use crate::kinds::document_id::DocumentId;
use crate::kinds::table::{KindTable, Resource};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::Schemas;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The groups of a plane: those of the base, and behind them, by name, those of kinds that objects
/// define.
#[derive(Clone, Debug)]
pub struct ServedGroups {
    /// The groups.
    pub groups: Vec<ServedGroup>,
    /// The number of groups of the base.
    built_in: usize,
    /// The identity of everything that documents say about them.
    pub content: DocumentId,
    /// The schemas of the base.
    pub schemas: Arc<Schemas>,
}

/// A group with its versions, most preferred first.
#[derive(Clone, Debug)]
pub struct ServedGroup {
    /// The group's name; empty for the core group.
    pub name: Str,
    /// Its versions.
    pub versions: Vec<ServedVersion>,
}

/// A version of a group.
#[derive(Clone, Debug)]
pub struct ServedVersion {
    /// The version's name.
    pub version: Str,
    /// Its kinds.
    pub resources: Vec<Arc<Resource>>,
    /// The identity of everything that documents say about the version.
    pub content: DocumentId,
}

impl ServedGroups {
    /// Returns a group.
    pub fn group(&self, name: &str) -> Option<&ServedGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Returns the groups in the order of the list of all groups. [`Self::groups`] has that of the aggregated
    /// document, which upstream orders otherwise.
    pub fn listed(&self) -> Vec<&ServedGroup> {
        let (built_in, defined) = self.groups.split_at(self.built_in);
        let mut defined: Vec<&ServedGroup> = defined.iter().collect();
        defined.sort_by_cached_key(|group| group.first_service());
        built_in.iter().chain(defined).collect()
    }
}

impl KindTable {
    /// Returns all kinds of the table by group and version.
    fn served(&self) -> &ServedGroups {
        self.served.get_or_init(|| {
            let all = self.resources();
            let groups = self.groups().iter().map(|group| {
                let versions = group.versions.iter().map(|version| ServedVersion {
                    version: version.version.clone(),
                    resources: version
                        .resources
                        .iter()
                        .map(|at| Arc::clone(&all[*at]))
                        .collect(),
                    content: version.content,
                });
                ServedGroup {
                    name: group.name.clone(),
                    versions: versions.collect(),
                }
            });
            let groups: Vec<ServedGroup> = groups.collect();
            ServedGroups {
                built_in: groups.len(),
                groups,
                content: self.content(),
                schemas: Arc::clone(self.schemas()),
            }
        })
    }
}

impl Kinds {
    /// Returns all kinds by group and version. Most planes define none of their own, and share those of the base.
    pub fn served(&self) -> Cow<'_, ServedGroups> {
        let built_in = self.base().served();
        if self.rows().next().is_none() {
            return Cow::Borrowed(built_in);
        }
        let mut served = built_in.clone();
        self.add_defined(&mut served);
        Cow::Owned(served)
    }

    fn add_defined(&self, served: &mut ServedGroups) {
        // By name, because an overlay is ordered by the bytes of keys.
        let mut added: BTreeMap<Str, Vec<(Arc<Resource>, DocumentId)>> = BTreeMap::new();
        for (row, defined) in self.rows() {
            let id = DocumentId::of(&row.id);
            for version in defined.versions.iter().filter(|row| !self.is_hidden(row)) {
                let of_group = added.entry(version.group.clone()).or_default();
                of_group.push((Arc::clone(version), id));
            }
        }
        if added.is_empty() {
            return;
        }
        for (name, rows) in added {
            let mut defined = ServedGroup {
                name,
                versions: Vec::new(),
            };
            rows.into_iter().for_each(|(row, id)| defined.add(row, id));
            // Among those of the base only: each group comes once, and there may be thousands.
            let known = |group: &ServedGroup| group.name == defined.name;
            match served.groups[..served.built_in].iter().position(known) {
                Some(at) => served.groups[at].prefer(defined),
                None => served.groups.push(defined),
            }
        }
        let contents = served.groups.iter().map(|group| {
            let versions = group.versions.iter();
            let versions = versions.map(|version| (&version.version, version.content));
            (&group.name, versions.collect::<Vec<_>>())
        });
        served.content = DocumentId::of(&contents.collect::<Vec<_>>());
    }
}

impl ServedGroup {
    /// Returns the first name of the API services that upstream keeps for the versions of the group. Those of
    /// all groups that objects define have one priority, so upstream orders the groups by these names.
    fn first_service(&self) -> Option<String> {
        let versions = self.versions.iter();
        let services = versions.map(|version| format!("{}.{}", version.version, self.name));
        services.min()
    }

    /// Puts the versions that objects define before those of the base, as upstream, where all of them have a
    /// higher priority.
    fn prefer(&mut self, mut defined: Self) {
        defined.versions.append(&mut self.versions);
        self.versions = defined.versions;
    }

    fn add(&mut self, row: Arc<Resource>, id: DocumentId) {
        let known = self
            .versions
            .iter_mut()
            .find(|version| version.version == row.version);
        if let Some(version) = known {
            version.content = DocumentId::of(&(version.content, id, &row.version));
            version.resources.push(row);
            return;
        }
        let version = ServedVersion {
            version: row.version.clone(),
            content: DocumentId::of(&(&self.name, &row.version, id)),
            resources: vec![row],
        };
        let before = |known: &ServedVersion| {
            version_order(&known.version, &version.version) != Ordering::Greater
        };
        let at = self.versions.partition_point(before);
        self.versions.insert(at, version);
    }
}

/// Orders versions as discovery does, most preferred first: stable ones, then beta, then alpha,
/// each with the highest number first, then all others by name.
pub fn version_order(left: &str, right: &str) -> Ordering {
    match (priority(left), priority(right)) {
        (Some(left), Some(right)) => right.cmp(&left),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => left.cmp(right),
    }
}

/// Returns stability, number and number of the beta or alpha; `None` for other names.
fn priority(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    let number = number.parse().ok()?;
    let minor = |text: &str| text.parse().ok();
    if rest.is_empty() {
        return Some((2, number, 0));
    }
    match rest.strip_prefix("alpha") {
        Some(rest) => Some((0, number, minor(rest)?)),
        None => Some((1, number, minor(rest.strip_prefix("beta")?)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_priority_are_listed_by_their_lowest_version_and_name() {
        let group = |name: &str, versions: &[&str]| ServedGroup {
            name: name.into(),
            versions: versions
                .iter()
                .map(|version| ServedVersion {
                    version: (*version).into(),
                    resources: Vec::new(),
                    content: DocumentId::of(version),
                })
                .collect(),
        };
        let served = ServedGroups {
            groups: vec![
                group("z.k8s.io", &["v1"]),
                group("b.k8s.io", &["v1"]),
                group("a.example.com", &["v2", "v1beta1"]),
                group("b.example.com", &["v2"]),
                group("c.example.com", &["v2", "v1", "v1alpha1"]),
                group("d.example.com", &["v1"]),
            ],
            built_in: 2,
            content: DocumentId::of(&0),
            schemas: Arc::default(),
        };
        let listed = served.listed();
        let names: Vec<&str> = listed.iter().map(|group| &*group.name).collect();
        let wanted = [
            "z.k8s.io",
            "b.k8s.io",
            "c.example.com",
            "d.example.com",
            "a.example.com",
            "b.example.com",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn versions_are_ordered_as_discovery_orders_them() {
        let mut versions = [
            "foo1",
            "v1",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "v2",
            "v11beta2",
            "v10",
            "foo10",
        ];
        versions.sort_by(|left, right| version_order(left, right));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "foo1",
                "foo10"
            ]
        );
    }
}
