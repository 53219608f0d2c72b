//! Authentication: decides whether a client may connect, and as which principal. Credentials are API keys ([`key`],
//! [`keyring`], [`pepper`]) or tokens of an identity provider ([`token`], [`tokens`], [`jwks`]); [`serves`] and
//! [`service`] say what a credential may serve; [`browser`] checks hosts and origins. Called by `listen` and `http`.
pub mod browser;
pub mod jwks;
pub mod key;
pub mod keyring;
pub mod pepper;
pub mod serves;
pub mod service;
pub mod token;
pub mod tokens;

use crate::config::Rates;
use crate::metrics::{Denial, Metrics};
use crate::rates::{Meters, Pass, Teller};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use key::{ApiKey, KeyId};
use keyring::{BadKey, Bearer, Keyring};
use service::Service;
use std::sync::Arc;
use token::{BadToken, Subject};
use tokens::Tokens;
use turnway_bindings::link::{Hello, Role};
use turnway_core::id::{Principal, TenantId, UserId};
use turnway_core::time::{Millis, Mono, Now};

/// The header with the id of the user that a request acts for.
const USER: HeaderName = HeaderName::from_static("x-user-id");

/// The authentication of a node, with its rate limits.
#[derive(Clone, Debug)]
pub struct Door {
    guard: Guard,
    meters: Arc<Meters>,
    metrics: Arc<Metrics>,
}

/// The authentication mode of a node.
#[derive(Clone, Debug)]
enum Guard {
    /// No credential is required, and only this machine is served (`auth.mode = "none"`).
    Asleep,
    /// Every client must show a key or a token; at least one of the two is set.
    Asks { keys: Option<Keyring>, tokens: Option<Tokens> },
}

/// A reason why a client is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The role is not supported by this release.
    Role,
    /// The user id is invalid, or given twice.
    Name,
    /// No credential was shown.
    Nothing,
    /// The credential is unknown or wrong, so the gateway never issued it.
    Credential,
    /// The credential was valid, and was revoked or has expired. The client is not told which.
    Ended,
    /// The credential has no supported form, so its content was not checked.
    Form,
    /// The token is not valid; the reason is for operators.
    Token(BadToken),
    /// The named user is not the credential's own, and the credential may not act as others.
    Other,
}

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub principal: Principal,
    pub proof: Proof,
    /// The agents or tools that the credential may serve.
    pub service: Service,
}

/// The credential by which a client was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No credential was required.
    Nothing,
    /// An API key, by its id.
    Key(KeyId),
    /// A token of an identity provider.
    Token {
        /// The user that the token was issued to; differs from the principal if the token may act as others.
        subject: UserId,
        /// Expiry of the token.
        ends: Millis,
    },
}

/// The identity that a client claims, in a hello or in a request's headers.
#[derive(Debug)]
struct Claim<'a> {
    user: Option<UserId>,
    credential: Option<&'a str>,
}

// === impl Denied ===

impl Denied {
    /// Returns whether the client showed a credential that was never issued: an unknown name, a wrong secret, a forged
    /// signature. Only these count towards the lockout of an address. Not counted: a token whose key is unknown,
    /// because the key may belong to a provider that cannot be reached; an expired token, which was valid; and a token
    /// issued for another audience. A valid credential with another user's id is no guess either: it is refused each
    /// time, and reveals nothing.
    pub fn is_guess(&self) -> bool {
        match self {
            Self::Token(bad) => match bad {
                BadToken::Form | BadToken::Algorithm | BadToken::Signature => true,
                BadToken::Key | BadToken::Claims | BadToken::Time => false,
            },
            Self::Credential => true,
            Self::Role | Self::Name | Self::Nothing | Self::Ended | Self::Form | Self::Other => false,
        }
    }
}

// === impl Proof ===

impl Proof {
    /// Returns when the credential expires, if it expires by itself and can be renewed.
    pub fn ends(&self) -> Option<Millis> {
        match self {
            Self::Token { ends, .. } => Some(*ends),
            Self::Nothing | Self::Key(_) => None,
        }
    }
}

// === impl Admitted ===

