//! Handles the credentials of a link: its `hello`, and later refreshed tokens.
use super::{ConnectionStage, ConnectionTask};
use crate::auth::{AuthError, AuthProof, AuthenticatedClient};
use crate::links::Pool;
use crate::listen::close_reason::LinkCloseReason;
use crate::listen::link_transport::LinkTransport;
use crate::metrics::{DenialReason, HandshakeOutcome, Transport};
use turnway_core::id::{Principal, RequestId};
use turnway_core::planted::{Planted, planted};
use turnway_node::connection::RefreshOutcome;
use turnway_node::link::{Input, ServiceRefusal};
use turnway_wire::channel::close_code;
use turnway_wire::channel::hello::{ConnectionRole, Credential, HelloRequest};

impl<W: LinkTransport> ConnectionTask<'_, W> {
    pub(super) async fn handle_hello(&mut self, hello: HelloRequest) -> Result<(), LinkCloseReason> {
        self.context.churn_limiter.wait_turn().await;
        self.now = self.context.clock.now();
        if let Some(Credential(shown)) = &hello.credential {
            self.prepare_credential(shown).await;
        }
        let admitted = self.admit(&hello);
        if let Ok(admitted) = &admitted
            && let Err(refusal) = self.mailbox.admit(pool(W::TRANSPORT), &admitted.principal)
        {
            self.stage = ConnectionStage::Handshaking;
            return Err(LinkCloseReason::ByServer(
                close_code::RATE_LIMITED,
                format!("{}: {}", refusal.code.as_str(), refusal.message).into(),
            ));
        }
        match admitted {
            Ok(admitted) if hello.role == ConnectionRole::Agent => self.admit_agent(&hello, admitted),
            Ok(admitted) if hello.role == ConnectionRole::ToolRunner => self.admit_runner(&hello, admitted),
            Ok(admitted) => {
                let Some(principal) = connection_principal(&hello, &admitted) else {
                    self.stage = ConnectionStage::Denied;
                    self.context.metrics.auth.count_denied(DenialReason::Role);
                    self.handle_input(Input::NotServing(ServiceRefusal::Forbidden));
                    return Ok(());
                };
                let admitted = AuthenticatedClient { principal, ..admitted };
                self.context.commands.connect(self.mailbox.id(), admitted.principal.clone()).await?;
                if let Some(adapter) = &hello.adapter {
                    // Its messages are rendered without a pause later.
                    self.context.auth.prepare_file_tokens().await;
                    self.context.commands.serve_account(self.mailbox.id(), adapter.clone()).await?;
                }
                self.stage = ConnectionStage::Connected;
                self.context.metrics.links.count_handshake(HandshakeOutcome::Admitted);
                let principal = admitted.principal.clone();
                let expires = admitted.proof.expires();
                self.admitted = expires.map(|_| Box::new(admitted));
                self.handle_input(Input::Admitted { principal, expires });
            }
            Err(denied) => {
                // The metrics count the denial. At a higher log level any client could fill the log.
                tracing::debug!(link = self.mailbox.id().0, ?denied, "hello denied");
                self.stage = ConnectionStage::Denied;
                if denied.is_guess() {
                    self.arrival.record_failed_login();
                }
                self.handle_input(Input::Denied);
            }
        }
        Ok(())
    }

    fn admit(&mut self, hello: &HelloRequest) -> Result<AuthenticatedClient, AuthError> {
        let authenticator = &self.context.auth;
        let now = self.now.store;
        let admitted = authenticator.admit(hello, now)?;
        self.rates = authenticator.rate_limiter(&admitted, self.now.mono);
        if let AuthProof::Key(key) = &admitted.proof {
            self.mailbox.set_credential(key.as_str());
        }
        if authenticator.still_admits(&admitted.proof, now) { Ok(admitted) } else { Err(AuthError::ExpiredCredential) }
    }

    /// Handles a refreshed token.
    pub(super) async fn handle_refresh(&mut self, request_id: Option<RequestId>, token: Credential) {
        let renewal = self.refresh_credential(token).await;
        self.handle_input(Input::Refreshed { request_id, renewal });
    }

    /// Returns the authenticator's decision about a refreshed token.
    pub(super) async fn refresh_credential(&mut self, Credential(shown): Credential) -> RefreshOutcome {
        match self.admitted.take() {
            None => RefreshOutcome::NotRequired,
            Some(admitted) if !self.rates.may_renew(self.now.mono) => {
                self.admitted = Some(admitted);
                RefreshOutcome::RateLimited
            }
            Some(admitted) => {
                self.prepare_credential(&shown).await;
                let renewed = self.context.auth.renew(&admitted, &shown, self.now.store);
                self.admitted = Some(admitted);
                match renewed {
                    Ok(ends) => {
                        self.context.metrics.auth.count_refreshed();
                        RefreshOutcome::Until(ends)
                    }
                    Err(denied) => {
                        if denied.is_guess() && !planted(Planted::RenewalGuessUncounted) {
                            self.arrival.record_failed_login();
                        }
                        tracing::info!(link = self.mailbox.id().0, ?denied, "token refresh denied");
                        RefreshOutcome::Denied
                    }
                }
            }
        }
    }

    /// Fetches what is missing to decide about a credential, such as a token's key. May take seconds.
    async fn prepare_credential(&mut self, shown: &str) {
        self.context.auth.prepare(shown, self.now).await;
        self.now = self.context.clock.now();
    }
}

/// Returns the principal that a client or an adapter acts as; `None` if the credential does not let it serve the account.
fn connection_principal(hello: &HelloRequest, admitted: &AuthenticatedClient) -> Option<Principal> {
    match &hello.adapter {
        Some(adapter) => admitted.adapter_principal(adapter),
        None => Some(admitted.principal.clone()),
    }
}

/// Returns the pool in which a link of this transport counts.
fn pool(transport: Transport) -> Pool {
    match transport {
        Transport::WebSocket => Pool::Tcp,
        _ if planted(Planted::QuicSharesTcpPool) => Pool::Tcp,
        Transport::Quic | Transport::WebTransport => Pool::Quic,
    }
}
