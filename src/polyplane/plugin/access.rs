//! `kubectl plane kubeconfig`, `revoke`, `rotate`, `suspend` and `resume`: who may use a control plane.

use super::client::{Client, Refusal};
use super::config::{Kubeconfig, Target, UserKey};
use super::credentials::HeldCredential;
use super::print::{line, progress};
use super::{exists, path_of};
use crate::cli::access::{KubeconfigOptions, RevokeOptions, RotateOptions};
use anyhow::{Context, bail};
use polyplane_apimachinery::{Value, json};
use polyplane_auth::SYSTEM_MASTERS;
use polyplane_batteries::polyplane::access::{
    ACCOUNT_PREFIX, ADMINS, LIFETIME, LIFETIME_MAX, LIFETIME_MIN,
};
use polyplane_pki::ClientKey;
use std::sync::OnceLock;
use std::time::Duration;

/// Attempts of a change that others overtake. More would hide a controller that writes all the time.
const ATTEMPTS: usize = 5;
/// The user of `--admin`, unless another is named.
const ADMIN: &str = "admin";
/// What a rotation leaves to whoever made such Secrets: the server does not fill them anew.
const TOKEN_SECRETS: &str = "Secrets of type kubernetes.io/service-account-token still hold such tokens: delete \
    them, and make those anew that are needed";

/// Prints a kubeconfig for one control plane.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn kubeconfig(
    client: &Client,
    config: &Kubeconfig,
    target: &Target,
    options: &KubeconfigOptions,
) -> anyhow::Result<()> {
    let name = &options.name;
    check(options)?;
    if options.with_my_credentials {
        exists(client, name).await?;
        progress(&format!(
            "this kubeconfig holds your own credentials (user {:?}): whoever gets it can do in \
             every control plane what you can\n",
            target.user_name
        ));
        return Ok(line(config.for_plane(target, name)?.trim_end())?);
    }
    let user = match (&options.user, options.admin) {
        (Some(user), _) => user.as_str(),
        (None, true) => ADMIN,
        (None, false) => {
            exists(client, name).await?;
            bail!(
                "kubeconfig {name}: say for whom. For a user of this control plane alone, whose rights are \
             bound there: kubectl plane kubeconfig {name} --user NAME [--group GROUP] [--expires 8h]. \
             For an administrator of this control plane: kubectl plane kubeconfig {name} --admin. To \
             work in it yourself: kubectl plane use {name}"
            )
        }
    };
    let key = ClientKey::generate().context("cannot make a key")?;
    let wanted = wanted(options, user, &key.public)?;
    let path = format!("{}/credentials", path_of(name));
    let issued = client.send("POST", &path, Some(&wanted)).await?;
    let certificate = issued.str_at(&["status", "certificate"]);
    if certificate.is_empty() {
        bail!("the server answered without a certificate; is it older than this program?");
    }
    let held = HeldCredential::of(&issued, &key.private);
    if options.renewable.is_some()
        && held.renew_at.is_none()
        && options.renewable != options.expires
    {
        bail!(
            "the server issued a certificate that cannot be renewed; is it older than this program?"
        );
    }
    let renewed = match options.renewable {
        Some(_) => ", and renewed by `polyplane credentials` before that",
        None => "",
    };
    progress(&format!(
        "user {user:?} of control plane {name:?}, and of no other; valid until {}{renewed}. To end it \
         before: kubectl plane revoke {name} {user}\n",
        issued.str_at(&["status", "expirationTimestamp"])
    ));
    let own = UserKey {
        name: user,
        certificate,
        key: &key.private,
        renewed: options.renewable.map(|_| &held),
    };
    Ok(line(config.for_user(target, name, &own)?.trim_end())?)
}

/// Checks what the server would refuse in its own units and names.
fn check(options: &KubeconfigOptions) -> anyhow::Result<()> {
    if options.group.iter().any(|group| group == SYSTEM_MASTERS) {
        bail!(
            "--group: {SYSTEM_MASTERS:?} is reserved, because its members pass over all roles, for ever. For an \
             administrator of this control plane use --admin, which puts the user into {ADMINS:?}"
        );
    }
    if !options.group.is_empty() && options.user.is_none() && !options.admin {
        bail!("--group: a group needs a user; give --user NAME too");
    }
    let seconds = |given: Duration| i64::try_from(given.as_secs()).unwrap_or(i64::MAX);
    let lifetime = options.expires.map_or(LIFETIME, seconds);
    if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&lifetime) {
        bail!(
            "--expires: it must be between {LIFETIME_MIN}s and {}",
            shown(LIFETIME_MAX)
        );
    }
    let renewable = options.renewable.map(seconds);
    if renewable.is_some_and(|renewable| !(lifetime..=LIFETIME_MAX).contains(&renewable)) {
        let default = match options.expires {
            Some(_) => "",
            None => ", as --expires is not given",
        };
        bail!(
            "--renewable: it must be between the time of one certificate, {}{default}, and {}",
            shown(lifetime),
            shown(LIFETIME_MAX)
        );
    }
    Ok(())
}

