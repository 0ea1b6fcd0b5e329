//! What a plane's record decides, with CAs and chains made here.

use super::*;
use crate::conformance::Ca;
use crate::token::{StaticToken, StaticTokens};
use crate::user::ALL_AUTHENTICATED;
use rcgen::{CertificateParams, DnType};
use std::time::Duration;

fn now() -> SystemTime {
    // Certificates of the helper are valid from 1975 to 4096.
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn root(ca: &Ca) -> Arc<RootAuthenticators> {
    let admin = StaticToken::new("root-token", UserInfo::new("admin", &[SYSTEM_MASTERS]));
    Arc::new(RootAuthenticators {
        clients: ClientCa::new(std::slice::from_ref(ca.root())).expect("a root"),
        bearer: Arc::new(StaticTokens::new(vec![admin])),
    })
}

fn granted(grants: Vec<Grant>) -> AccessRecord {
    AccessRecord {
        entry: Entry::Granted(grants),
        revoked: Vec::new(),
    }
}

fn grant(to: Grantee, groups: &[&str]) -> Grant {
    let groups = groups.iter().map(|group| Str::from(*group)).collect();
    Grant { to, groups }
}

fn anchored(ca: &Ca, until: Option<SystemTime>) -> OwnAuthenticators {
    OwnAuthenticators {
        clients: vec![Anchor::new(ca.root(), until).expect("a root")],
        named: None,
        tokens: None,
        issuers: None,
    }
}

fn named(ca: &Ca, name: &str, group: &str) -> ClientChain {
    ca.issue(|params: &mut CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    })
}

async fn by_token(access: &PlaneAccess, bearer: &str) -> Authentication {
    let credentials = Credentials {
        bearer: Some(bearer),
        chain: None,
        path: "/api",
        now: now(),
        source: 0,
    };
    access.authenticate(&credentials).await
}

#[tokio::test]
async fn a_user_of_the_root_enters_by_a_grant_and_not_as_himself() {
    let ca = Ca::new("root");
    let root = root(&ca);
    let jane = named(&ca, "jane", "dev");
    let masters = || Grantee::Group(SYSTEM_MASTERS.into());
    let entry = |grants: Vec<Grant>| {
        PlaneAccess::new("a", granted(grants), &root, OwnAuthenticators::default())
    };
    let none = entry(Vec::new());
    assert_eq!(none.identify(&jane, now()).user, Err(Denied::NotGranted));
    let refused = by_token(&none, "root-token").await;
    assert_eq!(refused, Authentication::Denied(Denied::NotGranted));

    let both = entry(vec![
        grant(masters(), &["all"]),
        grant(Grantee::User("jane".into()), &["readers", "x"]),
        grant(Grantee::Group("dev".into()), &["x", "writers"]),
    ]);
    let entered = both.identify(&jane, now()).user.expect("granted");
    assert_eq!(entered.name, "root:jane");
    assert_eq!(
        entered.groups,
        ["readers", "x", "writers", ALL_AUTHENTICATED]
    );
    assert!(!entered.is_foreign, "the plane's roles mean root:jane");
    for _ in 0..2 {
        let Authentication::User(admin) = by_token(&both, "root-token").await else {
            panic!("granted");
        };
        assert_eq!((&*admin.name, admin.groups.len()), ("root:admin", 2));
    }
    let other = named(&ca, "joe", "ops");
    assert_eq!(both.identify(&other, now()).user, Err(Denied::NotGranted));
}

#[tokio::test]
async fn a_record_of_an_earlier_release_admits_masters() {
    let ca = Ca::new("root");
    let record = AccessRecord {
        entry: Entry::Unspecified,
        revoked: Vec::new(),
    };
    let access = PlaneAccess::new("a", record, &root(&ca), OwnAuthenticators::default());
    let master = access.identify(&named(&ca, "joe", SYSTEM_MASTERS), now());
    let master = master.user.expect("admitted");
    assert_eq!((&*master.name, master.is_foreign), ("joe", false));
    let jane = access.identify(&named(&ca, "jane", "dev"), now());
    assert!(jane.user.expect("proven").is_foreign, "no role means her");
}

#[test]
fn a_plane_proves_its_own_users_only_as_long_as_its_ca_is_accepted() {
    let (root_ca, ca, other) = (Ca::new("root"), Ca::new("client CA"), Ca::new("client CA"));
    let root = root(&root_ca);
    let until = now() + Duration::from_secs(60);
    let access = PlaneAccess::new("a", granted(Vec::new()), &root, anchored(&ca, Some(until)));
    let jane = named(&ca, "jane", SYSTEM_MASTERS);
    let proven = access.identify(&jane, now());
    assert_eq!(proven.user.expect("its own").name, "jane");
    assert_eq!(proven.until, Some(until), "the verdict ends with the CA");
    assert!(access.identify(&jane, until).user.is_err());
    // Another plane's CA has the same name here, so only the key tells them apart. With the CA as an
    // intermediate the chain is no better, whoever signed it.
    let strangers = named(&other, "jane", SYSTEM_MASTERS);
    let mut long = strangers.certificates().to_vec();
    long.push(other.root().clone());
    for intermediate in [ca.root(), root_ca.root()] {
        let mut chain = long.clone();
        chain.push(intermediate.clone());
        let chain = ClientChain::possessed(&chain).expect("a leaf");
        assert!(access.identify(&chain, now()).user.is_err());
    }
    assert!(access.identify(&strangers, now()).user.is_err());
    // The CA itself is no client.
    let itself = ClientChain::possessed(std::slice::from_ref(ca.root())).expect("a leaf");
    assert!(access.identify(&itself, now()).user.is_err());
}

