//! JSON inside binary messages: the same text is stored in the log across releases, and its types contain parts
//! that the binary codec cannot read back.
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::sync::Arc;

fn text<T: Serialize, E: serde::ser::Error>(value: &T) -> Result<String, E> {
    serde_json::to_string(value).map_err(|_| E::custom("not JSON"))
}

fn value<T: DeserializeOwned, E: serde::de::Error>(text: &str) -> Result<T, E> {
    // Without the position and text of the error, which may quote content (S-38).
    serde_json::from_str(text).map_err(|_| E::custom("not JSON of this kind"))
}

#[expect(clippy::ptr_arg, reason = "serde passes a reference to the field")]
pub(super) fn serialize<T: Serialize, S: Serializer>(what: &Cow<'_, Arc<T>>, to: S) -> Result<S::Ok, S::Error> {
    text::<T, S::Error>(what)?.serialize(to)
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Cow<'static, Arc<T>>, D::Error>
where
    T: DeserializeOwned + 'static,
    D: Deserializer<'de>,
{
    Ok(Cow::Owned(Arc::new(value::<T, D::Error>(&String::deserialize(from)?)?)))
}

/// A list of facts, each with its epoch.
pub(super) mod facts {
    use super::{Arc, Cow, Deserialize, Deserializer, Serialize, Serializer, text, value};
    use turnway_core::id::Epoch;
    use turnway_core::protocol::entry::Entry;

    /// Facts of a message, each with its epoch.
    type EpochFacts<'a> = Cow<'a, [(Epoch, Arc<Entry>)]>;

    pub(in super::super) fn serialize<S: Serializer>(facts: &EpochFacts<'_>, to: S) -> Result<S::Ok, S::Error> {
        let texts = facts.iter().map(|(epoch, entry)| Ok((epoch, text::<Entry, S::Error>(entry)?)));
        texts.collect::<Result<Vec<_>, S::Error>>()?.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D>(from: D) -> Result<EpochFacts<'static>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let texts = Vec::<(Epoch, String)>::deserialize(from)?;
        let entry = |(epoch, text): (Epoch, String)| Ok((epoch, Arc::new(value::<Entry, D::Error>(&text)?)));
        texts.into_iter().map(entry).collect::<Result<Vec<_>, D::Error>>().map(Cow::Owned)
    }
}
