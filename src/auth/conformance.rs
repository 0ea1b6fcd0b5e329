//! Conformance tests: rules that every authenticator or authorizer must keep, each run over several
//! of them: alone, in a union, and with a delay.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls_pki_types::CertificateDer;

use crate::authorizer::Forbidden;
use crate::*;

fn day() -> Duration {
    Duration::from_secs(86_400)
}

pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names to reject");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("keys are generated");
        let root = params.self_signed(&key).expect("a root signs itself");
        Self {
            root: root.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    pub(crate) fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> ClientChain {
        let mut params = CertificateParams::new(Vec::new()).expect("no names to reject");
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("keys are generated");
        let leaf = params.signed_by(&key, &self.issuer).expect("the CA signs");
        ClientChain::possessed(&[leaf.der().clone()]).expect("there is a leaf")
    }

    fn admin(&self) -> ClientChain {
        self.issue(|params| {
            params.distinguished_name.push(DnType::CommonName, "admin");
            params
                .distinguished_name
                .push(DnType::OrganizationName, SYSTEM_MASTERS);
        })
    }
}

fn credentials<'a>(bearer: Option<&'a str>, chain: Option<&'a ClientChain>) -> Credentials<'a> {
    Credentials {
        bearer,
        chain,
        path: "/api/v1/pods",
        now: SystemTime::now(),
        source: 0,
    }
}

fn admin() -> UserInfo {
    UserInfo::new("admin", &[SYSTEM_MASTERS]).authenticated()
}

fn tokens() -> StaticTokens {
    StaticTokens::new(vec![
        StaticToken::new("other", UserInfo::new("bob", &[])),
        StaticToken::new("secret", admin()),
    ])
}

/// An authenticator that has to wait, like one that calls a webhook.
struct Slow(StaticTokens);

impl Authenticator for Slow {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        Verdict::later(async move {
            tokio::task::yield_now().await;
            self.0.authenticate(credentials).await
        })
    }
}

#[tokio::test]
async fn every_authenticator_knows_its_own_and_denies_the_forged() {
    let (ca, stranger) = (Ca::new("plane"), Ca::new("plane"));
    let (own, forged) = (ca.admin(), stranger.admin());
    let x509 = || Arc::new(ClientCa::new(std::slice::from_ref(&ca.root)).expect("a root"));
    let by_token: Vec<Arc<dyn Authenticator>> = vec![
        Arc::new(tokens()),
        Arc::new(ReplaceableToken::new("secret", admin())),
        Arc::new(Slow(tokens())),
        Arc::new(UnionAuthenticator::new(vec![x509(), Arc::new(tokens())])),
        Arc::new(UnionAuthenticator::new(vec![
            Arc::new(Slow(tokens())),
            x509(),
        ])),
    ];
    let by_chain: Vec<Arc<dyn Authenticator>> = vec![
        x509(),
        Arc::new(UnionAuthenticator::new(vec![Arc::new(tokens()), x509()])),
        Arc::new(UnionAuthenticator::new(vec![
            Arc::new(Slow(tokens())),
            x509(),
        ])),
    ];
    let cases = [
        (
            by_token,
            credentials(Some("secret"), None),
            credentials(Some("guess"), None),
        ),
        (
            by_chain,
            credentials(None, Some(&own)),
            credentials(None, Some(&forged)),
        ),
    ];
    for (authenticators, right, wrong) in cases {
        for authenticator in authenticators {
            let Authentication::User(user) = authenticator.authenticate(&right).await else {
                panic!("the right credentials were not accepted");
            };
            assert_eq!(user.name, "admin");
            assert!(user.in_group(SYSTEM_MASTERS) && user.in_group(ALL_AUTHENTICATED));
            let refused = authenticator.authenticate(&wrong).await;
            assert!(matches!(refused, Authentication::Denied(_)), "{refused:?}");
            let nothing = authenticator.authenticate(&credentials(None, None)).await;
            assert_eq!(nothing, Authentication::NoOpinion);
        }
    }
}

#[tokio::test]
async fn one_accepted_credential_outweighs_a_refused_one() {
    let (ca, stranger) = (Ca::new("plane"), Ca::new("other"));
    let forged = stranger.admin();
    let union = UnionAuthenticator::new(vec![
        Arc::new(ClientCa::new(std::slice::from_ref(&ca.root)).expect("a root")),
        Arc::new(tokens()),
    ]);
    let both = union
        .authenticate(&credentials(Some("secret"), Some(&forged)))
        .await;
    assert!(matches!(both, Authentication::User(_)), "{both:?}");
    let neither = union
        .authenticate(&credentials(Some("guess"), Some(&forged)))
        .await;
    assert!(
        matches!(neither, Authentication::Denied(Denied::Certificate(_))),
        "{neither:?}"
    );
}

