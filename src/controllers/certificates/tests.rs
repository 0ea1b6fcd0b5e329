//! What signers accept, how long certificates live, and when requests are over.

use super::*;

fn request(subject: &[(rcgen::DnType, &str)], names: &[rcgen::SanType]) -> SigningRequest {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    params.subject_alt_names = names.to_vec();
    let key = rcgen::KeyPair::generate().expect("made");
    let request = params.serialize_request(&key).expect("encoded");
    SigningRequest::read(request.der()).expect("it is a request")
}

fn kubelet(names: &[rcgen::SanType]) -> SigningRequest {
    use rcgen::DnType::{CommonName, OrganizationName};
    request(
        &[(OrganizationName, NODES), (CommonName, "system:node:n1")],
        names,
    )
}

#[test]
fn a_signer_accepts_what_upstreams_accepts_and_says_what_is_wrong() {
    let dns = rcgen::SanType::DnsName("n1".try_into().expect("ASCII"));
    let email = rcgen::SanType::Rfc822Name("a@b".try_into().expect("ASCII"));
    let (client, serving) = (Signer::KubeletClient, Signer::KubeletServing);
    let of_client = ["client auth", "digital signature"];
    let of_server = ["server auth", "key encipherment", "digital signature"];
    assert_eq!(client.check(&kubelet(&[]), &of_client), Ok(()));
    assert_eq!(
        serving.check(&kubelet(std::slice::from_ref(&dns)), &of_server),
        Ok(())
    );
    for (signer, names, usages, why) in [
        (
            client,
            vec![dns.clone()],
            &of_client[..],
            "DNS subjectAltNames are not allowed",
        ),
        (
            client,
            vec![email.clone()],
            &of_client,
            "Email subjectAltNames are not allowed",
        ),
        (
            client,
            vec![],
            &of_server,
            "usages did not match [client auth digital signature key encipherment]",
        ),
        (
            serving,
            vec![],
            &of_server,
            "DNS or IP subjectAltName is required",
        ),
        (
            serving,
            vec![dns.clone(), email],
            &of_server,
            "Email subjectAltNames are not allowed",
        ),
        (
            serving,
            vec![dns],
            &of_client,
            "usages did not match [digital signature key encipherment server auth]",
        ),
    ] {
        let refused = signer.check(&kubelet(&names), usages);
        assert_eq!(refused, Err(why.to_owned()));
    }
    let nobody = request(&[(rcgen::DnType::OrganizationName, NODES)], &[]);
    let why = "subject common name does not begin with system:node:";
    assert_eq!(client.check(&nobody, &of_client), Err(why.to_owned()));
    let user = request(&[(rcgen::DnType::CommonName, "jane")], &[]);
    assert_eq!(Signer::Client.check(&user, &of_client), Ok(()));
    assert!(Signer::Client.check(&user, &["digital signature"]).is_err());
    assert!(
        Signer::Client
            .check(&user, &["cert sign", "client auth"])
            .is_err()
    );
}

#[test]
fn nobody_is_signed_the_name_of_a_user_of_the_root() {
    let named = |name: &str| {
        let user = request(&[(rcgen::DnType::CommonName, name)], &[]);
        Signer::Client.check(&user, &["client auth"])
    };
    let refused = named("root:admin").expect_err("refused");
    assert!(refused.contains("begins with root:"), "{refused}");
    for name in ["root", "rooty:admin", "system:serviceaccount:a:b"] {
        assert_eq!(named(name), Ok(()));
    }
}

#[test]
fn a_certificate_lives_as_long_as_requested_but_at_most_a_year() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let life = |seconds, revoked| {
        let valid = validity(now, seconds, revoked);
        let since = |time: SystemTime| time.duration_since(now).map(|past| past.as_secs());
        (valid.start, since(valid.end).expect("in the future"))
    };
    let begins = now - CREDENTIAL_BACKDATING;
    assert_eq!(life(None, None), (begins, 365 * 86_400 - 300));
    assert_eq!(life(Some(3600), None), (begins, 3600));
    assert_eq!(life(Some(8 * 3600), None), (begins, 8 * 3600 - 300));
    assert_eq!(life(Some(1), None), (begins, 600));
    assert_eq!(life(Some(i64::MAX), None), (begins, 365 * 86_400 - 300));
    // A certificate that began before the revocation would be refused.
    let revoked = now - Duration::from_secs(1);
    assert_eq!(life(Some(3600), Some(revoked)), (revoked, 3600));
}

#[test]
fn a_request_is_over_an_hour_after_it_is_settled_or_a_day_after_it_was_made() {
    let at = |seconds| Timestamp::from_seconds(seconds).to_rfc3339();
    let request = |kind: &str, certificate: &str| {
        let conditions = match kind {
            "" => Vec::new(),
            kind => vec![json!({"type": kind, "lastUpdateTime": (at(0))})],
        };
        json!({"metadata": {"creationTimestamp": (at(0))},
            "status": {"conditions": conditions, "certificate": certificate}})
    };
    for (kind, certificate, seconds) in [
        ("", "", PENDING_SECONDS),
        ("Approved", "", PENDING_SECONDS),
        ("Approved", "bm9uZQ==", SETTLED_SECONDS),
        ("Denied", "", SETTLED_SECONDS),
        ("Failed", "", SETTLED_SECONDS),
    ] {
        let request = request(kind, certificate);
        assert!(!is_over(&request, seconds), "{kind}");
        assert!(is_over(&request, seconds + 1), "{kind}");
    }
}
