//! Authentication: decides whether a client may connect, and as which principal. Credentials are API keys ([`key`],
//! [`keyring`], [`pepper`]), tokens of an identity provider ([`jwt`], [`token_verifier`], [`jwks`]), or those of runs
//! (`run_token`); [`service_grants`], [`service_scope`] and [`host_policy`] limit them. Called by `listen` and `http`.
pub mod host_policy;
pub mod jwks;
pub mod jwt;
pub mod key;
pub mod keyring;
pub mod pepper;
pub mod service_grants;
pub mod service_scope;
pub mod token_verifier;

use crate::config::RateSettings;
use crate::file_token::{FileRight, FileScope, FileTokens};
use crate::metrics::{DenialReason, Metrics};
use crate::rates::{RateLimiter, RateLimits, UsageSender};
use crate::run_token::{RunTokens, TokenRun};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jwt::{BadToken, TokenSubject};
use key::{ApiKey, KeyId};
use keyring::{ApiKeyRejection, Bearer, Keyring};
use service_scope::ServiceScope;
use std::sync::Arc;
use token_verifier::TokenVerifier;
use turnway_core::id::{Principal, SessionId, SessionKey, TenantId, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::time::{Millis, Mono, Now};
use turnway_wire::channel::hello::HelloRequest;

/// The header with the id of the user that a request acts for.
const USER: HeaderName = HeaderName::from_static("x-user-id");

/// The authentication of a node, with its rate limits.
#[derive(Clone, Debug)]
pub struct Authenticator {
    policy: AuthPolicy,
    /// Absent: no run tokens are accepted.
    run_tokens: Option<RunTokens>,
    meters: Arc<RateLimits>,
    metrics: Arc<Metrics>,
}

/// The authentication mode of a node.
#[derive(Clone, Debug)]
enum AuthPolicy {
    /// No credential is required, and only this machine is served (`auth.mode = "none"`).
    Open,
    /// Every client must show a key or a token; at least one of the two is set.
    Required { keys: Option<Keyring>, tokens: Option<TokenVerifier> },
}

/// A reason why a client is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The user id is invalid, or given twice.
    UserId,
    /// No credential was shown.
    NoCredential,
    /// The credential is unknown or wrong, so the gateway never issued it.
    UnknownCredential,
    /// The credential was valid, and was revoked or has expired. The client is not told which.
    ExpiredCredential,
    /// The credential has no supported form, so its content was not checked.
    MalformedCredential,
    /// The token is not valid; the reason is for operators.
    Token(BadToken),
    /// The named user is not the credential's own, and the credential may not act as others.
    OtherUser,
    /// The secret of run tokens cannot be read now, so the token was not checked.
    Unchecked,
}

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedClient {
    pub principal: Principal,
    pub proof: AuthProof,
    /// The agents or tools that the credential may serve.
    pub service: ServiceScope,
    /// True if the credential may call models.
    pub models: bool,
}

/// The credential by which a client was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthProof {
    /// No credential was required.
    Anonymous,
    /// An API key, by its id.
    Key(KeyId),
    /// A token of an identity provider.
    Token {
        /// The user that the token was issued to; differs from the principal if the token may act as others.
        subject: UserId,
        /// Expiry of the token.
        expires: Millis,
    },
    /// The token of a run, which is valid until the run ends.
    Run(TokenRun),
    /// The token for files of a session, which ends by itself.
    Files(FileScope),
}

/// The identity that a client claims, in a hello or in a request's headers.
#[derive(Debug)]
struct IdentityClaim<'a> {
    user: Option<UserId>,
    credential: Option<&'a str>,
}

// === impl AuthError ===

impl AuthError {
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
            Self::UnknownCredential => true,
            Self::UserId
            | Self::NoCredential
            | Self::ExpiredCredential
            | Self::MalformedCredential
            | Self::Unchecked
            | Self::OtherUser => false,
        }
    }
}

// === impl AuthProof ===

impl AuthProof {
    /// Returns when the credential expires, if it expires by itself and can be renewed.
    pub fn expires(&self) -> Option<Millis> {
        match self {
            Self::Token { expires: ends, .. } => Some(*ends),
            // The request that shows it opens one file, however long the transfer takes.
            Self::Anonymous | Self::Key(_) | Self::Run(_) | Self::Files(_) => None,
        }
    }
}

// === impl AuthenticatedClient ===