#[test]
fn a_leaf_without_the_usage_of_clients_is_refused() {
    let ca = Ca::new("client CA");
    let access = PlaneAccess::new(
        "a",
        granted(Vec::new()),
        &root(&Ca::new("root")),
        anchored(&ca, None),
    );
    let bare = ca.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.extended_key_usages.clear();
    });
    let refused = access.own.clients[0].verify(&bare, now()).err();
    let fault = Denied::Certificate(CertificateFault::NotForClients);
    assert_eq!(refused, Some(fault.clone()));
    assert_eq!(access.identify(&bare, now()).user, Err(fault));
}

/// A signer of an earlier release may have signed such a name.
#[test]
fn a_planes_own_ca_proves_no_user_of_the_root() {
    let ca = Ca::new("client CA");
    let access = PlaneAccess::new(
        "a",
        granted(Vec::new()),
        &root(&Ca::new("root")),
        anchored(&ca, None),
    );
    let forged = named(&ca, "root:admin", "dev");
    let refused = access.identify(&forged, now()).user;
    assert!(matches!(refused, Err(Denied::Reserved(_))), "{refused:?}");
    assert!(
        access.own_certificate(&forged, now()).is_err(),
        "nor is it renewed"
    );
    for name in ["root", "rooty:admin", "system:serviceaccount:a:b"] {
        let chain = named(&ca, name, "dev");
        assert_eq!(access.identify(&chain, now()).user.expect(name).name, name);
    }
}

#[test]
fn a_revocation_ends_what_was_issued_before_and_nothing_else() {
    let ca = Ca::new("client CA");
    let begins = |second: i64| {
        ca.issue(move |params| {
            params.distinguished_name.push(DnType::CommonName, "jane");
            let begins = SystemTime::UNIX_EPOCH + Duration::from_secs(second as u64);
            params.not_before = begins.into();
        })
    };
    let record = AccessRecord {
        revoked: vec![
            Revocation {
                user: "jane".into(),
                before: 1_600_000_000,
            },
            Revocation {
                user: "joe".into(),
                before: 1_650_000_000,
            },
        ],
        ..granted(Vec::new())
    };
    let access = PlaneAccess::new("a", record, &root(&Ca::new("root")), anchored(&ca, None));
    let old = access.identify(&begins(1_599_999_999), now()).user;
    assert_eq!(old, Err(Denied::Revoked));
    assert!(access.identify(&begins(1_600_000_000), now()).user.is_ok());
}

#[test]
fn whatever_changes_a_verdict_changes_the_fingerprint() {
    let (root_ca, ca) = (Ca::new("root"), Ca::new("client CA"));
    let root = root(&root_ca);
    let plain = || granted(Vec::new());
    let revoked = AccessRecord {
        revoked: vec![Revocation {
            user: "jane".into(),
            before: 5,
        }],
        ..plain()
    };
    let open = granted(vec![grant(Grantee::User("jane".into()), &["x"])]);
    let group = granted(vec![grant(Grantee::Group("jane".into()), &["x"])]);
    let variants = [
        ("a", plain(), anchored(&ca, None)),
        ("b", plain(), anchored(&ca, None)),
        ("a", plain(), anchored(&ca, Some(now()))),
        ("a", plain(), anchored(&Ca::new("client CA"), None)),
        ("a", plain(), OwnAuthenticators::default()),
        ("a", revoked, anchored(&ca, None)),
        ("a", open, anchored(&ca, None)),
        ("a", group, anchored(&ca, None)),
    ];
    let count = variants.len();
    let all: std::collections::HashSet<[u8; 32]> = variants
        .into_iter()
        .map(|(plane, record, own)| *PlaneAccess::new(plane, record, &root, own).fingerprint())
        .collect();
    assert_eq!(all.len(), count);
    let again = PlaneAccess::new("a", plain(), &root, anchored(&ca, None));
    assert!(all.contains(again.fingerprint()));
}

