//! The answer to `/version`.

use serde::Serialize;

/// The version of the API that this server speaks, as clients compare it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Version<'a> {
    /// Major number as text.
    pub major: &'static str,
    /// Minor number as text.
    pub minor: &'static str,
    /// Major number of the behaviour that is emulated.
    pub emulation_major: &'static str,
    /// Minor number of the behaviour that is emulated.
    pub emulation_minor: &'static str,
    /// Major number of the oldest behaviour that can be emulated.
    pub min_compatibility_major: &'static str,
    /// Minor number of the oldest behaviour that can be emulated.
    pub min_compatibility_minor: &'static str,
    /// Full version, a semantic version with a leading `v`.
    pub git_version: &'a str,
    /// The commit from which this was built.
    pub git_commit: &'static str,
    /// `clean` if the build's tree had no uncommitted change.
    pub git_tree_state: &'static str,
    /// The time of the build.
    pub build_date: &'static str,
    /// The version of the language; clients expect the field.
    pub go_version: &'static str,
    /// The name of the compiler.
    pub compiler: &'static str,
    /// Operating system and architecture as Go names them.
    pub platform: &'static str,
}

/// Returns the version of this build, which shows `instead` if that is given.
pub(crate) fn shown(instead: Option<&str>) -> Version<'_> {
    Version {
        git_version: instead.unwrap_or(VERSION.git_version),
        ..VERSION
    }
}

/// The version of this build.
pub(crate) const VERSION: Version<'static> = Version {
    major: "1",
    minor: "37",
    emulation_major: "1",
    emulation_minor: "37",
    min_compatibility_major: "1",
    min_compatibility_minor: "36",
    git_version: "v1.37.0+polyplane",
    git_commit: match option_env!("POLYPLANE_COMMIT") {
        Some(commit) => commit,
        None => "0000000000000000000000000000000000000000",
    },
    git_tree_state: match option_env!("POLYPLANE_COMMIT") {
        Some(_) => "clean",
        None => "dirty",
    },
    build_date: match option_env!("POLYPLANE_BUILD_DATE") {
        Some(date) => date,
        None => "1970-01-01T00:00:00Z",
    },
    go_version: "go1.26",
    compiler: "rustc",
    platform: if cfg!(target_arch = "aarch64") {
        "linux/arm64"
    } else {
        "linux/amd64"
    },
};
