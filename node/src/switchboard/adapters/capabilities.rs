//! The capabilities of one connection of an adapter: those of the connection, and those of single conversations that
//! differ. The part for adapters asks for nothing else.
use std::collections::{BTreeMap, VecDeque};
use turnway_core::id::ConversationId;
use turnway_core::limits;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryKind, TextLimit};
use turnway_wire::channel::adapter::AdapterCapabilities;

/// The capabilities of a connection.
#[derive(Debug, Default)]
pub(super) struct LinkCapabilities {
    usual: AdapterCapabilities,
    /// The conversations that differ; bounded by [`limits::ADAPTER_CONVERSATIONS_MAX`].
    differing: BTreeMap<ConversationId, AdapterCapabilities>,
    /// The same conversations, the one that was declared first in front.
    order: VecDeque<ConversationId>,
}

impl LinkCapabilities {
    /// Creates the capabilities that an adapter has declared in its `hello`.
    pub(super) fn new(usual: AdapterCapabilities) -> Self {
        Self { usual, ..Self::default() }
    }

    /// Replaces the capabilities of the connection, or those of one conversation; without any, the conversation has those
    /// of the connection.
    pub(super) fn set(&mut self, conversation: Option<ConversationRef>, mut capabilities: AdapterCapabilities) {
        let Some(ConversationRef { conversation_id, .. }) = conversation else {
            self.usual = capabilities;
            return;
        };
        capabilities.retain_of_conversation();
        self.order.retain(|known| *known != conversation_id);
        self.differing.remove(&conversation_id);
        if capabilities.0.is_empty() {
            return;
        }
        self.order.push_back(conversation_id.clone());
        self.differing.insert(conversation_id, capabilities);
        while self.order.len() > limits::ADAPTER_CONVERSATIONS_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.differing.remove(&oldest);
        }
    }

    /// Returns the capabilities of the connection, without those of single conversations.
    pub(super) fn usual(&self) -> &AdapterCapabilities {
        &self.usual
    }

    /// Returns the maximum length of one message in a conversation.
    pub(super) fn text_limit(&self, conversation: &ConversationRef) -> TextLimit {
        let own = self.differing.get(&conversation.conversation_id);
        own.and_then(AdapterCapabilities::text_limit).or_else(|| self.usual.text_limit()).unwrap_or_default()
    }

    /// Returns whether typing signals are shown in a conversation.
    pub(super) fn shows_typing(&self, conversation: &ConversationRef) -> bool {
        let own = self.differing.get(&conversation.conversation_id);
        own.and_then(AdapterCapabilities::shows_typing).or_else(|| self.usual.shows_typing()).unwrap_or_default()
    }

    /// Returns whether previews are shown in a conversation.
    pub(super) fn shows_previews(&self, conversation: &ConversationRef) -> bool {
        let own = self.differing.get(&conversation.conversation_id);
        own.and_then(AdapterCapabilities::shows_previews).or_else(|| self.usual.shows_previews()).unwrap_or_default()
    }

    /// Returns whether files are sent with messages in a conversation.
    pub(super) fn sends_files(&self, conversation: &ConversationRef) -> bool {
        let own = self.differing.get(&conversation.conversation_id);
        own.and_then(AdapterCapabilities::sends_files).or_else(|| self.usual.sends_files()).unwrap_or_default()
    }

    /// Returns the level of buttons in a conversation, if it is declared.
    pub(super) fn button_level(&self, conversation: &ConversationRef) -> Option<i8> {
        let own = self.differing.get(&conversation.conversation_id);
        own.and_then(AdapterCapabilities::button_level).or_else(|| self.usual.button_level())
    }

    /// Returns whether deliveries of a kind that changes messages are carried out in a conversation.
    pub(super) fn changes_messages(&self, kind: DeliveryKind, conversation: &ConversationRef) -> bool {
        let own = self.differing.get(&conversation.conversation_id).and_then(|own| own.changes_messages(kind));
        own.or_else(|| self.usual.changes_messages(kind)).unwrap_or_default()
    }

    /// Returns whether the adapter makes conversations.
    pub(super) fn creates_conversations(&self) -> bool {
        self.usual.creates_conversations()
    }

    /// Returns whether a message that is sent again with the same key appears once: a property of the whole platform.
    pub(super) fn recognises_key(&self) -> bool {
        self.usual.recognises_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::protocol::delivery::TextUnit;
    use turnway_wire::channel::adapter::Capability;

    fn place(n: usize) -> ConversationRef {
        ConversationRef::without_parent("rooms", "main", &format!("c{n}")).expect("a conversation")
    }

    fn text(max: u32) -> AdapterCapabilities {
        let text = Capability { level: 2, max: Some(max), unit: Some(TextUnit::Bytes) };
        AdapterCapabilities(BTreeMap::from([("text".to_owned(), text)]))
    }

    /// Covers: BR-36.
    #[test]
    fn conversation_has_its_own_limit_until_it_is_taken_back() {
        let mut capabilities = LinkCapabilities::new(text(500));
        capabilities.set(Some(place(1)), text(100));
        assert_eq!([1, 2].map(|n| capabilities.text_limit(&place(n)).max), [100, 500]);
        capabilities.set(None, text(400));
        assert_eq!([1, 2].map(|n| capabilities.text_limit(&place(n)).max), [100, 400]);
        capabilities.set(Some(place(1)), AdapterCapabilities::default());
        assert_eq!(capabilities.text_limit(&place(1)).max, 400);
    }

    /// Covers: BR-36.
    #[test]
    fn signals_are_shown_only_where_they_are_declared() {
        let level = |level| Capability { level, max: None, unit: None };
        let declared = |names: &[(&str, i8)]| {
            AdapterCapabilities(names.iter().map(|(name, it)| ((*name).to_owned(), level(*it))).collect())
        };
        let shown = |capabilities: &LinkCapabilities, n| {
            [capabilities.shows_typing(&place(n)), capabilities.shows_previews(&place(n))]
        };
        let mut capabilities = LinkCapabilities::new(AdapterCapabilities::default());
        assert_eq!(shown(&capabilities, 1), [false, false]);
        capabilities.set(None, declared(&[("typing", 1), ("preview", 0)]));
        assert_eq!(shown(&capabilities, 1), [true, false]);
        capabilities.set(Some(place(1)), declared(&[("preview", 2), ("typing", -1)]));
        assert_eq!([shown(&capabilities, 1), shown(&capabilities, 2)], [[false, true], [true, false]]);
    }

    /// Covers: BR-36.
    #[test]
    fn oldest_conversation_is_forgotten_past_the_limit() {
        let mut capabilities = LinkCapabilities::new(text(500));
        for n in 0..limits::ADAPTER_CONVERSATIONS_MAX {
            capabilities.set(Some(place(n)), text(100));
        }
        // Declared again, the first one is the newest.
        capabilities.set(Some(place(0)), text(90));
        assert_eq!([0, 1].map(|n| capabilities.text_limit(&place(n)).max), [90, 100]);
        capabilities.set(Some(place(limits::ADAPTER_CONVERSATIONS_MAX)), text(100));
        assert_eq!([0, 1, 2].map(|n| capabilities.text_limit(&place(n)).max), [90, 500, 100]);
        assert_eq!(capabilities.differing.len(), capabilities.order.len());
    }
}
