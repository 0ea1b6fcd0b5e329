//! Names that other programs do not read as text.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::session::{contains, json_of};

/// The longest time until the server has written its kubeconfig.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// Planes whose names YAML reads as numbers, booleans and dates: kubectl reaches each of them with
/// the server's kubeconfig and with one that the plugin prints.
pub fn names_that_are_no_text_elsewhere(root: &Kubectl) -> Result<()> {
    let names = [
        "123",
        "0123",
        "null",
        "true",
        "off",
        "y",
        "1e3",
        "0x1f",
        "0o7",
        "2026-11-22",
    ];
    for name in names {
        root.ok(&["plane", "create", name])?;
    }
    let since = Instant::now();
    // The server writes its file after the answer to a create.
    loop {
        let config = json_of(&root.ok(&["config", "view", "-o", "json"])?)?;
        let contexts = config["contexts"].as_array().context("no contexts")?;
        let named = |name: &str| contexts.iter().any(|context| context["name"] == name);
        if names.into_iter().all(named) {
            break;
        }
        ensure!(since.elapsed() < WRITTEN_WITHIN, "not all in {config}");
    }
    for name in names {
        contains(
            &root.ok(&["--context", name, "get", "namespaces"])?,
            &["kube-system"],
        )?;
        contains(&root.ok(&["plane", "use", name])?, &[name])?;
        contains(&root.ok(&["config", "current-context"])?, &[name])?;
    }
    root.ok(&["plane", "use", "root"])?;
    for name in names {
        root.ok(&["plane", "delete", name, "--yes"])?;
    }
    Ok(())
}
