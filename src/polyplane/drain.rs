//! `polyplane drain`: asks a replica of this machine to give its planes away, and waits.
//!
//! For the hook that runs before a container is stopped: the image has no shell and no curl.

use crate::cli::DrainOptions;
use crate::plugin::client::Client;
use crate::plugin::config::Target;
use anyhow::{Context, bail};
use std::time::Duration;

/// Asks and waits.
///
/// # Errors
/// If the replica cannot be asked or is not drained in time.
pub fn run(options: DrainOptions) -> anyhow::Result<()> {
    let read = |name: &str| {
        let path = options.certs.join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let token = String::from_utf8(read("admin.token")?).context("the token is not text")?;
    let target = Target::of_server(
        format!("https://{}", options.server),
        read("ca.crt")?,
        token.trim().to_owned(),
    );
    crate::process::once(async move {
        let client = Client::new(&target)?;
        let patience = Duration::from_secs(options.timeout);
        let answer = client.ask("POST", "/drain", None, patience).await?;
        match answer.code {
            200 => println!("drained"),
            code => bail!("not drained ({code}): {}", answer.text()),
        }
        Ok(())
    })
}
