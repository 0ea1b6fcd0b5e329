//! `spec.access` of a ControlPlane: which users of the root may enter the plane, whose credentials
//! ended early, and which generation of keys signs for it.
//!
//! A plane of an earlier release has no `spec.access`; a new one gets a grant for the masters of the
//! root, which can be read and removed.

use crate::polyplane::not_read_by_all;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, FieldErrorKind, Path};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{ALL_UNAUTHENTICATED, ROOT_USER_PREFIX, SYSTEM_MASTERS};
use polyplane_auth::{AccessRecord, Entry, Grant, Grantee, KeyGeneration, Revocation};

/// The group of the administrators that a plane has by itself. A binding of the layer, which can be
/// removed, gives it the role `cluster-admin`.
pub const ADMINS: &str = "polyplane:cluster-admins";
/// Grants of one plane. Each request of a user of the root is compared with all of them.
const GRANTS_MAX: usize = 64;
/// Groups of one grant.
const GROUPS_MAX: usize = 32;
/// Revocations of one plane. Each replica holds those of all planes in memory.
const REVOKED_MAX: usize = 256;
/// Bytes of the name of a user or group.
const NAME_BYTES_MAX: usize = 256;
/// The life of a credential whose request does not say another, in seconds.
pub const LIFETIME: i64 = 86_400;
/// The shortest life of a credential, in seconds. With less, a slow clock would refuse it at once.
pub const LIFETIME_MIN: i64 = 60;
/// The longest life of a credential that the server issues to a user, in seconds: a year. A revocation older
/// than that ends none of them that has not ended by itself.
pub const LIFETIME_MAX: i64 = 366 * 86_400;
/// Seconds by which a revocation of a service account's tokens is dated ahead. Another replica than the
/// one that dates revocations issues tokens, and its clock may be ahead; without this, the tokens of so
/// many seconds would outlive the revocation. Tokens that are issued meanwhile bear that later time.
/// Less than a minute, by which verifiers let clocks differ.
const TOKENS_AHEAD: i64 = 20;
/// The beginning of the names of service accounts.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Seconds for which the CA of the previous generation is accepted, unless the spec says otherwise:
/// the usual life of a credential.
const OVERLAP: i64 = 86_400;

/// What a directory record says about access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneAccessSpec {
    /// Who may enter, and whose credentials ended.
    pub record: AccessRecord,
    /// The generation of the keys that sign.
    pub generation: KeyGeneration,
    /// The second since 1970 until which the previous generation is accepted.
    pub previous_until: Option<i64>,
}

/// Returns what the directory keeps of a ControlPlane's access, issuers, limits and suspension: the JSON of
/// the members, as stored. Empty if the record says nothing.
pub(crate) fn raw(body: &[u8]) -> Vec<u8> {
    let part = |path: &[&str]| json::scan::find(body, path).map(|range| &body[range]);
    let (access, keys) = (part(&["spec", "access"]), part(&["status", "keys"]));
    let limits = part(&["spec", "limits"]);
    let authentication = part(&["spec", "authentication"]);
    let suspended = part(&["spec", "suspended"]);
    if [access, keys, limits, authentication, suspended]
        .iter()
        .all(Option::is_none)
    {
        return Vec::new();
    }
    let mut out = b"{\"access\":".to_vec();
    out.extend_from_slice(access.unwrap_or(b"null"));
    out.extend_from_slice(b",\"keys\":");
    out.extend_from_slice(keys.unwrap_or(b"null"));
    let others = [
        ("limits", limits),
        ("authentication", authentication),
        ("suspended", suspended),
    ];
    for (name, value) in others {
        if let Some(value) = value {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            out.extend_from_slice(value);
        }
    }
    out.push(b'}');
    out
}

impl PlaneAccessSpec {
    /// Reads what the directory keeps of a ControlPlane's access. What cannot be read admits nobody
    /// from the root.
    #[must_use]
    pub fn read(raw: &[u8]) -> Self {
        let tree = match raw {
            b"" => Value::object(),
            raw => json::parse(raw, &json::Limits::default())
                .map_or_else(|_| json!({"access": {}}), |parsed| parsed.value),
        };
        Self::of_parts(&tree)
    }

