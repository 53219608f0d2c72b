//! Forged and invalid tokens that resemble valid ones.
use serde_json::{Value, json};
use turnway_tests::real::provider::{ISSUER, Signer, base64, claims, seconds};

/// A description of the forgery, and the token.
pub(crate) type Forgery = (&'static str, String);

/// Returns all forgeries. The node knows the keys of both signers.
pub(crate) fn forged(rsa: &Signer, p256: &Signer) -> Vec<Forgery> {
    [bad_signatures(rsa, p256), bad_claims(p256)].concat()
}

pub(crate) fn with(mut claims: Value, name: &str, value: impl Into<Value>) -> Value {
    claims[name] = value.into();
    claims
}

pub(crate) fn without(mut claims: Value, name: &str) -> Value {
    claims.as_object_mut().expect("an object").remove(name);
    claims
}

/// Returns tokens with wrong or missing signatures.
fn bad_signatures(rsa: &Signer, p256: &Signer) -> Vec<Forgery> {
    let good = claims("ann");
    let mallory = Signer::p256("e");
    let token = p256.token(&good);
    let parts: Vec<&str> = token.split('.').collect();
    let head = parts[0];
    let body = parts[1];
    let signature = parts[2];
    let with_head = |head: Value| p256.with_head(&head, &good);
    let add = |name: &str, value: Value| with_head(with(p256.head(), name, value));
    // The RSA public key used as an HMAC secret: algorithm confusion.
    let hmac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, rsa.jwk()["n"].as_str().expect("n").as_bytes());
    let confused = format!("{}.{body}", base64(json!({"alg": "HS256", "kid": "r", "typ": "JWT"}).to_string()));
    let confused = format!("{confused}.{}", base64(aws_lc_rs::hmac::sign(&hmac, confused.as_bytes())));
    let none = |alg: &str| format!("{}.{body}.", base64(json!({"alg": alg, "kid": "e"}).to_string()));
    vec![
        ("nothing at all", "..".to_owned()),
        ("not signed: none", none("none")),
        ("not signed: None", none("None")),
        ("not signed, but says so of a key", format!("{head}.{body}.")),
        ("HMAC with the public key", confused),
        ("another's signature under the same name", mallory.token(&good)),
        ("a signature of zeros", format!("{head}.{body}.{}", base64([0; 64]))),
        ("half a signature", format!("{head}.{body}.{}", &signature[..40])),
        ("a signature with padding", format!("{token}==")),
        ("the signature of something else", format!("{head}.{}.{signature}", base64(claims("eve").to_string()))),
        ("signed with one key, named another", p256.with_head(&with(p256.head(), "kid", "o"), &good)),
        ("another algorithm than its key's", p256.with_head(&with(p256.head(), "alg", "RS256"), &good)),
        ("an algorithm that is not allowed", rsa.with_head(&with(rsa.head(), "alg", "RS512"), &good)),
        ("an algorithm in other letters", with_head(with(p256.head(), "alg", "es256"))),
        ("no kid", with_head(without(p256.head(), "kid"))),
        ("a kid that nobody has", add("kid", "nobodys".into())),
        ("a kid that is a path", add("kid", "../../../dev/null".into())),
        ("a kid that is a list", add("kid", json!(["e"]))),
        (
            "its own key along",
            mallory.with_head(&with(with(mallory.head(), "kid", "mine"), "jwk", mallory.jwk()), &good),
        ),
        ("its own keys' address along", mallory.with_head(&with(mallory.head(), "jku", "http://127.0.0.1:1/"), &good)),
        ("something critical that nobody knows", add("crit", json!(["exp"]))),
        ("of another kind", add("typ", "JWE".into())),
        ("four parts", format!("{token}.{signature}")),
        ("two parts", format!("{head}.{body}")),
        ("a space in it", format!("{head}.{body} .{signature}")),
    ]
}

/// Returns tokens with valid signatures and invalid claims.
fn bad_claims(signer: &Signer) -> Vec<Forgery> {
    let good = claims("ann");
    let raw = |head: &str, body: &str| signer.sign(&format!("{}.{}", base64(head), base64(body)));
    let spelled = good.to_string();
    let twice =
        format!("{},\"sub\":\"ann\"}}", spelled.replace("\"sub\":\"ann\"", "\"sub\":\"eve\"").trim_end_matches('}'));
    vec![
        ("no JSON", raw(&signer.head().to_string(), "ann")),
        ("two subjects", raw(&signer.head().to_string(), &twice)),
        ("two algorithms", raw(r#"{"alg":"none","alg":"ES256","kid":"e"}"#, &spelled)),
        ("another issuer", signer.token(&with(good.clone(), "iss", "https://id.example.com"))),
        ("no issuer", signer.token(&without(good.clone(), "iss"))),
        ("issuers", signer.token(&with(good.clone(), "iss", json!([ISSUER])))),
        ("for somebody else", signer.token(&with(good.clone(), "aud", "turnway2"))),
        ("for some others", signer.token(&with(good.clone(), "aud", json!(["a", "turnway "])))),
        ("for nobody", signer.token(&without(good.clone(), "aud"))),
        ("without an end", signer.token(&without(good.clone(), "exp"))),
        ("over", signer.token(&with(good.clone(), "exp", seconds(-40)))),
        ("an end in words", signer.token(&with(good.clone(), "exp", seconds(60).to_string()))),
        ("an end before all time", signer.token(&with(good.clone(), "exp", -1))),
        ("an end beyond all time", signer.token(&with(good.clone(), "exp", 1e300))),
        ("without a beginning", signer.token(&without(good.clone(), "nbf"))),
        ("not yet", signer.token(&with(good.clone(), "nbf", seconds(60)))),
        ("of nobody", signer.token(&without(good.clone(), "sub"))),
        ("of a user without a name", signer.token(&with(good.clone(), "sub", ""))),
        ("of an account of a platform", signer.token(&with(good.clone(), "sub", "channel:rooms/main"))),
        ("of a user that breaks lines", signer.token(&with(good.clone(), "sub", "ann\nbob"))),
        ("of a tenant that breaks keys", signer.token(&with(good.clone(), "tenant", "a}:b"))),
        ("of a tenant that is a number", signer.token(&with(good.clone(), "tenant", 7))),
        ("a scope of ours that is none", signer.token(&with(good.clone(), "scope", "turnway:root"))),
        ("scopes in a list", signer.token(&with(good.clone(), "scope", json!(["turnway:write"])))),
        ("too long", signer.token(&with(good, "x", "x".repeat(7000)))),
    ]
}