impl Admitted {
    /// Returns the key that all connections with one credential share: the key's id, or the token's tenant and subject,
    /// because tokens change.
    pub fn bearer(&self) -> Option<String> {
        match &self.proof {
            Proof::Nothing => None,
            Proof::Key(key) => Some(key.as_str().to_owned()),
            Proof::Token { subject, .. } => Some(format!("{}/{subject}", self.principal.tenant)),
        }
    }
}

// === impl Door ===

impl Door {
    /// Creates an authenticator that requires no credential.
    pub fn open(rates: Rates, teller: Option<Teller>, metrics: Arc<Metrics>) -> Self {
        let meters = Arc::new(Meters::new(rates, teller, Arc::clone(&metrics)));
        Self { guard: Guard::Asleep, meters, metrics }
    }

    /// Creates an authenticator that requires a key or a token. With neither it denies every client.
    pub fn of(
        keys: Option<Keyring>,
        tokens: Option<Tokens>,
        rates: Rates,
        teller: Option<Teller>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { guard: Guard::Asks { keys, tokens }, ..Self::open(rates, teller, metrics) }
    }

    /// Returns the rate limits of an authenticated client.
    pub fn pass(&self, admitted: &Admitted, now: Mono) -> Pass {
        self.meters.pass(&admitted.principal.tenant, admitted.bearer().as_deref(), now)
    }

    /// Prepares a decision about a credential: a token's key may have to be fetched first.
    pub async fn look(&self, shown: &str, now: Now) {
        if let Guard::Asks { tokens: Some(tokens), .. } = &self.guard {
            tokens.meet(shown, now.mono).await;
        }
    }

    /// Prepares a decision about a request's credential, as [`Self::look`] does.
    pub async fn look_at_request(&self, headers: &HeaderMap, now: Now) {
        if let Ok(Some(shown)) = bearer(headers) {
            self.look(shown, now).await;
        }
    }

    /// Authenticates a hello.
    pub fn admit(&self, hello: &Hello, now: Millis) -> Result<Admitted, Denied> {
        let role = match hello.role {
            Role::User | Role::Agent | Role::ToolRunner => Ok(()),
            Role::Adapter => Err(Denied::Role),
        };
        let credential = hello.credential.as_ref().map(|credential| credential.0.as_str());
        let decided = role.and_then(|()| self.decide(Claim { user: hello.user.clone(), credential }, now));
        self.counted(decided)
    }

    /// Authenticates an HTTP request.
    pub fn admit_request(&self, headers: &HeaderMap, now: Millis) -> Result<Admitted, Denied> {
        let decided = user(headers).and_then(|user| {
            let credential = match &self.guard {
                Guard::Asks { .. } => bearer(headers)?,
                // Third-party clients send an arbitrary key, and without a keyring no key can be checked.
                Guard::Asleep => None,
            };
            self.decide(Claim { user, credential }, now)
        });
        self.counted(decided)
    }

    /// Authenticates the next token of a client that was authenticated by a token: its subject and its rights must be
    /// the same. Returns its expiry.
    pub fn renew(&self, admitted: &Admitted, shown: &str, now: Millis) -> Result<Millis, Denied> {
        let user = Some(admitted.principal.user.clone());
        let next = self.counted(self.decide(Claim { user, credential: Some(shown) }, now))?;
        match (next.proof, &admitted.proof) {
            (Proof::Token { subject, ends }, Proof::Token { subject: same, .. })
                if subject == *same && next.principal == admitted.principal =>
            {
                Ok(ends)
            }
            (Proof::Token { .. } | Proof::Key(_) | Proof::Nothing, _) => self.counted(Err(Denied::Other)),
        }
    }

    /// Returns whether a credential that was valid still is. A connection is marked with its credential after it is
    /// admitted, and is then checked by this: so a key that is revoked in the same moment is either found by the
    /// revocation or refused here.
    pub fn still_admits(&self, proof: &Proof, now: Millis) -> bool {
        match (&self.guard, proof) {
            (Guard::Asks { keys, .. }, Proof::Key(key)) => {
                keys.as_ref().is_some_and(|keys| keys.is_good(key, now))
            }
            // A token cannot be revoked, and its expiry is known from the start.
            (Guard::Asks { .. }, Proof::Token { .. }) | (Guard::Asleep, _) => true,
            (Guard::Asks { .. }, Proof::Nothing) => false,
        }
    }

