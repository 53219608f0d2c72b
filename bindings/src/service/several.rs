//! The lookup of several conversations in one request: their rows are read at one moment, and the rows of present ids that
//! are not among them at another. Nothing is written. The service performs the reads.
use super::ALIASES_MAX;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::TenantId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::store::binding::{BindingRow, ConversationState};
use turnway_core::time::Millis;
use turnway_wire::channel::binding::FoundBinding;

/// The conversations of a request, and the rows that were read for it.
#[derive(Debug)]
pub(super) struct SeveralLookups {
    tenant: TenantId,
    conversations: Vec<ConversationRef>,
    rows: BTreeMap<ConversationKey, BindingRow>,
}

/// The next step of a lookup of several conversations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SeveralStep {
    /// Read these rows at one moment.
    Read(Vec<ConversationKey>),
    Found(Vec<FoundBinding>),
    /// A conversation is getting another id: whether it is bound cannot be known.
    Moving,
}

// === impl SeveralLookups ===

impl SeveralLookups {
    /// Creates a lookup, and returns the rows to read first.
    pub(super) fn new(tenant: TenantId, conversations: Vec<ConversationRef>) -> (Self, Vec<ConversationKey>) {
        let keys: BTreeSet<ConversationKey> = conversations.iter().map(|place| place.key(&tenant)).collect();
        (Self { tenant, conversations, rows: BTreeMap::new() }, keys.into_iter().collect())
    }

    /// Uses the rows of a read, and returns the next step.
    pub(super) fn use_rows(
        &mut self,
        now: Millis,
        keys: Vec<ConversationKey>,
        rows: Vec<Option<BindingRow>>,
    ) -> SeveralStep {
        // A row that is not there is one that nobody has bound.
        self.rows.extend(keys.into_iter().zip(rows.into_iter().map(Option::unwrap_or_default)));
        let mut unread = BTreeSet::new();
        let mut found = Vec::with_capacity(self.conversations.len());
        for conversation in &self.conversations {
            match self.follow(conversation.key(&self.tenant)) {
                FollowedRow::Unread(key) => drop(unread.insert(key)),
                FollowedRow::Moving => return SeveralStep::Moving,
                FollowedRow::Present(row) => {
                    let binding = row.active().filter(|binding| binding.stands(now)).cloned();
                    found.push(FoundBinding { conversation: conversation.clone(), binding });
                }
            }
        }
        if unread.is_empty() { SeveralStep::Found(found) } else { SeveralStep::Read(unread.into_iter().collect()) }
    }

    /// Follows the aliases of a conversation in the rows that were read.
    fn follow(&self, mut key: ConversationKey) -> FollowedRow<'_> {
        for _ in 0..=ALIASES_MAX {
            let Some(row) = self.rows.get(&key) else { return FollowedRow::Unread(key) };
            match &row.state {
                ConversationState::Moved { to, .. } if !planted(Planted::LookupOfMovedIds) => key = key.sibling(to),
                ConversationState::Arriving { .. } => return FollowedRow::Moving,
                ConversationState::Free
                | ConversationState::Bound(_)
                | ConversationState::Moving { .. }
                | ConversationState::Moved { .. } => return FollowedRow::Present(row),
            }
        }
        FollowedRow::Moving
    }
}

/// The row of a conversation's present id.
enum FollowedRow<'a> {
    Present(&'a BindingRow),
    /// It was not read yet.
    Unread(ConversationKey),
    /// It cannot be known now.
    Moving,
}