    /// Reads a ControlPlane.
    #[must_use]
    pub fn of(plane: &Value) -> Self {
        let part = |path: &[&str]| plane.at(path).cloned().unwrap_or_default();
        Self::of_parts(&json!({
            "access": (part(&["spec", "access"])),
            "keys": (part(&["status", "keys"]))
        }))
    }

    /// Reads `spec.access` and `status.keys`.
    fn of_parts(tree: &Value) -> Self {
        let generation = tree.int_at(&["keys", "generation"]).unwrap_or_default();
        Self {
            record: AccessRecord {
                entry: match tree.get("access").filter(|access| !access.is_null()) {
                    None => Entry::Unspecified,
                    Some(access) => Entry::Granted(grants(access)),
                },
                revoked: revoked(&tree["access"]),
            },
            generation: KeyGeneration(u32::try_from(generation).unwrap_or_default()),
            previous_until: seconds(tree.str_at(&["keys", "previousAcceptedUntil"])),
        }
    }
}

fn grants(access: &Value) -> Vec<Grant> {
    let grants = access.items_at(&["grants"]).iter();
    grants
        .filter_map(|grant| {
            let (user, group) = (grant.str_at(&["user"]), grant.str_at(&["group"]));
            let to = match (user.is_empty(), group.is_empty()) {
                (false, true) => Grantee::User(user.into()),
                (true, false) => Grantee::Group(group.into()),
                (false, false) | (true, true) => return None,
            };
            let groups = grant.items_at(&["groups"]).iter();
            Some(Grant {
                to,
                groups: groups.filter_map(Value::as_str).map(Str::from).collect(),
            })
        })
        .collect()
}

fn revoked(access: &Value) -> Vec<Revocation> {
    let items = access.items_at(&["revoked"]).iter();
    items
        .filter_map(|item| {
            Some(Revocation {
                user: item.str_at(&["user"]).into(),
                before: seconds(item.str_at(&["before"]))?,
            })
        })
        .collect()
}

fn seconds(time: &str) -> Option<i64> {
    Timestamp::parse(time).ok().map(|time| time.seconds)
}

fn time(seconds: i64) -> String {
    Timestamp::from_seconds(seconds).to_rfc3339()
}

/// Gives a new plane the grant for the masters of the root, unless its creator says who may enter.
pub(crate) fn prepare_create(object: &mut Value, now: i64) {
    if object.at(&["spec", "access"]).is_none() {
        let grant = json!({"group": SYSTEM_MASTERS, "groups": [SYSTEM_MASTERS]});
        object.set(&["spec", "access", "grants"], vec![grant]);
    }
    date_revocations(object, &Value::Null, now);
    remember_others(object, &Value::Null);
}

/// Dates new revocations, and the end of the keys of the previous generation.
pub(crate) fn prepare_update(object: &mut Value, old: &Value, now: i64) {
    date_revocations(object, old, now);
    match old.at(&["status", "keys"]) {
        Some(keys) => object.set(&["status", "keys"], keys.clone()),
        None => drop(object.remove(&["status", "keys"])),
    }
    remember_others(object, old);
    let generation = generation(object);
    if generation == self::generation(old) {
        return;
    }
    let overlap = object.int_at(&["spec", "access", "keyOverlapSeconds"]);
    object.set(&["status", "keys", "generation"], generation);
    match overlap.unwrap_or(OVERLAP) {
        // No time at all: at a replica whose clock is behind, the present one would be in the future.
        0 => {
            drop(object.remove(&["status", "keys", "previousAcceptedUntil"]));
            drop_moot_revocations(object, old, now);
        }
        overlap => {
            let until = time(now + overlap);
            object.set(&["status", "keys", "previousAcceptedUntil"], until);
        }
    }
}