/// Returns a number of seconds as it can be given, in the longest unit that fits.
fn shown(seconds: i64) -> String {
    let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm')];
    let whole = units.into_iter().find(|(unit, _)| seconds % unit == 0);
    let (unit, letter) = whole.unwrap_or((1, 's'));
    format!("{}{letter}", seconds / unit)
}

/// Returns the Credential to request.
fn wanted(options: &KubeconfigOptions, user: &str, public_key: &str) -> anyhow::Result<Value> {
    let mut groups: Vec<Value> = options.group.iter().map(Value::string).collect();
    if options.admin {
        groups.push(Value::string(ADMINS));
    }
    let mut wanted = json!({
        "apiVersion": "polyplane.dev/v1alpha1",
        "kind": "Credential",
        "metadata": {"name": (options.name.as_str())}
    });
    wanted.set(&["spec", "user"], user);
    wanted.set(&["spec", "groups"], groups);
    wanted.set(&["spec", "publicKey"], public_key);
    for (field, duration) in [
        ("expirationSeconds", options.expires),
        ("renewableSeconds", options.renewable),
    ] {
        if let Some(duration) = duration {
            wanted.set(&["spec", field], i64::try_from(duration.as_secs())?);
        }
    }
    if let Some(uid) = &options.uid {
        wanted.set(&["spec", "uid"], uid.as_str());
    }
    Ok(wanted)
}

/// Ends all credentials that a user of a control plane has now.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn revoke(client: &Client, options: &RevokeOptions) -> anyhow::Result<()> {
    let (name, user) = (&options.name, options.user.as_str());
    let plane = change(client, name, |plane| {
        let revoked = plane.items_at(&["spec", "access", "revoked"]).iter();
        let others = revoked.filter(|one| one.str_at(&["user"]) != user);
        let mut revoked: Vec<Value> = others.cloned().collect();
        // Without a time, the server writes its own.
        revoked.push(json!({"user": user}));
        plane.set(&["spec", "access", "revoked"], revoked);
    })
    .await?;
    Ok(line(&ended(name, user, &plane))?)
}

/// Returns what a revocation means, by what the server says of the plane.
fn ended(name: &str, user: &str, plane: &Value) -> String {
    let revoked = plane.items_at(&["spec", "access", "revoked"]).iter();
    let mut revoked = revoked.filter(|one| one.str_at(&["user"]) == user);
    let before = revoked.next().map(|one| one.str_at(&["before"]));
    let before = match before {
        Some(time) if !time.is_empty() => time,
        Some(_) | None => "now",
    };
    let later = match user.starts_with(ACCOUNT_PREFIX) {
        true => {
            ". The time is a few seconds ahead, because the clocks of replicas differ: the control plane accepts \
             new tokens of the account at once, others that check when a token was issued may refuse them until then"
        }
        false => "",
    };
    format!(
        "whatever was issued to user {user:?} of control plane {name:?} before {before} is refused at every \
         replica, and watches that it opened end{later}. The server keeps no list of users, so it does not know \
         whether there is one of that name"
    )
}

/// Replaces the keys of a control plane.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn rotate(client: &Client, options: &RotateOptions) -> anyhow::Result<()> {
    let name = &options.name;
    let overlap = match options.now {
        true => Duration::ZERO,
        false => options.overlap,
    };
    let overlap = i64::try_from(overlap.as_secs())?;
    let first = OnceLock::new();
    let plane = change(client, name, |plane| {
        let wanted = *first.get_or_init(|| generation(plane) + 1);
        set_rotation(plane, wanted, overlap);
    })
    .await?;
    Ok(line(&rotated(name, &plane))?)
}

fn generation(plane: &Value) -> i64 {
    let path = ["spec", "access", "keyGeneration"];
    plane.int_at(&path).unwrap_or_default()
}

/// Replaces the keys of a control plane, unless it has reached the generation `wanted` with that overlap. A
/// write can have landed although its answer is a conflict; another rotation would end what the first one keeps.
fn set_rotation(plane: &mut Value, wanted: i64, overlap: i64) {
    let known = generation(plane);
    let path = ["spec", "access", "keyOverlapSeconds"];
    if known >= wanted && plane.int_at(&path) == Some(overlap) {
        return;
    }
    plane.set(&["spec", "access", "keyGeneration"], known + 1);
    plane.set(&path, overlap);
}