/// The plane's own tokens are asked only for what is no credential of the root.
#[tokio::test]
async fn the_planes_own_tokens_come_after_those_of_the_root() {
    let own = StaticTokens::new(vec![
        StaticToken::new("own-token", UserInfo::new("builder", &[])),
        StaticToken::new("root-token", UserInfo::new("thief", &[])),
    ]);
    let own = OwnAuthenticators {
        clients: Vec::new(),
        named: None,
        tokens: Some(Arc::new(own)),
        issuers: None,
    };
    let access = PlaneAccess::new("a", granted(Vec::new()), &root(&Ca::new("root")), own);
    let Authentication::User(user) = by_token(&access, "own-token").await else {
        panic!("its own");
    };
    assert_eq!(user.name, "builder");
    let refused = by_token(&access, "root-token").await;
    assert_eq!(refused, Authentication::Denied(Denied::NotGranted));
    let unknown = by_token(&access, "no-token").await;
    assert_eq!(unknown, Authentication::Denied(Denied::Token));
}

fn server_alone(user: &UserInfo) -> Option<String> {
    let is_reserved = user.name.starts_with(ROOT_USER_PREFIX) || user.in_group("given");
    is_reserved.then(|| "that".to_owned())
}

fn naming(own: &Ca, cas: &[&Ca]) -> OwnAuthenticators {
    let anchors = cas
        .iter()
        .map(|ca| Anchor::new(ca.root(), None).expect("a root"));
    OwnAuthenticators {
        named: Some(NamedClients {
            anchors: anchors.collect(),
            reserved: server_alone,
        }),
        ..anchored(own, None)
    }
}

#[test]
fn a_named_ca_proves_users_of_the_plane_that_names_it_alone() {
    let (root_ca, own, ca) = (Ca::new("root"), Ca::new("own"), Ca::new("named"));
    let root = root(&root_ca);
    let names = PlaneAccess::new("a", granted(Vec::new()), &root, naming(&own, &[&ca]));
    let other = PlaneAccess::new("b", granted(Vec::new()), &root, anchored(&own, None));
    let jane = named(&ca, "jane", SYSTEM_MASTERS);
    let proven = names.identify(&jane, now()).user.expect("of the named CA");
    assert_eq!(
        (&*proven.name, proven.in_group(SYSTEM_MASTERS)),
        ("jane", true)
    );
    assert!(other.identify(&jane, now()).user.is_err());
    assert!(root.clients.identify(&jane, now()).user.is_err());
    // The plane's own CA goes on, and the root's users go on entering by grants alone.
    assert!(
        names
            .identify(&named(&own, "jane", "dev"), now())
            .user
            .is_ok()
    );
    let by_root = names.identify(&named(&root_ca, "jane", "dev"), now());
    assert_eq!(by_root.user, Err(Denied::NotGranted));
    // A CA of the same name with another key, and a leaf that is for servers.
    let twin = Ca::new("named");
    assert!(
        names
            .identify(&named(&twin, "jane", "dev"), now())
            .user
            .is_err()
    );
    let bare = ca.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.extended_key_usages.clear();
    });
    assert!(names.identify(&bare, now()).user.is_err());
    // It makes nobody whom the server alone names, and nothing that outlives it.
    for (name, group) in [("root:jane", "dev"), ("jane", "given")] {
        let reserved = names.identify(&named(&ca, name, group), now());
        assert_eq!(reserved.user, Err(Denied::Reserved("that".to_owned())));
    }
    assert_eq!(names.own_certificate(&jane, now()), Err(Denied::Nothing));
    let without = PlaneAccess::new("a", granted(Vec::new()), &root, naming(&own, &[]));
    assert!(without.identify(&jane, now()).user.is_err());
    assert_ne!(without.fingerprint(), names.fingerprint());
}

#[test]
fn a_named_ca_is_accepted_while_it_is_valid_and_its_users_can_be_revoked() {
    let (root_ca, own, ca) = (Ca::new("root"), Ca::new("own"), Ca::new("named"));
    let root = root(&root_ca);
    let second = Duration::from_secs(1);
    let accepted = |from: SystemTime, until: SystemTime| {
        let anchor = Anchor::new(ca.root(), Some(until)).expect("a root");
        let mut own = naming(&own, &[]);
        own.named.as_mut().expect("named").anchors = vec![anchor.accepted_from(from)];
        own
    };
    let jane = named(&ca, "jane", "dev");
    let record = granted(Vec::new());
    for (from, until, admitted, again) in [
        (now(), now() + second, true, Some(now() + second)),
        (
            now() + second,
            now() + 2 * second,
            false,
            Some(now() + second),
        ),
        (now() - second, now(), false, None),
    ] {
        let access = PlaneAccess::new("a", record.clone(), &root, accepted(from, until));
        let identity = access.identify(&jane, now());
        assert_eq!(identity.user.is_ok(), admitted);
        if let Some(again) = again {
            assert_eq!(identity.until, Some(again));
        }
    }
    let record = AccessRecord {
        revoked: vec![Revocation {
            user: "jane".into(),
            before: i64::MAX,
        }],
        ..record
    };
    let access = PlaneAccess::new("a", record, &root, naming(&own, &[&ca]));
    assert_eq!(access.identify(&jane, now()).user, Err(Denied::Revoked));
    assert!(
        access
            .identify(&named(&ca, "joe", "dev"), now())
            .user
            .is_ok()
    );
}
