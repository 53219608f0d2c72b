//! Checks G7 for places, and what is promised of deliveries: each answer is requested once, its parts are sent in order
//! to the place of its question and nowhere else, at most once where nobody recognises a repeated part, and each ends.
use crate::sim::fixtures;
use crate::sim::platform::{ACCOUNTS, Post, RoomMessage};
use crate::sim::world::World;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{DeliveryId, NodeId, RunId, Seq, SessionKey, TenantId};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryFailure, DeliveryKind, DeliveryRequested, InputOrigin};
use turnway_core::protocol::entry::{DeliveryFact, Entry, Fact, InputFact};
use turnway_core::protocol::route::RouteMode;
use turnway_core::protocol::task::TaskShow;
use turnway_core::session::DeliveryPhase;
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply};
use turnway_wire::channel::adapter::{DeliverMessage, InboundReceipt};

/// The deliveries of one session, as its log has them.
#[derive(Debug, Default)]
pub(super) struct DeliveryHistory {
    /// The message from which each turn came.
    pub(super) origins: BTreeMap<RunId, InputOrigin>,
    /// Turns among them that are part of another one.
    gathered: BTreeSet<RunId>,
    pub(super) deliveries: BTreeMap<DeliveryId, DeliveryRecord>,
    /// Answers that were requested, by the place.
    answers: BTreeSet<(RunId, ConversationRef)>,
    /// Ends of tasks that the router has given no place.
    pub(super) refused: BTreeSet<RunId>,
}

#[derive(Debug)]
pub(super) struct DeliveryRecord {
    requested_at: Seq,
    pub(super) requested: DeliveryRequested,
    sent: u32,
    end: Option<DeliveryEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryEnd {
    Sent,
    Held,
    Failed(DeliveryFailure),
}

impl DeliveryHistory {
    pub(super) fn of<'a>(log: impl Iterator<Item = &'a Entry>) -> Self {
        let mut history = Self::default();
        for (at, entry) in log.enumerate() {
            if let Fact::Delivery(fact) = &entry.fact {
                history.learn(Seq(at as u64 + 1), fact);
            } else if let (Fact::Input(fact), Some(run_id)) = (&entry.fact, &entry.run_id) {
                history.learn_input(run_id, fact);
            }
        }
        history
    }

    fn learn_input(&mut self, run_id: &RunId, fact: &InputFact) {
        if let InputFact::UserMessage { origin: Some(origin), .. } = fact {
            self.origins.insert(run_id.clone(), InputOrigin::clone(origin));
        } else if let InputFact::Gathered { host_run_id } = fact
            && let Some(origin) = self.origins.get(run_id).cloned()
        {
            // The turn answers the last message that it takes along.
            self.origins.insert(host_run_id.clone(), origin);
            self.gathered.insert(run_id.clone());
        }
    }

    /// Checks the place of a requested delivery.
    fn check_request(&mut self, requested: &DeliveryRequested) {
        let run_id = requested.about_run.as_ref().expect("every delivery of this world is about a turn");
        let origin = self.origins.get(run_id).expect("the turn came from a room");
        assert!(!self.gathered.contains(run_id), "BD-M8: gathered messages have one answer: {requested:?}");
        match &requested.route {
            // Only the session that has given a task knows its bound place.
            Some(route) => {
                let show = origin.task.map(|task| task.show);
                let is_asked = matches!(show, Some(TaskShow::Bound | TaskShow::Both));
                assert!(is_asked, "only the end of a task is routed: {requested:?}");
                assert_eq!(
                    route.mode,
                    RouteMode::Bound,
                    "a completion goes to its bound place or nowhere: {requested:?}"
                );
                let is_there = requested.conversation.is_same_place(&origin.conversation);
                assert!(!is_there, "BR-31: a task has a place of its own: {requested:?}");
            }
            None => {
                let place = &origin.conversation;
                assert_eq!(place, &requested.conversation, "G7: an answer goes to the place of its question");
                let is_shown = origin.task.is_none_or(|task| matches!(task.show, TaskShow::Parent | TaskShow::Both));
                let is_thread = requested.kind == DeliveryKind::Conversation;
                assert!(is_shown || is_thread, "a task is shown where its giver wants it: {requested:?}");
            }
        }
        if requested.kind != DeliveryKind::Conversation {
            let is_first = self.answers.insert((run_id.clone(), requested.conversation.clone()));
            assert!(is_first, "an answer is requested once for a place: {requested:?}");
        }
    }

    /// Returns whether the answer of a turn was requested.
    pub(super) fn has_answer(&self, run_id: &RunId) -> bool {
        self.answers.iter().any(|(answered, _)| answered == run_id)
    }

