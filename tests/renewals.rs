//! Kubeconfigs that renew themselves: with the real kubectl across an expiry, and what nobody gets by it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;

use polyplane_tests::programs::{create_plane, polyplane};
use polyplane_tests::site::{Site, admitted, endpoint, get, move_to, refused};
use serde_json::{Value, json};

const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const RENEWAL: &str = "/polyplane/credential";
/// The longest time until a certificate of a minute is refused.
const PATIENCE: Duration = Duration::from_secs(100);

/// Creates a plane in which the group `dev` may read.
async fn prepare(site: &Site, plane: &str) -> Result<()> {
    let masters = Client::open(&create_plane(&site.root, plane).await?).await?;
    let binding = json!({"metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "dev"}]});
    masters.post(BINDINGS, &binding).await?.expect(201)?;
    Ok(())
}

/// Returns the credential with which the plug-in of a kubeconfig begins.
fn first_credential(kubeconfig: &Path) -> Result<Value> {
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    let held = &config["users"][0]["user"]["exec"]["env"][0]["value"];
    let held = STANDARD.decode(held.as_str().context("no credential")?)?;
    Ok(serde_json::from_slice(&held)?)
}

/// Returns the server of a kubeconfig for the holder of a certificate.
fn holder(kubeconfig: &Path, certificate: &str, key: &str) -> Result<Endpoint> {
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    config["users"][0]["user"] = json!({"client-certificate-data": STANDARD.encode(certificate),
        "client-key-data": STANDARD.encode(key)});
    let path = kubeconfig.with_extension("holder");
    std::fs::write(&path, config.to_string())?;
    endpoint(&path)
}

fn first_holder(kubeconfig: &Path) -> Result<Endpoint> {
    let held = first_credential(kubeconfig)?;
    let text = |name: &str| held[name].as_str().unwrap_or_default().to_owned();
    holder(kubeconfig, &text("certificate"), &text("key"))
}

/// Asks for the next certificate. Returns the answer and the key that it is for.
async fn ask(caller: &Endpoint) -> Result<(Reply, String)> {
    let key = rcgen::KeyPair::generate()?;
    let wanted = json!({"kind": "Credential", "apiVersion": "polyplane.dev/v1alpha1",
        "spec": {"publicKey": key.public_key_pem()}});
    let answer = Client::open(caller).await?.post(RENEWAL, &wanted).await?;
    Ok((answer, key.serialize_pem()))
}

/// Returns the holder of the next certificate.
async fn renewed(kubeconfig: &Path, caller: &Endpoint) -> Result<(Endpoint, Value)> {
    let (answer, key) = ask(caller).await?;
    let issued = answer.expect(201)?;
    let certificate = issued["status"]["certificate"].as_str();
    let next = holder(kubeconfig, certificate.context("no certificate")?, &key)?;
    Ok((next, issued))
}

fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let entries = entries.collect::<Result<Vec<PathBuf>>>()?;
    let wanted = |path: &PathBuf| path.extension().is_some_and(|one| one == ending);
    Ok(entries.into_iter().filter(wanted).collect())
}

/// Runs kubectl twice at once; both must succeed.
fn two_at_once(kubectl: &Kubectl) -> Result<()> {
    let arguments = ["get", "configmaps", "--request-timeout=20s"];
    let started = [kubectl.command(&arguments), kubectl.command(&arguments)].map(|mut command| {
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
    });
    for child in started {
        let ended = child?.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.success(), "{said}");
    }
    Ok(())
}

/// kubectl goes on over the end of its first certificate, two at once, while the plane moves; the twin
/// that does not renew is refused. A revocation ends it, and another kubeconfig works at once.
#[tokio::test]
async fn a_kubeconfig_renews_itself_until_it_is_revoked() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    prepare(&site, "a").await?;
    let root = Client::open(&site.root).await?;
    move_to(&root, "a", "polyplane-0").await?;
    let options = [
        "a",
        "--user=jane",
        "--group=dev",
        "--expires=60s",
        "--renewable=1h",
    ];
    let file = site.kubeconfig("jane", &options)?;
    let folder = site.folder.path().join("credentials");
    let kubectl = site.kubectl.with_kubeconfig(&file);
    let kubectl = kubectl.with_variable("POLYPLANE_CREDENTIALS_DIR", &folder.display().to_string());
    let first = first_holder(&file)?;
    admitted(&first).await?;
    two_at_once(&kubectl)?;
    ensure!(!folder.exists(), "a young certificate was renewed");
    let (began, mut rounds, mut moved) = (Instant::now(), 0, false);
    while get(&first, "/api/v1/namespaces").await?.status != 401 {
        two_at_once(&kubectl)?;
        rounds += 1;
        if folder.exists() && !moved {
            move_to(&root, "a", "polyplane-1").await?;
            moved = true;
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "the first certificate does not end"
        );
    }
    ensure!(
        moved,
        "nothing was renewed before the first certificate ended"
    );
    two_at_once(&kubectl)?;
    let who = kubectl.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo}"])?;
    let who: Value = serde_json::from_str(&who)?;
    ensure!(who["username"] == "jane", "{who}");
    ensure!(
        who["groups"] == json!(["dev", "system:authenticated"]),
        "{who}"
    );
    let kept = files(&folder, "json")?;
    ensure!(kept.len() == 1, "{kept:?}");
    let mode = std::fs::metadata(&kept[0])?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{mode:o}");
    ensure!(std::fs::metadata(&folder)?.permissions().mode() & 0o777 == 0o700);
    ended(&site, &kubectl, &kept[0])?;
    println!("{rounds} rounds of two kubectls, one move, one revocation");
    Ok(())
}

