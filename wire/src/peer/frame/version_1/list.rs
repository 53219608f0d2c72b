//! Lists in frames: borrowed from a message and converted item by item while they are written, owned after they were
//! read.
use super::FrameForm;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list of items of form `V`, which are `T` in a message.
pub(in crate::peer::frame) enum FrameList<'a, T, V> {
    Borrowed(&'a [T]),
    Read(Vec<V>),
}

impl<'a, T: Clone, V: FrameForm<'a, Domain = T>> FrameList<'a, T, V> {
    /// Converts a list that was read.
    pub(in crate::peer::frame) fn into_domain(self) -> Vec<T> {
        match self {
            Self::Borrowed(items) => items.to_vec(),
            Self::Read(items) => items.into_iter().map(V::into_domain).collect(),
        }
    }
}

impl<'a, T, V: FrameForm<'a, Domain = T> + Serialize> Serialize for FrameList<'a, T, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Borrowed(items) => to.collect_seq(items.iter().map(V::borrow)),
            Self::Read(items) => items.serialize(to),
        }
    }
}

impl<'de, T, V: Deserialize<'de>> Deserialize<'de> for FrameList<'_, T, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::deserialize(from).map(Self::Read)
    }
}
