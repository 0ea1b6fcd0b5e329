//! The chart, with the real helm: a matrix of values that must lint and render, the consistency of
//! every manifest (`parts`), access and network rules (`security`), refused values (`refusals`), a
//! server's answers to the manifests and to helm itself (`cluster`), and the Deployment under load
//! (`running`).

use std::sync::OnceLock;

use anyhow::{Context, Result};
use polyplane_tests::chart::{Chart, default_values, over};
use polyplane_tests::deployment::{Deployment, documents};
use serde_json::Value;

#[path = "helm/cluster.rs"]
mod cluster;
#[path = "helm/matrix.rs"]
mod matrix;
#[path = "helm/parts.rs"]
mod parts;
#[path = "helm/program.rs"]
mod program;
#[path = "helm/refusals.rs"]
mod refusals;
#[path = "helm/running.rs"]
mod running;
#[path = "helm/security.rs"]
mod security;

use matrix::{Combination, combinations};

/// A combination of values, and the manifests that helm rendered from it.
struct Rendered {
    combination: Combination,
    /// All of the chart's values, with those of the combination over them.
    values: Value,
    objects: Vec<Value>,
    deployment: Deployment,
}

/// Returns every combination, rendered once for all tests.
fn rendered() -> &'static [Rendered] {
    static RENDERED: OnceLock<Vec<Rendered>> = OnceLock::new();
    RENDERED.get_or_init(|| match render() {
        Ok(rendered) => rendered,
        Err(error) => panic!("{error:#}"),
    })
}

fn render() -> Result<Vec<Rendered>> {
    let chart = Chart::find()?;
    let defaults = default_values()?;
    let render = |combination: Combination| {
        let manifest = chart.render(&combination.values)?;
        Ok(Rendered {
            values: over(&defaults, &combination.values),
            objects: documents(&manifest)?,
            deployment: Deployment::from_manifest(&manifest)
                .with_context(|| combination.name.to_owned())?,
            combination,
        })
    };
    combinations().into_iter().map(render).collect()
}

/// Runs a check on every combination and reports in which ones it failed.
fn each(check: impl Fn(&Rendered) -> Result<()>) -> Result<()> {
    for rendered in rendered() {
        check(rendered).with_context(|| rendered.combination.name.to_owned())?;
    }
    Ok(())
}

impl Rendered {
    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        self.objects
            .iter()
            .filter(move |object| object["kind"] == kind)
    }

    fn one(&self, kind: &'static str, ending: &str) -> Result<&Value> {
        let name = format!("{}{ending}", self.deployment.name);
        let mut found = self.of_kind(kind);
        found
            .find(|object| object["metadata"]["name"] == *name)
            .with_context(|| format!("no {kind} {name}"))
    }

    /// Returns the pod of the Deployment.
    fn pod(&self) -> Result<&Value> {
        let deployment = self.of_kind("Deployment").next();
        Ok(&deployment.context("no Deployment")?["spec"]["template"]["spec"])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