/// A revocation ends kubectl, the plug-in when it renews, and no other kubeconfig.
fn ended(site: &Site, kubectl: &Kubectl, kept: &Path) -> Result<()> {
    site.kubectl.ok(&["plane", "revoke", "a", "jane"])?;
    let said = kubectl.fails(&["get", "configmaps"])?;
    ensure!(
        said.contains("Unauthorized") || said.contains("logged in"),
        "{said}"
    );
    // As if the certificate were due.
    let mut held: Value = serde_json::from_slice(&std::fs::read(kept)?)?;
    held["renewAt"] = json!(1);
    std::fs::write(kept, held.to_string())?;
    let said = kubectl.fails(&["get", "configmaps"])?;
    ensure!(said.contains("it was revoked"), "{said}");
    let again = ["a", "--user=jane", "--group=dev", "--renewable=30d"];
    let again = site.kubeconfig("jane.again", &again)?;
    kubectl.with_kubeconfig(&again).ok(&["get", "configmaps"])?;
    Ok(())
}

/// The next certificate says what the one before says, and ends with it: by a revocation that comes at
/// the same time, by other keys, and by the plane's deletion.
#[tokio::test]
async fn a_renewed_certificate_gives_nothing_more_and_ends_with_the_first() -> Result<()> {
    let site = Site::start(&[]).await?;
    prepare(&site, "a").await?;
    let options = [
        "a",
        "--user=jane",
        "--uid=u-1",
        "--group=dev",
        "--expires=1h",
    ];
    let file = |name: &str| site.kubeconfig(name, &[&options[..], &["--renewable=2h"]].concat());
    let jane = file("jane")?;
    let first = first_holder(&jane)?;
    let (second, issued) = renewed(&jane, &first).await?;
    let who = Client::open(&second).await?.post(WHO, &json!({})).await?;
    let who = who.expect(201)?;
    let user = &who["status"]["userInfo"];
    ensure!(user["username"] == "jane" && user["uid"] == "u-1", "{who}");
    ensure!(
        user["groups"] == json!(["dev", "system:authenticated"]),
        "{who}"
    );
    ensure!(issued["spec"]["expirationSeconds"] == 3600, "{issued}");
    let (third, _) = renewed(&jane, &second).await?;
    admitted(&third).await?;
    // One revocation ends all three, though the last was issued in the same second.
    site.kubectl.ok(&["plane", "revoke", "a", "jane"])?;
    for ended in [&first, &second, &third] {
        refused(ended).await?;
        ask(ended).await?.0.refuses(401, "Unauthorized")?;
    }
    // What was issued since is renewed, and ends with the next revocation.
    let again = file("again")?;
    let (next, _) = renewed(&again, &first_holder(&again)?).await?;
    admitted(&next).await?;
    site.kubectl.ok(&["plane", "revoke", "a", "jane"])?;
    refused(&next).await?;
    // Keys that are replaced with an overlap: the next certificate is of the new ones.
    let last = file("last")?;
    let of_old_keys = first_holder(&last)?;
    site.kubectl.ok(&["plane", "rotate", "a", "--overlap=1h"])?;
    let (of_new_keys, _) = renewed(&last, &of_old_keys).await?;
    admitted(&of_new_keys).await?;
    site.kubectl.ok(&["plane", "rotate", "a", "--now"])?;
    refused(&of_new_keys).await?;
    // The last one ends with the right to renew.
    let short = ["a", "--user=joe", "--expires=1h", "--renewable=1h"];
    let short = site.kubeconfig("short", &short)?;
    let (_, issued) = renewed(&short, &first_holder(&short)?).await?;
    ensure!(issued["status"]["renewTimestamp"].is_null(), "{issued}");
    ensure!(
        issued["spec"]["expirationSeconds"].as_i64() <= Some(3600),
        "{issued}"
    );
    Ok(())
}