#[test]
fn a_certificate_must_be_valid_now_and_meant_for_clients() {
    let ca = Ca::new("plane");
    let verifier = ClientCa::new(std::slice::from_ref(&ca.root)).expect("a root");
    let named = |params: &mut CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, "dora");
    };
    let expired = ca.issue(|params| {
        named(params);
        params.not_after = (SystemTime::now() - day()).into();
    });
    let serving = ca.issue(|params| {
        named(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let nameless = ca.issue(|_| {});
    for chain in [expired, serving, nameless] {
        assert!(verifier.identify(&chain, SystemTime::now()).user.is_err());
    }
    let good = ca.issue(|params| {
        named(params);
        params.not_after = (SystemTime::now() + day()).into();
    });
    let identity = verifier.identify(&good, SystemTime::now());
    assert_eq!(identity.user.expect("valid today").name, "dora");
    let until = identity.until.expect("it expires");
    assert!(until <= SystemTime::now() + day() + Duration::from_secs(1));
    let late = verifier.identify(&good, SystemTime::now() + day() * 2);
    assert!(late.user.is_err());
}

#[test]
fn a_judgement_holds_until_the_next_date_in_the_chain() {
    let ca = Ca::new("plane");
    let verifier = ClientCa::new(std::slice::from_ref(&ca.root)).expect("a root");
    let second = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let chain = ca.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, "dora");
        params.not_before = second(2_000_000_000).into();
        params.not_after = second(2_000_000_100).into();
    });
    for (now, is_valid, until) in [
        (1_999_999_999, false, Some(2_000_000_000)),
        (2_000_000_000, true, Some(2_000_000_101)),
        (2_000_000_100, true, Some(2_000_000_101)),
        (2_000_000_101, false, None),
    ] {
        let identity = verifier.identify(&chain, second(now));
        assert_eq!(identity.user.is_ok(), is_valid, "{now}");
        assert_eq!(identity.until, until.map(second), "{now}");
        assert!(identity.holds_at(second(now)), "{now}");
    }
}

#[test]
fn a_chain_that_would_be_much_work_is_known_by_its_length() {
    let ca = Ca::new("plane");
    let admin = ca.admin();
    let leaf = &admin.certificates()[0];
    let of = |count: usize| vec![ca.root.clone(); count];
    assert!(ClientChain::is_short(leaf, &of(0)));
    assert!(ClientChain::is_short(leaf, &of(4)));
    assert!(!ClientChain::is_short(leaf, &of(5)));
    let long = vec![0; 12_001 - leaf.len()].into();
    assert!(!ClientChain::is_short(leaf, &[long]));
}

#[test]
fn subject_attributes_become_name_groups_and_uid() {
    let ca = Ca::new("plane");
    let verifier = ClientCa::new(std::slice::from_ref(&ca.root)).expect("a root");
    let chain = ca.issue(|params| {
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, "eva");
        subject.push(DnType::OrganizationName, "team-a");
        subject.push(
            DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]),
            "u-1",
        );
        params.custom_extensions = vec![CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 4, 1, 57683, 99],
            vec![5, 0],
        )];
    });
    let user = verifier
        .identify(&chain, SystemTime::now())
        .user
        .expect("valid");
    let digest = hex(&digest_of(&chain.certificates()[0]));
    let id = format!("X509SHA256={digest}");
    assert_eq!(
        *user,
        UserInfo {
            name: "eva".into(),
            uid: "u-1".into(),
            groups: vec!["team-a".into(), ALL_AUTHENTICATED.into()],
            extra: vec![(CREDENTIAL_ID.into(), vec![id.into()])],
            is_foreign: false,
        }
    );
}

#[tokio::test]
async fn anonymous_requests_reach_public_paths_only() {
    let anonymous = Anonymous::public_paths();
    let at = |path| Credentials {
        path,
        ..credentials(None, None)
    };
    for path in ["/version", "/healthz", "/livez", "/readyz"] {
        let answer = anonymous.authenticate(&at(path)).await;
        assert!(matches!(answer, Authentication::User(user) if user.name == ANONYMOUS));
    }
    for path in [
        "/",
        "/api",
        "/healthz/etcd",
        "/readyz/",
        "/metrics",
        "/versionx",
    ] {
        let answer = anonymous.authenticate(&at(path)).await;
        assert_eq!(answer, Authentication::Denied(Denied::Nothing), "{path}");
    }
    let token = anonymous.authenticate(&credentials(Some("x"), None)).await;
    assert_eq!(token, Authentication::NoOpinion);
}

