//! JSON Web Signatures of the RFCs and of Project Wycheproof
//! (`json_web_signature_test.json` of C2SP/wycheproof at dac1dd4, Apache-2.0, one test a line).

use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use flate2::read::GzDecoder;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::jws::{Algorithm, CompactJws, JwsError, VerifyingKey};

fn bytes(text: &str) -> Vec<u8> {
    BASE64_URL_SAFE_NO_PAD.decode(text).expect("base 64")
}

/// Returns the key of a vector, if it is one for ES256 or RS256.
fn key_of(jwk: &Value) -> Option<VerifyingKey> {
    let part = |name| bytes(jwk.str_at(&[name]));
    match (jwk.str_at(&["kty"]), jwk.str_at(&["alg"])) {
        ("EC", "ES256") => {
            let point = [vec![4], part("x"), part("y")].concat();
            Some(VerifyingKey::es256(&point).expect("a point"))
        }
        ("RSA", "RS256") => Some(VerifyingKey::rs256(&part("n"), &part("e")).expect("a key")),
        _ => None,
    }
}

fn verified(token: &str, key: &VerifyingKey) -> Result<Vec<u8>, JwsError> {
    CompactJws::parse(token)?.verify(key)
}

fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/wycheproof_jws.jsonl.gz");
    let file = std::fs::File::open(path).expect("the vectors are there");
    let mut text = String::new();
    let mut expanded = GzDecoder::new(file);
    expanded.read_to_string(&mut text).expect("it is text");
    let limits = json::Limits::default();
    let parse = |line: &str| json::parse(line.as_bytes(), &limits).expect("JSON").value;
    text.lines().map(parse).collect()
}

/// Vectors of Wycheproof that are refused though they are valid, with the reason.
const STRICTER: [(&str, &str); 1] = [("emptyPayload", "a token without claims proves nobody")];

#[test]
fn wycheproof_tokens_are_accepted_only_under_the_algorithm_of_the_key() {
    let vectors = vectors();
    let some_key = {
        let first = vectors.iter().find_map(|vector| key_of(&vector["key"]));
        first.expect("a key")
    };
    let (mut accepted, mut refused, mut other) = (0, 0, 0);
    for vector in &vectors {
        let (id, jws) = (&vector["id"], vector.str_at(&["jws"]));
        let comment = vector.str_at(&["comment"]);
        if vector.str_at(&["key", "use"]) == "enc" || comment == "rejectWrongKeyOps" {
            // What a key is for is not read from a key set here.
            other += 1;
            continue;
        }
        let key = key_of(&vector["key"]);
        let outcome = verified(jws, key.as_ref().unwrap_or(&some_key));
        let is_stricter = STRICTER.iter().any(|(name, _)| *name == comment);
        if key.is_some() && vector.str_at(&["result"]) == "valid" && !is_stricter {
            assert!(outcome.is_ok(), "{id:?} {comment}: {outcome:?}");
            accepted += 1;
        } else {
            assert!(outcome.is_err(), "{id:?} {comment}: accepted");
            refused += 1;
        }
    }
    println!("wycheproof: {accepted} accepted, {refused} refused, {other} of keys for another use");
    for (name, reason) in STRICTER {
        println!("refused though valid: {name}: {reason}");
    }
    assert_eq!(accepted + refused + other, vectors.len());
    assert_eq!((accepted, refused, other), (9, 388, 4));
}

#[test]
fn the_examples_of_rfc_7515_are_verified_or_refused() {
    let rsa = VerifyingKey::rs256(&bytes(RFC_MODULUS), &bytes("AQAB")).expect("a key");
    let payload = verified(RFC_RS256, &rsa).expect("A.2 is signed by the key");
    assert!(payload.starts_with(b"{\"iss\":\"joe\""));
    let point = [vec![4], bytes(RFC_X), bytes(RFC_Y)].concat();
    let curve = VerifyingKey::es256(&point).expect("a key");
    assert_eq!(verified(RFC_ES256, &curve).expect("A.3 is signed"), payload);
    // A.1 is signed with HS256, A.5 not at all; A.3 is not RSA's, A.2 not of the curve.
    let refusals = [
        (RFC_HS256, &rsa, JwsError::Algorithm),
        (RFC_HS256, &curve, JwsError::Algorithm),
        (RFC_NONE, &rsa, JwsError::Form),
        (RFC_NONE, &curve, JwsError::Form),
        (RFC_ES256, &rsa, JwsError::Algorithm),
        (RFC_RS256, &curve, JwsError::Algorithm),
        (RFC_ES512, &curve, JwsError::Algorithm),
    ];
    for (token, key, why) in refusals {
        assert_eq!(verified(token, key), Err(why), "{token}");
    }
    assert_eq!(curve.algorithm(), Algorithm::Es256);
}

#[test]
fn a_key_in_a_key_set_is_the_key_of_its_thumbprint() {
    let rsa = VerifyingKey::rs256(&bytes(RFC_MODULUS), &bytes("AQAB")).expect("a key");
    let mut out = Vec::new();
    rsa.write_jwk(&mut out);
    let shown = json::parse(&out, &json::Limits::default()).expect("JSON");
    let shown = shown.value;
    assert_eq!(shown.str_at(&["n"]), RFC_MODULUS);
    assert_eq!(shown.str_at(&["kid"]), rsa.id());
    assert!(VerifyingKey::rs256(&[0xff; 128], &[1, 0, 1]).is_err());
    assert!(VerifyingKey::es256(&[4; 65]).is_err());
    assert!(VerifyingKey::es256(&[]).is_err());
}

const RFC_HS256: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const RFC_NONE: &str = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.";
const RFC_ES512: &str = "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA.AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn";
const RFC_X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
const RFC_Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
const RFC_ES256: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const RFC_MODULUS: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const RFC_RS256: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
