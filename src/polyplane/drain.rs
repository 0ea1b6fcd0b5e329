//! `polyplane drain`: makes a replica on this machine hand its planes over, and waits until it has.
//!
//! Meant for the hook that runs before a container is stopped: the image has no shell and no curl.

use crate::cli::DrainOptions;
use crate::plugin::client::{Answer, Client, Refusal};
use crate::plugin::config::Target;
use anyhow::{Context, anyhow, bail};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two attempts after a certificate error. A renewed file is seen at different
/// moments by the replica and by this process, so an immediate attempt would fail again.
const AGAIN: Duration = Duration::from_millis(500);
/// Attempts while the certificate is not trusted. One that is still not trusted after them is
/// wrong, and more attempts would only delay the end of the pod.
const TRIES_MAX: u32 = 6;

/// Requests the drain and waits for the replica's answer.
///
/// # Errors
/// Returns an error if the replica cannot be reached or is not drained in time.
pub fn run(options: DrainOptions) -> anyhow::Result<()> {
    crate::process::once(async move {
        let answer = ask(&options).await?;
        check(answer.code, &answer.text(), &options.server)?;
        println!("drained");
        Ok(())
    })
}

/// Checks that an answer says that the replica is drained.
///
/// # Errors
/// Returns the reason why it is not.
fn check(code: u16, text: &str, server: &str) -> anyhow::Result<()> {
    match code {
        200 => Ok(()),
        // Only a replica of a ring has the path.
        404 => bail!(
            "the server at {server} is alone, as `polyplane up` starts it: nobody could take its control \
             planes, so it needs no drain. Stop it with SIGTERM; it first answers what is in flight"
        ),
        code => bail!("the replica is not drained ({code}): {text}"),
    }
}

async fn ask(options: &DrainOptions) -> anyhow::Result<Answer> {
    let end = Instant::now() + Duration::from_secs(options.timeout);
    let mut tries = 1;
    loop {
        let client = Client::new(&target(options)?)?;
        let patience = end.saturating_duration_since(Instant::now());
        match client.ask("POST", "/drain", None, patience).await {
            Err(Refusal::Untrusted { .. }) if tries < TRIES_MAX && Instant::now() + AGAIN < end => {
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            Err(error @ Refusal::Untrusted { .. }) => {
                let folder = options.certs.display();
                return Err(error).context(format!(
                    "the replica does not use the certificates in --certs {folder}"
                ));
            }
            asked => return Ok(asked?),
        }
    }
}

/// Returns the replica as its folder describes it now.
fn target(options: &DrainOptions) -> anyhow::Result<Target> {
    let token = String::from_utf8(read(&options.certs.join("admin.token"))?);
    let mut target = Target::of_server(
        format!("https://{}", options.server),
        read(&options.certs.join("ca.crt"))?,
        token.context("admin.token is not text")?.trim().to_owned(),
    );
    let given = options.certs.join("serving.crt");
    if given.exists() {
        let certificate = CertificateDer::from_pem_slice(&read(&given)?);
        let certificate = certificate.with_context(|| format!("{} is not PEM", given.display()))?;
        target.own_certificate = Some(certificate);
    }
    Ok(target)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        anyhow!(
            "cannot read {}: {error}; --certs must name the folder that the replica was started with",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_alone_needs_no_drain() {
        let said = |code| check(code, "its words", "127.0.0.1:6443").map_err(|why| why.to_string());
        assert_eq!(said(200), Ok(()));
        let alone = said(404).expect_err("there is nobody to drain to");
        assert!(alone.contains("SIGTERM") && alone.contains("127.0.0.1:6443"));
        let failed = said(500).expect_err("not drained");
        assert!(failed.contains("500") && failed.contains("its words"));
    }
}
