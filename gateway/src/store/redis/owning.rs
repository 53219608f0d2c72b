//! Ops on a session's ownership. An owner registers the session under its incarnation before it owns the session, so
//! that sweeps find it. Called by the executor.
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done, REGISTERS_MAX};
use crate::store::redis::key::{self, NOBODY};
use turnway_core::id::{Epoch, Holder, Nonce, Seen, Seq, SessionKey, Token, Version};
use turnway_core::store::{Claimed, Inputs, Reply};

/// A guard that marks a claim as in flight until it is dropped.
struct Claiming<'a> {
    desk: &'a Desk,
    session: &'a SessionKey,
    from: Holder,
    /// Whether the session is known to have another holder now.
    is_known: bool,
}

// === impl Claiming ===

impl<'a> Claiming<'a> {
    fn begin(desk: &'a Desk, session: &'a SessionKey, expect: Seen) -> Self {
        let from = expect.holder.unwrap_or(NOBODY);
        desk.book().claim(session, from);
        Self { desk, session, from, is_known: false }
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        self.desk.book().claimed(self.session, self.from, self.is_known);
    }
}

// === impl Desk ===

impl Desk {
    pub(super) async fn claim(
        &self,
        session: &SessionKey,
        holder: Holder,
        nonce: Nonce,
        expect: Seen,
        floor: Epoch,
    ) -> Done<Reply> {
        let mut claiming = Claiming::begin(self, session, expect);
        let keys = [key::own, key::inbox, key::control, key::listeners, key::snapshot, key::log];
        let call = |stamp| {
            let call = Call::to("claim", keys.map(|key| key(session))).number(self.now());
            let call = call.name(holder.node.0).name(holder.life.0).name(nonce.0);
            let call = match expect.holder {
                Some(seen) => call.name(seen.node.0).name(seen.life.0),
                None => call.text("").text(""),
            };
            call.number(expect.epoch.0).number(floor.0).number(stamp)
        };
        let known = self.book().stamp(session, holder);
        let mut stamp = match known {
            Some(stamp) => stamp,
            None => self.register(session, holder).await.map_err(|_| Trouble::NotDone)?,
        };
        for _ in 0..REGISTERS_MAX {
            let mut answer = self.call(call(stamp)).await?;
            match answer.text()?.as_str() {
                "OK" => {
                    claiming.is_known = Some(holder) != expect.holder;
                    self.book().hold(session, holder);
                    let token = Token { epoch: Epoch(answer.number()?), nonce };
                    let (inbox_tail, control_tail) = (answer.place()?, answer.place()?);
                    let version = Version(answer.number()?);
                    let (inputs, controls) = (answer.list()?.waiting()?, answer.list()?.waiting()?);
                    let inbox = Inputs { inputs, tail: inbox_tail, controls, control_tail };
                    let listeners = answer.list()?.listeners()?;
                    let owner = Seen { holder: Some(holder), epoch: token.epoch };
                    let view = answer.list()?.view(owner)?;
                    return Ok(Reply::Claimed(Box::new(Claimed { token, view, inbox, listeners, version })));
                }
                "HELD" => {
                    let owner = answer.seen()?;
                    claiming.is_known = owner.holder != expect.holder;
                    return Ok(Reply::Held { owner });
                }
                "REGISTER" => {
                    stamp = self.register(session, holder).await.map_err(|_| Trouble::NotDone)?;
                }
                _ => return Err(Trouble::Doubt),
            }
        }
        Err(Trouble::NotDone)
    }

    pub(super) async fn release(
        &self,
        session: &SessionKey,
        token: Token,
        tail: Seq,
        drain: bool,
    ) -> Done<Reply> {
        // A drained session has no owner, and no other node may learn of it while this node lives, unless it is
        // registered.
        let stamp = match drain {
            true => self.register(session, NOBODY).await.map_err(|_| Trouble::NotDone)?,
            false => 0,
        };
        // From here on, an op of this node that needs the session has to register it anew.
        let lines = self.book().take(session);
        let call = Call::to("release", [key::own(session), key::inbox(session), key::control(session)])
            .number(token.epoch.0)
            .name(token.nonce.0)
            .number(tail.0)
            .flag(drain)
            .number(self.now())
            .number(stamp);
        let mut answer = match self.call(call).await {
            Ok(answer) => answer,
            Err(trouble) => {
                self.book().put_back(session, lines);
                return Err(trouble);
            }
        };
        let said = answer.text()?;
        if said != "OK" {
            self.book().put_back(session, lines);
            return match said.as_str() {
                "PENDING" => Ok(Reply::Pending),
                "FENCED" => Ok(Reply::Fenced),
                "REGISTER" => Err(Trouble::NotDone),
                _ => Err(Trouble::Doubt),
            };
        }
        let (holder, left) = (answer.holder()?, answer.flag()?);
        let line = lines.into_iter().find(|(by, _)| Some(*by) == holder);
        if let Some((holder, line)) = line.filter(|_| !left) {
            // A call that was sent earlier and arrives late may still rely on the registration.
            self.book().leave(self.mono(), session, holder, line.stamp);
        }
        Ok(Reply::Released)
    }

    pub(super) async fn transfer(
        &self,
        session: &SessionKey,
        token: Token,
        tail: Seq,
        to: Holder,
        nonce: Nonce,
    ) -> Done<Reply> {
        let stamp = self.register(session, to).await.map_err(|_| Trouble::NotDone)?;
        // The registration belongs to the other incarnation from now on.
        self.book().strike(session, to, stamp);
        let call = Call::to("transfer", [key::own(session)])
            .number(self.now())
            .number(token.epoch.0)
            .name(token.nonce.0)
            .number(tail.0)
            .name(to.node.0)
            .name(to.life.0)
            .name(nonce.0)
            .number(stamp);
        let mut answer = self.call(call).await?;
        match answer.text()?.as_str() {
            "OK" => Ok(Reply::Transferred { token: Token { epoch: Epoch(answer.number()?), nonce } }),
            "FENCED" => Ok(Reply::Fenced),
            "ORDER" => Ok(Reply::Order),
            "REGISTER" => Err(Trouble::NotDone),
            _ => Err(Trouble::Doubt),
        }
    }
}
