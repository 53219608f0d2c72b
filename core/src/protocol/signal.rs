//! Signals to conversations: that an answer is being written, and what is written so far. A signal has no row in any log,
//! is never repeated, and may be lost; the answer itself is a delivery ([`crate::protocol::delivery`]).
use crate::id::{DeliveryId, MessageId, SessionKey};
use crate::private::Private;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::AccountKey;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A signal to a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationSignal {
    /// The session whose turn it is about.
    pub key: SessionKey,
    pub conversation: ConversationRef,
    pub kind: SignalKind,
}

/// The content of a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// An answer is being written, or not any more.
    Typing { is_on: bool },
    /// The answer so far.
    Preview(Box<Preview>),
    /// The preview is out of date: the conversation has the answer, or gets none.
    RemovePreview { preview_id: DeliveryId },
}

/// The answer so far. All previews of a turn have one id: the first one is posted, and the others change it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    pub preview_id: DeliveryId,
    /// The message that is being answered.
    pub reply_to: MessageId,
    /// Markdown whose open code blocks and code spans are closed, within the text limit.
    pub text: Private<String>,
    /// The time after which the preview is not shown any more.
    pub deadline: Millis,
}

impl ConversationSignal {
    /// Returns the account that is to send the signal.
    pub fn account(&self) -> AccountKey {
        AccountKey::of(&self.key.tenant, &self.conversation)
    }

    /// Returns an estimate of the signal's size in bytes.
    pub fn weight(&self) -> usize {
        match &self.kind {
            SignalKind::Preview(preview) => 512 + preview.text.reveal().len(),
            SignalKind::Typing { .. } | SignalKind::RemovePreview { .. } => 512,
        }
    }
}

impl fmt::Debug for Preview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Preview({}, {:?})", self.preview_id, self.text)
    }
}

/// Returns the id of the preview of the answer to a message: the same at every owner of the session, and no id of a
/// delivery.
pub fn preview_id(key: &SessionKey, conversation: &ConversationRef, message_id: &MessageId) -> DeliveryId {
    let ConversationRef { channel, account_id, conversation_id, .. } = conversation;
    let place = [channel.as_str(), account_id.as_str(), conversation_id.as_str()];
    DeliveryId::derive_preview(key, message_id, &place)
}

/// Returns the key of a preview on its platform: at most 25 characters, and no key of a delivery's part.
pub fn preview_key(preview_id: &DeliveryId) -> String {
    preview_id.dedupe_key("preview", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{RunId, SessionId, TenantId, UserId};

    /// Covers: BR-06.
    #[test]
    fn preview_has_a_key_of_its_own() {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        let place = ConversationRef::without_parent("rooms", "main", "lobby").expect("a conversation");
        let other = ConversationRef::without_parent("rooms", "main", "hall").expect("a conversation");
        let [first, second] = ["m1", "m2"].map(|id| MessageId::parse(id).expect("a name"));
        let run = RunId::derive(&key, &UserId::parse("channel:rooms/main").expect("a name"), &first);
        let names = ["rooms", "main", "lobby"];
        let deliveries = ["final", "notice", "preview"].map(|kind| DeliveryId::derive(&key.tenant, &run, kind, &names));
        let mut keys: Vec<String> = deliveries.iter().map(|id| id.dedupe_key("final", 1)).collect();
        let previews = [(&place, &first), (&place, &second), (&other, &first)];
        keys.extend(previews.iter().map(|(place, message)| preview_key(&preview_id(&key, place, message))));
        assert!(keys.iter().all(|key| key.len() <= 25), "{keys:?}");
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 6, "{keys:?}");
        assert_eq!(preview_id(&key, &place, &first), preview_id(&key, &place, &first));
    }
}
