//! Who may come in, and as whom.
//!
//! - [`key`]: API keys, as they are shown once and as they are kept.
//! - [`keyring`]: every key there is, and whose it is.
//! - [`pepper`]: the secret that keys are hashed with.
//! - [`browser`]: which pages may talk to a node, and by which names it is called.
pub mod browser;
pub mod key;
pub mod keyring;
pub mod pepper;

use crate::config::Rates;
use crate::metrics::{Denial, Metrics};
use crate::rates::{Meters, Pass};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use key::{ApiKey, KeyId};
use keyring::{Bearer, Keyring};
use std::sync::Arc;
use turnway_bindings::link::{Hello, Role};
use turnway_core::id::{Principal, TenantId, UserId};
use turnway_core::time::{Millis, Mono};

/// The header by which a request says whose it is.
const USER: HeaderName = HeaderName::from_static("x-user-id");

/// The door of a node.
#[derive(Clone, Debug)]
pub struct Door {
    /// Who is known here; none: nobody is asked, and only this machine is served (`auth.mode = "none"`).
    ring: Option<Keyring>,
    meters: Arc<Meters>,
    metrics: Arc<Metrics>,
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
    /// What it shows is not good: unknown, wrong, revoked or over. Which of them is not told.
    Credential,
    /// It names a user that the credential is not of, and may not act as.
    Other,
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub principal: Principal,
    /// With which key; none: nobody was asked for one.
    pub key: Option<KeyId>,
}

/// Who somebody says to be: what a hello or a request's headers hold.
#[derive(Debug)]
struct Claim<'a> {
    user: Option<UserId>,
    credential: Option<&'a str>,
}

// === impl Door ===

impl Door {
    /// A door where nobody is asked for anything.
    pub fn open(rates: Rates, metrics: Arc<Metrics>) -> Self {
        Self { ring: None, meters: Arc::new(Meters::new(rates, Arc::clone(&metrics))), metrics }
    }

    /// A door for those who have a key.
    pub fn of(ring: Keyring, rates: Rates, metrics: Arc<Metrics>) -> Self {
        Self { ring: Some(ring), ..Self::open(rates, metrics) }
    }

    /// How often somebody who was let in may ask.
    pub fn pass(&self, admitted: &Admitted, now: Mono) -> Pass {
        self.meters.pass(&admitted.principal.tenant, admitted.key.as_ref().map(KeyId::as_str), now)
    }

    /// Decides about a hello.
    pub fn admit(&self, hello: &Hello, now: Millis) -> Result<Admitted, Denied> {
        let role = match hello.role {
            Role::User => Ok(()),
            Role::Adapter | Role::Agent | Role::ToolRunner => Err(Denied::Role),
        };
        let credential = hello.credential.as_ref().map(|credential| credential.0.as_str());
        let decided = role.and_then(|()| self.decide(Claim { user: hello.user.clone(), credential }, now));
        self.counted(decided)
    }

    /// Decides about an HTTP request.
    pub fn admit_request(&self, headers: &HeaderMap, now: Millis) -> Result<Admitted, Denied> {
        let decided = user(headers).and_then(|user| {
            let credential = match &self.ring {
                Some(_) => bearer(headers)?,
                // Clients of others send some key or other. Nobody could say what it is worth.
                None => None,
            };
            self.decide(Claim { user, credential }, now)
        });
        self.counted(decided)
    }

    /// Whether a credential that was good still is. A connection is marked with it once it is admitted, and then
    /// this is asked: so it is found, or refused, if the credential is taken back in the same moment.
    pub fn still_admits(&self, key: Option<&KeyId>, now: Millis) -> bool {
        match (&self.ring, key) {
            (Some(ring), Some(key)) => ring.is_good(key, now),
            (_, None) | (None, _) => true,
        }
    }

    fn decide(&self, claim: Claim<'_>, now: Millis) -> Result<Admitted, Denied> {
        let Some(ring) = &self.ring else {
            return Ok(Admitted { principal: anybody(claim.user), key: None });
        };
        let shown = claim.credential.ok_or(Denied::Nothing)?;
        let key = ApiKey::parse(shown).ok_or(Denied::Credential)?;
        let bearer = ring.bearer(&key, now).ok_or(Denied::Credential)?;
        Ok(Admitted { principal: principal(bearer, claim.user)?, key: Some(key.id().clone()) })
    }

    fn counted(&self, decided: Result<Admitted, Denied>) -> Result<Admitted, Denied> {
        if let Err(denied) = &decided {
            self.metrics.auth.denied(match denied {
                Denied::Role => Denial::Role,
                Denied::Name => Denial::Name,
                Denied::Nothing => Denial::Nothing,
                Denied::Credential => Denial::Credential,
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
/// as somebody has that one's rights and no more.
fn principal(bearer: Bearer, named: Option<UserId>) -> Result<Principal, Denied> {
    let Bearer { tenant, user: own, scopes } = bearer;
    let is_other = named.as_ref().is_some_and(|named| *named != own);
    if is_other && !scopes.act_as {
        return Err(Denied::Other);
    }
    let (operator, writes) = (scopes.operator && !is_other, scopes.write);
    Ok(Principal { tenant, user: named.unwrap_or(own), operator, writes })
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
    let (scheme, shown) = text.and_then(|text| text.split_once(' ')).ok_or(Denied::Credential)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(shown.trim())) } else { Err(Denied::Credential) }
}

#[cfg(test)]
mod tests;