    fn decide(&self, claim: Claim<'_>, now: Millis) -> Result<Admitted, Denied> {
        let Guard::Asks { keys, tokens } = &self.guard else {
            let principal = anybody(claim.user);
            return Ok(Admitted { principal, proof: Proof::Nothing, service: Service::Anything });
        };
        let shown = claim.credential.ok_or(Denied::Nothing)?;
        let (bearer, proof) = match (ApiKey::parse(shown), keys, tokens) {
            (Some(key), Some(keys), _) => {
                let bearer = keys.bearer(&key, now).map_err(|bad| match bad {
                    BadKey::Unknown => Denied::Credential,
                    BadKey::Ended => Denied::Ended,
                })?;
                (bearer, Proof::Key(key.id().clone()))
            }
            (None, _, Some(tokens)) => {
                let Subject { bearer, ends } = tokens.subject(shown, now).map_err(Denied::Token)?;
                let subject = bearer.user.clone();
                (bearer, Proof::Token { subject, ends })
            }
            (Some(_), None, _) | (None, _, None) => return Err(Denied::Credential),
        };
        let (principal, service) = principal(bearer, claim.user)?;
        Ok(Admitted { principal, proof, service })
    }

    fn counted<T>(&self, decided: Result<T, Denied>) -> Result<T, Denied> {
        if let Err(denied) = &decided {
            self.metrics.auth.denied(match denied {
                Denied::Role => Denial::Role,
                Denied::Name => Denial::Name,
                Denied::Nothing => Denial::Nothing,
                Denied::Credential | Denied::Form => Denial::Credential,
                Denied::Ended => Denial::Ended,
                Denied::Token(BadToken::Form) => Denial::TokenForm,
                Denied::Token(BadToken::Algorithm) => Denial::TokenAlgorithm,
                Denied::Token(BadToken::Key) => Denial::TokenKey,
                Denied::Token(BadToken::Signature) => Denial::TokenSignature,
                Denied::Token(BadToken::Claims) => Denial::TokenClaims,
                Denied::Token(BadToken::Time) => Denial::TokenTime,
                Denied::Other => Denial::Other,
            });
        }
        decided
    }
}

/// Returns the principal where no credential is required; a client that names no user is the operator.
fn anybody(user: Option<UserId>) -> Principal {
    let (tenant, operator) = (TenantId::default_tenant(), user.is_none());
    Principal { tenant, user: user.unwrap_or_else(UserId::local), operator, writes: true }
}

/// Returns the principal of a credential. A user named beside it must be the credential's own, unless the credential
/// may act as others. A client that acts as another user has that user's rights and no more: neither the scope
/// `operator`, nor anything that the credential or the user may serve.
fn principal(bearer: Bearer, named: Option<UserId>) -> Result<(Principal, Service), Denied> {
    let Bearer { tenant, user: own, scopes, serves } = bearer;
    let is_other = named.as_ref().is_some_and(|named| *named != own);
    if is_other && !scopes.act_as {
        return Err(Denied::Other);
    }
    let (operator, writes) = (scopes.operator && !is_other, scopes.write);
    let service = if is_other { Service::Nothing } else { Service::Own(serves) };
    Ok((Principal { tenant, user: named.unwrap_or(own), operator, writes }, service))
}

/// Returns the user that the headers name, if there is exactly one.
fn user(headers: &HeaderMap) -> Result<Option<UserId>, Denied> {
    let mut names = headers.get_all(USER).iter();
    let name = |value: &HeaderValue| UserId::parse(std::str::from_utf8(value.as_bytes()).ok()?).ok();
    match (names.next(), names.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => name(value).map(Some).ok_or(Denied::Name),
        (Some(_), Some(_)) => Err(Denied::Name),
    }
}

/// Returns the credential of `Authorization: Bearer …`, which may be given once. Any other scheme is an error.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Denied> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| all.next().is_none());
    let (scheme, shown) = text.and_then(|text| text.split_once(' ')).ok_or(Denied::Form)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(shown.trim())) } else { Err(Denied::Form) }
}

#[cfg(test)]
mod tests;
