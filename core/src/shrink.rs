//! Giving memory back. A `BTreeMap` that was emptied keeps a node with room for eleven entries, and most
//! maps of an idle session or link are empty: there are as many of them as there are clients (G-15).
use std::collections::{BTreeMap, BTreeSet};

/// A collection that can give its last node back.
pub trait Shrink {
    /// Gives back what an empty collection holds; one that is not empty stays as it is.
    fn shrink_if_empty(&mut self);
}

impl<K, V> Shrink for BTreeMap<K, V> {
    fn shrink_if_empty(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }
}

impl<K> Shrink for BTreeSet<K> {
    fn shrink_if_empty(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }
}
