//! Users of the root whom a client certificate proves: what they may do in the root and elsewhere.

use std::path::Path;

use anyhow::{Result, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

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
    std::fs::write(folder.join("user.crt"), leaf.pem())?;
    std::fs::write(folder.join("user.key"), key.serialize_pem())?;
    let text = std::fs::read_to_string(&server.kubeconfig)?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    for user in config["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({"client-certificate": "user.crt", "client-key": "user.key"});
    }
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Endpoint::from_kubeconfig(&path, None)
}

/// A certificate of the server proves a user of the root. Roles of another plane that name this user
/// or its groups mean others, even if they give everything.
#[tokio::test]
async fn a_user_of_the_root_is_nobody_in_another_plane() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let a = Client::open(&create_plane(&root, "a").await?).await?;
    let jane = as_user(&server, folder.path(), "jane", "dev")?;
    let in_root = Client::open(&jane).await?;
    let in_a = Client::open(&jane.at_base_path("/clusters/a")).await?;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = json!({"metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "jane"}, {"kind": "Group", "name": "dev"},
            {"kind": "Group", "name": "system:authenticated"}]});
    in_root
        .get(CONFIG_MAPS)
        .await?
        .refuses(403, "cannot list")?;
    a.post(bindings, &binding).await?.expect(201)?;
    in_a.get(CONFIG_MAPS).await?.refuses(403, "cannot list")?;
    in_root
        .get(CONFIG_MAPS)
        .await?
        .refuses(403, "cannot list")?;
    // The twins: the same binding in the root, and the plane's own jane.
    Client::open(&root)
        .await?
        .post(bindings, &binding)
        .await?
        .expect(201)?;
    in_root.get(CONFIG_MAPS).await?.expect(200)?;
    in_a.get(CONFIG_MAPS).await?.refuses(403, "cannot list")?;
    let review = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "list", "resource": "configmaps"}}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let reviewed = a.post(reviews, &review).await?.expect(201)?;
    ensure!(reviewed["status"]["allowed"] == true, "{reviewed}");
    Ok(())
}
