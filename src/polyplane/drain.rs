//! `polyplane drain`: makes a replica on this machine hand its planes over, and waits until it has.
//!
//! Meant for the hook that runs before a container is stopped: the image has no shell and no curl.

use crate::cli::DrainOptions;
use crate::plugin::client::{Answer, Client, Refusal};
use crate::plugin::config::Target;
use anyhow::{Context, anyhow, bail};
use polyplane_apimachinery::Value;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two attempts after an error of a certificate or a token. A renewed file is seen at
/// different moments by the replica and by this process, so an immediate attempt would fail again.
const AGAIN: Duration = Duration::from_millis(500);
/// Attempts while the certificate is not trusted. One that is still not trusted after them is
/// wrong, and more attempts would only delay the end of the pod.
const TRIES_MAX: u32 = 6;
/// How long the replica may refuse the token. It reads a replaced one within ten seconds, and accepts the
/// earlier one alone until then. A token that it still refuses after them is wrong.
const TOKEN_PATIENCE: Duration = Duration::from_secs(12);
/// The longest time in which the replica may say why it is not drained yet. A pod's end waits for it.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// Requests the drain and waits for the replica's answer.
///
/// # Errors
/// Returns an error if the replica cannot be reached or is not drained in time.
pub fn run(options: DrainOptions) -> anyhow::Result<()> {
    crate::process::once(async move {
        let answer = ask(&options).await?;
        check(answer.code, &answer.message(), &options.server)?;
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
        401 => bail!(
            "the replica at {server} does not accept the token in admin.token; --certs must name the folder that \
             the replica was started with"
        ),
        // Only a replica of a ring has the path.
        404 => bail!(
            "the server at {server} is alone, as `polyplane up` starts it: nobody could take its control \
             planes, so it needs no drain. Stop it with SIGTERM; it first answers what is in flight"
        ),
        code => bail!("the replica is not drained ({code}): {text}"),
    }
}

async fn ask(options: &DrainOptions) -> anyhow::Result<Answer> {
    let began = Instant::now();
    let end = began + Duration::from_secs(options.timeout);
    let (mut tries, mut has_said) = (1, false);
    loop {
        let client = Client::new(&target(options)?)?;
        let patience = end.saturating_duration_since(Instant::now());
        let asked = client.ask("POST", "/drain", None, patience).await;
        if may_change(&asked, tries, began.elapsed()) && Instant::now() + AGAIN < end {
            if asked.is_ok() && !has_said {
                has_said = true;
                let text = "the replica does not accept the token in admin.token yet; trying again";
                // The drain matters more than the line.
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            tries += 1;
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        match asked {
            Err(error @ Refusal::Untrusted { .. }) => {
                let folder = options.certs.display();
                return Err(error).context(format!(
                    "the replica does not use the certificates in --certs {folder}"
                ));
            }
            // It was reached, and has no answer yet: what it waits for says more than that.
            Err(error @ Refusal::Unreachable { .. }) if Instant::now() >= end => {
                return Err(match still_held(&client).await {
                    Some(held) => anyhow!(
                        "the replica at {} is not drained after {} s: {held}; it goes on until its --grace is over",
                        options.server,
                        options.timeout
                    ),
                    None => error.into(),
                });
            }
            asked => return Ok(asked?),
        }
    }
}

/// Returns whether another attempt may end otherwise, because the replica or this process may not have read a
/// renewed file yet. `waited` is the time since the first of the attempts.
fn may_change(asked: &Result<Answer, Refusal>, tries: u32, waited: Duration) -> bool {
    match asked {
        Err(Refusal::Untrusted { .. }) => tries < TRIES_MAX,
        Ok(answer) => answer.code == 401 && waited < TOKEN_PATIENCE,
        Err(Refusal::Status { .. } | Refusal::Unreachable { .. }) => false,
    }
}

/// Returns what the replica still holds and why, if it says so.
async fn still_held(client: &Client) -> Option<String> {
    let asked = client.send("GET", "/polyplane/drain", None);
    let report = tokio::time::timeout(REPORT_PATIENCE, asked).await.ok()?;
    held_in(&report.ok()?)
}

/// Returns what a report of the replica says that it holds.
fn held_in(report: &Value) -> Option<String> {
    let held = report.int_at(&["held"]).filter(|held| *held > 0)?;
    let because = match report.str_at(&["cause"]) {
        "" => String::new(),
        cause => format!(", because {cause}"),
    };
    Some(format!("it still holds {held} control planes{because}"))
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
    use bytes::Bytes;
    use polyplane_apimachinery::json;

    #[test]
    fn what_a_replica_still_holds_is_said_with_its_cause() {
        let said = |report: &str| {
            let parsed = json::parse(report.as_bytes(), &json::Limits::default());
            held_in(&parsed.expect("it is JSON").value)
        };
        assert_eq!(said(r#"{"held":0}"#), None);
        let known = said(r#"{"held":2}"#);
        assert_eq!(known.as_deref(), Some("it still holds 2 control planes"));
        let known = said(r#"{"held":2,"cause":"the store takes no writes"}"#);
        let known = known.expect("it holds some");
        assert!(known.ends_with("control planes, because the store takes no writes"));
    }

    #[test]
    fn a_refused_token_is_offered_until_the_replica_has_read_its_file_again() {
        let answered = |code, seconds| {
            let bytes = Bytes::new();
            let waited = Duration::from_secs(seconds);
            may_change(&Ok(Answer { code, bytes }), TRIES_MAX * 2, waited)
        };
        assert!(answered(401, 0) && answered(401, 11) && !answered(401, 12));
        assert!([200, 403, 404, 503].iter().all(|code| !answered(*code, 0)));
        let refused = check(401, "Unauthorized", "127.0.0.1:6443").expect_err("not drained");
        assert!(refused.to_string().contains("admin.token"), "{refused}");
    }

    #[test]
    fn what_keeps_a_replica_from_draining_is_shown_without_the_status_around_it() {
        let shown = |body: &'static str| {
            let bytes = Bytes::from_static(body.as_bytes());
            Answer { code: 503, bytes }.message()
        };
        let status = r#"{"kind":"Status","message":"nobody takes 9","code":503}"#;
        assert_eq!(shown(status), "nobody takes 9");
        assert_eq!(shown("no object\n"), "no object");
    }

    #[test]
    fn a_server_that_is_alone_needs_no_drain() {
        let said = |code| check(code, "its words", "127.0.0.1:6443").map_err(|why| why.to_string());
        assert_eq!(said(200), Ok(()));
        let alone = said(404).expect_err("there is nobody to drain to");
        assert!(alone.contains("SIGTERM") && alone.contains("127.0.0.1:6443"));
        let failed = said(503).expect_err("not drained");
        assert!(failed.contains("503") && failed.contains("its words"));
    }
}
