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

/// What a user meant for a plane that is deleted is not done in another one.
pub fn no_context_is_current_once_its_plane_is_deleted(root: &Kubectl) -> Result<()> {
    root.ok(&["plane", "create", "gone"])?;
    root.ok(&["plane", "use", "gone"])?;
    let deleted = root.run(&["plane", "delete", "gone", "--yes"])?;
    ensure!(deleted.status.success());
    contains(
        &String::from_utf8_lossy(&deleted.stderr),
        &["no context is current", "kubectl config use-context"],
    )?;
    let unset = &["current-context is not set"];
    contains(&root.fails(&["config", "current-context"])?, unset)?;
    contains(
        &root.fails(&["plane", "list"])?,
        &["no current context", "root"],
    )?;
    // A later plane, with which the server writes its file anew, changes nothing about that.
    root.ok(&["plane", "create", "later", "--context", "root"])?;
    let since = Instant::now();
    while !root
        .ok(&["config", "get-contexts", "-o", "name"])?
        .contains("later")
    {
        ensure!(since.elapsed() < WRITTEN_WITHIN, "it has no context");
    }
    contains(&root.fails(&["config", "current-context"])?, unset)?;
    root.ok(&["config", "use-context", "root"])?;
    root.ok(&["plane", "delete", "later", "--yes"])?;
    Ok(())
}
