//! Facts of deliveries that have no message of their own.
use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{DeliveryId, MessageId};
use turnway_core::protocol::binding::{ExpiryRules, PlannedBinding, TargetKind};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{
    Button, ButtonSet, ButtonStyle, DeliveryAttempted, DeliveryKind, DeliveryRequested, MessageChange, Reaction,
    TextLimit,
};
use turnway_core::protocol::entry::DeliveryFact;

/// Returns one fact of each kind.
pub(super) fn samples() -> Vec<(Fact, Vec<Value>)> {
    let delivery_id = DeliveryId::parse("abcdefghijklmnopqrstuvwxyz").expect("an id");
    let style = Some(ButtonStyle::Danger);
    let button = Button { id: "y".to_owned(), label: Private("Yes".to_owned()), style };
    let set = ButtonSet { buttons: vec![button], reusable: true };
    let requested = DeliveryRequested {
        delivery_id: delivery_id.clone(),
        kind: DeliveryKind::Final,
        route: None,
        generation: None,
        conversation: ConversationRef::without_parent("rooms", "main", "lobby").expect("a reference"),
        reply_to: MessageId::parse("m1").ok(),
        about_run: Some(run()),
        buttons: Some(Arc::new(set)),
        change: None,
        binding: None,
        text_limit: Some(TextLimit::default()),
        parts: vec![Private("höh".to_owned())],
    };
    let reaction = Some(Reaction { emoji: Private("\u{1F440}".to_owned()), remove: true });
    let targets = vec![MessageId::parse("m1").expect("an id")];
    let changed = DeliveryRequested {
        kind: DeliveryKind::Reaction,
        reply_to: None,
        buttons: None,
        change: Some(Arc::new(MessageChange { targets, reaction })),
        text_limit: None,
        parts: vec![Private(String::new())],
        ..requested.clone()
    };
    let expiry = ExpiryRules { idle_timeout: Some(1000), ..ExpiryRules::default() };
    let metadata = BTreeMap::from([("persona".to_owned(), "Ann".to_owned())]);
    let binding = PlannedBinding { target_kind: TargetKind::Session, expiry, mirror: true, metadata };
    let created = DeliveryRequested {
        kind: DeliveryKind::Conversation,
        about_run: None,
        reply_to: None,
        buttons: None,
        text_limit: None,
        binding: Some(Arc::new(binding)),
        ..requested.clone()
    };
    let attempted = DeliveryAttempted { delivery_id, part: 1, attempt: 2 };
    vec![
        (Fact::Delivery(DeliveryFact::Requested(requested)), vec![]),
        (Fact::Delivery(DeliveryFact::Requested(changed)), vec![]),
        (Fact::Delivery(DeliveryFact::Requested(created)), vec![]),
        (Fact::Delivery(DeliveryFact::Attempted(attempted)), vec![]),
    ]
}
