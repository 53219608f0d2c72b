//! Ops on a session's subscriber nodes, and on small named values. Called by the executor.
use crate::store::redis::answer::Answer;
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use turnway_core::id::{NodeId, SessionKey, Stamp};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::store::{Refused, Reply};

impl Desk {
    /// Subscribes a node. Dead subscribers are searched for only when there is no room. Their leases lie in other
    /// slots, so each is removed only if it still has the stamp it was seen with.
    pub(super) async fn listen(&self, session: &SessionKey, node: NodeId, stamp: Stamp) -> Done<Reply> {
        let call = Call::to("listen", [key::own(session), key::listeners(session)])
            .name(node.0)
            .number(stamp.0)
            .number(limits::LISTENERS_MAX as u64);
        let mut answer = self.call(call.clone()).await?;
        if answer.text()? == "OK" {
            return listening(answer);
        }
        let known: Vec<(NodeId, Stamp)> = answer.list()?.listeners()?.into_iter().collect();
        let leases = known.iter().map(|(node, _)| self.lease_of(*node)).collect();
        let leases = self.calls(leases).await.map_err(|_| Trouble::NotDone)?;
        let is_dead = |lease: &Answer| lease.is_over() && !planted(Planted::RedisDeadListenersKept);
        let dead = known.into_iter().zip(leases).filter(|(_, lease)| is_dead(lease)).map(|(known, _)| known);
        let prune = dead.fold(call, |call, (node, stamp)| call.name(node.0).number(stamp.0));
        let mut answer = self.call(prune).await?;
        match answer.text()?.as_str() {
            "OK" => listening(answer),
            "TOO_MANY" => Ok(Reply::Refused(Refused::TooMany)),
            _ => Err(Trouble::Doubt),
        }
    }

    pub(super) async fn unlisten(&self, session: &SessionKey, node: NodeId, stamp: Stamp) -> Done<Reply> {
        let keys = [key::own(session), key::listeners(session)];
        self.call(Call::to("unlisten", keys).name(node.0).number(stamp.0)).await?;
        Ok(Reply::Done)
    }

    pub(super) async fn get(&self, name: &str) -> Done<Reply> {
        value(self.call(Call::look("get", [key::value(name)])).await?)
    }

    pub(super) async fn put(&self, name: &str, expect: u64, value_: Option<&[u8]>) -> Done<Reply> {
        let call = Call::to("put", [key::value(name)]).number(expect).flag(value_.is_some());
        value(self.call(call.bytes(value_.unwrap_or_default())).await?)
    }
}

fn listening(mut answer: Answer) -> Done<Reply> {
    Ok(Reply::Listening { owner: answer.seen()?, tail: answer.cursor()? })
}

fn value(mut answer: Answer) -> Done<Reply> {
    let version = answer.number()?;
    let value = if answer.is_over() { None } else { Some(answer.bytes()?) };
    Ok(Reply::Value { version, value })
}
