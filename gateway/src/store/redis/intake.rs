//! Ops that accept and look up inputs and control entries. A session without an owner is registered before anything
//! is stored in it, so that a sweep finds it if this node dies first; a new session is also entered in the lists. The
//! function asks for either when it is missing and stores nothing until then.
use crate::store::redis::answer::Answer;
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done, REGISTERS_MAX};
use crate::store::redis::key;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use turnway_bindings::peer::frame;
use turnway_core::id::{NodeId, Principal, RunId, Seq, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::protocol::input::{Ask, BodyHash, Control, Input, Strategy};
use turnway_core::store::{Accepted, Found, Refused, Reply};

/// Ids checked in one call, which takes about 5 ms.
const EXPIRE_IDS: u64 = 1000;

/// Stamps of a session's registration and list entry; 0 if not made yet.
#[derive(Clone, Copy, Default)]
struct Stamps {
    registered: u64,
    born: u64,
}

/// The beginning of a bus frame that the function completes and publishes as an offer.
struct Bell {
    me: NodeId,
    begun: Vec<u8>,
}

impl Desk {
    pub(super) async fn accept(
        &self,
        session: &SessionKey,
        principal: &Principal,
        input: &Input,
        hash: BodyHash,
    ) -> Done<Reply> {
        // Inputs have string keys and finite numbers only, so serialisation cannot fail.
        let json = serde_json::to_vec(input).unwrap_or_default();
        let bell = self.bell(session, json.len());
        let call = Call::to("accept", [key::own(session), key::inbox(session), key::taken(session)])
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
        self.take_in(session, &principal.user, call, bell).await
    }

    pub(super) async fn control(
        &self,
        session: &SessionKey,
        principal: &Principal,
        control: &Control,
        create: bool,
    ) -> Done<Reply> {
        let cancelled = match &control.what {
            Ask::Cancel { run_id: Some(run_id) } => run_id.as_str(),
            Ask::Cancel { run_id: None }
            | Ask::Open { .. }
            | Ask::Close
            | Ask::Switch { .. }
            | Ask::Invite { .. }
            | Ask::Remove { .. }
            | Ask::Handover { .. } => "",
        };
        let json = serde_json::to_vec(control).unwrap_or_default();
        let bell = self.bell(session, json.len());
        let keys = [key::own(session), key::control(session), key::heard(session), key::taken(session)];
        let call = Call::to(if create { "create" } else { "control" }, keys)
            .number(self.now())
            .text(principal.user.as_str())
            .flag(principal.operator)
            .text(control.id.as_str())
            .bytes(&json)
            .flag(create)
            .text(cancelled)
            .number(limits::CONTROL_ENTRIES_MAX as u64);
        self.take_in(session, &principal.user, call, bell).await
    }

    /// Returns the frame with which the function notifies an owner on another node. A node without a lease has no
    /// holder here and notifies the owner itself.
    fn bell(&self, session: &SessionKey, json: usize) -> Bell {
        let me = self.book().me();
        let begun = (me != key::NOBODY).then(|| frame::bell_begins(me.node, session, json)).flatten();
        Bell { me: me.node, begun: begun.unwrap_or_default() }
    }

    async fn take_in(&self, session: &SessionKey, user: &UserId, call: Call, bell: Bell) -> Done<Reply> {
        let registered = {
            let book = self.book();
            book.stamp(session, book.me()).unwrap_or_default()
        };
        let mut stamps = Stamps { registered, born: 0 };
        for _ in 0..REGISTERS_MAX {
            let call = call.clone().number(stamps.registered).number(stamps.born);
            let call = self.quotas.add_to(call.text(&bell.me.to_string()).bytes(&bell.begun));
            let mut answer = self.call(call).await?;
            let word = answer.text()?;
            if word != "REGISTER" {
                return self.taken_in(&word, answer).await;
            }
            let exists = answer.flag()?;
            // Boxed, because the case is rare and would enlarge the future of every op.
            let prepared = Box::pin(self.prepare(session, user, exists)).await;
            stamps = prepared.map_err(|_| Trouble::NotDone)?;
        }
        Err(Trouble::NotDone)
    }

    async fn prepare(&self, session: &SessionKey, user: &UserId, exists: bool) -> Done<Stamps> {
        let me = self.book().me();
        let enter = async { if exists { Ok(0) } else { self.enter(session, user).await } };
        let (registered, born) = futures_util::join!(self.register(session, me), enter);
        Ok(Stamps { registered: registered?, born: born? })
    }

    async fn taken_in(&self, word: &str, mut answer: Answer) -> Done<Reply> {
        let refused = match word {
            "OK" => {
                let (place, prev, owner) = (answer.place()?, answer.place()?, answer.seen()?);
                let (tail, duplicate, ended) = (answer.cursor()?, answer.flag()?, answer.flag()?);
                let rung = answer.rung()?;
                self.kept().await?;
                return Ok(Reply::Accepted(Accepted { place, prev, owner, tail, duplicate, ended, rung }));
            }
            "NOT_FOUND" => Refused::NotFound,
            "CONFLICT" => Refused::Conflict,
            "CLOSED" => Refused::Closed,
            "BUSY" => Refused::Busy,
            "TOO_MANY" => Refused::TooMany,
            "QUOTA" => Refused::Quota,
            _ => return Err(Trouble::Doubt),
        };
        Ok(Reply::Refused(refused))
    }

    pub(super) async fn find(&self, session: &SessionKey, principal: &Principal, run: &RunId) -> Done<Reply> {
        let call = Call::look("find", [key::own(session), key::taken(session)])
            .text(principal.user.as_str())
            .flag(principal.operator)
            .text(run.as_str());
        let mut answer = self.call(call).await?;
        if answer.text()? != "OK" {
            return Ok(Reply::Refused(Refused::NotFound));
        }
        let (after, ended) = (answer.cursor()?, answer.text()?);
        Ok(Reply::Found(Found { after, ended: ended.parse().ok().map(Seq) }))
    }

    /// Deletes a closed session.
    pub(super) async fn delete(&self, session: &SessionKey, principal: &Principal) -> Done<Reply> {
        let call =
            Call::to("delete", key::all(session)).text(principal.user.as_str()).flag(principal.operator);
        Ok(match self.call(call).await?.text()?.as_str() {
            "OK" => Reply::Done,
            "BUSY" => Reply::Refused(Refused::Busy),
            _ => Reply::Refused(Refused::NotFound),
        })
    }

    /// Removes expired ids in steps, so that a session with very many ids does not block the server. Each id is
    /// independent of the others.
    pub(super) async fn expire(&self, session: &SessionKey, before_ms: u64) -> Done<Reply> {
        let mut cursor = "0".to_owned();
        loop {
            let call = Call::to("expire", [key::own(session), key::taken(session)])
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
