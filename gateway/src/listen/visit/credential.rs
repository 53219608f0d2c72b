//! Handles the credentials of a link: its `hello`, and later refreshed tokens.
use super::{Stage, Visit};
use crate::door::{Admitted, Denied, Proof};
use crate::links::Pool;
use crate::listen::end::End;
use crate::listen::wire::Wire;
use crate::metrics::{Handshake, Transport};
use turnway_bindings::link::{Credential, Hello, Input, Renewal, Role};
use turnway_core::id::RequestId;
use turnway_core::planted::{Planted, planted};

impl<W: Wire> Visit<'_, W> {
    pub(super) async fn meet(&mut self, hello: Hello) -> Result<(), End> {
        self.reception.turnstile.pass().await;
        self.now = self.reception.clock.now();
        if let Some(Credential(shown)) = &hello.credential {
            self.look(shown).await;
        }
        let admitted = self.admit(&hello);
        if let Ok(admitted) = &admitted
            && let Err(refusal) = self.seat.admit(pool(W::TRANSPORT), &admitted.principal)
        {
            self.stage = Stage::Stranger;
            return Err(End::Close(4429, format!("{}: {}", refusal.code.as_str(), refusal.message).into()));
        }
        match admitted {
            Ok(admitted) if hello.role == Role::Agent => self.receive_agent(&hello, admitted),
            Ok(admitted) if hello.role == Role::ToolRunner => self.receive_runner(&hello, admitted),
            Ok(admitted) => {
                self.reception.board.connect(self.seat.id(), admitted.principal.clone()).await?;
                self.stage = Stage::Connected;
                self.reception.metrics.links.began(Handshake::Admitted);
                let (principal, expires) = (admitted.principal.clone(), admitted.proof.ends());
                self.admitted = expires.map(|_| Box::new(admitted));
                self.tell(Input::Admitted { principal, expires });
            }
            Err(denied) => {
                // The metrics count the denial. At a higher log level any client could fill the log.
                tracing::debug!(link = self.seat.id().0, ?denied, "hello denied");
                self.stage = Stage::Denied;
                if denied.is_guess() {
                    self.arrival.failed();
                }
                self.tell(Input::Denied);
            }
        }
        Ok(())
    }

    fn admit(&mut self, hello: &Hello) -> Result<Admitted, Denied> {
        let (door, now) = (&self.reception.door, self.now.store);
        let admitted = door.admit(hello, now)?;
        self.pass = door.pass(&admitted, self.now.mono);
        if let Proof::Key(key) = &admitted.proof {
            self.seat.mark(key.as_str());
        }
        if door.still_admits(&admitted.proof, now) { Ok(admitted) } else { Err(Denied::Ended) }
    }

    /// Handles a refreshed token.
    pub(super) async fn renew(&mut self, request_id: Option<RequestId>, token: Credential) {
        let renewal = self.renewal(token).await;
        self.tell(Input::Refreshed { request_id, renewal });
    }

    /// Returns the authenticator's decision about a refreshed token.
    pub(super) async fn renewal(&mut self, Credential(shown): Credential) -> Renewal {
        match self.admitted.take() {
            None => Renewal::Needless,
            Some(admitted) if !self.pass.may_renew(self.now.mono) => {
                self.admitted = Some(admitted);
                Renewal::Late
            }
            Some(admitted) => {
                self.look(&shown).await;
                let renewed = self.reception.door.renew(&admitted, &shown, self.now.store);
                self.admitted = Some(admitted);
                match renewed {
                    Ok(ends) => {
                        self.reception.metrics.auth.refreshed();
                        Renewal::Until(ends)
                    }
                    Err(denied) => {
                        if denied.is_guess() && !planted(Planted::RenewalGuessUncounted) {
                            self.arrival.failed();
                        }
                        tracing::info!(link = self.seat.id().0, ?denied, "token refresh denied");
                        Renewal::Denied
                    }
                }
            }
        }
    }

    /// Fetches what is missing to decide about a credential, such as a token's key. May take seconds.
    async fn look(&mut self, shown: &str) {
        self.reception.door.look(shown, self.now).await;
        self.now = self.reception.clock.now();
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
