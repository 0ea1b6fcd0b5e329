//! `polyplane drain`: asks a replica of this machine to give its planes away, and waits.
//!
//! For the hook that runs before a container is stopped: the image has no shell and no curl.

use crate::cli::DrainOptions;
use crate::plugin::client::{Answer, Client, Refusal};
use crate::plugin::config::Target;
use anyhow::{Context, bail};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two tries with a certificate that was just renewed: the replica takes it up a little later
/// than this process, or the other way round.
const AGAIN: Duration = Duration::from_millis(500);
/// Tries to reach the replica. A certificate that is still refused then is a wrong one.
const TRIES_MAX: u32 = 6;

/// Asks and waits.
///
/// # Errors
/// If the replica cannot be asked or is not drained in time.
pub fn run(options: DrainOptions) -> anyhow::Result<()> {
    crate::process::once(async move {
        let answer = ask(&options).await?;
        match answer.code {
            200 => println!("drained"),
            code => bail!("not drained ({code}): {}", answer.text()),
        }
        Ok(())
    })
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
            asked => return Ok(asked?),
        }
    }
}

/// The replica, and what its folder says of it now.
fn target(options: &DrainOptions) -> anyhow::Result<Target> {
    let token = String::from_utf8(read(&options.certs.join("admin.token"))?);
    let mut target = Target::of_server(
        format!("https://{}", options.server),
        read(&options.certs.join("ca.crt"))?,
        token.context("the token is not text")?.trim().to_owned(),
    );
    let given = options.certs.join("serving.crt");
    if given.exists() {
        let certificate = CertificateDer::from_pem_slice(&read(&given)?);
        let certificate = certificate.with_context(|| format!("{} is no PEM", given.display()))?;
        target.own_certificate = Some(certificate);
    }
    Ok(target)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
