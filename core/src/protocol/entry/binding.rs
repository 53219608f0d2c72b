//! Facts of the bindings of conversations to the session: the log's record of what the store decided. Called through
//! [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::protocol::binding::{BindingChange, BindingEnd};
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about the bindings of the session.
    pub enum BindingFact {
        /// A conversation is bound to the session.
        "binding.bound" -> "event BINDING_BOUND" [since(2), plain] => Bound(BindingChange),
        /// A conversation is not bound to the session any more.
        "binding.ended" -> "event BINDING_ENDED" [since(2), plain] => Ended(BindingEnd),
    }
}
