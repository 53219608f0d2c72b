//! The desk of an account: bounds, and parts that are on their way.
use super::*;
use std::time::Duration;
use turnway_core::id::{MessageId, SessionId, TenantId};
use turnway_core::private::Private;

const OWNER: NodeId = NodeId(1);
const LINK: LinkId = LinkId(7);
const START: Now = Now { mono: Mono(Duration::from_secs(1000)), store: Millis(1_000_000) };
const PATIENCE: Duration = Duration::from_secs(3600);

/// Returns an order for a part of a delivery that was requested a minute before the adapter connected.
fn order(part: u32, attempt: u32) -> ReceivedOrder {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let order = DeliveryOrder {
        key,
        delivery_id: DeliveryId::parse("abcdefghijklmnopqrstuvwxyz").expect("an id"),
        attempt,
        part,
        parts: u32::MAX,
        kind: DeliveryKind::Final,
        conversation: ConversationRef::without_parent("rooms", "main", "lobby").expect("a place"),
        reply_to: None,
        text: Private("hi".to_owned()),
        buttons: None,
        change: None,
        requested_at: Millis(START.store.0 - 60_000),
        deadline: START.store.after(PATIENCE),
        may_be_sent: attempt > 1,
    };
    ReceivedOrder { from: OWNER, order: Arc::new(order), is_supported: true, takes_files: false }
}

fn sending(recognises_key: bool) -> SendingLink {
    SendingLink { link: LINK, recognises_key, creates_conversations: false }
}

/// Passes an order to the desk, and returns the parts that it gives to the adapter.
fn accept(desk: &mut AdapterDesk, received: ReceivedOrder) -> Vec<u32> {
    let mut effects = Vec::new();
    desk.accept(START, received, sending(true), &mut effects);
    given(&effects)
}

fn given(effects: &[DeskEffect]) -> Vec<u32> {
    let part = |effect: &DeskEffect| match effect {
        DeskEffect::Send { message, .. } => Some(message.order.part),
        DeskEffect::Report { .. } => None,
    };
    effects.iter().filter_map(part).collect()
}

/// Confirms a part, and returns the parts that the desk gives to the adapter then.
fn confirm(desk: &mut AdapterDesk, part: u32) -> Vec<u32> {
    let delivery_id = order(part, 1).order.delivery_id.clone();
    let outcome = AdapterOutcome::Sent {
        external_id: MessageId::parse(&format!("x{part}")).expect("an id"),
        place: ConversationRef::without_parent("rooms", "main", "lobby").expect("a place"),
    };
    let mut effects = Vec::new();
    desk.handle_delivered(LINK, DeliveredCommand { delivery_id, part, outcome }, true, &mut effects);
    desk.send_queued(START, sending(true), &mut effects);
    given(&effects)
}

/// Covers: BD-Q5, BD-Q6: what does not fit waits at its owner, which repeats the order.
#[test]
fn returning_adapter_gets_pending_parts_within_bounds() {
    let bound = limits::ADAPTER_IN_FLIGHT_MAX + limits::ADAPTER_QUEUE_MAX;
    let count = u32::try_from(bound + 100).expect("a number");
    let mut desk = AdapterDesk::new(START);
    let mut on_their_way: VecDeque<u32> = VecDeque::new();
    let mut sent: BTreeMap<u32, u32> = BTreeMap::new();
    // The second time is the repetition.
    for _ in 0..2 {
        for part in 1..=count {
            on_their_way.extend(accept(&mut desk, order(part, 1)));
            assert!(desk.open_count() <= bound);
            assert!(on_their_way.len() <= limits::ADAPTER_IN_FLIGHT_MAX, "{} at a time", on_their_way.len());
        }
        while let Some(part) = on_their_way.pop_front() {
            *sent.entry(part).or_default() += 1;
            on_their_way.extend(confirm(&mut desk, part));
        }
    }
    assert_eq!(sent.len(), count as usize, "all are sent");
    assert!(sent.values().all(|times| *times == 1), "and none twice: {sent:?}");
    assert_eq!(desk.open_count(), 0);
}

/// Covers: BR-13: neither a repeated order nor another attempt changes what is on its way.
#[test]
fn part_on_its_way_is_neither_repeated_nor_unknown() {
    for recognises_key in [true, false] {
        let mut desk = AdapterDesk::new(START);
        assert_eq!(accept(&mut desk, order(2, 1)), [2]);
        for attempt in [1, 2, 3] {
            let mut effects = Vec::new();
            desk.accept(START, order(2, attempt), sending(recognises_key), &mut effects);
            assert!(effects.is_empty(), "{effects:?}");
        }
        assert_eq!(desk.open_count(), 1);
    }
}

/// Another connection may have sent a part between two times at which this one sends for the account.
///
/// Covers: BR-08, BD-Q7.
#[test]
fn returning_connection_repeats_no_doubtful_part() {
    for has_lost_account in [false, true] {
        let mut desk = AdapterDesk::new(START);
        assert_eq!(accept(&mut desk, order(1, 1)), [1]);
        let delivery_id = order(1, 1).order.delivery_id.clone();
        let outcome = AdapterOutcome::Rejected { class: DeliveryErrorClass::RateLimit, retry_after_ms: None };
        desk.handle_delivered(LINK, DeliveredCommand { delivery_id, part: 1, outcome }, false, &mut Vec::new());
        if has_lost_account {
            desk.set_known_since(START);
        }
        let mut effects = Vec::new();
        desk.accept(START, order(1, 2), sending(false), &mut effects);
        let is_unknown = |effect: &DeskEffect| {
            let DeskEffect::Report { report, .. } = effect else { return false };
            report.outcome == DeliveryOutcome::Unknown { may_repeat: false }
        };
        assert_eq!(given(&effects).is_empty(), has_lost_account, "{effects:?}");
        assert_eq!(effects.iter().any(is_unknown), has_lost_account, "{effects:?}");
    }
}