struct SlowAuthorizer(Arc<dyn Authorizer>);

impl Authorizer for SlowAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::later(async move {
            tokio::task::yield_now().await;
            self.0.authorize(attributes).await
        })
    }
}

/// Denies every request with a reason, like an authorizer with deny rules.
struct DenyWith(&'static str);

impl Authorizer for DenyWith {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(Decision::Deny(self.0.to_owned()))
    }
}

fn pods<'a>(user: &'a UserInfo, verb: &'a str) -> Attributes<'a> {
    Attributes {
        user,
        verb,
        subject: Subject::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace: "ns",
            name: "p",
            field_selector: "",
        },
    }
}

fn path<'a>(user: &'a UserInfo, path: &'a str) -> Attributes<'a> {
    Attributes {
        user,
        verb: "get",
        subject: Subject::Path(path),
    }
}

#[tokio::test]
async fn masters_may_do_everything() {
    let master = UserInfo::new("m", &[SYSTEM_MASTERS]).authenticated();
    let chains: Vec<Arc<dyn Authorizer>> = vec![
        Arc::new(Masters),
        Arc::new(AllowAll),
        Arc::new(SlowAuthorizer(Arc::new(Masters))),
    ];
    for chain in chains {
        assert_eq!(
            chain.authorize(&pods(&master, "delete")).await,
            Decision::Allow
        );
        assert_eq!(
            chain.authorize(&path(&master, "/metrics")).await,
            Decision::Allow
        );
    }
}

#[tokio::test]
async fn nobody_else_may_touch_a_resource() {
    let chains: Vec<Arc<dyn Authorizer>> = vec![
        Arc::new(Masters),
        Arc::new(PublicRules),
        Arc::new(DenyAll),
        Arc::new(SlowAuthorizer(Arc::new(Masters))),
        Arc::new(DenyWith("no")),
    ];
    let users = [
        UserInfo::new("u", &["team"]).authenticated(),
        UserInfo::anonymous(),
    ];
    for chain in chains {
        for user in &users {
            let decision = chain.authorize(&pods(user, "get")).await;
            assert_ne!(decision, Decision::Allow);
        }
    }
}

#[tokio::test]
async fn public_rules_are_those_of_a_fresh_cluster() {
    let member = UserInfo::new("u", &[]).authenticated();
    let anonymous = UserInfo::anonymous();
    let cases = [
        ("/version", true, true),
        ("/readyz", true, true),
        ("/readyz/ping", false, false),
        ("/api", true, false),
        ("/apis/apps/v1", true, false),
        ("/openapi/v3", true, false),
        ("/metrics", false, false),
        ("/", false, false),
    ];
    for (asked, by_member, by_anonymous) in cases {
        for (user, expected) in [(&member, by_member), (&anonymous, by_anonymous)] {
            let decision = PublicRules.authorize(&path(user, asked)).await;
            assert_eq!(
                decision == Decision::Allow,
                expected,
                "{asked} by {}",
                user.name
            );
        }
    }
    let post = Attributes {
        verb: "post",
        ..path(&member, "/version")
    };
    assert_ne!(PublicRules.authorize(&post).await, Decision::Allow);
}

#[test]
fn refusals_speak_as_clients_expect() {
    let user = UserInfo::new("u", &[]);
    let scoped = Forbidden::new(&pods(&user, "get"), "");
    assert_eq!(
        scoped.text,
        r#"User "u" cannot get resource "pods" in API group "" in the namespace "ns""#
    );
    assert_eq!((&*scoped.resource, &*scoped.name), ("pods", "p"));
    let cluster = Attributes {
        user: &user,
        verb: "patch",
        subject: Subject::Resource {
            group: "apps",
            version: "v1",
            resource: "deployments",
            subresource: "scale",
            namespace: "",
            name: "",
            field_selector: "",
        },
    };
    assert_eq!(
        Forbidden::new(&cluster, "no role").text,
        r#"User "u" cannot patch resource "deployments/scale" in API group "apps" at the cluster scope: no role"#
    );
    let odd = Forbidden::new(&path(&user, "/<x>\"\u{1}&"), "");
    assert_eq!(
        odd.text,
        r#"User "u" cannot get path "/&lt;x&gt;\"\x01&amp;""#
    );
    assert_eq!(odd.resource, "");
}
