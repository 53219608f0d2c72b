//! Frees the memory of emptied maps. An emptied `BTreeMap` keeps a node with room for eleven entries, and most maps
//! of an idle session or link are empty; their number grows with the number of clients (G-15).
use std::collections::{BTreeMap, BTreeSet};

/// A collection that can free its last node.
pub trait Shrink {
    /// Frees the memory that an empty collection holds; a collection with entries stays unchanged.
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
