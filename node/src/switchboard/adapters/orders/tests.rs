//! The orders for an account: how many are given to its adapter's node, whose turn it is, and when they are repeated.
use super::*;
use turnway_core::id::{MessageId, SessionId, TenantId};
use turnway_core::private::Private;
use turnway_core::protocol::delivery::DeliveryKind;
use turnway_core::time::Millis;

const NODE: NodeId = NodeId(7);

fn at(seconds: u64) -> Now {
    let passed = Duration::from_secs(seconds);
    Now { mono: Mono(passed), store: Millis(1_000_000).after(passed) }
}

fn session(number: usize) -> SessionKey {
    let name = format!("s{number:05}");
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(&name).expect("a name") }
}

fn place() -> ConversationRef {
    ConversationRef::without_parent("rooms", "main", "lobby").expect("a place")
}

fn delivery() -> DeliveryId {
    DeliveryId::parse("abcdefghijklmnopqrstuvwxyz").expect("an id")
}

/// Returns the order of a session's only delivery.
fn order(number: usize) -> Arc<DeliveryOrder> {
    Arc::new(DeliveryOrder {
        key: session(number),
        delivery_id: delivery(),
        attempt: 1,
        part: 1,
        parts: 1,
        kind: DeliveryKind::Final,
        conversation: place(),
        reply_to: None,
        text: Private("hi".to_owned()),
        buttons: None,
        change: None,
        requested_at: Millis(0),
        deadline: Millis(u64::MAX),
        may_be_sent: false,
    })
}

/// Returns the account's value in the store while a connection of [`NODE`] sends.
fn held_by(link: u64) -> StoredAccount {
    let value = format!(r#"{{"node":"{:032x}","link":{link},"since":0}}"#, NODE.0);
    StoredAccount::read(Some(value.as_bytes()))
}

/// The orders of a test, with what was sent.
#[derive(Default)]
struct Orders {
    orders: OutgoingOrders,
    effects: Vec<OrderEffect>,
}

impl Orders {
    /// Adds the orders of some sessions before it is known where the adapter is.
    fn pending(count: usize) -> Self {
        let mut this = Self::default();
        (0..count).for_each(|number| this.orders.add(at(0), order(number), &mut this.effects));
        this
    }

    /// Returns the sessions whose orders were sent since the last call, with whether somebody may have sent the part.
    fn sent(&mut self) -> Vec<(SessionKey, bool)> {
        let sent = self.effects.drain(..).filter_map(|effect| match effect {
            OrderEffect::Send { order, .. } => Some((order.key.clone(), order.may_be_sent)),
            OrderEffect::LookUp(_) => None,
        });
        sent.collect()
    }

    fn found(&mut self, now: Now, link: u64) {
        self.orders.use_lease(now, &order(0).account(), &held_by(link), &mut self.effects);
    }

    fn report(&mut self, now: Now, key: &SessionKey) {
        let outcome = DeliveryOutcome::Sent { external_id: MessageId::parse("x").expect("an id"), place: place() };
        let report = DeliveryReport { delivery_id: delivery(), part: 1, attempt: 1, outcome };
        assert!(self.orders.finish(now, key, &report, &mut self.effects), "{key:?} has no order");
    }
}

/// Covers: BD-Q6, G8: an adapter that comes and goes costs no more messages while more deliveries are pending.
#[test]
fn flapping_adapter_is_asked_for_few_parts_at_a_time() {
    let count = 10_000;
    let account = order(0).account();
    let mut orders = Orders::pending(count);
    assert!(orders.sent().is_empty(), "nobody knows where the adapter is");
    for link in 1..20 {
        orders.found(at(link), link);
        let sent = orders.sent();
        assert_eq!(sent.len(), limits::ACCOUNT_ORDERS_SENT_MAX);
        assert!(sent.iter().all(|(_, may_be_sent)| *may_be_sent == (link > 1)), "the same ones each time");
        orders.orders.adapter_failed(at(link), &account, NODE);
        orders.orders.adapter_arrived(at(link), &account, &mut orders.effects);
    }
    orders.found(at(20), 20);
    let mut open: Vec<SessionKey> = orders.sent().into_iter().map(|(key, _)| key).collect();
    let mut answered = 0;
    while let Some(key) = open.pop() {
        orders.report(at(20), &key);
        answered += 1;
        open.extend(orders.sent().into_iter().map(|(key, _)| key));
        assert!(open.len() <= limits::ACCOUNT_ORDERS_SENT_MAX);
    }
    assert_eq!((answered, orders.orders.len(), orders.orders.next_deadline()), (count, 0, None));
}

/// Covers: BR-21.
#[test]
fn order_has_its_turn_once_those_before_it_have_ended() {
    let most = limits::ACCOUNT_ORDERS_SENT_MAX;
    let mut orders = Orders::pending(most + 3);
    orders.found(at(1), 1);
    assert_eq!(orders.sent(), (0..most).map(|number| (session(number), false)).collect::<Vec<_>>());
    orders.report(at(1), &session(5));
    assert_eq!(orders.sent(), [(session(most), false)]);
    orders.orders.withdraw(session(6), delivery());
    orders.orders.forget_session(&session(most + 1));
    orders.orders.handle_timeout(at(2), &mut orders.effects);
    assert_eq!(orders.sent(), [(session(most + 2), false)], "the one between was forgotten");
}

/// Covers: G9.
#[test]
fn only_orders_without_an_answer_are_repeated() {
    let mut orders = Orders::pending(3);
    orders.found(at(1), 1);
    orders.report(at(1), &session(1));
    orders.sent();
    assert_eq!(orders.orders.next_deadline(), Some(at(1).mono + limits::DELIVERY_ORDER_REPEAT));
    orders.orders.handle_timeout(at(3), &mut orders.effects);
    assert!(orders.sent().is_empty());
    orders.orders.handle_timeout(at(4), &mut orders.effects);
    assert_eq!(orders.sent(), [(session(0), true), (session(2), true)]);
    assert_eq!(orders.orders.next_deadline(), Some(at(4).mono + limits::DELIVERY_ORDER_REPEAT));
}
