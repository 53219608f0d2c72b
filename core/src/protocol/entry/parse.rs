//! Parsing of stored envelopes without intermediate copies: with flattened fields serde would buffer everything
//! twice, and a node that takes over thousands of sessions reads all of their facts.
use super::{
    ActionFact, BindingFact, DeliveryFact, Entry, Envelope, Fact, HandoverFact, InputFact, MemberFact, ModelFact,
    RunFact, SessionFact, UnknownFact,
};
use crate::id::{Epoch, EventId, RunId, Seq};
use crate::protocol::json::Json;
use crate::time::Millis;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess};
use serde::{Deserialize, Deserializer};
use serde_json::Error;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

/// The fields of an envelope and of its entry side by side, with the fact's `data` unparsed; the position is set only
/// in an envelope.
#[derive(Deserialize)]
struct FlatEnvelope<'a> {
    specversion: Option<String>,
    session_id: Option<String>,
    seq: Option<Seq>,
    epoch: Option<Epoch>,
    id: EventId,
    #[serde(with = "crate::time::rfc3339")]
    time: Millis,
    source: Arc<str>,
    correlation_id: Arc<str>,
    causation_id: Option<EventId>,
    traceparent: Option<Arc<str>>,
    run_id: Option<RunId>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// The two fields of a fact, the tag first, as serde's adjacently tagged enum wants them.
struct FactParts<'a> {
    kind: Option<&'a str>,
    data: Option<&'a RawValue>,
}

impl<'a> MapAccess<'a> for FactParts<'a> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let name = match (self.kind, self.data) {
            (Some(_), _) => "type",
            (None, Some(_)) => "data",
            (None, None) => return Ok(None),
        };
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match (self.kind.take(), self.data) {
            (Some(kind), _) => {
                let kind: StrDeserializer<'_, Error> = kind.into_deserializer();
                seed.deserialize(kind)
            }
            (None, Some(data)) => {
                self.data = None;
                seed.deserialize(data)
            }
            (None, None) => Err(serde::de::Error::custom("a value without a key")),
        }
    }
}

/// Parses an envelope as stored in the log.
pub(super) fn parse_envelope(json: &str) -> Result<Envelope<Entry>, Error> {
    let mut flat = parse_flat(json)?;
    let required = (flat.specversion.take(), flat.session_id.take(), flat.seq, flat.epoch);
    let (Some(specversion), Some(session_id), Some(seq), Some(epoch)) = required else {
        return Err(serde::de::Error::custom("a fact without session, position or epoch"));
    };
    Ok(Envelope { specversion, session_id, seq, epoch, entry: into_entry(flat)? })
}

fn parse_flat(json: &str) -> Result<FlatEnvelope<'_>, Error> {
    if !json.trim_ascii_start().starts_with('{') {
        // serde would also accept the fields as an array.
        return Err(serde::de::Error::custom("an envelope is an object"));
    }
    serde_json::from_str(json)
}

fn into_entry(flat: FlatEnvelope<'_>) -> Result<Entry, Error> {
    let fact = parse_fact(&flat.kind, flat.data)?;
    let FlatEnvelope { id, time, source, correlation_id, causation_id, traceparent, run_id, .. } = flat;
    Ok(Entry { id, time, source, correlation_id, causation_id, traceparent, run_id, fact })
}

/// Parses a fact by its type; a type of a newer release is kept as it is.
fn parse_fact(name: &str, data: Option<&RawValue>) -> Result<Fact, Error> {
    let parts = MapAccessDeserializer::new(FactParts { kind: Some(name), data });
    if RunFact::has(name) {
        RunFact::deserialize(parts).map(Fact::Run)
    } else if InputFact::has(name) {
        InputFact::deserialize(parts).map(Fact::Input)
    } else if SessionFact::has(name) {
        SessionFact::deserialize(parts).map(Fact::Session)
    } else if MemberFact::has(name) {
        MemberFact::deserialize(parts).map(Fact::Member)
    } else if HandoverFact::has(name) {
        HandoverFact::deserialize(parts).map(Fact::Handover)
    } else if ActionFact::has(name) {
        ActionFact::deserialize(parts).map(Fact::Action)
    } else if BindingFact::has(name) {
        BindingFact::deserialize(parts).map(Fact::Binding)
    } else if DeliveryFact::has(name) {
        DeliveryFact::deserialize(parts).map(Fact::Delivery)
    } else if ModelFact::has(name) {
        ModelFact::deserialize(parts).map(Fact::Model)
    } else {
        let data = data.map(Json::deserialize).transpose()?;
        Ok(Fact::Unknown(Box::new(UnknownFact { name: name.to_owned(), data })))
    }
}

/// Reads a fact without a position, as sent by other nodes. It must be read from JSON text, since a fact may have
/// numbers of any size.
impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        // The original error is dropped, because it may quote content (S-38).
        parse_flat(raw.get()).and_then(into_entry).map_err(|_| serde::de::Error::custom("not a valid fact"))
    }
}
