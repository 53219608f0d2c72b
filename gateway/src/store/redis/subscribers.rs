//! Ops on a session's subscriber nodes, and on small named values. Called by the executor.
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use turnway_core::id::{ListenStamp, NodeId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::store::{Reply, StoreRefusal};

impl OpExecutor {
    /// Subscribes a node. Dead subscribers are searched for only when there is no room. Their leases lie in other
    /// slots, so each is removed only if it still has the stamp it was seen with.
    pub(super) async fn listen(&self, session: &SessionKey, node: NodeId, stamp: ListenStamp) -> CallResult<Reply> {
        let call = RedisCall::write("listen", [key::head(session), key::listeners(session)])
            .hex_id(node.0)
            .number(stamp.0)
            .number(limits::LISTENERS_MAX as u64);
        let mut answer = self.call(call.clone()).await?;
        if answer.text()? == "OK" {
            return parse_listening(answer);
        }
        let known: Vec<(NodeId, ListenStamp)> = answer.list()?.listeners()?.into_iter().collect();
        let leases = known.iter().map(|(node, _)| self.lease_of(*node)).collect();
        let leases = self.calls(leases).await.map_err(|_| RedisCallError::NotPerformed)?;
        let is_dead = |lease: &RedisAnswerReader| lease.is_at_end() && !planted(Planted::RedisDeadListenersKept);
        let dead = known.into_iter().zip(leases).filter(|(_, lease)| is_dead(lease)).map(|(known, _)| known);
        let prune = dead.fold(call, |call, (node, stamp)| call.hex_id(node.0).number(stamp.0));
        let mut answer = self.call(prune).await?;
        match answer.text()?.as_str() {
            "OK" => parse_listening(answer),
            "TOO_MANY" => Ok(Reply::Refused(StoreRefusal::TooMany)),
            _ => Err(RedisCallError::Unknown),
        }
    }

    pub(super) async fn unlisten(&self, session: &SessionKey, node: NodeId, stamp: ListenStamp) -> CallResult<Reply> {
        let keys = [key::head(session), key::listeners(session)];
        self.call(RedisCall::write("unlisten", keys).hex_id(node.0).number(stamp.0)).await?;
        Ok(Reply::Done)
    }

    pub(super) async fn get(&self, name: &str) -> CallResult<Reply> {
        parse_value(self.call(RedisCall::read_only("get", [key::value(name)])).await?)
    }

    pub(super) async fn put(&self, name: &str, expect: u64, value_: Option<&[u8]>) -> CallResult<Reply> {
        let call = RedisCall::write("put", [key::value(name)]).number(expect).flag(value_.is_some());
        parse_value(self.call(call.bytes(value_.unwrap_or_default())).await?)
    }
}

fn parse_listening(mut answer: RedisAnswerReader) -> CallResult<Reply> {
    Ok(Reply::Listening { owner: answer.ownership()?, tail: answer.cursor()? })
}

fn parse_value(mut answer: RedisAnswerReader) -> CallResult<Reply> {
    let version = answer.number()?;
    let value = if answer.is_at_end() { None } else { Some(answer.bytes()?) };
    Ok(Reply::Value { version, value })
}
