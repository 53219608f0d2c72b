//! Ops on a session's log: appends by the owner, reads by any node. Called by the executor.
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use turnway_core::id::{Place, Seq, SessionKey, Token, Version};
use turnway_core::limits;
use turnway_core::store::{Append, Heard, Inputs, Keep, Reply};

impl Desk {
    pub(super) async fn append(&self, append: &Append) -> Done<Reply> {
        let mut answer = self.call(call(append)).await?;
        match answer.text()?.as_str() {
            "OK" => {
                let (tail, inbox_tail) = (Seq(answer.number()?), answer.place()?);
                let (control_tail, version) = (answer.place()?, Version(answer.number()?));
                let listeners = if answer.is_over() { None } else { Some(answer.list()?.listeners()?) };
                self.kept().await?;
                Ok(Reply::Appended { tail, inbox_tail, control_tail, version, listeners })
            }
            "FENCED" => Ok(Reply::Fenced),
            "ORDER" => Ok(Reply::Order),
            "GONE" => Ok(Reply::Gone { place: answer.place()? }),
            _ => Err(Trouble::Doubt),
        }
    }

    pub(super) async fn open(&self, session: &SessionKey) -> Done<Reply> {
        let keys = [key::own(session), key::snapshot(session), key::log(session)];
        let mut answer = self.call(Call::look("open", keys)).await?;
        let owner = answer.seen()?;
        Ok(Reply::View(Box::new(answer.list()?.view(owner)?)))
    }

    pub(super) async fn read(&self, session: &SessionKey, after: Seq, limit: u32) -> Done<Reply> {
        let call = Call::look("read", [key::own(session), key::log(session)])
            .number(after.0)
            .number(u64::from(limit))
            .number(limits::READ_BYTES_MAX as u64);
        let mut answer = self.call(call).await?;
        let (tail, floor) = (answer.cursor()?, Seq(answer.number()?));
        let after = after.max(floor);
        Ok(Reply::Heard(Heard { after, facts: answer.list()?.facts(after)?, tail, floor }))
    }

    pub(super) async fn inbox(
        &self,
        session: &SessionKey,
        after: Place,
        control_after: Place,
    ) -> Done<Reply> {
        let keys = [key::own(session), key::inbox(session), key::control(session)];
        let call = Call::look("inbox", keys).number(after.0).number(control_after.0);
        let mut answer = self.call(call).await?;
        let (tail, control_tail) = (answer.place()?, answer.place()?);
        let (inputs, controls) = (answer.list()?.waiting()?, answer.list()?.waiting()?);
        Ok(Reply::Waiting(Inputs { inputs, tail, controls, control_tail }))
    }

    pub(super) async fn keep(&self, keep: &Keep) -> Done<Reply> {
        let call = Call::to("keep", [key::own(&keep.key), key::snapshot(&keep.key)])
            .number(keep.token.epoch.0)
            .name(keep.token.nonce.0)
            .number(keep.at.seq.0)
            .number(keep.at.epoch.0)
            .bytes(&keep.state);
        self.fenced(call).await
    }

    pub(super) async fn trim(&self, session: &SessionKey, token: Token, upto: Seq) -> Done<Reply> {
        let call = Call::to("trim", [key::own(session), key::log(session)])
            .number(token.epoch.0)
            .name(token.nonce.0)
            .number(upto.0);
        self.fenced(call).await
    }

    async fn fenced(&self, call: Call) -> Done<Reply> {
        match self.call(call).await?.text()?.as_str() {
            "OK" => Ok(Reply::Done),
            "FENCED" => Ok(Reply::Fenced),
            _ => Err(Trouble::Doubt),
        }
    }
}

fn call(append: &Append) -> Call {
    let Append { key: session, token, after, facts, ends, answers, closed, known } = append;
    let keys = [key::own, key::log, key::inbox, key::control, key::taken, key::listeners];
    let mut call = Call::to("append", keys.map(|key| key(session)))
        .number(token.epoch.0)
        .name(token.nonce.0)
        .number(after.0)
        .number(known.0)
        .text(closed.map_or("", |closed| if closed { "1" } else { "0" }))
        .number(facts.len() as u64);
    for (seq, fact) in (after.0.saturating_add(1)..).zip(facts) {
        let json = fact.to_json(session, Seq(seq), token.epoch);
        call = call.number(fact.weight() as u64).text(&json);
    }
    call = call.number(ends.len() as u64);
    for (place, run) in ends {
        call = call.number(place.0).text(run.as_str());
    }
    call = call.number(answers.len() as u64);
    answers.iter().fold(call, |call, place| call.number(place.0))
}
