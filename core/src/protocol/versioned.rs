//! Forms of types in snapshots and frames: structs of their own for each version, apart from the types that they carry.
//! Lists and maps are borrowed and converted item by item while they are written, and owned after they were read.
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;

/// The form of a type in one version of a blob. Both directions destructure without `..`, so that the compiler names this
/// form when the type gets a field.
pub trait VersionedForm<'a> {
    /// The type that the form carries.
    type Domain: 'a;

    /// Borrows the form of a value, to write it. Inlined everywhere, the form of a message is not copied: 10 ns of 50.
    fn borrow(value: &'a Self::Domain) -> Self;

    /// Converts a form that was read.
    fn into_domain(self) -> Self::Domain;
}

/// A value whose own encoding is stable, such as a name.
impl<'a, T: Clone + 'a> VersionedForm<'a> for Cow<'a, T> {
    type Domain = T;

    fn borrow(value: &'a T) -> Self {
        Cow::Borrowed(value)
    }

    fn into_domain(self) -> T {
        self.into_owned()
    }
}

impl<'a, A: VersionedForm<'a>, B: VersionedForm<'a>> VersionedForm<'a> for (A, B) {
    type Domain = (A::Domain, B::Domain);

    #[inline(always)]
    fn borrow((first, second): &'a Self::Domain) -> Self {
        (A::borrow(first), B::borrow(second))
    }

    fn into_domain(self) -> Self::Domain {
        let (first, second) = self;
        (first.into_domain(), second.into_domain())
    }
}

/// A list of items of form `V`, which are `T` in the type.
pub enum FormList<'a, T, V> {
    Borrowed(&'a [T]),
    Read(Vec<V>),
}

/// A map to values of form `V`, which are `T` in the type, or boxed. It is encoded as a list of pairs.
pub enum FormMap<'a, K, T, V> {
    Borrowed(&'a BTreeMap<K, T>),
    Read(Vec<(K, V)>),
}

// === impl FormList ===

impl<'a, T: Clone, V: VersionedForm<'a, Domain = T>> FormList<'a, T, V> {
    /// Converts a list that was read.
    pub fn into_domain(self) -> Vec<T> {
        match self {
            Self::Borrowed(items) => items.to_vec(),
            Self::Read(items) => items.into_iter().map(V::into_domain).collect(),
        }
    }
}

impl<'a, T, V: VersionedForm<'a, Domain = T> + Serialize> Serialize for FormList<'a, T, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Borrowed(items) => to.collect_seq(items.iter().map(V::borrow)),
            Self::Read(items) => items.serialize(to),
        }
    }
}

impl<'de, T, V: Deserialize<'de>> Deserialize<'de> for FormList<'_, T, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::deserialize(from).map(Self::Read)
    }
}

// === impl FormMap ===

impl<'a, K: Clone + Ord, T: Clone + From<V::Domain>, V: VersionedForm<'a>> FormMap<'a, K, T, V> {
    /// Converts a map that was read.
    pub fn into_domain(self) -> BTreeMap<K, T> {
        match self {
            Self::Borrowed(entries) => entries.clone(),
            Self::Read(entries) => entries.into_iter().map(|(key, value)| (key, value.into_domain().into())).collect(),
        }
    }
}

impl<'a, K: Serialize, T: Borrow<V::Domain>, V: VersionedForm<'a> + Serialize> Serialize for FormMap<'a, K, T, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Borrowed(entries) => {
                to.collect_seq(entries.iter().map(|(key, value)| (key, V::borrow(value.borrow()))))
            }
            Self::Read(entries) => entries.serialize(to),
        }
    }
}

impl<'de, K: Deserialize<'de>, T, V: Deserialize<'de>> Deserialize<'de> for FormMap<'_, K, T, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::deserialize(from).map(Self::Read)
    }
}
