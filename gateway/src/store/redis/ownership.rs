//! Ops on a session's ownership. An owner registers the session under its incarnation before it owns the session, so
//! that sweeps find it. Called by the executor.
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor, REGISTER_ATTEMPTS_MAX};
use crate::store::redis::key::{self, NO_HOLDER};
use turnway_core::id::{Epoch, FenceToken, Holder, ListenersVersion, Nonce, OwnershipSnapshot, Seq, SessionKey};
use turnway_core::store::{Claimed, InboxContents, Reply};

/// A guard that marks a claim as in flight until it is dropped.
struct ClaimGuard<'a> {
    executor: &'a OpExecutor,
    session: &'a SessionKey,
    from: Holder,
    /// True if the session is known to have another holder now.
    has_other_holder: bool,
}

// === impl ClaimGuard ===

impl<'a> ClaimGuard<'a> {
    fn begin(executor: &'a OpExecutor, session: &'a SessionKey, expect: OwnershipSnapshot) -> Self {
        let from = expect.holder.unwrap_or(NO_HOLDER);
        executor.registrations().begin_claim(session, from);
        Self { executor, session, from, has_other_holder: false }
    }
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        self.executor.registrations().finish_claim(self.session, self.from, self.has_other_holder);
    }
}

// === impl OpExecutor ===

impl OpExecutor {
    pub(super) async fn claim(
        &self,
        session: &SessionKey,
        holder: Holder,
        nonce: Nonce,
        expect: OwnershipSnapshot,
        floor: Epoch,
    ) -> CallResult<Reply> {
        let mut claiming = ClaimGuard::begin(self, session, expect);
        let keys = [key::head, key::inbox, key::control, key::listeners, key::snapshot, key::log];
        let call = |stamp| {
            let call = RedisCall::write("claim", keys.map(|key| key(session))).number(self.now());
            let call = call.hex_id(holder.node.0).hex_id(holder.life.0).hex_id(nonce.0);
            let call = match expect.holder {
                Some(seen) => call.hex_id(seen.node.0).hex_id(seen.life.0),
                None => call.text("").text(""),
            };
            call.number(expect.epoch.0).number(floor.0).number(stamp)
        };
        let known = self.registrations().stamp(session, holder);
        let mut stamp = match known {
            Some(stamp) => stamp,
            None => self.register(session, holder).await.map_err(|_| RedisCallError::NotPerformed)?,
        };
        for _ in 0..REGISTER_ATTEMPTS_MAX {
            let mut answer = self.call(call(stamp)).await?;
            match answer.text()?.as_str() {
                "OK" => {
                    claiming.has_other_holder = Some(holder) != expect.holder;
                    self.registrations().mark_owned(session, holder);
                    let token = FenceToken { epoch: Epoch(answer.number()?), nonce };
                    let inbox_tail = answer.inbox_position()?;
                    let control_tail = answer.inbox_position()?;
                    let version = ListenersVersion(answer.number()?);
                    let inputs = answer.list()?.inputs()?;
                    let controls = answer.list()?.inputs()?;
                    let inbox = InboxContents { inputs, tail: inbox_tail, controls, control_tail };
                    let listeners = answer.list()?.listeners()?;
                    let owner = OwnershipSnapshot { holder: Some(holder), epoch: token.epoch };
                    let view = answer.list()?.view(owner)?;
                    return Ok(Reply::Claimed(Box::new(Claimed { token, view, inbox, listeners, version })));
                }
                "HELD" => {
                    let owner = answer.ownership()?;
                    claiming.has_other_holder = owner.holder != expect.holder;
                    return Ok(Reply::OwnershipConflict { owner });
                }
                "REGISTER" => {
                    stamp = self.register(session, holder).await.map_err(|_| RedisCallError::NotPerformed)?;
                }
                _ => return Err(RedisCallError::Unknown),
            }
        }
        Err(RedisCallError::NotPerformed)
    }

    pub(super) async fn release(
        &self,
        session: &SessionKey,
        token: FenceToken,
        tail: Seq,
        drain: bool,
    ) -> CallResult<Reply> {
        // A drained session has no owner, and no other node may learn of it while this node lives, unless it is
        // registered.
        let stamp = match drain {
            true => self.register(session, NO_HOLDER).await.map_err(|_| RedisCallError::NotPerformed)?,
            false => 0,
        };
        // From here on, an op of this node that needs the session has to register it anew.
        let registrations = self.registrations().take_session(session);
        let call = RedisCall::write("release", [key::head(session), key::inbox(session), key::control(session)])
            .number(token.epoch.0)
            .hex_id(token.nonce.0)
            .number(tail.0)
            .flag(drain)
            .number(self.now())
            .number(stamp);
        let mut answer = match self.call(call).await {
            Ok(answer) => answer,
            Err(error) => {
                self.registrations().restore_session(session, registrations);
                return Err(error);
            }
        };
        let text = answer.text()?;
        if text != "OK" {
            self.registrations().restore_session(session, registrations);
            return match text.as_str() {
                "PENDING" => Ok(Reply::NotReleased),
                "FENCED" => Ok(Reply::Fenced),
                "REGISTER" => Err(RedisCallError::NotPerformed),
                _ => Err(RedisCallError::Unknown),
            };
        }
        let holder = answer.holder()?;
        let left = answer.flag()?;
        let registration = registrations.into_iter().find(|(by, _)| Some(*by) == holder);
        if let Some((holder, registration)) = registration.filter(|_| !left) {
            // A call that was sent earlier and arrives late may still rely on the registration.
            self.registrations().push_released(self.mono(), session, holder, registration.stamp);
        }
        Ok(Reply::Released)
    }

    pub(super) async fn transfer(
        &self,
        session: &SessionKey,
        token: FenceToken,
        tail: Seq,
        to: Holder,
        nonce: Nonce,
    ) -> CallResult<Reply> {
        let is_own = self.registrations().contains(session, to);
        let stamp = self.register(session, to).await.map_err(|_| RedisCallError::NotPerformed)?;
        // The other node's process looks after a registration under its incarnation. One that was here before is this
        // process's own: without it, this node would not find a session that the refused transfer left unowned.
        if !is_own {
            self.registrations().remove(session, to, stamp);
        }
        let call = RedisCall::write("transfer", [key::head(session)])
            .number(self.now())
            .number(token.epoch.0)
            .hex_id(token.nonce.0)
            .number(tail.0)
            .hex_id(to.node.0)
            .hex_id(to.life.0)
            .hex_id(nonce.0)
            .number(stamp);
        let mut answer = self.call(call).await?;
        match answer.text()?.as_str() {
            "OK" => Ok(Reply::Transferred { token: FenceToken { epoch: Epoch(answer.number()?), nonce } }),
            "FENCED" => Ok(Reply::Fenced),
            "ORDER" => Ok(Reply::OutOfOrder),
            "REGISTER" => Err(RedisCallError::NotPerformed),
            _ => Err(RedisCallError::Unknown),
        }
    }
}
