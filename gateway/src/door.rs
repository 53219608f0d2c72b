//! Who may come in, and as whom.
//!
//! - [`key`]: API keys, as they are shown once and as they are kept.
//! - [`keyring`]: every key there is, and whose it is.
//! - [`serves`], [`service`]: what a credential may serve, and for whom.
//! - [`pepper`]: the secret that keys are hashed with.
//! - [`token`]: tokens of an identity provider; [`jwks`]: its public keys; [`tokens`]: those that are known.
//! - [`browser`]: which pages may talk to a node, and by which names it is called.
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

/// The header by which a request says whose it is.
const USER: HeaderName = HeaderName::from_static("x-user-id");

/// The door of a node.
#[derive(Clone, Debug)]
pub struct Door {
    guard: Guard,
    meters: Arc<Meters>,
    metrics: Arc<Metrics>,
}

/// Who is asked for what.
#[derive(Clone, Debug)]
enum Guard {
    /// Nobody for anything, and only this machine is served (`auth.mode = "none"`).
    Asleep,
    /// Everybody, for one of these.
    Asks { keys: Option<Keyring>, tokens: Option<Tokens> },
}

/// Why somebody stays outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It wants to be something that this release does not know.
    Role,
    /// It gives a name that is none, or two of them.
    Name,
    /// It shows no credential.
    Nothing,
    /// What it shows is unknown or wrong: nobody has made it.
    Credential,
    /// What it shows was made, and was taken back or has ended. The client is not told the difference.
    Ended,
    /// What it shows is in no form in which credentials are shown here, so nothing of it was looked at.
    Form,
    /// The same of a token; the reason is for operators.
    Token(BadToken),
    /// It names a user that the credential is not of, and may not act as.
    Other,
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub principal: Principal,
    /// By what.
    pub proof: Proof,
    /// What its credential may serve.
    pub service: Service,
}

/// What somebody was let in by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nobody was asked.
    Nothing,
    /// A key of this name.
    Key(KeyId),
    /// A token.
    Token {
        /// Of whom, which is somebody else where it may act as others.
        subject: UserId,
        /// Its end.
        ends: Millis,
    },
}

/// Who somebody says to be: what a hello or a request's headers hold.
#[derive(Debug)]
struct Claim<'a> {
    user: Option<UserId>,
    credential: Option<&'a str>,
}

// === impl Denied ===

impl Denied {
    /// Whether a credential was shown that nobody has made: an unknown name, a wrong secret, a forged signature. Only
    /// these count towards the lockout of an address. A token of a key that is not known may be the provider's, which
    /// cannot be reached; one that has ended was good; and one that was made for others was made. A good credential
    /// with another user's name beside it is no guess either: it is refused each time, and tells nothing.
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
    /// When it ends, where it does so by itself and another can take its place.
    pub fn ends(&self) -> Option<Millis> {
        match self {
            Self::Token { ends, .. } => Some(*ends),
            Self::Nothing | Self::Key(_) => None,
        }
    }
}

// === impl Admitted ===

impl Admitted {
    /// What all connections by one credential have in common: a key's name, or whose token it is, for those change.
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
    /// A door where nobody is asked for anything.
    pub fn open(rates: Rates, teller: Option<Teller>, metrics: Arc<Metrics>) -> Self {
        let meters = Arc::new(Meters::new(rates, teller, Arc::clone(&metrics)));
        Self { guard: Guard::Asleep, meters, metrics }
    }

    /// A door for those who have a key, or a token. Where there is neither, for nobody.
    pub fn of(
        keys: Option<Keyring>,
        tokens: Option<Tokens>,
        rates: Rates,
        teller: Option<Teller>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { guard: Guard::Asks { keys, tokens }, ..Self::open(rates, teller, metrics) }
    }

    /// How often somebody who was let in may ask.
    pub fn pass(&self, admitted: &Admitted, now: Mono) -> Pass {
        self.meters.pass(&admitted.principal.tenant, admitted.bearer().as_deref(), now)
    }

    /// Sees that what is shown can be decided about: a token's key may have to be fetched first.
    pub async fn look(&self, shown: &str, now: Now) {
        if let Guard::Asks { tokens: Some(tokens), .. } = &self.guard {
            tokens.meet(shown, now.mono).await;
        }
    }

    /// The same of a request's headers.
    pub async fn look_at_request(&self, headers: &HeaderMap, now: Now) {
        if let Ok(Some(shown)) = bearer(headers) {
            self.look(shown, now).await;
        }
    }

    /// Decides about a hello.
    pub fn admit(&self, hello: &Hello, now: Millis) -> Result<Admitted, Denied> {
        let role = match hello.role {
            Role::User | Role::Agent | Role::ToolRunner => Ok(()),
            Role::Adapter => Err(Denied::Role),
        };
        let credential = hello.credential.as_ref().map(|credential| credential.0.as_str());
        let decided = role.and_then(|()| self.decide(Claim { user: hello.user.clone(), credential }, now));
        self.counted(decided)
    }

    /// Decides about an HTTP request.
    pub fn admit_request(&self, headers: &HeaderMap, now: Millis) -> Result<Admitted, Denied> {
        let decided = user(headers).and_then(|user| {
            let credential = match &self.guard {
                Guard::Asks { .. } => bearer(headers)?,
                // Clients of others send some key or other. Nobody could say what it is worth.
                Guard::Asleep => None,
            };
            self.decide(Claim { user, credential }, now)
        });
        self.counted(decided)
    }

    /// Decides about the next token of somebody who was let in by one: it must be of the same bearer, with the same
    /// rights. Its end.
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

    /// Whether a credential that was good still is. A connection is marked with it once it is admitted, and then
    /// this is asked: so it is found, or refused, if the credential is taken back in the same moment.
    pub fn still_admits(&self, proof: &Proof, now: Millis) -> bool {
        match (&self.guard, proof) {
            (Guard::Asks { keys, .. }, Proof::Key(key)) => {
                keys.as_ref().is_some_and(|keys| keys.is_good(key, now))
            }
            // A token cannot be taken back; when it ends is known.
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

/// Where nobody is asked, who names nobody is the operator.
fn anybody(user: Option<UserId>) -> Principal {
    let (tenant, operator) = (TenantId::default_tenant(), user.is_none());
    Principal { tenant, user: user.unwrap_or_else(UserId::local), operator, writes: true }
}

/// The credential says who it is; a name beside it must be the same, unless it may act as others. Whoever acts
/// as somebody has that one's rights and no more: neither the scope `operator`, nor anything that the credential or
/// that user may serve.
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

/// The one user that headers name, if they name any.
fn user(headers: &HeaderMap) -> Result<Option<UserId>, Denied> {
    let mut names = headers.get_all(USER).iter();
    let name = |value: &HeaderValue| UserId::parse(std::str::from_utf8(value.as_bytes()).ok()?).ok();
    match (names.next(), names.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => name(value).map(Some).ok_or(Denied::Name),
        (Some(_), Some(_)) => Err(Denied::Name),
    }
}

/// `Authorization: Bearer …`, once or not at all. Any other scheme is no credential of ours.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Denied> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| all.next().is_none());
    let (scheme, shown) = text.and_then(|text| text.split_once(' ')).ok_or(Denied::Form)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(shown.trim())) } else { Err(Denied::Form) }
}

#[cfg(test)]
mod tests;