    fn learn(&mut self, at: Seq, fact: &DeliveryFact) {
        match fact {
            DeliveryFact::Requested(requested) => {
                self.check_request(requested);
                let id = requested.delivery_id.clone();
                let record = DeliveryRecord { requested_at: at, requested: requested.clone(), sent: 0, end: None };
                let is_first = self.deliveries.insert(id, record).is_none();
                assert!(is_first, "an answer is requested once: {requested:?}");
            }
            DeliveryFact::Attempted(attempted) => self.known(&attempted.delivery_id).expect_open(fact),
            DeliveryFact::Sent(sent) => {
                let record = self.known(&sent.delivery_id);
                assert_eq!(record.sent + 1, sent.part, "parts are sent in order: {sent:?}");
                record.sent = sent.part;
                record.end = (sent.part == sent.parts).then_some(DeliveryEnd::Sent);
            }
            DeliveryFact::Held(held) => {
                let record = self.known(&held.delivery_id);
                record.expect_open(fact);
                record.end = Some(DeliveryEnd::Held);
            }
            DeliveryFact::Failed(failed) => {
                let record = self.known(&failed.delivery_id);
                // A late receipt may tell where a held part stands.
                let is_held = record.end == Some(DeliveryEnd::Held);
                let is_found = failed.reason == DeliveryFailure::Misplaced && is_held;
                // A thread is needed no more once the action that it was for has ended.
                let is_thread = record.requested.kind == DeliveryKind::Conversation;
                let is_dropped = failed.reason == DeliveryFailure::Dropped && is_held && is_thread;
                if !is_found && !is_dropped {
                    record.expect_open(fact);
                }
                record.end = Some(DeliveryEnd::Failed(failed.reason));
            }
            DeliveryFact::Refused(refused) => {
                let origin = self.origins.get(&refused.about_run).expect("the turn came from a room");
                assert!(origin.task.is_some(), "only the end of a task is refused: {refused:?}");
                let is_first = self.refused.insert(refused.about_run.clone());
                assert!(is_first, "the end of a task is refused once: {refused:?}");
            }
            DeliveryFact::Redriven(redriven) => panic!("nobody has asked for it: {redriven:?}"),
        }
    }

    fn known(&mut self, id: &DeliveryId) -> &mut DeliveryRecord {
        self.deliveries.get_mut(id).unwrap_or_else(|| panic!("{id} was requested"))
    }
}

impl DeliveryRecord {
    fn expect_open(&self, fact: &DeliveryFact) {
        assert_eq!(self.end, None, "a delivery that has ended stays so: {fact:?}");
    }
}

impl World {
    /// Checks a part that a node gives to an adapter.
    pub(crate) fn check_order(&self, message: &DeliverMessage) {
        if self.rewinds {
            return;
        }
        let order = &message.order;
        let history = self.history_of(&order.key);
        let record = history.deliveries.get(&order.delivery_id).expect("the delivery is in the log");
        let DeliveryRequested { conversation, parts, .. } = &record.requested;
        assert_eq!(order.conversation, *conversation, "G7: the place is the requested one: {order:?}");
        let text = parts.get(order.part as usize - 1);
        assert_eq!(text, Some(&order.text), "a part is sent as it was recorded: {order:?}");
        assert!(order.part <= record.sent + 1, "a part waits for the receipt of the one before: {order:?}");
        let earlier = history.deliveries.values().find(|other| {
            other.requested_at < record.requested_at
                && other.end.is_none()
                && (other.requested.kind == DeliveryKind::Conversation)
                    == (record.requested.kind == DeliveryKind::Conversation)
                && other.requested.conversation.is_same_place(conversation)
        });
        assert!(earlier.is_none(), "one delivery to a place at a time: {order:?} before {earlier:?}");
    }

    pub(super) fn history_of(&self, key: &SessionKey) -> DeliveryHistory {
        let log = self.ledger.chronicles.get(key).map_or(&[][..], |chronicle| &chronicle.log);
        DeliveryHistory::of(log.iter().map(|(_, entry)| &**entry))
    }

    /// Returns the reason why messages of rooms and their answers have not settled.
    pub(crate) fn undelivered_reason(&self) -> Option<String> {
        if let Some((n, _)) = self.platform.messages.iter().find(|(_, message)| message.turns.is_empty()) {
            return Some(format!("G9: what somebody wrote is accepted: m{n}"));
        }
        if let Some(event) = self.platform.events.iter().find(|event| !event.is_accepted) {
            return Some(format!("G9: an event of a room is accepted: {event:?}"));
        }
        if let Some(why) = self.unpressed_reason() {
            return Some(why);
        }
        if let Some(why) = self.platform.bindings.unsettled_reason(self.store_clock()) {
            return Some(why);
        }
        let is_there = |key: &SessionKey| self.model.session(key).is_none_or(|slot| !slot.deleted);
        let there = self.ledger.chronicles.iter().filter(|(key, _)| is_there(key));
        let mut states = there.map(|(key, chronicle)| (key, chronicle.state(Seq(u64::MAX)).deliveries));
        states.find_map(|(key, deliveries)| {
            let is_pending = deliveries.open.values().any(|delivery| delivery.phase == DeliveryPhase::Pending);
            let is_owed = is_pending || !deliveries.origins.is_empty();
            is_owed.then(|| format!("G9: an answer is sent, held or has failed: {key} {deliveries:?}"))
        })
    }

