//! Ops on a session's log: appends by the owner, reads by any node. Called by the executor.
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use turnway_core::id::{FenceToken, InboxPosition, ListenersVersion, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::annotation::Annotation;
use turnway_core::store::{Append, FactPage, InboxContents, Reply, SnapshotWrite};

impl OpExecutor {
    pub(super) async fn append(&self, append: &Append) -> CallResult<Reply> {
        let mut answer = self.call(append_call(append)).await?;
        match answer.text()?.as_str() {
            "OK" => {
                let tail = Seq(answer.number()?);
                let inbox_tail = answer.inbox_position()?;
                let control_tail = answer.inbox_position()?;
                let version = ListenersVersion(answer.number()?);
                let listeners = if answer.is_at_end() { None } else { Some(answer.list()?.listeners()?) };
                self.wait_replicated().await?;
                Ok(Reply::Appended { tail, inbox_tail, control_tail, version, listeners })
            }
            "FENCED" => Ok(Reply::Fenced),
            "ORDER" => Ok(Reply::OutOfOrder),
            "GONE" => Ok(Reply::InputMissing { position: answer.inbox_position()? }),
            _ => Err(RedisCallError::Unknown),
        }
    }

    pub(super) async fn open(&self, session: &SessionKey) -> CallResult<Reply> {
        let keys = [key::head(session), key::snapshot(session), key::log(session)];
        let mut answer = self.call(RedisCall::read_only("open", keys)).await?;
        let owner = answer.ownership()?;
        Ok(Reply::View(Box::new(answer.list()?.view(owner)?)))
    }

    pub(super) async fn read(&self, session: &SessionKey, after: Seq, limit: u32) -> CallResult<Reply> {
        let call = RedisCall::read_only("read", [key::head(session), key::log(session)])
            .number(after.0)
            .number(u64::from(limit))
            .number(limits::READ_BYTES_MAX as u64);
        let mut answer = self.call(call).await?;
        let tail = answer.cursor()?;
        let floor = Seq(answer.number()?);
        let after = after.max(floor);
        Ok(Reply::Facts(FactPage { after, facts: answer.list()?.facts(after)?, tail, floor }))
    }

    pub(super) async fn inbox(
        &self,
        session: &SessionKey,
        after: InboxPosition,
        control_after: InboxPosition,
    ) -> CallResult<Reply> {
        let keys = [key::head(session), key::inbox(session), key::control(session)];
        let call = RedisCall::read_only("inbox", keys).number(after.0).number(control_after.0);
        let mut answer = self.call(call).await?;
        let tail = answer.inbox_position()?;
        let control_tail = answer.inbox_position()?;
        let inputs = answer.list()?.inputs()?;
        let controls = answer.list()?.inputs()?;
        Ok(Reply::Inbox(InboxContents { inputs, tail, controls, control_tail }))
    }

    pub(super) async fn keep(&self, keep: &SnapshotWrite) -> CallResult<Reply> {
        let call = RedisCall::write("keep", [key::head(&keep.key), key::snapshot(&keep.key)])
            .number(keep.token.epoch.0)
            .hex_id(keep.token.nonce.0)
            .number(keep.at.seq.0)
            .number(keep.at.epoch.0)
            .bytes(&keep.state);
        self.call_fenced(call).await
    }

    pub(super) async fn trim(&self, session: &SessionKey, token: FenceToken, upto: Seq) -> CallResult<Reply> {
        let call = RedisCall::write("trim", [key::head(session), key::log(session)])
            .number(token.epoch.0)
            .hex_id(token.nonce.0)
            .number(upto.0);
        self.call_fenced(call).await
    }

    async fn call_fenced(&self, call: RedisCall) -> CallResult<Reply> {
        match self.call(call).await?.text()?.as_str() {
            "OK" => Ok(Reply::Done),
            "FENCED" => Ok(Reply::Fenced),
            _ => Err(RedisCallError::Unknown),
        }
    }
}

fn append_call(append: &Append) -> RedisCall {
    let Append { key: session, token, after, facts, ends, answers, closed, annotations, known_listeners: known } =
        append;
    let keys = [key::head, key::log, key::inbox, key::control, key::inputs_by_run, key::listeners];
    let mut call = RedisCall::write("append", keys.map(|key| key(session)))
        .number(token.epoch.0)
        .hex_id(token.nonce.0)
        .number(after.0)
        .number(known.0)
        .text(closed.map_or("", |closed| if closed { "1" } else { "0" }))
        .number(facts.len() as u64);
    for (seq, fact) in (after.0.saturating_add(1)..).zip(facts) {
        let json = fact.to_json(session, Seq(seq), token.epoch);
        call = call.number(fact.weight() as u64).text(&json);
    }
    call = call.number(ends.len() as u64);
    for (position, run) in ends {
        call = call.number(position.0).text(run.as_str());
    }
    call = call.number(answers.len() as u64);
    call = answers.iter().fold(call, |call, position| call.number(position.0)).number(annotations.len() as u64);
    for Annotation { name, text } in annotations {
        // An empty text removes it.
        call = call.text(name).text(text.as_ref().map_or("", Private::reveal));
    }
    call
}
