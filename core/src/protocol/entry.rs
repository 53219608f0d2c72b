//! Facts: the entries of a session's log. Stored as the JSON envelope of the protocol, because facts outlive
//! releases. The session machine decides on them; stores, links and agents carry them.
mod action;
mod binding;
mod delivery;
mod envelope;
mod family;
mod handover;
mod input;
mod kind;
mod member;
mod model;
mod parse;
mod run;
mod session;

use crate::protocol::json::Json;
pub use action::ActionFact;
pub use binding::BindingFact;
pub use delivery::DeliveryFact;
pub use envelope::{Entry, Envelope};
pub use family::FactKind;
pub use handover::HandoverFact;
pub use input::InputFact;
pub use kind::{FACT_LEVEL, LOWEST_FACT_LEVEL};
pub use member::MemberFact;
pub use model::ModelFact;
pub use run::RunFact;
use serde::{Deserialize, Serialize, Serializer};
pub use session::SessionFact;

/// The reason of a cancelled turn whose input was replaced by another, as if only the other had been sent.
pub const REPLACED: &str = "replaced";
/// The reason of a cancelled turn whose input is a person's edit of a message that did not wait any more.
pub const LATE_EDIT: &str = "late_edit";
/// The reason of a cancelled turn that is left out of the transcript, question and answer; its facts stay (ST-6).
pub const ROLLED_BACK: &str = "rollback";

/// The owner's decision on an accepted input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// The input starts at once.
    Run,
    /// The input waits.
    Queued,
    /// The input cancels the open run and starts next.
    Interrupts,
    /// The input is handed to the open run.
    Steered,
}

/// The origin of a `run.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The run's state, in the gateway's words.
    Run,
    /// The agent's own state, unchanged.
    Agent,
}

/// One durable fact, by its family. On the wire the family does not show: a fact is its `type` (protocol.md §4) and its
/// `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Session(SessionFact),
    Member(MemberFact),
    Handover(HandoverFact),
    Action(ActionFact),
    Binding(BindingFact),
    Delivery(DeliveryFact),
    Model(ModelFact),
    Input(InputFact),
    Run(RunFact),
    /// A fact of a newer release.
    Unknown(Box<UnknownFact>),
}

/// A fact of a newer release: kept in the log and shown to those whose `types` name it, and otherwise ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownFact {
    #[serde(rename = "type")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Session(fact) => fact.serialize(to),
            Self::Member(fact) => fact.serialize(to),
            Self::Handover(fact) => fact.serialize(to),
            Self::Action(fact) => fact.serialize(to),
            Self::Binding(fact) => fact.serialize(to),
            Self::Delivery(fact) => fact.serialize(to),
            Self::Model(fact) => fact.serialize(to),
            Self::Input(fact) => fact.serialize(to),
            Self::Run(fact) => fact.serialize(to),
            Self::Unknown(fact) => fact.serialize(to),
        }
    }
}

#[cfg(test)]
mod tests;