    /// Checks the op of a node on the bindings of rooms, and that a message of a room goes to the session of its binding.
    pub(crate) fn check_rows(&mut self, node_id: NodeId, op: &Op, reply: &Reply) {
        let now = self.store_now();
        match (op, reply) {
            (
                Op::Conversation { op: ConversationOp::Change { key, action }, .. },
                Reply::Conversation(ConversationReply::Row { outcome, row }),
            ) => self.platform.bindings.learn(now, (key, action), *outcome, row.as_deref()),
            (
                Op::Conversation { op: ConversationOp::List { session, .. }, .. },
                Reply::Conversation(ConversationReply::Bindings(bindings)),
            ) => self.platform.bindings.check_list(session, bindings),
            (Op::Accept { key, input, .. }, Reply::Accepted(accepted)) if !self.rewinds && !accepted.duplicate => {
                let Some(origin) = &input.origin else { return };
                if let Some(task) = &origin.task {
                    return self.check_task_input(key, input, task);
                }
                if let Some(press) = &origin.decision {
                    return self.check_press(key, input, press);
                }
                let n = fixtures::number(&input.message);
                let message = self.platform.messages.get(&n).expect("somebody wrote it");
                assert!(message.place == origin.conversation, "G7: a message has its place: {n} {origin:?}");
                let brought = self.platform.brought.get(&(node_id, n)).expect("somebody brought it");
                let own = message.place.own_session(&key.tenant);
                let place = message.place.key(&key.tenant);
                let at = self.lenient(*brought);
                let leads = self.platform.bindings.leads_to(&place, (&own, &key.session), at);
                assert!(leads, "G7: a message goes to the session of its room's binding: m{n} of {place} to {key}");
            }
            _ => {}
        }
    }

    /// Checks a message that was brought again after its receipt, and has led to another turn.
    pub(crate) fn check_repeat(&self, message: &RoomMessage, receipt: &InboundReceipt) {
        let tenant = TenantId::default_tenant();
        let place = message.place.key(&tenant);
        // Only the room's own session and the session of the binding that ended last are asked.
        let ends = self.platform.bindings.ends_since(&place, message.brought_at.unwrap_or_default());
        let is_lost = |known: &RunId| {
            let key = SessionKey { tenant: tenant.clone(), session: known.session() };
            let is_deleted = self.model.session(&key).is_some_and(|slot| slot.deleted);
            is_deleted || key.session != message.place.own_session(&tenant) && ends > 1
        };
        let is_known = !message.turns.iter().all(is_lost);
        assert!(!is_known, "G2: a message that is brought again is the same turn: {message:?} {receipt:?}");
    }

    /// Checks what stands in the rooms against the logs.
    pub(crate) fn check_rooms(&self) {
        let histories: Vec<DeliveryHistory> =
            self.ledger.chronicles.keys().map(|key| self.history_of(key)).filter(|it| !it.origins.is_empty()).collect();
        let mut posts: BTreeMap<(&DeliveryId, u32), Vec<&Post>> = BTreeMap::new();
        for post in &self.platform.posts {
            posts.entry((&post.delivery_id, post.part)).or_default().push(post);
        }
        for ((id, part), posts) in &posts {
            let record = histories.iter().find_map(|history| history.deliveries.get(id)).expect("it was requested");
            let first = posts.first().expect("a post");
            assert!(
                posts.len() == 1 || self.platform.clock_fell,
                "a part stands in its room once: {id}, part {part} at {}",
                ACCOUNTS[first.account].0
            );
            let is_there = if first.kind == DeliveryKind::Conversation {
                first.place.parent_conversation_id.as_ref() == Some(&record.requested.conversation.conversation_id)
            } else {
                first.place.is_same_place(&record.requested.conversation)
            };
            assert!(is_there || first.is_misplaced, "G7: a part stands in the room of its question: {first:?}");
            let text = record.requested.parts.get(*part as usize - 1).map(|text| text.reveal());
            assert_eq!(text, Some(first.text.as_str()), "{id}, part {part}");
        }
        for record in histories.iter().flat_map(|history| history.deliveries.values()) {
            let id = &record.requested.delivery_id;
            for part in 1..=record.sent {
                let post = posts.get(&(id, part)).and_then(|posts| posts.first());
                let post = post.unwrap_or_else(|| panic!("what has a receipt was sent: {id}, part {part}"));
                assert!(!post.is_misplaced, "G7: a part in another room is no receipt: {post:?}");
            }
            let place = &record.requested.conversation;
            let is_keyed =
                ACCOUNTS.iter().any(|(account, is_keyed)| *is_keyed && place.account_id.as_str() == *account);
            let is_held = record.end == Some(DeliveryEnd::Held);
            assert!(!is_keyed || !is_held, "a part is not held where a repeated one is recognised: {id}");
        }
    }
}
