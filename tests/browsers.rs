//! What browsers get by flags: of the server, of a ring, and of the drop-in.

use std::process::Command;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Answer, Ask};
use polyplane_tests::drop_in::{DropIn, assets};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::create_plane;

const HSTS: &str = "--strict-transport-security-directives=max-age=31536000,includeSubDomains";
const ORIGINS: &str = r"--cors-allowed-origins=//console\.example\.com(:|$),^http://localhost$";
const ALLOWED: &str = "https://console.example.com";

async fn send(server: &Endpoint, method: Method, path: &str, origin: &str) -> Result<Answer> {
    let ask = Ask {
        method,
        path: path.to_owned(),
        headers: vec![("origin".to_owned(), origin.to_owned())],
        body: Bytes::new(),
    };
    Client::open(server).await?.raw(ask).await
}

/// Asks for a path as an administrator and as a stranger, from an allowed origin and from another one.
async fn check(server: &Endpoint, path: &str) -> Result<()> {
    let stranger = server.with_token(None);
    for (caller, origin, is_allowed) in [
        (server, ALLOWED, true),
        (server, "http://localhost", true),
        (server, "https://console.example.com.evil", false),
        (&stranger, ALLOWED, true),
    ] {
        let answer = send(caller, Method::GET, path, origin).await?;
        let header = |name: &str| answer.headers.get(name).and_then(|one| one.to_str().ok());
        let hsts = header("strict-transport-security");
        ensure!(
            hsts == Some("max-age=31536000; includeSubDomains"),
            "{path}: {answer:?}"
        );
        let allowed = header("access-control-allow-origin");
        ensure!(
            allowed == is_allowed.then_some(origin),
            "{path} {origin}: {answer:?}"
        );
    }
    let asked = send(&stranger, Method::OPTIONS, path, ALLOWED).await?;
    ensure!(asked.status == StatusCode::NO_CONTENT, "{path}: {asked:?}");
    Ok(())
}

#[tokio::test]
async fn browsers_get_what_the_flags_of_the_server_say() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = [HSTS, ORIGINS, "--replicas=2"];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    for plane in ["a", "b", "c"] {
        // Some of them belong to the replica to which the client is not connected.
        create_plane(&root, plane).await?;
        let plane = root.at_base_path(&format!("/clusters/{plane}"));
        check(&plane, "/api/v1/namespaces").await?;
    }
    check(&root, "/api").await
}

#[tokio::test]
async fn browsers_get_what_the_flags_of_the_drop_in_say() -> Result<()> {
    let flags = [HSTS, ORIGINS].map(str::to_owned);
    let (_drop_in, admin) = DropIn::start_for_admin(flags.into()).await?;
    for path in ["/", "/openapi/v2", "/apis/apps/v1", "/api/v1/namespaces"] {
        check(&admin, path).await?;
    }
    Ok(())
}

#[tokio::test]
async fn wrong_values_are_refused_in_upstreams_words() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (flag, words) in [
        (
            "--strict-transport-security-directives=always",
            "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload.",
        ),
        (
            "--cors-allowed-origins=example.com",
            "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of host",
        ),
    ] {
        let output = refused(&folder.path().join("data"), &[flag]).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(words), "{said}");
        let program = assets(folder.path())?.join("kube-apiserver");
        let output = Command::new(program).arg(flag).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(words), "{said}");
    }
    Ok(())
}