/// Returns what the rotation of a control plane's keys means for earlier credentials, by what the server says
/// of the plane: without an overlap it names no time.
fn rotated(name: &str, plane: &Value) -> String {
    let replaced = format!("the keys of control plane {name:?} are replaced");
    let until = plane.str_at(&["status", "keys", "previousAcceptedUntil"]);
    if !until.is_empty() {
        return format!(
            "{replaced}; certificates and tokens of the earlier keys are accepted until {until}. {TOKEN_SECRETS}"
        );
    }
    let others = match plane.at(&["spec", "authentication"]) {
        Some(_) => {
            "; those of the CAs and issuers of spec.authentication are accepted as before, but for revoked users"
        }
        None => "",
    };
    format!(
        "{replaced}; no certificate or token of the earlier keys is accepted any more{others}. {TOKEN_SECRETS}"
    )
}

/// Suspends a control plane.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn suspend(client: &Client, name: &str) -> anyhow::Result<()> {
    update(client, name, |plane| {
        plane.set(&["spec", "suspended"], true)
    })
    .await?;
    let said = format!(
        "control plane {name:?} is suspended: requests are refused at every replica, and watches end. To \
         end it: kubectl plane resume {name}"
    );
    Ok(line(&said)?)
}

/// Ends the suspension of a control plane.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn resume(client: &Client, name: &str) -> anyhow::Result<()> {
    update(client, name, |plane| {
        drop(plane.remove(&["spec", "suspended"]))
    })
    .await?;
    Ok(line(&format!("control plane {name:?} can be used again"))?)
}

/// Changes a control plane as it is now. A plane of an earlier release, which admits the masters of
/// the root without saying so, says so afterwards.
async fn change(client: &Client, name: &str, change: impl Fn(&mut Value)) -> anyhow::Result<Value> {
    let change = |plane: &mut Value| {
        if plane.at(&["spec", "access"]).is_none() {
            let grant = json!({"group": "system:masters", "groups": ["system:masters"]});
            plane.set(&["spec", "access", "grants"], vec![grant]);
        }
        change(plane);
    };
    update(client, name, change).await
}

/// Changes a control plane as it is now.
///
/// # Errors
/// Returns the server's refusal.
pub async fn update(
    client: &Client,
    name: &str,
    change: impl Fn(&mut Value),
) -> anyhow::Result<Value> {
    let mut attempt = 1;
    loop {
        let mut plane = exists(client, name).await?;
        change(&mut plane);
        match client.send("PUT", &path_of(name), Some(&plane)).await {
            Err(Refusal::Status { code: 409, .. }) if attempt < ATTEMPTS => attempt += 1,
            done => return Ok(done?),
        }
    }
}

/// Reads a duration such as `8h`, `90m` or `1d12h`.
///
/// # Errors
/// Returns what is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let mut seconds = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit());
        let (number, unit) = rest.split_at(digits.ok_or(DurationError)?);
        let factor = match unit.chars().next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            _ => return Err(DurationError),
        };
        let number: u64 = number.parse().map_err(|_| DurationError)?;
        let part = number.checked_mul(factor).ok_or(DurationError)?;
        seconds = seconds.checked_add(part).ok_or(DurationError)?;
        rest = &unit[1..];
    }
    match text.is_empty() {
        true => Err(DurationError),
        false => Ok(Duration::from_secs(seconds)),
    }
}

