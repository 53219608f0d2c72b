//! Facts of the calls of models that runs make. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::protocol::model_call::{ModelCallEnded, ModelCallStarted};
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about calls of models.
    pub enum ModelFact {
        /// A call of the run begins.
        "llm.call.started" -> "" [since(5)] => Started(ModelCallStarted),
        /// A call has ended, or counts as lost. The run may have ended before.
        "llm.call.ended" -> "" [since(5)] => Ended(Box<ModelCallEnded>),
    }
}