/// True once the plane has named client CAs or issuers.
const TRUSTED_OTHERS: [&str; 3] = ["status", "keys", "trustedOthers"];

fn generation(object: &Value) -> i64 {
    let path = ["spec", "access", "keyGeneration"];
    object.int_at(&path).unwrap_or_default()
}

/// Returns whether a plane accepts, or has ever accepted, credentials that its own keys have not signed: those
/// of the client CAs and issuers that it names. It may name them again.
fn trusts_others(plane: &Value) -> bool {
    plane.at(&["spec", "authentication"]).is_some() || plane.bool_at(&TRUSTED_OTHERS)
}

/// Notes for good that the plane accepts credentials of others.
fn remember_others(object: &mut Value, old: &Value) {
    if trusts_others(object) || trusts_others(old) {
        object.set(&TRUSTED_OTHERS, true);
    }
}

fn is_account(user: &str) -> bool {
    user.starts_with(ACCOUNT_PREFIX)
}

fn set_revocations(object: &mut Value, revoked: Vec<Value>) {
    let path = ["spec", "access", "revoked"];
    match revoked.is_empty() {
        true => drop(object.remove(&path)),
        false => object.set(&path, revoked),
    }
}

/// Drops the revocations that ended nothing but credentials of earlier keys, when no earlier key is accepted
/// any more. What the new keys sign is younger than those revocations, so they could end nothing of it.
///
/// Those of users whom others may prove stay, because their credentials outlive the plane's keys. No other
/// ever proves a service account. Those that are dated ahead stay too: they end what the new keys sign.
fn drop_moot_revocations(object: &mut Value, old: &Value, now: i64) {
    let trusts_others = trusts_others(object) || trusts_others(old);
    let still_matters = |item: &Value| {
        let is_account = is_account(item.str_at(&["user"]));
        // The server itself dates those of accounts ahead.
        let latest = if is_account { now + TOKENS_AHEAD } else { now };
        let before = seconds(item.str_at(&["before"]));
        (trusts_others && !is_account) || before.is_none_or(|before| before > latest)
    };
    let revoked = object.items_at(&["spec", "access", "revoked"]).iter();
    let kept = revoked.filter(|item| still_matters(item)).cloned();
    let kept = kept.collect();
    set_revocations(object, kept);
}

/// Gives each revocation without a time the present one, and drops those that end nothing any more: they
/// are older than the longest life of what the server issues to users. Those of service accounts stay, whose
/// tokens may have no end, and those of users whom others may prove, for as long as those like.
///
/// A certificate is revoked if it becomes valid before that second. The next certificate of the user
/// becomes valid in it at the earliest, so the same user can have a new one at once.
fn date_revocations(object: &mut Value, old: &Value, now: i64) {
    let items = object.items_at(&["spec", "access", "revoked"]);
    if items.is_empty() {
        return;
    }
    let trusts_others = trusts_others(object) || trusts_others(old);
    let before = |user: &str| {
        let known = revoked(&old["spec"]["access"]);
        let known = known.into_iter().filter(|one| one.user == user);
        known.map(|one| one.before).max()
    };
    let dated = items.iter().filter_map(|item| {
        let mut item = item.clone();
        let is_account = is_account(item.str_at(&["user"]));
        if let Some(given) = seconds(item.str_at(&["before"])) {
            let is_kept = is_account || trusts_others || given > now - LIFETIME_MAX;
            return is_kept.then_some(item);
        }
        let earlier = before(item.str_at(&["user"]));
        let now = if is_account { now + TOKENS_AHEAD } else { now };
        // A second later than before, or what was issued since the last revocation would stay valid.
        let from = now.max(earlier.map_or(now, |earlier| earlier + 1));
        item.set(&["before"], time(from));
        Some(item)
    });
    let dated = dated.collect();
    set_revocations(object, dated);
}

