//! Lists and maps in a snapshot: borrowed from a state and converted item by item while they are written, so that a
//! large state is not copied; owned after they were read.
use super::StoredForm;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// A list of items of form `V`, which are `T` in a state.
pub(super) enum StoredList<'a, T, V> {
    Borrowed(&'a [T]),
    Read(Vec<V>),
}

/// A map to values of form `V`, which are `T` in a state, or boxed. It is encoded as a list of pairs.
pub(super) enum StoredMap<'a, K, T, V> {
    Borrowed(&'a BTreeMap<K, T>),
    Read(Vec<(K, V)>),
}

// === impl StoredList ===

impl<'a, T: Clone, V: StoredForm<'a, Domain = T>> StoredList<'a, T, V> {
    /// Converts a list that was read.
    pub(super) fn into_domain(self) -> Vec<T> {
        match self {
            Self::Borrowed(items) => items.to_vec(),
            Self::Read(items) => items.into_iter().map(V::into_domain).collect(),
        }
    }
}

impl<'a, T, V: StoredForm<'a, Domain = T> + Serialize> Serialize for StoredList<'a, T, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Borrowed(items) => to.collect_seq(items.iter().map(V::borrow)),
            Self::Read(items) => items.serialize(to),
        }
    }
}

impl<'de, T, V: Deserialize<'de>> Deserialize<'de> for StoredList<'_, T, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::deserialize(from).map(Self::Read)
    }
}

// === impl StoredMap ===

impl<'a, K: Clone + Ord, T: Clone + From<V::Domain>, V: StoredForm<'a>> StoredMap<'a, K, T, V> {
    /// Converts a map that was read.
    pub(super) fn into_domain(self) -> BTreeMap<K, T> {
        match self {
            Self::Borrowed(entries) => entries.clone(),
            Self::Read(entries) => entries.into_iter().map(|(key, value)| (key, value.into_domain().into())).collect(),
        }
    }
}

impl<'a, K: Serialize, T: Borrow<V::Domain>, V: StoredForm<'a> + Serialize> Serialize for StoredMap<'a, K, T, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Borrowed(entries) => {
                to.collect_seq(entries.iter().map(|(key, value)| (key, V::borrow(value.borrow()))))
            }
            Self::Read(entries) => entries.serialize(to),
        }
    }
}

impl<'de, K: Deserialize<'de>, T, V: Deserialize<'de>> Deserialize<'de> for StoredMap<'_, K, T, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::deserialize(from).map(Self::Read)
    }
}
