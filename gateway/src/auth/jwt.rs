//! Verifies tokens of an identity provider (JWT, RFC 7519) with keys that were fetched before (S-02). A token's header
//! decides nothing: the algorithm follows from the key, and the keys' location from the configuration.
use super::jwks::KeySet;
use super::key::Scopes;
use super::keyring::Bearer;
use super::service_grants::ServiceGrants;
use crate::config::{IssuerConfig, SignatureAlgorithm};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use std::time::Duration;
use turnway_core::id::{TenantId, UserId};
use turnway_core::time::Millis;

/// Maximum size of a token; also the most that an unauthenticated client may send first.
const BYTES_MAX: usize = 8 * 1024;
/// Tolerated clock difference to the provider (S-02: at most 30 s).
pub const LEEWAY: Duration = Duration::from_secs(10);
/// Prefix of the scopes that are meant for a gateway.
const SCOPE_PREFIX: &str = "turnway:";

/// The identity that a valid token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSubject {
    /// From the claims `tenant`, `sub` and `scope`.
    pub bearer: Bearer,
    /// From the claim `exp`.
    pub ends: Millis,
}

/// The reason why a token is refused. For logs and metrics; the client learns only that the credential is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadToken {
    /// Not three parts of base64 with JSON and a signature.
    Form,
    /// The algorithm is not allowed, or a critical extension is unknown.
    Algorithm,
    /// The key is unknown.
    Key,
    /// The signature does not match the key.
    Signature,
    /// Issuer, audience, subject or another claim is wrong or missing.
    Claims,
    /// The token has expired or is not valid yet.
    Time,
}

/// The fields of a header that are read. Keys contained or referenced in a token are ignored.
#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
    kid: String,
    typ: Option<String>,
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct JwtClaims {
    iss: String,
    aud: JwtAudience,
    exp: f64,
    nbf: f64,
    sub: String,
    tenant: Option<String>,
    scope: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JwtAudience {
    One(String),
    Many(Vec<String>),
}

/// Verifies a token of this issuer.
pub fn verify(issuer: &IssuerConfig, token: &str, keys: &KeySet, now: Millis) -> Result<TokenSubject, BadToken> {
    let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Form)?;
    let (header, claims) = signed.split_once('.').ok_or(BadToken::Form)?;
    if token.len() > BYTES_MAX || claims.contains('.') {
        return Err(BadToken::Form);
    }
    let header: JwtHeader = decode_part(header)?;
    let is_jwt = |typ: &str| ["JWT", "at+jwt"].iter().any(|known| typ.eq_ignore_ascii_case(known));
    let algorithm = SignatureAlgorithm::from_name(&header.alg).filter(|known| issuer.algorithms.contains(known));
    if header.crit.is_some() || !header.typ.as_deref().is_none_or(is_jwt) {
        return Err(BadToken::Algorithm);
    }
    let algorithm = algorithm.ok_or(BadToken::Algorithm)?;
    let key = keys.get(&header.kid).ok_or(BadToken::Key)?;
    if key.algorithm() != algorithm {
        return Err(BadToken::Algorithm);
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| BadToken::Form)?;
    if !key.verifies(signed.as_bytes(), &signature) {
        return Err(BadToken::Signature);
    }
    // The token is authentic: no later error counts as a forged credential.
    subject(issuer, decode_part(claims).map_err(|_| BadToken::Claims)?, now)
}

fn subject(issuer: &IssuerConfig, claims: JwtClaims, now: Millis) -> Result<TokenSubject, BadToken> {
    let is_for_us = match &claims.aud {
        JwtAudience::One(one) => *one == issuer.audience,
        JwtAudience::Many(many) => many.contains(&issuer.audience),
    };
    if claims.iss != issuer.name || !is_for_us {
        return Err(BadToken::Claims);
    }
    let expires = parse_numeric_date(claims.exp)?;
    let begins = parse_numeric_date(claims.nbf)?;
    if expires.after(LEEWAY) <= now || now.after(LEEWAY) < begins {
        return Err(BadToken::Time);
    }
    let tenant = claims.tenant.as_deref().map_or_else(|| Ok(TenantId::default_tenant()), TenantId::parse);
    let tenant = tenant.map_err(|_| BadToken::Claims)?;
    let user = UserId::parse_person(&claims.sub);
    let scopes = scopes(claims.scope.as_deref().unwrap_or_default()).ok_or(BadToken::Claims)?;
    let serves = ServiceGrants::default();
    let bearer = Bearer { tenant, user: user.map_err(|_| BadToken::Claims)?, scopes, serves };
    Ok(TokenSubject { bearer, ends: expires })
}

/// Returns the key id that a token names, if it can be parsed.
pub fn key_id(token: &str) -> Option<String> {
    let (header, _) = token.split_once('.').filter(|_| token.len() <= BYTES_MAX)?;
    decode_part::<JwtHeader>(header).ok().map(|header| header.kid)
}

/// Decodes base64url (RFC 7515) and JSON. A repeated field is refused.
fn decode_part<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, BadToken> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| BadToken::Form)?;
    serde_json::from_slice(&bytes).map_err(|_| BadToken::Form)
}

/// Converts a NumericDate: seconds since 1970, whole or not.
fn parse_numeric_date(seconds: f64) -> Result<Millis, BadToken> {
    // A time after the year 9999 is a mistake.
    if !(0.0..253_402_300_800.0).contains(&seconds) {
        return Err(BadToken::Claims);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just looked at")]
    Ok(Millis((seconds * 1000.0) as u64))
}

/// Returns the scopes with our prefix; if there are none, the default scopes.
fn scopes(text: &str) -> Option<Scopes> {
    let ours: Vec<&str> = text.split(' ').filter_map(|word| word.strip_prefix(SCOPE_PREFIX)).collect();
    if ours.is_empty() { Some(Scopes::defaults()) } else { Scopes::parse(ours).ok() }
}
