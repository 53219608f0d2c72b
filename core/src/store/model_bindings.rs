//! The rows of conversations in the model store. Lists and due rows are found by looking at all rows, so that the indexes of
//! the other stores are compared with something that has none.
use crate::id::SessionKey;
use crate::limits;
use crate::protocol::binding::Binding;
use crate::protocol::conversation::ConversationKey;
use crate::store::binding::{BindingAction, BindingRow, change_row};
use crate::store::{ConversationReply, StoreRefusal};
use crate::time::Millis;
use std::collections::BTreeMap;

/// The rows of all conversations.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelBindings {
    rows: BTreeMap<ConversationKey, BindingRow>,
}

impl ModelBindings {
    /// Returns the reason why the session may not have a further binding.
    pub(super) fn bind_refusal(&self, key: &ConversationKey, session: &SessionKey) -> Option<StoreRefusal> {
        let others = self.active(session).filter(|(other, _)| *other != key).count();
        (others >= limits::SESSION_BINDINGS_MAX).then_some(StoreRefusal::TooMany)
    }

    /// Performs an action on a row.
    pub(super) fn change(&mut self, now: Millis, key: &ConversationKey, action: &BindingAction) -> ConversationReply {
        let (outcome, row) = change_row(self.rows.remove(key), now, action);
        if let Some(row) = &row {
            self.rows.insert(key.clone(), row.clone());
        }
        ConversationReply::Row { outcome, row: row.map(Box::new) }
    }

    /// Returns the active bindings of a session, in the order of their keys as texts.
    pub(super) fn list(&self, session: &SessionKey) -> Vec<Binding> {
        let mut found: Vec<_> = self.active(session).map(|(key, binding)| (key.to_string(), binding.clone())).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.into_iter().map(|(_, binding)| binding).collect()
    }

    /// Returns rows that are due, in the order of their times and then of their keys as texts.
    pub(super) fn due(&self, now: Millis, limit: u32) -> Vec<ConversationKey> {
        let due = self.rows.iter().filter_map(|(key, row)| Some((row.due().filter(|at| *at <= now)?, key)));
        let mut due: Vec<_> = due.map(|(at, key)| (at, key.to_string(), key.clone())).collect();
        due.sort();
        due.into_iter().take(limit as usize).map(|(_, _, key)| key).collect()
    }

    pub(super) fn row(&self, key: &ConversationKey) -> Option<&BindingRow> {
        self.rows.get(key)
    }

    /// Puts a row back as it was.
    pub(super) fn restore(&mut self, key: ConversationKey, row: Option<BindingRow>) {
        match row {
            Some(row) => drop(self.rows.insert(key, row)),
            None => drop(self.rows.remove(&key)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationKey, &BindingRow)> {
        self.rows.iter()
    }

    fn active(&self, session: &SessionKey) -> impl Iterator<Item = (&ConversationKey, &Binding)> {
        self.rows.iter().filter_map(|(key, row)| {
            let binding = row.active()?;
            (key.tenant == session.tenant && binding.session == session.session).then_some((key, binding))
        })
    }
}