/// Returns what is wrong with `spec.access`. Before all programs of the ring read it, it may not be
/// set: an older one would ignore it.
pub(crate) fn errors(
    object: &Value,
    old: Option<&Value>,
    (is_read_by_all, now): (bool, i64),
) -> Complaints {
    let path = Path::new("spec");
    let path = path.child("access");
    let Some(access) = object.at(&["spec", "access"]) else {
        // Without it the first keys would sign again, and prove whom a rotation has ended.
        return key_errors(object, old, &path, now);
    };
    if !is_read_by_all {
        return Complaints::from([not_read_by_all(&path)]);
    }
    let mut errors = Complaints::default();
    let grants = access.items_at(&["grants"]);
    if grants.len() > GRANTS_MAX {
        errors.push(FieldError::too_many(
            &path.child("grants"),
            grants.len(),
            GRANTS_MAX,
        ));
        return errors;
    }
    for (at, grant) in grants.iter().enumerate() {
        let path = path.child("grants");
        grant_errors(grant, &path.index(at), &mut errors);
    }
    let revoked = access.items_at(&["revoked"]);
    if revoked.len() > REVOKED_MAX {
        let path = path.child("revoked");
        errors.push(too_many_revoked(object, &path, revoked.len()));
        return errors;
    }
    for (at, item) in revoked.iter().enumerate() {
        let path = path.child("revoked");
        name_errors(
            item.str_at(&["user"]),
            &path.index(at).child("user"),
            &mut errors,
        );
    }
    errors.extend(key_errors(object, old, &path, now));
    errors
}

/// Returns what is wrong with the generation of keys of `spec.access`, which is `path`.
fn key_errors(object: &Value, old: Option<&Value>, path: &Path<'_>, now: i64) -> Complaints {
    let mut errors = Complaints::default();
    let overlap = object.int_at(&["spec", "access", "keyOverlapSeconds"]);
    let overlap = overlap.unwrap_or_default();
    if !(0..=LIFETIME_MAX).contains(&overlap) {
        let why = "must be between 0 and a year";
        let path = path.child("keyOverlapSeconds");
        errors.push(FieldError::invalid(&path, overlap, why));
    }
    let (new, known) = (generation(object), old.map_or(0, generation));
    if new != known && (old.is_none() || new != known + 1 || new > i64::from(u16::MAX)) {
        let why = format!("may be {known}, or {} to rotate the keys", known + 1);
        errors.push(FieldError::invalid(&path.child("keyGeneration"), new, why));
    } else if let Some(why) = old.and_then(|old| ends_too_early(object, old, now)) {
        errors.push(FieldError::forbidden(&path.child("keyGeneration"), why));
    }
    errors
}

/// Returns why the keys are not replaced once more: a plane accepts one earlier generation beside its own, so the one
/// before that would end, although the rotation that replaced it has said how long it is accepted.
fn ends_too_early(object: &Value, old: &Value, now: i64) -> Option<String> {
    let overlap = object.int_at(&["spec", "access", "keyOverlapSeconds"]);
    if generation(object) == generation(old) || overlap == Some(0) {
        return None;
    }
    let until = old.str_at(&["status", "keys", "previousAcceptedUntil"]);
    seconds(until).filter(|until| *until > now)?;
    let name = object.str_at(&["metadata", "name"]);
    Some(format!(
        "credentials of the keys before the present ones are accepted until {until}, and this rotation would end \
         them; rotate after that, or run `kubectl plane rotate {name} --now` (keyOverlapSeconds: 0), which ends \
         the credentials of all earlier keys"
    ))
}

/// Returns the refusal of so many revocations, which says how to make room.
fn too_many_revoked(object: &Value, path: &Path<'_>, count: usize) -> FieldError {
    let name = object.str_at(&["metadata", "name"]);
    let rest = match trusts_others(object) {
        true => ", but for users whom the CAs and issuers of spec.authentication may prove",
        false => "",
    };
    let why = format!(
        "must have at most {REVOKED_MAX} items; take out users whose credentials have all expired, or run \
         `kubectl plane rotate {name} --now`, which ends everybody's credentials of the control plane's own \
         keys and empties the list{rest}"
    );
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    FieldError::new(FieldErrorKind::TooMany, path, count, why)
}

