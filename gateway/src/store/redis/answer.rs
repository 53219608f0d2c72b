//! Parsing of the functions' answers: arrays of strings and nested arrays. Used by all ops of the Redis store.
use crate::store::redis::call::Trouble;
use ::redis::Value;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, Holder, Life, NodeId, Place, Seen, Seq, Stamp, UserId};
use turnway_core::protocol::entry::Entry;
use turnway_core::store::{Snapshot, View};

/// A reader of an array from its beginning.
#[derive(Debug)]
pub(super) struct Answer(std::vec::IntoIter<Value>);

/// Logs an answer that no version of the functions gives and returns the error: the library or the data is not ours.
fn strange(what: &'static str) -> Trouble {
    tracing::error!(what, "unexpected answer from Redis");
    Trouble::Doubt
}

impl Answer {
    #[expect(clippy::wildcard_enum_match_arm, reason = "every answer is an array")]
    pub(super) fn of(value: Value) -> Result<Self, Trouble> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(strange("not an array")),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Trouble> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(strange("not a string")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Trouble> {
        String::from_utf8(self.bytes()?).map_err(|_| strange("not UTF-8"))
    }

    pub(super) fn list(&mut self) -> Result<Self, Trouble> {
        Self::of(self.0.next().unwrap_or(Value::Nil))
    }

    pub(super) fn number(&mut self) -> Result<u64, Trouble> {
        self.text()?.parse().map_err(|_| strange("not a number"))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Trouble> {
        Ok(self.bytes()? == b"1")
    }

    pub(super) fn place(&mut self) -> Result<Place, Trouble> {
        self.number().map(Place)
    }

    pub(super) fn cursor(&mut self) -> Result<Cursor, Trouble> {
        Ok(Cursor { seq: Seq(self.number()?), epoch: Epoch(self.number()?) })
    }

    /// Reads the number of nodes that received the offer; `None` if no offer was published or the functions are too
    /// old to publish any.
    pub(super) fn rung(&mut self) -> Result<Option<u32>, Trouble> {
        if self.is_over() {
            return Ok(None);
        }
        let heard = self.text()?;
        if heard.is_empty() {
            return Ok(None);
        }
        heard.parse().map(Some).map_err(|_| strange("not a number"))
    }

    fn name(&mut self) -> Result<Option<u128>, Trouble> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        u128::from_str_radix(&text, 16).map(Some).map_err(|_| strange("not a valid id"))
    }

    /// Reads node and incarnation; both are empty if there is no holder.
    pub(super) fn holder(&mut self) -> Result<Option<Holder>, Trouble> {
        let (node, life) = (self.name()?, self.name()?);
        Ok(node.zip(life).map(|(node, life)| Holder { node: NodeId(node), life: Life(life) }))
    }

    pub(super) fn seen(&mut self) -> Result<Seen, Trouble> {
        Ok(Seen { holder: self.holder()?, epoch: Epoch(self.number()?) })
    }

    /// Reads node, incarnation and epoch as stored in a session's hash, where fields never written are absent.
    pub(super) fn owner(mut self) -> Result<Seen, Trouble> {
        for (field, absent) in self.0.as_mut_slice().iter_mut().zip(["", "", "0"]) {
            if *field == Value::Nil {
                *field = Value::BulkString(absent.into());
            }
        }
        self.seen()
    }

    /// Reads the answer to `TIME`, in milliseconds.
    pub(super) fn time(mut self) -> Result<u64, Trouble> {
        Ok(self.number()? * 1000 + self.number()? / 1000)
    }

    /// Reads alternating nodes and stamps.
    pub(super) fn listeners(mut self) -> Result<BTreeMap<NodeId, Stamp>, Trouble> {
        let mut listeners = BTreeMap::new();
        while !self.is_over() {
            let node = self.name()?.ok_or_else(|| strange("not a valid id"))?;
            listeners.insert(NodeId(node), Stamp(self.number()?));
        }
        Ok(listeners)
    }

    /// Reads alternating positions and JSON bodies.
    pub(super) fn waiting<T: DeserializeOwned>(mut self) -> Result<Vec<(Place, Arc<T>)>, Trouble> {
        let mut waiting = Vec::with_capacity(self.0.len() / 2);
        while !self.is_over() {
            let place = self.place()?;
            let body =
                serde_json::from_slice(&self.bytes()?).map_err(|_| strange("not a valid input or control entry"))?;
            waiting.push((place, Arc::new(body)));
        }
        Ok(waiting)
    }

    /// Reads a session's current state; the owner was read before.
    pub(super) fn view(mut self, owner: Seen) -> Result<View, Trouble> {
        let mut user = self.list()?;
        let user = if user.is_over() { None } else { Some(user.text()?) };
        let user = user.map(|user| UserId::parse(&user).map_err(|_| strange("not a valid id"))).transpose()?;
        let (closed, tail, floor) = (self.flag()?, self.cursor()?, Seq(self.number()?));
        let mut kept = self.list()?;
        let snapshot = if kept.is_over() {
            None
        } else {
            Some(Snapshot { at: kept.cursor()?, state: kept.bytes()?.into() })
        };
        let after = snapshot.as_ref().map_or(Seq(0), |kept| kept.at.seq).max(floor);
        let facts = self.list()?.facts(after)?;
        Ok(View { owner, user, closed, snapshot, facts, tail, floor })
    }

    /// Reads consecutive facts after a position, and checks that each fact names its own position.
    pub(super) fn facts(mut self, after: Seq) -> Result<Vec<(Epoch, Arc<Entry>)>, Trouble> {
        let mut facts = Vec::with_capacity(self.0.len());
        while !self.is_over() {
            let envelope = Entry::from_json(&self.text()?).map_err(|_| strange("not a fact"))?;
            if envelope.seq.0 != after.0 + facts.len() as u64 + 1 {
                return Err(strange("a fact at another position"));
            }
            facts.push((envelope.epoch, Arc::new(envelope.entry)));
        }
        Ok(facts)
    }
}