impl AuthenticatedClient {
    /// Returns the key that all connections with one credential share: the key's id, or the token's tenant and subject,
    /// because tokens change.
    pub fn credential_key(&self) -> Option<String> {
        match &self.proof {
            AuthProof::Anonymous => None,
            AuthProof::Key(key) => Some(key.as_str().to_owned()),
            AuthProof::Token { subject, .. } => Some(format!("{}/{subject}", self.principal.tenant)),
            AuthProof::Run(run) => Some(format!("{}/{}", run.tenant, run.run_id)),
            AuthProof::Files(scope) => Some(scope.key.to_string()),
        }
    }
}

// === impl Authenticator ===

impl Authenticator {
    /// Creates an authenticator that requires no credential.
    pub fn without_credentials(rates: RateSettings, teller: Option<UsageSender>, metrics: Arc<Metrics>) -> Self {
        let meters = Arc::new(RateLimits::new(rates, teller, Arc::clone(&metrics)));
        Self { policy: AuthPolicy::Open, run_tokens: None, meters, metrics }
    }

    /// Accepts the tokens of runs in HTTP requests.
    pub fn with_run_tokens(self, run_tokens: RunTokens) -> Self {
        Self { run_tokens: Some(run_tokens), ..self }
    }

    /// Creates an authenticator that requires a key or a token. With neither it denies every client.
    pub fn with_credentials(
        keys: Option<Keyring>,
        tokens: Option<TokenVerifier>,
        rates: RateSettings,
        teller: Option<UsageSender>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { policy: AuthPolicy::Required { keys, tokens }, ..Self::without_credentials(rates, teller, metrics) }
    }

    /// Returns the rate limits of an authenticated client.
    pub fn rate_limiter(&self, admitted: &AuthenticatedClient, now: Mono) -> RateLimiter {
        self.meters.limiter(&admitted.principal.tenant, admitted.credential_key().as_deref(), now)
    }

    /// Prepares a decision about a credential: a token's key may have to be fetched first.
    pub async fn prepare(&self, shown: &str, now: Now) {
        if let AuthPolicy::Required { tokens: Some(tokens), .. } = &self.policy {
            tokens.prepare(shown, now.mono).await;
        }
    }

    /// Prepares a decision about a request's credential, as [`Self::prepare`] does.
    pub async fn prepare_request(&self, headers: &HeaderMap, now: Now) {
        let Ok(Some(shown)) = bearer_credential(headers) else { return };
        match &self.run_tokens {
            Some(run_tokens) if RunTokens::is_token(shown) => {
                if let Err(why) = run_tokens.prepare().await {
                    tracing::warn!(%why, "cannot check a run token");
                }
            }
            Some(_) | None => self.prepare(shown, now).await,
        }
    }

    /// Authenticates a hello.
    pub fn admit(&self, hello: &HelloRequest, now: Millis) -> Result<AuthenticatedClient, AuthError> {
        let credential = hello.credential.as_ref().map(|credential| credential.0.as_str());
        let decided = self.decide(IdentityClaim { user: hello.user.clone(), credential }, now);
        self.count_denied(decided)
    }

    /// Authenticates an HTTP request.
    pub fn admit_request(&self, headers: &HeaderMap, now: Millis) -> Result<AuthenticatedClient, AuthError> {
        let decided = named_user(headers).and_then(|user| {
            if let Some(shown) = bearer_credential(headers).ok().flatten().filter(|shown| RunTokens::is_token(shown)) {
                return self.admit_run(shown, user);
            }
            let credential = match &self.policy {
                AuthPolicy::Required { .. } => bearer_credential(headers)?,
                // Third-party clients send an arbitrary key, and without a keyring no key can be checked.
                AuthPolicy::Open => None,
            };
            self.decide(IdentityClaim { user, credential }, now)
        });
        self.count_denied(decided)
    }

    fn admit_run(&self, shown: &str, user: Option<UserId>) -> Result<AuthenticatedClient, AuthError> {
        let run_tokens = self.run_tokens.as_ref().ok_or(AuthError::UnknownCredential)?;
        if !run_tokens.is_ready() {
            return Err(AuthError::Unchecked);
        }
        let run = run_tokens.verify(shown).ok_or(AuthError::UnknownCredential)?;
        let principal = run.principal();
        if user.is_some_and(|user| user != principal.user) {
            return Err(AuthError::OtherUser);
        }
        Ok(AuthenticatedClient { principal, proof: AuthProof::Run(run), service: ServiceScope::Nothing, models: true })
    }