fn grant_errors(grant: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (user, group) = (grant.str_at(&["user"]), grant.str_at(&["group"]));
    match (user.is_empty(), group.is_empty()) {
        (false, true) => name_errors(user, &path.child("user"), errors),
        (true, false) => name_errors(group, &path.child("group"), errors),
        (true, true) => {
            let why = "name a user or a group of the root plane";
            errors.push(FieldError::required(&path.child("user"), why));
        }
        (false, false) => {
            let why = "name a user or a group, not both";
            errors.push(FieldError::invalid(&path.child("group"), group, why));
        }
    }
    let groups = grant.items_at(&["groups"]);
    if groups.len() > GROUPS_MAX {
        errors.push(FieldError::too_many(
            &path.child("groups"),
            groups.len(),
            GROUPS_MAX,
        ));
        return;
    }
    for (at, group) in groups.iter().enumerate() {
        let path = path.child("groups");
        name_errors(group.as_str().unwrap_or_default(), &path.index(at), errors);
    }
}

/// Complains about the name of a user or group.
pub(crate) fn name_errors(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    if name.is_empty() {
        errors.push(FieldError::required(path, "a name is needed"));
    } else if name.len() > NAME_BYTES_MAX {
        errors.push(FieldError::too_long(path, NAME_BYTES_MAX));
    } else if name.chars().any(char::is_control) {
        let why = "may not contain control characters";
        errors.push(FieldError::invalid(path, name, why));
    }
}

/// Returns the beginning of a user's name that the server alone gives, if the name has one.
pub(crate) fn reserved_user(user: &str) -> Option<&'static str> {
    let reserved = [ROOT_USER_PREFIX, ACCOUNT_PREFIX, "system:anonymous"];
    reserved.into_iter().find(|prefix| user.starts_with(prefix))
}

/// Returns whether the server alone puts users into a group.
pub(crate) fn reserved_group(group: &str) -> bool {
    is_given(group) || group == SYSTEM_MASTERS
}

pub(crate) fn is_given(group: &str) -> bool {
    group.starts_with("system:serviceaccounts") || group == ALL_UNAUTHENTICATED
}