/// What strangers and other users send to the path, and what a holder may not ask for.
#[tokio::test]
async fn nobody_but_its_holder_renews_a_certificate() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    prepare(&site, "a").await?;
    prepare(&site, "b").await?;
    let root = Client::open(&site.root).await?;
    // Both through another replica than the owner, and at the owner.
    for replica in ["polyplane-0", "polyplane-1"] {
        move_to(&root, "a", replica).await?;
        let options = ["a", "--user=jane", "--group=dev", "--renewable=30d"];
        let file = site.kubeconfig("jane", &options)?;
        let jane = first_holder(&file)?;
        let plain = site.user_of("a", "joe")?;
        let (answer, _) = ask(&plain).await?;
        answer.refuses(403, "this certificate may not be renewed")?;
        let in_b = jane.at_base_path("/clusters/b");
        for stranger in [
            in_b.clone(),
            jane.at_base_path("/clusters/missing"),
            jane.without_certificate(),
            jane.with_token(Some("nonsense")),
        ] {
            ask(&stranger).await?.0.refuses(401, "Unauthorized")?;
        }
        let of_root = site.root.at_base_path("/clusters/a");
        let said = ask(&of_root).await?.0;
        ensure!(said.status == 403, "{said:?}");
        let by_jane = Client::open(&jane).await?;
        let key = rcgen::KeyPair::generate()?.public_key_pem();
        for (spec, code, words) in [
            (
                json!({"publicKey": key, "user": "eve"}),
                422,
                "nothing else",
            ),
            (
                json!({"publicKey": key, "groups": ["system:masters"]}),
                422,
                "nothing else",
            ),
            (
                json!({"publicKey": key, "expirationSeconds": 86_400_000}),
                422,
                "nothing else",
            ),
            (
                json!({"publicKey": key, "renewableSeconds": 86_400_000}),
                422,
                "nothing else",
            ),
            (json!({"publicKey": "no key"}), 422, "not a public key"),
            (json!({}), 422, "nothing else"),
            (json!({"publicKey": "x".repeat(5000)}), 413, "limit is 4096"),
        ] {
            let wanted = json!({"kind": "Credential", "apiVersion": "polyplane.dev/v1alpha1",
                "spec": spec});
            let said = by_jane.post(RENEWAL, &wanted).await?;
            said.refuses(code, words)
                .with_context(|| format!("{spec}"))?;
        }
        let said = by_jane.get(RENEWAL).await?;
        ensure!([403, 404].contains(&said.status.as_u16()), "{said:?}");
        renewed(&file, &jane).await?;
    }
    for (arguments, words) in [
        (&["a", "--user=eve", "--renewable=1m"][..], "--renewable"),
        (&["a", "--user=eve", "--renewable=900d"], "--renewable"),
        (
            &["a", "--with-my-credentials", "--renewable=1h"],
            "cannot be used with",
        ),
    ] {
        let refused = [&["plane", "kubeconfig"], arguments].concat();
        let said = site.kubectl.fails(&refused)?;
        ensure!(said.contains(words), "{arguments:?}: {said}");
    }
    plug_in_alone()
}

/// The plug-in, run by hand or by a client that does not say what it needs.
fn plug_in_alone() -> Result<()> {
    let run = |info: Option<&str>, first: Option<&str>| -> Result<String> {
        let mut command = std::process::Command::new(polyplane()?);
        command.arg("credentials").env_clear();
        if let Some(info) = info {
            command.env("KUBERNETES_EXEC_INFO", info);
        }
        if let Some(first) = first {
            command.env("POLYPLANE_CREDENTIAL", first);
        }
        let ended = command.output()?;
        if ended.status.success() || !ended.stdout.is_empty() {
            bail!("{ended:?}");
        }
        Ok(String::from_utf8(ended.stderr)?)
    };
    let info = |version: &str, server: &str| {
        json!({"kind": "ExecCredential", "apiVersion": version,
            "spec": {"interactive": false, "cluster": {"server": server}}})
        .to_string()
    };
    let (v1, of_alpha) = (
        "client.authentication.k8s.io/v1",
        "client.authentication.k8s.io/v1alpha1",
    );
    let expired = json!({"certificate": "x", "key": "x", "ends": 1}).to_string();
    let expired = STANDARD.encode(expired);
    for (given, first, words) in [
        (None, None, "KUBERNETES_EXEC_INFO is not set"),
        (Some("no json".to_owned()), None, "is no JSON"),
        (
            Some(info(of_alpha, "https://h")),
            None,
            "this program knows",
        ),
        (Some(info(v1, "")), None, "provideClusterInfo: true"),
        (
            Some(info(v1, "https://h")),
            None,
            "POLYPLANE_CREDENTIAL is not set",
        ),
        (
            Some(info(v1, "https://h")),
            Some("e30="),
            "holds no credential",
        ),
        (
            Some(info(v1, "https://h")),
            Some(expired.as_str()),
            "neither $XDG_CACHE_HOME",
        ),
    ] {
        let said = run(given.as_deref(), first)?;
        ensure!(said.contains(words), "{said}");
    }
    Ok(())
}