/// A text that is no duration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("give numbers with the units s, m, h or d, such as 8h or 1d12h")]
pub struct DurationError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_says_which_credentials_are_still_accepted() {
        let mut plane =
            json!({"status": {"keys": {"previousAcceptedUntil": "2030-01-01T00:00:00Z"}}});
        let said = rotated("a", &plane);
        assert!(
            said.contains("are accepted until 2030-01-01T00:00:00Z. Secrets"),
            "{said}"
        );
        plane.remove(&["status", "keys", "previousAcceptedUntil"]);
        let said = rotated("a", &plane);
        assert!(
            said.contains(
                "no certificate or token of the earlier keys is accepted any more. Secrets"
            ),
            "{said}"
        );
        plane.set(&["spec", "authentication"], json!({"clientCAs": ["pem"]}));
        let said = rotated("a", &plane);
        assert!(
            said.contains("any more; those of the CAs and issuers"),
            "{said}"
        );
    }

    #[test]
    fn a_revocation_says_until_when_and_that_nobody_may_be_meant() {
        let mut plane = json!({"spec": {"access": {"revoked": [
            {"user": "joe", "before": "2020-01-01T00:00:00Z"},
            {"user": "jane", "before": "2030-01-01T00:00:00Z"}
        ]}}});
        let said = ended("a", "jane", &plane);
        assert!(
            said.contains(
                "issued to user \"jane\" of control plane \"a\" before 2030-01-01T00:00:00Z"
            ),
            "{said}"
        );
        assert!(said.contains("no list of users"), "{said}");
        assert!(!said.contains("tokens"), "{said}");
        let account = ended("a", "system:serviceaccount:default:builder", &plane);
        assert!(
            account.contains("accepts new tokens of the account at once"),
            "{account}"
        );
        plane.remove(&["spec"]);
        assert!(ended("a", "jane", &plane).contains("before now is refused"));
    }

    #[derive(Debug, clap::Parser)]
    enum Typed {
        Kubeconfig(KubeconfigOptions),
        Rotate(RotateOptions),
    }

    fn typed(words: &str) -> Result<Typed, String> {
        let words = std::iter::once("test").chain(words.split(' '));
        let typed = <Typed as clap::Parser>::try_parse_from(words);
        typed.map_err(|error| error.to_string())
    }

    fn checked(words: &str) -> Result<(), String> {
        match typed(&format!("kubeconfig a {words}"))? {
            Typed::Kubeconfig(options) => check(&options).map_err(|error| error.to_string()),
            Typed::Rotate(_) => unreachable!("these are options of a kubeconfig"),
        }
    }

    #[test]
    fn a_kubeconfig_that_the_server_would_refuse_is_refused_in_words_of_the_flags() {
        for (given, words) in [
            ("--user jane --group system:masters", "reserved"),
            ("--user jane --group system:masters", "use --admin"),
            ("--group dev", "a group needs a user"),
            ("--user jane --expires 0s", "between 60s and 366d"),
            ("--user jane --expires 59s", "between 60s and 366d"),
            ("--user jane --expires 400d", "between 60s and 366d"),
            (
                "--user jane --expires 2h --renewable 1h",
                "the time of one certificate, 2h, and 366d",
            ),
            (
                "--user jane --renewable 90s",
                "1d, as --expires is not given, and 366d",
            ),
            ("--user jane --renewable 367d", "and 366d"),
            ("--user jane --expires -1h", "units s, m, h or d"),
            ("--user jane --renewable -1h", "units s, m, h or d"),
        ] {
            let said = checked(given).expect_err(given);
            assert!(said.contains(words), "{given}: {said}");
            assert!(!said.contains("tip:"), "{given}: {said}");
        }
        for given in [
            "--user jane --group dev --expires 60s --renewable 60s",
            "--admin --group dev --expires 366d --renewable 366d",
            "--with-my-credentials",
        ] {
            assert_eq!(checked(given), Ok(()), "{given}");
        }
    }

    #[test]
    fn an_overlap_below_zero_is_refused_with_what_can_be_given() {
        let said = typed("rotate a --overlap -1h").expect_err("no duration");
        assert!(said.contains("units s, m, h or d"), "{said}");
        assert!(!said.contains("tip:"), "{said}");
        let Ok(Typed::Rotate(options)) = typed("rotate a --overlap 1h") else {
            panic!("it is a duration");
        };
        assert_eq!(options.overlap, Duration::from_secs(3_600));
    }

    #[test]
    fn seconds_are_shown_as_they_can_be_given() {
        for (seconds, text) in [(90, "90s"), (60, "1m"), (5_400, "90m"), (86_400, "1d")] {
            assert_eq!(shown(seconds), text);
        }
        assert_eq!(shown(LIFETIME_MAX), "366d");
    }

    #[test]
    fn a_rotation_that_has_landed_is_not_made_twice() {
        let mut plane = json!({"spec": {"access": {"grants": []}}});
        set_rotation(&mut plane, 1, 60);
        assert_eq!(generation(&plane), 1);
        let landed = plane.clone();
        set_rotation(&mut plane, 1, 60);
        assert_eq!(plane, landed);
        // Somebody else's rotation with another overlap is not this one.
        set_rotation(&mut plane, 1, 0);
        assert_eq!(generation(&plane), 2);
        let overlap = plane.int_at(&["spec", "access", "keyOverlapSeconds"]);
        assert_eq!(overlap, Some(0));
        // The next command makes the next keys.
        set_rotation(&mut plane, 3, 0);
        assert_eq!(generation(&plane), 3);
    }

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [
            ("8h", 28_800),
            ("90m", 5_400),
            ("1d12h", 129_600),
            ("5s", 5),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "8",
            "h",
            "8 h",
            "-1h",
            "1.5h",
            "8x",
            "99999999999999999999h",
        ] {
            assert_eq!(duration(text), Err(DurationError), "{text}");
        }
        assert_eq!(duration("9999999999999999999d"), Err(DurationError));
    }
}