/// Complains about the name of a user for whom a credential is wanted: the server gives some names
/// itself, so a certificate with one would be taken for another kind of credential.
pub fn credential_errors(user: &str, groups: &[&str]) -> Complaints {
    let path = Path::new("spec");
    let mut errors = Complaints::default();
    name_errors(user, &path.child("user"), &mut errors);
    if let Some(reserved) = reserved_user(user) {
        let why = format!("names that begin with {reserved:?} are given by the server alone");
        errors.push(FieldError::invalid(&path.child("user"), user, why));
    }
    if groups.len() > GROUPS_MAX {
        errors.push(FieldError::too_many(
            &path.child("groups"),
            groups.len(),
            GROUPS_MAX,
        ));
        return errors;
    }
    for (at, group) in groups.iter().enumerate() {
        let path = path.child("groups");
        let path = path.index(at);
        name_errors(group, &path, &mut errors);
        if is_given(group) {
            let why = "the server alone puts users into this group";
            errors.push(FieldError::invalid(&path, *group, why));
        }
        if *group == SYSTEM_MASTERS {
            let why = format!("its members pass over all roles, for ever; use {ADMINS:?}");
            errors.push(FieldError::invalid(&path, *group, why));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: &Value) -> PlaneAccessSpec {
        let spec = PlaneAccessSpec::read(&raw(&json::to_vec(object)));
        assert_eq!(spec, PlaneAccessSpec::of(object), "bytes and tree agree");
        spec
    }

    fn grant(to: Grantee, groups: &[&str]) -> Grant {
        let groups = groups.iter().map(|group| Str::from(*group)).collect();
        Grant { to, groups }
    }

    #[test]
    fn a_new_plane_admits_masters_by_a_grant_and_an_old_one_without() {
        let mut plane = json!({"metadata": {"name": "a"}});
        assert_eq!(read(&plane).record.entry, Entry::Unspecified);
        prepare_create(&mut plane, 100);
        let masters = Grantee::Group(SYSTEM_MASTERS.into());
        let granted = Entry::Granted(vec![grant(masters, &[SYSTEM_MASTERS])]);
        assert_eq!(read(&plane).record.entry, granted);
        let mut closed = json!({"spec": {"access": {}}});
        prepare_create(&mut closed, 100);
        assert_eq!(read(&closed).record.entry, Entry::Granted(Vec::new()));
        let damaged = PlaneAccessSpec::read(b"{\"access\":");
        assert_eq!(damaged.record.entry, Entry::Granted(Vec::new()));
    }

    fn revoking(users: &[&str], old: &Value, now: i64) -> Value {
        let known = old.items_at(&["spec", "access", "revoked"]).iter();
        let others = known.filter(|one| !users.contains(&one.str_at(&["user"])));
        let mut revoked: Vec<Value> = others.cloned().collect();
        revoked.extend(users.iter().map(|user| json!({"user": (*user)})));
        let mut plane = old.clone();
        plane.set(&["spec", "access", "revoked"], revoked);
        prepare_update(&mut plane, old, now);
        plane
    }

    #[test]
    fn a_revocation_is_later_than_the_one_before_and_goes_after_a_year() {
        let start = json!({"spec": {"access": {"grants": []}}});
        let once = revoking(&["jane"], &start, 1_000);
        let before = |plane: &Value, user: &str| read(plane).record.revoked_before(user);
        assert_eq!(before(&once, "jane"), Some(1_000));
        assert_eq!(before(&once, "joe"), None);
        let twice = revoking(&["jane"], &once, 1_000);
        assert_eq!(before(&twice, "jane"), Some(1_001));
        let both = revoking(&["joe"], &twice, 5_000);
        assert_eq!(before(&both, "jane"), Some(1_001));
        assert_eq!(before(&both, "joe"), Some(5_000));
        let later = revoking(&["ann"], &both, 1_002 + LIFETIME_MAX);
        assert_eq!(before(&later, "jane"), None);
        let account = "system:serviceaccount:ci:builder";
        let account_ended = revoking(&[account], &start, 1_000);
        assert_eq!(before(&account_ended, account), Some(1_000 + TOKENS_AHEAD));
        let kept = revoking(&["ann"], &account_ended, 1_002 + 10 * LIFETIME_MAX);
        assert_eq!(before(&kept, account), Some(1_000 + TOKENS_AHEAD));
        assert_eq!(before(&later, "joe"), Some(5_000));
    }

    fn users(plane: &Value) -> Vec<String> {
        let revoked = read(plane).record.revoked;
        let users = revoked.iter().map(|one| one.user.as_str().to_owned());
        users.collect()
    }

    #[test]
    fn keys_that_are_replaced_at_once_leave_the_revocations_that_still_matter() {
        const ACCOUNT: &str = "system:serviceaccount:ci:builder";
        let start = json!({"spec": {"access": {"grants": []}}});
        let mut old = revoking(&["jane", ACCOUNT], &start, 1_000);
        let rotated = |old: &Value, overlap: i64| {
            let mut plane = old.clone();
            plane.set(&["spec", "access", "keyGeneration"], generation(old) + 1);
            plane.set(&["spec", "access", "keyOverlapSeconds"], overlap);
            prepare_update(&mut plane, old, 1_000);
            plane
        };
        // With an overlap the earlier key is accepted, and without a rotation all keys are.
        let overlapping = rotated(&old, 60);
        assert_eq!(users(&overlapping), ["jane", ACCOUNT]);
        let mut same = old.clone();
        same.set(&["spec", "access", "keyOverlapSeconds"], 0_i64);
        prepare_update(&mut same, &old, 1_000);
        assert_eq!(users(&same), ["jane", ACCOUNT]);
        for earlier in [&old, &overlapping] {
            let at_once = rotated(earlier, 0);
            assert_eq!(users(&at_once), [""; 0]);
            assert!(at_once.at(&["spec", "access", "revoked"]).is_none());
        }
        // One that is new in the same write ends nothing either.
        let mut with_joe = old.clone();
        with_joe.set(&["spec", "access", "revoked"], vec![json!({"user": "joe"})]);
        let joe_too = rotated(&with_joe, 0);
        assert_eq!(users(&joe_too), [""; 0]);
        // Certificates of a named CA and tokens of an issuer prove nobody less, whichever record names them.
        let authentication = json!({"clientCAs": ["pem"]});
        let mut trusting = old.clone();
        trusting.set(&["spec", "authentication"], authentication);
        assert_eq!(users(&rotated(&trusting, 0)), ["jane"]);
        let mut ending = trusting.clone();
        ending.remove(&["spec", "authentication"]);
        ending.set(&["spec", "access", "keyGeneration"], 1_i64);
        ending.set(&["spec", "access", "keyOverlapSeconds"], 0_i64);
        prepare_update(&mut ending, &trusting, 1_000);
        assert_eq!(users(&ending), ["jane"]);
        // They may be named again, and would prove her again.
        assert_eq!(users(&rotated(&ending, 0)), ["jane"]);
        // A time ahead ends what the new keys sign.
        let ahead = |user: &str, second: i64| json!({"user": user, "before": (time(second))});
        old.set(
            &["spec", "access", "revoked"],
            vec![ahead("jane", 1_001), ahead(ACCOUNT, 1_001 + TOKENS_AHEAD)],
        );
        assert_eq!(users(&rotated(&old, 0)), ["jane", ACCOUNT]);
    }

    #[test]
    fn a_full_list_says_how_to_make_room_and_takes_one_more_for_one_that_has_ended() {
        let names: Vec<String> = (0..REVOKED_MAX).map(|at| format!("user-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let start = json!({"metadata": {"name": "a"}, "spec": {"access": {"grants": []}}});
        let full = revoking(&names, &start, 1_000);
        assert_eq!(
            errors(&full, Some(&start), (true, 1_000)),
            Complaints::default()
        );
        let said = |plane: &Value, now: i64| {
            let more = revoking(&["one-more"], plane, now);
            let errors = errors(&more, Some(plane), (true, 1_000));
            let said: Vec<String> = errors.iter().map(FieldError::body).collect();
            (users(&more).len(), said.concat())
        };
        let (_, refused) = said(&full, 2_000);
        for words in ["257: must have at most 256", "kubectl plane rotate a --now"] {
            assert!(refused.contains(words), "{refused}");
        }
        assert!(!refused.contains("spec.authentication"), "{refused}");
        let a_year_later = 1_000 + LIFETIME_MAX;
        assert_eq!(said(&full, a_year_later), (1, String::new()));
        // What others have signed may last longer than a year.
        let mut trusting = full.clone();
        trusting.set(&["spec", "authentication"], json!({"clientCAs": ["pem"]}));
        let (count, refused) = said(&trusting, a_year_later);
        assert_eq!(count, REVOKED_MAX + 1);
        assert!(refused.contains("spec.authentication"), "{refused}");
    }

    #[test]
    fn keys_are_replaced_one_generation_at_a_time() {
        let start = json!({"spec": {"access": {"grants": []}}});
        let with = |generation: i64, overlap: i64| {
            let mut plane = start.clone();
            plane.set(&["spec", "access", "keyGeneration"], generation);
            plane.set(&["spec", "access", "keyOverlapSeconds"], overlap);
            plane
        };
        let mut next = with(1, 60);
        assert_eq!(
            errors(&next, Some(&start), (true, 1_000)),
            Complaints::default()
        );
        prepare_update(&mut next, &start, 1_000);
        let spec = read(&next);
        assert_eq!(spec.generation, KeyGeneration(1));
        assert_eq!(spec.previous_until, Some(1_060));
        let mut at_once = with(1, 0);
        prepare_update(&mut at_once, &start, 1_000);
        assert_eq!(read(&at_once).previous_until, None);
        // A later write moves neither, and no client sets them.
        let mut same = next.clone();
        same.set(&["status", "keys", "generation"], 9_i64);
        prepare_update(&mut same, &next, 9_000);
        assert_eq!(read(&same), spec);
        // Nor do keys that have ended come back with a record that says nothing.
        let silent = json!({"metadata": {"name": "a"}});
        let refused = errors(&silent, Some(&next), (true, 1_059));
        let refused: Vec<String> = refused.iter().map(FieldError::body).collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(refused[0].contains("may be 1, or 2"), "{refused:?}");
        assert_eq!(
            errors(&silent, Some(&start), (true, 1_060)),
            Complaints::default()
        );
        for (generation, old) in [(3, Some(&next)), (0, Some(&next)), (-1, None), (1, None)] {
            assert_eq!(
                errors(&with(generation, 0), old, (true, 1_000)).len(),
                1,
                "{generation}"
            );
        }
    }

    #[test]
    fn a_rotation_ends_no_credentials_that_the_one_before_has_promised() {
        let start = json!({"metadata": {"name": "a"}, "spec": {"access": {}}});
        let rotated = |old: &Value, overlap: Option<i64>| {
            let mut plane = old.clone();
            plane.set(&["spec", "access", "keyGeneration"], generation(old) + 1);
            drop(plane.remove(&["spec", "access", "keyOverlapSeconds"]));
            if let Some(overlap) = overlap {
                plane.set(&["spec", "access", "keyOverlapSeconds"], overlap);
            }
            plane
        };
        let mut first = rotated(&start, Some(60));
        prepare_update(&mut first, &start, 1_000);
        for overlap in [None, Some(1), Some(60)] {
            let second = rotated(&first, overlap);
            let refused = errors(&second, Some(&first), (true, 1_059));
            let [refused] = &refused[..] else {
                panic!("{overlap:?}: {refused:?}");
            };
            let said = refused.body();
            assert!(
                said.contains("1970-01-01T00:17:40Z") && said.contains("rotate a --now"),
                "{said}"
            );
            assert_eq!(
                errors(&second, Some(&first), (true, 1_060)),
                Complaints::default()
            );
        }
        let at_once = rotated(&first, Some(0));
        assert_eq!(
            errors(&at_once, Some(&first), (true, 1_001)),
            Complaints::default()
        );
        assert_eq!(
            errors(&first, Some(&first), (true, 1_001)),
            Complaints::default()
        );
    }

    #[test]
    fn an_earlier_release_must_not_be_able_to_join() {
        let plane = json!({"spec": {"access": {}}});
        let refused = errors(&plane, None, (false, 1_000));
        assert!(refused[0].body().contains("--raise-floor"), "{refused:?}");
        assert_eq!(
            errors(&json!({"spec": {}}), None, (false, 1_000)),
            Complaints::default()
        );
    }

    #[test]
    fn a_credential_names_nobody_whom_the_server_names() {
        for (user, groups) in [
            ("", &[][..]),
            ("root:jane", &[]),
            ("system:serviceaccount:a:b", &[]),
            ("system:anonymous", &[]),
            ("jane\n", &[]),
            ("jane", &["system:masters"]),
            ("jane", &["system:serviceaccounts:a"]),
            ("jane", &["system:unauthenticated"]),
            ("jane", &[""]),
        ] {
            assert_eq!(
                credential_errors(user, groups).len(),
                1,
                "{user:?} {groups:?}"
            );
        }
        let node = credential_errors("system:node:n", &["system:nodes", ADMINS]);
        assert_eq!(node, Complaints::default());
        let many = vec!["x"; GROUPS_MAX + 1];
        assert_eq!(credential_errors("jane", &many).len(), 1);
    }
}