    /// Returns the tokens of files, which have the secret of run tokens.
    fn file_tokens(&self) -> Option<FileTokens> {
        self.run_tokens.as_ref().map(|run_tokens| FileTokens::new(run_tokens.secret().clone()))
    }

    /// Reads the secret of file tokens, so that [`Self::mint_file_token`] can mint some.
    pub async fn prepare_file_tokens(&self) {
        let Some(tokens) = self.file_tokens() else { return };
        if let Err(why) = tokens.prepare().await {
            tracing::warn!(%why, "cannot mint file tokens");
        }
    }

    /// Mints the token with which an adapter reads the files of a session, or adds some, until a time. If the secret was not
    /// read yet, reads it for the next time.
    pub fn mint_file_token(&self, key: &SessionKey, right: FileRight, ends: Millis) -> Option<Private<String>> {
        let tokens = self.file_tokens()?;
        let token = tokens.mint(&FileScope { key: key.clone(), right, ends });
        if token.is_none() {
            tokio::spawn(async move { tokens.prepare().await.is_ok() });
        }
        token
    }

    /// Authenticates a request that reads a file of a session, or adds one, if it shows a file token; another credential is
    /// left to [`Self::admit_request`].
    pub async fn admit_file_request(
        &self,
        headers: &HeaderMap,
        (session, adds): (&SessionId, bool),
        now: Millis,
    ) -> Option<Result<AuthenticatedClient, AuthError>> {
        let shown = bearer_credential(headers).ok().flatten().filter(|shown| FileTokens::is_token(shown))?;
        let tokens = self.file_tokens()?;
        let decided = match tokens.prepare().await {
            Ok(()) => tokens.verify(shown, now).ok_or(AuthError::UnknownCredential),
            Err(_) => Err(AuthError::Unchecked),
        };
        let decided = decided.and_then(|scope| {
            let bug = if adds { Planted::UploadTokenUnscoped } else { Planted::FileTokenUnscoped };
            if scope.adds() != adds || scope.key.session != *session && !planted(bug) {
                return Err(AuthError::OtherUser);
            }
            let principal = scope.principal();
            Ok(AuthenticatedClient {
                principal,
                proof: AuthProof::Files(scope),
                service: ServiceScope::Nothing,
                models: false,
            })
        });
        Some(self.count_denied(decided))
    }

    /// Authenticates the next token of a client that was authenticated by a token: its subject and its rights must be
    /// the same. Returns its expiry.
    pub fn renew(&self, admitted: &AuthenticatedClient, shown: &str, now: Millis) -> Result<Millis, AuthError> {
        let user = Some(admitted.principal.user.clone());
        let next = self.count_denied(self.decide(IdentityClaim { user, credential: Some(shown) }, now))?;
        match (next.proof, &admitted.proof) {
            (AuthProof::Token { subject, expires: ends }, AuthProof::Token { subject: same, .. })
                if subject == *same && next.principal == admitted.principal =>
            {
                Ok(ends)
            }
            (
                AuthProof::Token { .. }
                | AuthProof::Key(_)
                | AuthProof::Run(_)
                | AuthProof::Files(_)
                | AuthProof::Anonymous,
                _,
            ) => self.count_denied(Err(AuthError::OtherUser)),
        }
    }

    /// Returns whether a credential that was valid still is. A connection is marked with its credential after it is
    /// admitted, and is then checked by this: so a key that is revoked in the same moment is either found by the
    /// revocation or refused here.
    pub fn still_admits(&self, proof: &AuthProof, now: Millis) -> bool {
        match (&self.policy, proof) {
            (AuthPolicy::Required { keys, .. }, AuthProof::Key(key)) => {
                keys.as_ref().is_some_and(|keys| keys.is_active(key, now))
            }
            // A token cannot be revoked, and its expiry is known from the start. The end of a run is looked up by the link.
            (AuthPolicy::Required { .. }, AuthProof::Token { .. } | AuthProof::Run(_) | AuthProof::Files(_))
            | (AuthPolicy::Open, _) => true,
            (AuthPolicy::Required { .. }, AuthProof::Anonymous) => false,
        }
    }

