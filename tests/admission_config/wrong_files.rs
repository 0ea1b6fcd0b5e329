//! Files that end the start, and what is said of them.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use polyplane_tests::drop_in::{DropIn, START_LIMIT, assets};
use polyplane_tests::process::refused;
use polyplane_tests::programs::found;
use polyplane_tests::recorded::{compare, records};
use serde_json::{Map, json};
use tokio::process::Command;

use super::HEAD;

const POD_SECURITY: &str =
    "apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration";
const QUOTA: &str = "apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration";

/// Wrong files, with words in what is said of them.
fn wrong() -> Vec<(&'static str, String, &'static [&'static str])> {
    let embedded = |plugin: &str, configuration: String| {
        format!("{HEAD}plugins: [{{name: {plugin}, configuration: {{{configuration}}}}}]\n")
    };
    let pod_security = |rest: &str| embedded("PodSecurity", format!("{POD_SECURITY}, {rest}"));
    let quota = |rest: &str| embedded("ResourceQuota", format!("{QUOTA}, {rest}"));
    vec![
        (
            "another kind",
            "apiVersion: v1\nkind: Policy\n".to_owned(),
            &["Policy"],
        ),
        ("unknown field", format!("{HEAD}plugin: []\n"), &["plugin"]),
        (
            "no version",
            embedded("PodSecurity", "kind: PodSecurityConfiguration".to_owned()),
            &[],
        ),
        (
            "level",
            pod_security("defaults: {enforce: strict}"),
            &[
                "PodSecurity",
                "enforce",
                "must be one of privileged, baseline, restricted",
            ],
        ),
        (
            "version",
            pod_security("defaults: {warn-version: '1.30'}"),
            &[
                "PodSecurity",
                "warn-version",
                r#"must be "latest" or "v1.x""#,
            ],
        ),
        (
            "field",
            pod_security("default: {}"),
            &["PodSecurity", "default"],
        ),
        (
            "exempt namespace",
            pod_security("exemptions: {namespaces: [a.b]}"),
            &["PodSecurity", "exemptions.namespaces[0]", "a.b"],
        ),
        (
            "exempt twice",
            pod_security("exemptions: {usernames: [bob, bob]}"),
            &["PodSecurity", "exemptions.usernames[1]", "Duplicate value"],
        ),
        (
            "no file",
            format!("{HEAD}plugins: [{{name: PodSecurity, path: none.yaml}}]\n"),
            &["none.yaml"],
        ),
        (
            "no resource",
            quota("limitedResources: [{matchContains: [pods]}]"),
            &[
                "ResourceQuota",
                "limitedResources[0].resource",
                "Required value",
            ],
        ),
        (
            "kind of another plug-in",
            embedded("ResourceQuota", POD_SECURITY.to_owned()),
            &["ResourceQuota", "PodSecurityConfiguration"],
        ),
    ]
}

/// Starts an API server with a file, and returns what it says before it ends.
async fn said_of(program: &Path, beside: &DropIn, file: &Path) -> Result<String> {
    let own = |name: &str| beside.folder.path().join(name).display().to_string();
    let output = Command::new(program)
        .arg(format!("--etcd-servers={}", beside.etcd_url()))
        .arg("--etcd-prefix=/wrong")
        .arg(format!("--cert-dir={}", own("certs-of-wrong")))
        .arg("--bind-address=127.0.0.1")
        .arg("--service-account-issuer=https://own.example.com/")
        .args(["--service-account-key-file", &own("accounts.crt")])
        .args(["--service-account-signing-key-file", &own("accounts.key")])
        .arg(format!(
            "--admission-control-config-file={}",
            file.display()
        ))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(START_LIMIT, output).await;
    let output = output.context("the server goes on with a wrong file")??;
    ensure!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_files_end_the_start_as_that_of_the_reference() -> Result<()> {
    let (drop_in, _) = DropIn::start_for_admin(Vec::new()).await?;
    let program = match records() {
        true => found("kube-apiserver")?.context("no reference")?.into(),
        false => assets(drop_in.folder.path())?.join("kube-apiserver"),
    };
    let files = tempfile::tempdir()?;
    let file = files.path().join("admission.yaml");
    let shown = file.display().to_string();
    let mut steps = Map::new();
    for (name, text, words) in wrong() {
        std::fs::write(&file, text)?;
        let said = said_of(&program, &drop_in, &file).await?;
        for word in words {
            let quoted = word.replace('"', "\\\"");
            let is_said = said.contains(word) || said.contains(&quoted);
            ensure!(is_said, "{name}: no {word:?} in {said}");
        }
        if !records() {
            ensure!(
                said.contains("--admission-control-config-file") && said.contains(&shown),
                "{said}"
            );
            let options = ["--admission-control-config-file", &shown];
            let ended = refused(&files.path().join("data"), &options).await?;
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            for word in words.iter().chain(&options) {
                ensure!(said.contains(word), "{name}: no {word:?} in {said}");
            }
        }
        steps.insert(name.to_owned(), json!({"words": words}));
    }
    println!("admission_config: {} wrong files", steps.len());
    compare(records(), "admission-wrong-files", &steps)
}
