//! The form of the generated rows as they are read. [`KindTable`](super::table::KindTable) is built
//! from them.

use super::table::{Column, Rules, Scope, StorageRow, Subresource, TableError};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::names::NameRule;
use serde::Deserialize;
use std::collections::BTreeSet;

#[derive(Deserialize)]
pub(super) struct Rows {
    pub(super) groups: Vec<GroupRow>,
}

#[derive(Deserialize)]
pub(super) struct GroupRow {
    #[serde(default)]
    pub(super) name: Str,
    /// The position among the groups: greater ones come first.
    #[serde(default)]
    pub(super) priority: i64,
    pub(super) versions: Vec<VersionRow>,
}

#[derive(Hash, Deserialize)]
pub(super) struct VersionRow {
    pub(super) version: Str,
    /// The position among the versions of the group: greater ones come first.
    #[serde(default)]
    pub(super) priority: i64,
    pub(super) resources: Vec<ResourceRow>,
}

#[derive(Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceRow {
    pub(super) name: Str,
    #[serde(default)]
    pub(super) singular: Str,
    pub(super) kind: Str,
    #[serde(default)]
    pub(super) list_kind: Str,
    #[serde(default)]
    pub(super) namespaced: bool,
    #[serde(default)]
    pub(super) short_names: Vec<Str>,
    #[serde(default)]
    pub(super) categories: Vec<Str>,
    #[serde(default)]
    pub(super) verbs: Vec<Str>,
    #[serde(default)]
    pub(super) storage_version_hash: Str,
    pub(super) definition: Str,
    pub(super) storage: Option<StorageRow>,
    #[serde(default)]
    pub(super) external: bool,
    #[serde(default)]
    pub(super) subresources: Vec<Subresource>,
    #[serde(default)]
    pub(super) columns: Vec<Column>,
    #[serde(default)]
    pub(super) strategy: Rules,
    #[serde(default)]
    pub(super) selectable_fields: Vec<Str>,
    #[serde(default)]
    pub(super) name_rule: NameRuleRow,
    #[serde(default)]
    pub(super) deprecation: Option<Str>,
    #[serde(default)]
    pub(super) gate: Option<Str>,
}

impl ResourceRow {
    pub(super) fn scope(&self) -> Scope {
        match self.namespaced {
            true => Scope::Namespaced,
            false => Scope::Cluster,
        }
    }
}

#[derive(Default, Hash, Deserialize)]
pub(super) struct NameRuleRow {
    #[serde(default)]
    pub(super) rule: Str,
}

impl NameRuleRow {
    pub(super) fn read(&self) -> NameRule {
        match self.rule.as_str() {
            "dns1123subdomain" => NameRule::DnsSubdomain,
            "dns1123label" => NameRule::DnsLabel,
            "dns1035label" => NameRule::Dns1035Label,
            _ => NameRule::PathSegment,
        }
    }
}

/// Returns the feature gates without which some kinds of `rows` are not served.
///
/// # Errors
/// Returns [`TableError::Rows`] if the text does not have the form of rows.
pub fn gates_of(rows: &[u8]) -> Result<BTreeSet<Str>, TableError> {
    let rows: Rows = serde_json::from_slice(rows).map_err(TableError::Rows)?;
    let versions = rows.groups.into_iter().flat_map(|group| group.versions);
    let resources = versions.flat_map(|version| version.resources);
    Ok(resources.filter_map(|row| row.gate).collect())
}