    fn decide(&self, claim: IdentityClaim<'_>, now: Millis) -> Result<AuthenticatedClient, AuthError> {
        let AuthPolicy::Required { keys, tokens } = &self.policy else {
            let principal = open_principal(claim.user);
            return Ok(AuthenticatedClient {
                principal,
                proof: AuthProof::Anonymous,
                service: ServiceScope::Anything,
                models: true,
            });
        };
        let shown = claim.credential.ok_or(AuthError::NoCredential)?;
        let (bearer, proof) = match (ApiKey::parse(shown), keys, tokens) {
            (Some(key), Some(keys), _) => {
                let bearer = keys.bearer(&key, now).map_err(|bad| match bad {
                    ApiKeyRejection::Unknown => AuthError::UnknownCredential,
                    ApiKeyRejection::Ended => AuthError::ExpiredCredential,
                })?;
                (bearer, AuthProof::Key(key.id().clone()))
            }
            (None, _, Some(tokens)) => {
                let TokenSubject { bearer, ends } = tokens.verify(shown, now).map_err(AuthError::Token)?;
                let subject = bearer.user.clone();
                (bearer, AuthProof::Token { subject, expires: ends })
            }
            (Some(_), None, _) | (None, _, None) => return Err(AuthError::UnknownCredential),
        };
        let models = bearer.scopes.models;
        let (principal, service) = credential_principal(bearer, claim.user)?;
        Ok(AuthenticatedClient { principal, proof, service, models })
    }

    fn count_denied<T>(&self, decided: Result<T, AuthError>) -> Result<T, AuthError> {
        if let Err(denied) = &decided {
            self.metrics.auth.count_denied(match denied {
                AuthError::UserId => DenialReason::Name,
                AuthError::NoCredential => DenialReason::Nothing,
                AuthError::UnknownCredential | AuthError::MalformedCredential => DenialReason::Credential,
                AuthError::ExpiredCredential => DenialReason::Ended,
                AuthError::Token(BadToken::Form) => DenialReason::TokenForm,
                AuthError::Token(BadToken::Algorithm) => DenialReason::TokenAlgorithm,
                AuthError::Token(BadToken::Key) => DenialReason::TokenKey,
                AuthError::Token(BadToken::Signature) => DenialReason::TokenSignature,
                AuthError::Token(BadToken::Claims) => DenialReason::TokenClaims,
                AuthError::Token(BadToken::Time) => DenialReason::TokenTime,
                AuthError::OtherUser => DenialReason::Other,
                AuthError::Unchecked => DenialReason::TokenKey,
            });
        }
        decided
    }
}

/// Returns the principal where no credential is required; a client that names no user is the operator.
fn open_principal(user: Option<UserId>) -> Principal {
    let tenant = TenantId::default_tenant();
    let operator = user.is_none();
    Principal { tenant, user: user.unwrap_or_else(UserId::local), operator, writes: true }
}

/// Returns the principal of a credential. A user named beside it must be the credential's own, unless the credential
/// may act as others. A client that acts as another user has that user's rights and no more: neither the scope
/// `operator`, nor anything that the credential or the user may serve.
fn credential_principal(bearer: Bearer, named: Option<UserId>) -> Result<(Principal, ServiceScope), AuthError> {
    let Bearer { tenant, user: own, scopes, serves } = bearer;
    let is_other = named.as_ref().is_some_and(|named| *named != own);
    if is_other && !scopes.act_as {
        return Err(AuthError::OtherUser);
    }
    let operator = scopes.operator && !is_other;
    let writes = scopes.write;
    let service = if is_other { ServiceScope::Nothing } else { ServiceScope::Own(serves) };
    Ok((Principal { tenant, user: named.unwrap_or(own), operator, writes }, service))
}

/// Returns the user that the headers name, if there is exactly one.
fn named_user(headers: &HeaderMap) -> Result<Option<UserId>, AuthError> {
    let mut names = headers.get_all(USER).iter();
    let name = |value: &HeaderValue| UserId::parse_person(std::str::from_utf8(value.as_bytes()).ok()?).ok();
    match (names.next(), names.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => name(value).map(Some).ok_or(AuthError::UserId),
        (Some(_), Some(_)) => Err(AuthError::UserId),
    }
}

/// Returns the credential of `Authorization: Bearer …`, which may be given once. Any other scheme is an error.
fn bearer_credential(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| all.next().is_none());
    let (scheme, shown) = text.and_then(|text| text.split_once(' ')).ok_or(AuthError::MalformedCredential)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(shown.trim())) } else { Err(AuthError::MalformedCredential) }
}

#[cfg(test)]
mod tests;
