//! Parsing of the functions' answers: arrays of strings and nested arrays. Used by all ops of the Redis store.
use crate::store::redis::call::RedisCallError;
use ::redis::Value;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    Cursor, Epoch, Holder, InboxPosition, LeaseId, ListenStamp, NodeId, OwnershipSnapshot, Seq, UserId,
};
use turnway_core::protocol::entry::Entry;
use turnway_core::store::{SessionView, Snapshot};

/// A reader of an array from its beginning.
#[derive(Debug)]
pub(super) struct RedisAnswerReader(std::vec::IntoIter<Value>);

/// Logs an answer that no version of the functions gives and returns the error: the library or the data is not ours.
fn malformed(what: &'static str) -> RedisCallError {
    tracing::error!(what, "unexpected answer from Redis");
    RedisCallError::Unknown
}

impl RedisAnswerReader {
    #[expect(clippy::wildcard_enum_match_arm, reason = "every answer is an array")]
    pub(super) fn from_value(value: Value) -> Result<Self, RedisCallError> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(malformed("not an array")),
        }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, RedisCallError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(malformed("not a string")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, RedisCallError> {
        String::from_utf8(self.bytes()?).map_err(|_| malformed("not UTF-8"))
    }

    pub(super) fn list(&mut self) -> Result<Self, RedisCallError> {
        Self::from_value(self.0.next().unwrap_or(Value::Nil))
    }

    pub(super) fn number(&mut self) -> Result<u64, RedisCallError> {
        self.text()?.parse().map_err(|_| malformed("not a number"))
    }

    pub(super) fn flag(&mut self) -> Result<bool, RedisCallError> {
        Ok(self.bytes()? == b"1")
    }

    pub(super) fn inbox_position(&mut self) -> Result<InboxPosition, RedisCallError> {
        self.number().map(InboxPosition)
    }

    pub(super) fn cursor(&mut self) -> Result<Cursor, RedisCallError> {
        Ok(Cursor { seq: Seq(self.number()?), epoch: Epoch(self.number()?) })
    }

    /// Reads the number of nodes that received the offer; `None` if no offer was published or the functions are too
    /// old to publish any.
    pub(super) fn offer_receivers(&mut self) -> Result<Option<u32>, RedisCallError> {
        if self.is_at_end() {
            return Ok(None);
        }
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| malformed("not a number"))
    }

    fn hex_id(&mut self) -> Result<Option<u128>, RedisCallError> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        u128::from_str_radix(&text, 16).map(Some).map_err(|_| malformed("not a valid id"))
    }

    /// Reads node and incarnation; both are empty if there is no holder.
    pub(super) fn holder(&mut self) -> Result<Option<Holder>, RedisCallError> {
        let node = self.hex_id()?;
        let life = self.hex_id()?;
        Ok(node.zip(life).map(|(node, life)| Holder { node: NodeId(node), life: LeaseId(life) }))
    }

    pub(super) fn ownership(&mut self) -> Result<OwnershipSnapshot, RedisCallError> {
        Ok(OwnershipSnapshot { holder: self.holder()?, epoch: Epoch(self.number()?) })
    }

    /// Reads node, incarnation and epoch as stored in a session's hash, where fields never written are absent.
    pub(super) fn stored_ownership(mut self) -> Result<OwnershipSnapshot, RedisCallError> {
        for (field, absent) in self.0.as_mut_slice().iter_mut().zip(["", "", "0"]) {
            if *field == Value::Nil {
                *field = Value::BulkString(absent.into());
            }
        }
        self.ownership()
    }

    /// Reads the answer to `TIME`, in milliseconds.
    pub(super) fn time_millis(mut self) -> Result<u64, RedisCallError> {
        Ok(self.number()? * 1000 + self.number()? / 1000)
    }

    /// Reads alternating nodes and stamps.
    pub(super) fn listeners(mut self) -> Result<BTreeMap<NodeId, ListenStamp>, RedisCallError> {
        let mut listeners = BTreeMap::new();
        while !self.is_at_end() {
            let node = self.hex_id()?.ok_or_else(|| malformed("not a valid id"))?;
            listeners.insert(NodeId(node), ListenStamp(self.number()?));
        }
        Ok(listeners)
    }

    /// Reads alternating positions and JSON bodies.
    pub(super) fn inputs<T: DeserializeOwned>(mut self) -> Result<Vec<(InboxPosition, Arc<T>)>, RedisCallError> {
        let mut waiting = Vec::with_capacity(self.0.len() / 2);
        while !self.is_at_end() {
            let position = self.inbox_position()?;
            let body = serde_json::from_slice(&self.bytes()?);
            let body = body.map_err(|_| malformed("not a valid input or control entry"))?;
            waiting.push((position, Arc::new(body)));
        }
        Ok(waiting)
    }

    /// Reads a session's current state; the owner was read before.
    pub(super) fn view(mut self, owner: OwnershipSnapshot) -> Result<SessionView, RedisCallError> {
        let mut user = self.list()?;
        let user = if user.is_at_end() { None } else { Some(user.text()?) };
        let user = user.map(|user| UserId::parse(&user).map_err(|_| malformed("not a valid id"))).transpose()?;
        let closed = self.flag()?;
        let tail = self.cursor()?;
        let floor = Seq(self.number()?);
        let mut kept = self.list()?;
        let snapshot =
            if kept.is_at_end() { None } else { Some(Snapshot { at: kept.cursor()?, state: kept.bytes()?.into() }) };
        let after = snapshot.as_ref().map_or(Seq(0), |kept| kept.at.seq).max(floor);
        let facts = self.list()?.facts(after)?;
        Ok(SessionView { owner, user, closed, snapshot, facts, tail, floor })
    }

    /// Reads consecutive facts after a position, and checks that each fact names its own position.
    pub(super) fn facts(mut self, after: Seq) -> Result<Vec<(Epoch, Arc<Entry>)>, RedisCallError> {
        let mut facts = Vec::with_capacity(self.0.len());
        while !self.is_at_end() {
            let envelope = Entry::from_json(&self.text()?).map_err(|_| malformed("not a valid fact"))?;
            if envelope.seq.0 != after.0 + facts.len() as u64 + 1 {
                return Err(malformed("a fact at another position"));
            }
            facts.push((envelope.epoch, Arc::new(envelope.entry)));
        }
        Ok(facts)
    }
}
