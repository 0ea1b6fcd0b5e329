//! Users of the root whom a client certificate proves: what they may do in the root and elsewhere.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";

/// Returns the server's root as a user with a certificate of its CA sees it.
fn as_user(server: &Up, folder: &Path, name: &str, group: &str) -> Result<Endpoint> {
    let keys = server.kubeconfig.with_file_name("pki");
    let read = |name: &str| std::fs::read_to_string(keys.join(name));
    let ca_key = rcgen::KeyPair::from_pem(&read("ca.key")?)?;
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.crt")?, ca_key)?;
    let mut leaf = rcgen::CertificateParams::new(Vec::new())?;
    leaf.distinguished_name = rcgen::DistinguishedName::new();
    leaf.distinguished_name
        .push(rcgen::DnType::OrganizationName, group);
    leaf.distinguished_name
        .push(rcgen::DnType::CommonName, name);
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate()?;
    let leaf = leaf.signed_by(&key, &issuer)?;
    server.as_holder(folder, &leaf.pem(), &key.serialize_pem())
}

/// A certificate of the server proves a user of the root. Roles of another plane that name this user
/// or its groups mean others, even if they give everything; a grant lets the user in, under a name
/// that says where it is from.
#[tokio::test]
async fn a_user_of_the_root_is_nobody_in_another_plane_without_a_grant() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let a = Client::open(&create_plane(&root, "a").await?).await?;
    let jane = as_user(&server, folder.path(), "jane", "dev")?;
    let in_root = Client::open(&jane).await?;
    let in_a = Client::open(&jane.at_base_path("/clusters/a")).await?;
    let binding = |name: &str, user: &str| {
        json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": user}, {"kind": "Group", "name": "dev"},
                {"kind": "Group", "name": "system:authenticated"}]})
    };
    in_root
        .get(CONFIG_MAPS)
        .await?
        .refuses(403, "cannot list")?;
    a.post(BINDINGS, &binding("all", "jane"))
        .await?
        .expect(201)?;
    in_a.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    in_root
        .get(CONFIG_MAPS)
        .await?
        .refuses(403, "cannot list")?;
    // The twins: the same binding in the root, the plane's own jane, and a grant.
    let masters = Client::open(&root).await?;
    masters
        .post(BINDINGS, &binding("all", "jane"))
        .await?
        .expect(201)?;
    in_root.get(CONFIG_MAPS).await?.expect(200)?;
    in_a.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    let review = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "list", "resource": "configmaps"}}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let reviewed = a.post(reviews, &review).await?.expect(201)?;
    ensure!(reviewed["status"]["allowed"] == true, "{reviewed}");
    let access = json!({"spec": {"access": {"grants": [{"user": "jane", "groups": ["guests"]}]}}});
    patch(&masters, "a", &access).await?.expect(200)?;
    a.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = in_a.post(who, &json!({})).await?.expect(201)?;
    ensure!(
        who["status"]["userInfo"]
            == json!({"username": "root:jane", "groups": ["guests", "system:authenticated"]}),
        "{who}"
    );
    Ok(())
}

/// Each right alone: who may change a plane's other fields may neither enter it nor let others in, and
/// who may issue credentials of one plane may do so for no other.
#[tokio::test]
async fn entering_a_plane_needs_the_right_to_issue_its_credentials() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    create_plane(&root, "a").await?;
    create_plane(&root, "b").await?;
    let masters = Client::open(&root).await?;
    for (name, rules) in [
        (
            "editor",
            json!([{"apiGroups": ["polyplane.dev"], "resources": ["controlplanes"],
            "verbs": ["get", "patch", "update", "create"]}]),
        ),
        (
            "issuer",
            json!([{"apiGroups": ["polyplane.dev"], "resources": ["controlplanes/credentials"],
            "resourceNames": ["a"], "verbs": ["create"]}]),
        ),
    ] {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        masters.post(roles, &role).await?.expect(201)?;
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": name}]});
        masters.post(BINDINGS, &binding).await?.expect(201)?;
    }
    let client = |name: &'static str| {
        let folder = folder.path().join(name);
        let server = &server;
        async move {
            std::fs::create_dir(&folder)?;
            Client::open(&as_user(server, &folder, name, "dev")?).await
        }
    };
    let (editor, issuer) = (client("editor").await?, client("issuer").await?);
    let access =
        json!({"spec": {"access": {"grants": [{"user": "editor", "groups": ["system:masters"]}]}}});
    let refusal = "needs the right to create controlplanes/credentials";
    patch(&editor, "a", &access).await?.refuses(403, refusal)?;
    let named = json!({"metadata": {"name": "c"}, "spec": access["spec"]});
    editor.post(PLANES, &named).await?.refuses(403, refusal)?;
    let other = json!({"spec": {"displayName": "A"}});
    patch(&editor, "a", &other).await?.expect(200)?;
    let plain = json!({"metadata": {"name": "c"}});
    editor.post(PLANES, &plain).await?.expect(201)?;
    let key = rcgen::KeyPair::generate()?.public_key_pem();
    let credential = json!({"spec": {"user": "eve", "publicKey": key}});
    for (who, by, plane, status) in [
        ("editor", &editor, "a", 403),
        ("issuer", &issuer, "a", 201),
        ("issuer", &issuer, "b", 403),
    ] {
        let path = format!("{PLANES}/{plane}/credentials");
        let reply = by.post(&path, &credential).await?;
        match status {
            201 => {
                let issued = reply.expect(201)?;
                let pem = issued["status"]["certificate"].as_str().unwrap_or_default();
                ensure!(pem.contains("BEGIN CERTIFICATE"), "{issued}");
            }
            _ => reply
                .refuses(403, "cannot create")
                .with_context(|| format!("{who} at {plane}"))?,
        }
    }
    patch(&issuer, "a", &access)
        .await?
        .refuses(403, "cannot patch")?;
    Ok(())
}

async fn patch(client: &Client, plane: &str, body: &Value) -> Result<Reply> {
    let kind = "application/merge-patch+json";
    let path = format!("{PLANES}/{plane}");
    client
        .typed(Method::PATCH, &path, kind, body.to_string())
        .await
}
