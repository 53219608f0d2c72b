//! Tokens of an identity provider: JWTs (RFC 7519), held against keys that were fetched before (S-02).
//!
//! What a token says of itself decides nothing: neither how it is to be verified, which follows from the key, nor
//! where that key is, which the operator has said.
use super::jwks::KeySet;
use super::key::Scopes;
use super::keyring::Bearer;
use super::serves::Serves;
use crate::config::{Algorithm, Issuer};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use std::time::Duration;
use turnway_core::id::{TenantId, UserId};
use turnway_core::time::Millis;

/// No token is longer; what a client may send first is not either.
const BYTES_MAX: usize = 8 * 1024;
/// Clocks of machines that trust each other differ by less (S-02: at most 30 s).
pub const LEEWAY: Duration = Duration::from_secs(10);
/// What scopes that are meant for a gateway begin with.
const OURS: &str = "turnway:";

/// Who a token is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its `tenant`, its `sub`, and what its `scope` says of what concerns a gateway.
    pub bearer: Bearer,
    /// `exp`.
    pub ends: Millis,
}

/// Why a token is not good. For logs and metrics; whoever shows it is told only that it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadToken {
    /// It is not three parts of JSON and a signature.
    Form,
    /// It is signed in a way that is not allowed, or wants something that is not known.
    Algorithm,
    /// By a key that nobody has.
    Key,
    /// Not by that key.
    Signature,
    /// It is for somebody else, or of somebody else, or does not say of whom.
    Claims,
    /// It is over, or has not begun.
    Time,
}

/// What is read of a header. Keys that a token brings along, or names, are not looked at.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
    typ: Option<String>,
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    exp: f64,
    nbf: f64,
    sub: String,
    tenant: Option<String>,
    scope: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

/// Decides about a token of this issuer.
pub fn verify(issuer: &Issuer, token: &str, keys: &KeySet, now: Millis) -> Result<Subject, BadToken> {
    let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Form)?;
    let (header, claims) = signed.split_once('.').ok_or(BadToken::Form)?;
    if token.len() > BYTES_MAX || claims.contains('.') {
        return Err(BadToken::Form);
    }
    let header: Header = read(header)?;
    let is_jwt = |typ: &str| ["JWT", "at+jwt"].iter().any(|known| typ.eq_ignore_ascii_case(known));
    let algorithm = Algorithm::named(&header.alg).filter(|known| issuer.algorithms.contains(known));
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
    // It is the provider's: whatever is wrong with it from here on, nobody has forged it.
    subject(issuer, read(claims).map_err(|_| BadToken::Claims)?, now)
}

fn subject(issuer: &Issuer, claims: Claims, now: Millis) -> Result<Subject, BadToken> {
    let is_for_us = match &claims.aud {
        Audience::One(one) => *one == issuer.audience,
        Audience::Many(many) => many.contains(&issuer.audience),
    };
    if claims.iss != issuer.name || !is_for_us {
        return Err(BadToken::Claims);
    }
    let (expires, begins) = (moment(claims.exp)?, moment(claims.nbf)?);
    if expires.after(LEEWAY) <= now || now.after(LEEWAY) < begins {
        return Err(BadToken::Time);
    }
    let tenant = claims.tenant.as_deref().map_or_else(|| Ok(TenantId::default_tenant()), TenantId::parse);
    let (tenant, user) = (tenant.map_err(|_| BadToken::Claims)?, UserId::parse(&claims.sub));
    let scopes = scopes(claims.scope.as_deref().unwrap_or_default()).ok_or(BadToken::Claims)?;
    let serves = Serves::default();
    let bearer = Bearer { tenant, user: user.map_err(|_| BadToken::Claims)?, scopes, serves };
    Ok(Subject { bearer, ends: expires })
}

/// The name of the key that a token says it is signed by, if it is one at all.
pub fn kid(token: &str) -> Option<String> {
    let (header, _) = token.split_once('.').filter(|_| token.len() <= BYTES_MAX)?;
    read::<Header>(header).ok().map(|header| header.kid)
}

/// Base64 as RFC 7515 has it, and JSON in which nothing that counts is there twice.
fn read<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, BadToken> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| BadToken::Form)?;
    serde_json::from_slice(&bytes).map_err(|_| BadToken::Form)
}

/// Seconds since 1970, whole or not.
fn moment(seconds: f64) -> Result<Millis, BadToken> {
    // Past the year 9999 nothing is meant.
    if !(0.0..253_402_300_800.0).contains(&seconds) {
        return Err(BadToken::Claims);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just looked at")]
    Ok(Millis((seconds * 1000.0) as u64))
}

/// Of the words of a `scope` those that are ours; where none is, what every user may.
fn scopes(text: &str) -> Option<Scopes> {
    let ours: Vec<&str> = text.split(' ').filter_map(|word| word.strip_prefix(OURS)).collect();
    if ours.is_empty() { Some(Scopes::usual()) } else { Scopes::parse(ours).ok() }
}
