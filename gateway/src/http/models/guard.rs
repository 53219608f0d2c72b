//! Watches whether a call of a model may go on: its caller is there, its credential is valid, its run goes on. Holds the
//! call's part of the shares.
use super::ModelCallError;
use crate::auth::jwt::LEEWAY;
use crate::auth::{AuthProof, AuthenticatedClient};
use crate::http::HttpContext;
use crate::http::request_link::{LinkClosed, RequestFailure, RequestLink};
use crate::http::stream::DisconnectProbe;
use crate::links::{MailboxHandle, Pool, PoolPermit};
use crate::models::budget::BudgetAccount;
use crate::socket::ClientWatch;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;

/// The right of one call to go on.
pub(super) struct CallGuard {
    credential: CallCredential,
    accounts: Vec<BudgetAccount>,
    watch: Option<ClientWatch>,
    _permit: PoolPermit,
}

/// The credential of a call while it is watched.
enum CallCredential {
    /// The token of a run, which ends with the run.
    Run(Box<RequestLink>),
    /// Any other one; the mailbox closes when the credential is revoked.
    Client {
        mailbox: MailboxHandle,
        /// Waits for the end of a token.
        expiry: BoxFuture<'static, ()>,
    },
}

/// A reason why a call ends before its answer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutReason {
    /// The run of the token has ended, or is cancelled.
    RunEnded,
    /// The credential was revoked or has expired.
    Revoked,
    /// The caller has gone.
    HungUp,
}

// === impl CallGuard ===

impl CallGuard {
    /// Checks the credential once more, and begins to watch it.
    pub(super) async fn open(
        context: &Arc<HttpContext>,
        client: AuthenticatedClient,
        watch: Option<ClientWatch>,
        permit: PoolPermit,
    ) -> Result<Self, ModelCallError> {
        let tenant = client.principal.tenant.clone();
        if let AuthProof::Run(run) = client.proof.clone() {
            let mut link = RequestLink::open(Arc::clone(context), client).await?;
            // The call was counted.
            link.stop_counting();
            link.limit_to_run(run).await?;
            let accounts = match link.follow_run().await? {
                Some(run) => BudgetAccount::of_run(&tenant, &run.user, &run.agent_id),
                None => vec![BudgetAccount::of_tenant(tenant)],
            };
            return Ok(Self { credential: CallCredential::Run(Box::new(link)), accounts, watch, _permit: permit });
        }
        let mailbox = context.links.open();
        mailbox.admit(Pool::Tcp, &client.principal).map_err(RequestFailure::Refused)?;
        if let AuthProof::Key(key) = &client.proof {
            mailbox.set_credential(key.as_str());
        }
        // Revocations are seen from here on.
        if !context.auth.still_admits(&client.proof, context.clock.now().store) {
            return Err(LinkClosed::Revoked.into());
        }
        let ends = client.proof.expires().map(|ends| ends.after(LEEWAY));
        let clock = context.clock.clone();
        let expiry = async move {
            let Some(ends) = ends else { return std::future::pending().await };
            loop {
                let left = ends.0.saturating_sub(clock.now().store.0);
                if left == 0 {
                    return;
                }
                // Waits in steps, because the clock may step meanwhile.
                tokio::time::sleep(Duration::from_millis(left).min(limits::HEARTBEAT)).await;
            }
        };
        let credential = CallCredential::Client { mailbox, expiry: expiry.boxed() };
        let key = if let AuthProof::Key(key) = &client.proof { Some(key.as_str()) } else { None };
        let accounts = BudgetAccount::of_client(&tenant, &client.principal.user, key);
        Ok(Self { credential, accounts, watch, _permit: permit })
    }

    /// Takes the accounts whose budgets the call is made under.
    pub(super) fn take_accounts(&mut self) -> Vec<BudgetAccount> {
        std::mem::take(&mut self.accounts)
    }

    /// Waits until the call must end, while its caller has no byte of an answer. Cancel-safe.
    pub(super) async fn wait_cut_before_head(&mut self) -> CutReason {
        let watch = self.watch.clone();
        let hung_up = async move {
            match watch {
                Some(watch) => watch.wait_hung_up().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reason = self.wait_invalid() => reason,
            () = hung_up => CutReason::HungUp,
        }
    }

    /// Waits until the credential is not valid any more. Cancel-safe.
    pub(super) async fn wait_invalid(&mut self) -> CutReason {
        match &mut self.credential {
            CallCredential::Run(link) => match link.wait_run_ended().await {
                LinkClosed::Revoked => CutReason::RunEnded,
                LinkClosed::Slow | LinkClosed::Draining | LinkClosed::OverLimit(_) => CutReason::Revoked,
            },
            CallCredential::Client { mailbox, expiry } => tokio::select! {
                _ = mailbox.wait_close() => CutReason::Revoked,
                () = expiry => CutReason::Revoked,
            },
        }
    }

    /// Returns a future that ends when the caller of an answer without events closes its sending side, which counts as a
    /// hang-up: nothing can be written to find out.
    pub(super) fn wait_read_closed(&self) -> BoxFuture<'static, ()> {
        match self.watch.clone() {
            Some(watch) => async move { watch.wait_read_closed().await }.boxed(),
            None => std::future::pending().boxed(),
        }
    }

    /// Returns the schedule of comments that find out whether the caller of a stream has gone.
    pub(super) fn probe(&self) -> DisconnectProbe {
        DisconnectProbe::new(self.watch.clone())
    }
}

// === impl CutReason ===

impl CutReason {
    /// Returns the code and the message for the caller.
    pub(super) fn code_and_message(self) -> (&'static str, &'static str) {
        match self {
            Self::RunEnded => ("run_ended", "the run of this token has ended"),
            Self::Revoked => ("revoked", "the credential was revoked or has expired"),
            Self::HungUp => ("cancelled", "the caller has gone"),
        }
    }
}
