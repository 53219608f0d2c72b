//! Ops that accept and look up inputs and control entries. A session without an owner is registered before anything
//! is stored in it, so that a sweep finds it if this node dies first; a new session is also entered in the lists. The
//! function asks for either when it is missing and stores nothing until then.
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor, REGISTER_ATTEMPTS_MAX};
use crate::store::redis::key;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use turnway_core::id::{ControlId, NodeId, Principal, RunId, Seq, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::protocol::input::{BodyHash, ControlEntry, Input, Strategy};
use turnway_core::store::{Acceptance, Reply, RouteVersion, RunLocation, StoreRefusal};
use turnway_wire::peer::frame;

/// Ids checked in one call, which takes about 5 ms.
const EXPIRE_IDS: u64 = 1000;

/// Stamps of a session's registration and list entry; 0 if not made yet.
#[derive(Clone, Copy, Default)]
struct RegistrationStamps {
    registered: u64,
    listed: u64,
}

/// The beginning of a bus frame that the function completes and publishes as an offer.
struct OfferFrame {
    sender: NodeId,
    prefix: Vec<u8>,
}

impl OpExecutor {
    pub(super) async fn accept(
        &self,
        session: &SessionKey,
        principal: &Principal,
        (input, hash): (&Input, BodyHash),
        route: Option<&RouteVersion>,
    ) -> CallResult<Reply> {
        // Inputs have string keys and finite numbers only, so serialisation cannot fail.
        let json = serde_json::to_vec(input).unwrap_or_default();
        let offer = self.offer_frame(session, json.len());
        let call = RedisCall::write("accept", [key::head(session), key::inbox(session), key::inputs_by_run(session)])
            .number(self.now())
            .text(principal.user.as_str())
            .flag(principal.operator)
            .text(input.run_id.as_str())
            .text(&URL_SAFE_NO_PAD.encode(hash))
            .number(input.weight() as u64)
            .flag(input.strategy == Strategy::Reject)
            .bytes(&json)
            .number(limits::INBOX_INPUTS_MAX as u64)
            .number(limits::INBOX_BYTES_MAX as u64);
        self.submit_input(session, (&principal.user, route), call, offer).await
    }

    pub(super) async fn control(
        &self,
        session: &SessionKey,
        principal: &Principal,
        control: &ControlEntry,
        create: bool,
    ) -> CallResult<Reply> {
        let cancelled = control.what.cancelled_run().map_or("", RunId::as_str);
        let json = serde_json::to_vec(control).unwrap_or_default();
        let offer = self.offer_frame(session, json.len());
        let keys =
            [key::head(session), key::control(session), key::controls_by_id(session), key::inputs_by_run(session)];
        let call = RedisCall::write(if create { "create" } else { "control" }, keys)
            .number(self.now())
            .text(principal.user.as_str())
            .flag(principal.operator)
            .text(control.id.as_str())
            .bytes(&json)
            .flag(create)
            .text(cancelled)
            .number(limits::CONTROL_ENTRIES_MAX as u64);
        self.submit_input(session, (&principal.user, None), call, offer).await
    }

    /// Returns the frame with which the function notifies an owner on another node. A node without a lease has no
    /// holder here and notifies the owner itself.
    fn offer_frame(&self, session: &SessionKey, json: usize) -> OfferFrame {
        let me = self.registrations().own_holder();
        let begun = (me != key::NO_HOLDER).then(|| frame::offer_prefix(me.node, session, json)).flatten();
        OfferFrame { sender: me.node, prefix: begun.unwrap_or_default() }
    }

    async fn submit_input(
        &self,
        session: &SessionKey,
        (user, route): (&UserId, Option<&RouteVersion>),
        call: RedisCall,
        offer: OfferFrame,
    ) -> CallResult<Reply> {
        let registered = {
            let registrations = self.registrations();
            registrations.stamp(session, registrations.own_holder()).unwrap_or_default()
        };
        let mut stamps = RegistrationStamps { registered, listed: 0 };
        for _ in 0..REGISTER_ATTEMPTS_MAX {
            let call = call.clone().number(stamps.registered).number(stamps.listed);
            let call = self.quotas.append_to(call.text(&offer.sender.to_string()).bytes(&offer.prefix));
            let call = match route {
                Some(RouteVersion { place, version }) => call.text(place.as_str()).number(*version),
                None => call,
            };
            let mut answer = self.call(call).await?;
            let word = answer.text()?;
            if word != "REGISTER" {
                return self.parse_accepted(&word, answer).await;
            }
            let exists = answer.flag()?;
            // Boxed, because the case is rare and would enlarge the future of every op.
            let prepared = Box::pin(self.register_and_list(session, user, exists)).await;
            stamps = prepared.map_err(|_| RedisCallError::NotPerformed)?;
        }
        Err(RedisCallError::NotPerformed)
    }

    async fn register_and_list(
        &self,
        session: &SessionKey,
        user: &UserId,
        exists: bool,
    ) -> CallResult<RegistrationStamps> {
        let me = self.registrations().own_holder();
        let enter = async { if exists { Ok(0) } else { self.add_to_lists(session, user).await } };
        let (registered, born) = futures_util::join!(self.register(session, me), enter);
        Ok(RegistrationStamps { registered: registered?, listed: born? })
    }

    async fn parse_accepted(&self, word: &str, mut answer: RedisAnswerReader) -> CallResult<Reply> {
        let refused = match word {
            "OK" => {
                let position = answer.inbox_position()?;
                let prev = answer.inbox_position()?;
                let owner = answer.ownership()?;
                let tail = answer.cursor()?;
                let duplicate = answer.flag()?;
                let ended = answer.flag()?;
                let rung = answer.offer_receivers()?;
                self.wait_replicated().await?;
                return Ok(Reply::Accepted(Acceptance {
                    position,
                    prev,
                    owner,
                    tail,
                    duplicate,
                    ended,
                    offer_receivers: rung,
                }));
            }
            "NOT_FOUND" => StoreRefusal::NotFound,
            "CONFLICT" => StoreRefusal::Conflict,
            "CLOSED" => StoreRefusal::Closed,
            "BUSY" => StoreRefusal::Busy,
            "TOO_MANY" => StoreRefusal::TooMany,
            "QUOTA" => StoreRefusal::Quota,
            _ => return Err(RedisCallError::Unknown),
        };
        Ok(Reply::Refused(refused))
    }

    pub(super) async fn find(
        &self,
        session: &SessionKey,
        principal: &Principal,
        (run, fence): (&RunId, Option<&RouteVersion>),
    ) -> CallResult<Reply> {
        let keys = [key::head(session), key::inputs_by_run(session)];
        let call = match fence {
            Some(_) => RedisCall::write("fence", keys),
            None => RedisCall::read_only("find", keys),
        };
        let call = call.text(principal.user.as_str()).flag(principal.operator).text(run.as_str());
        let call = match fence {
            Some(RouteVersion { place, version }) => call.text(place.as_str()).number(*version).number(self.now()),
            None => call,
        };
        let mut answer = self.call(call).await?;
        if answer.text()? != "OK" {
            if fence.is_some() {
                self.wait_replicated().await?;
            }
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        let after = answer.cursor()?;
        let ended = answer.text()?;
        Ok(Reply::Found(RunLocation { after, ended: ended.parse().ok().map(Seq) }))
    }

    pub(super) async fn find_control(
        &self,
        session: &SessionKey,
        principal: &Principal,
        id: &ControlId,
    ) -> CallResult<Reply> {
        let keys = [key::head(session), key::control(session), key::controls_by_id(session)];
        let call = RedisCall::read_only("find_control", keys)
            .text(principal.user.as_str())
            .flag(principal.operator)
            .text(id.as_str());
        let mut answer = self.call(call).await?;
        if answer.text()? != "OK" {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        Ok(Reply::ControlFound { ended: answer.flag()? })
    }

    /// Deletes a closed session.
    pub(super) async fn delete(&self, session: &SessionKey, principal: &Principal) -> CallResult<Reply> {
        let call = RedisCall::write("delete", key::session_keys(session))
            .text(principal.user.as_str())
            .flag(principal.operator);
        Ok(match self.call(call).await?.text()?.as_str() {
            "OK" => Reply::Done,
            "BUSY" => Reply::Refused(StoreRefusal::Busy),
            _ => Reply::Refused(StoreRefusal::NotFound),
        })
    }

    /// Removes expired ids in steps, so that a session with very many ids does not block the server. Each id is
    /// independent of the others.
    pub(super) async fn expire(&self, session: &SessionKey, before_ms: u64) -> CallResult<Reply> {
        let mut cursor = "0".to_owned();
        loop {
            let call = RedisCall::write("expire", [key::head(session), key::inputs_by_run(session)])
                .number(before_ms)
                .text(&cursor)
                .number(EXPIRE_IDS);
            cursor = self.call(call).await?.text()?;
            if cursor == "0" {
                return Ok(Reply::Done);
            }
        }
    }
}
