//! The properties of facts, from the tables of the families.
use super::{
    ActionFact, BindingFact, DeliveryFact, Fact, FactKind, HandoverFact, InputFact, MemberFact, ModelFact, RunFact,
    SessionFact,
};
use crate::protocol::annotation::Annotation;
use crate::protocol::json::json_bytes;

/// The tables of all families.
const TABLES: [&[FactKind]; 9] = [
    SessionFact::KINDS,
    MemberFact::KINDS,
    HandoverFact::KINDS,
    ActionFact::KINDS,
    BindingFact::KINDS,
    DeliveryFact::KINDS,
    ModelFact::KINDS,
    InputFact::KINDS,
    RunFact::KINDS,
];

/// The level of facts of releases that announce none.
pub const LOWEST_FACT_LEVEL: u32 = 1;

/// The level of facts that this release knows: the highest `since` of all tables. Nodes announce it to each other.
pub const FACT_LEVEL: u32 = {
    let mut level = LOWEST_FACT_LEVEL;
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            if TABLES[table][row].since > level {
                level = TABLES[table][row].since;
            }
            row += 1;
        }
        table += 1;
    }
    level
};

impl Fact {
    /// Returns the rows of all tables, family by family.
    pub fn kinds() -> impl Iterator<Item = &'static FactKind> {
        TABLES.into_iter().flatten()
    }

    /// Returns the first level of facts that has this type of fact.
    pub fn level_of(name: &str) -> u32 {
        Self::kinds().find(|kind| kind.name == name).map_or(u32::MAX, |kind| kind.since)
    }

    /// Returns the fact's row in the table of its family; `None` for a fact of a newer release.
    pub fn kind(&self) -> Option<&'static FactKind> {
        match self {
            Self::Session(fact) => Some(fact.kind()),
            Self::Member(fact) => Some(fact.kind()),
            Self::Handover(fact) => Some(fact.kind()),
            Self::Action(fact) => Some(fact.kind()),
            Self::Binding(fact) => Some(fact.kind()),
            Self::Delivery(fact) => Some(fact.kind()),
            Self::Model(fact) => Some(fact.kind()),
            Self::Input(fact) => Some(fact.kind()),
            Self::Run(fact) => Some(fact.kind()),
            Self::Unknown(_) => None,
        }
    }

    /// Returns the fact's `type` on the wire.
    pub fn name(&self) -> &str {
        if let Self::Unknown(fact) = self {
            return &fact.name;
        }
        self.kind().map_or("", |kind| kind.name)
    }

    /// Returns whether subscribers get the fact only if their `types` name it.
    pub fn is_on_request(&self) -> bool {
        self.kind().is_none_or(|kind| kind.messages.is_empty())
    }

    /// Returns whether the fact ends a turn that is to be treated as never asked.
    pub fn retracts_turn(&self) -> bool {
        matches!(self, Self::Run(fact) if fact.retracts_turn())
    }

    /// Returns whether a transaction begins with the fact; the fact's id then names the transaction.
    pub fn starts_transaction(&self) -> bool {
        self.kind().is_some_and(|kind| kind.starts_transaction)
    }

    /// Returns the annotation of the session that the fact sets or removes.
    pub fn annotation(&self) -> Option<Annotation> {
        let name = self.kind()?.annotates?;
        // A fact has string keys and finite numbers only, so it always serialises.
        let fact = serde_json::to_value(self).unwrap_or_default();
        let value = fact["data"].get(name)?;
        let count = value.as_u64().filter(|count| *count > 0).map(|count| count.to_string());
        Some(Annotation::new(name, value.as_str().map(str::to_owned).or(count).unwrap_or_default().as_str()))
    }

    /// Returns whether the fact may wait and be written with the next fact, because it only records that an attempt
    /// goes well. Effects that depend on such a fact, such as steering a started run, wait for it in the outbox.
    pub fn is_deferrable(&self) -> bool {
        matches!(self, Self::Run(fact) if fact.is_deferrable())
    }

    /// Returns whether the fact ends a turn.
    pub fn is_terminal(&self) -> bool {
        self.kind().is_some_and(|kind| kind.ends_turn)
    }

    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::Session(_) | Self::Member(_) | Self::Binding(_) | Self::Model(_) => 0,
            Self::Handover(fact) => fact.content_bytes(),
            Self::Delivery(fact) => fact.content_bytes(),
            Self::Action(fact) => fact.content_bytes(),
            Self::Input(fact) => fact.content_bytes(),
            Self::Run(fact) => fact.content_bytes(),
            Self::Unknown(fact) => fact.name.len() + json_bytes(&fact.data),
        }
    }
}
