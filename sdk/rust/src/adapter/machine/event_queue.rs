//! The events of the platform on their way to the gateway: in order within a conversation, and sent again until the
//! gateway has accepted or finally refused each.
use crate::adapter::event::{PlatformEvent, SettledEvent};
use crate::adapter::output::AdapterEffects;
use crate::adapter::place::AccountPlace;
use crate::backoff::{Backoff, SplitMix};
use crate::frame::IncomingMessage;
use crate::limits;
use crate::planted::{Planted, planted};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The events without a final answer. Calls of `forward` are bounded by `FORWARDS_MAX`, the feed by `FEED_WINDOW_MAX`.
#[derive(Debug)]
pub(crate) struct EventQueue {
    account: AccountPlace,
    /// Events by their number, which is the order of arrival.
    events: BTreeMap<u64, QueuedEvent>,
    /// Events of each conversation, in order. The first one is being sent or waits for its next attempt.
    lanes: BTreeMap<String, VecDeque<u64>>,
    /// Number of events that were sent and have no answer.
    sent: usize,
    rng: SplitMix,
}

/// The origin of an event, which gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOrigin {
    /// A call of `forward`.
    Caller,
    /// The feed of the platform's updates.
    Feed,
}

#[derive(Debug)]
struct QueuedEvent {
    origin: EventOrigin,
    conversation: String,
    /// The encoded message; every repeat sends the same bytes.
    wire: String,
    state: SendState,
    /// Number of attempts that have failed.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// To be sent at this time.
    Due(Duration),
    /// Sent on the present connection; without an answer until this time it is sent again.
    Sent { until: Duration },
}

/// The final answer to an event.
pub(crate) type EventAnswer = (u64, EventOrigin, SettledEvent);

// === impl EventQueue ===

impl EventQueue {
    pub(crate) fn new(account: AccountPlace, random: u64) -> Self {
        let rng = SplitMix::from_seed(random);
        Self { account, events: BTreeMap::new(), lanes: BTreeMap::new(), sent: 0, rng }
    }

    /// Adds an event behind those of its conversation.
    pub(crate) fn push(&mut self, id: u64, event: &PlatformEvent, origin: EventOrigin, fx: &AdapterEffects) {
        let wire = event.to_wire(&self.account, &fx.request_id(id));
        let conversation = event.conversation_id.clone();
        self.lanes.entry(conversation.clone()).or_default().push_back(id);
        let state = SendState::Due(fx.now.elapsed);
        self.events.insert(id, QueuedEvent { origin, conversation, wire, state, failures: 0 });
    }

    /// Sends what is due, in the order of arrival. Events that are longer than the gateway's limit are refused here,
    /// because the gateway would close the connection with them.
    pub(crate) fn send_due(&mut self, bytes_max: usize, fx: &mut AdapterEffects) -> Vec<EventAnswer> {
        let mut refused = Vec::new();
        for (id, event) in &mut self.events {
            if self.sent >= limits::INBOUND_AT_A_TIME {
                break;
            }
            let is_first = self.lanes.get(&event.conversation).and_then(VecDeque::front) == Some(id);
            match event.state {
                SendState::Due(at) if (is_first || planted(Planted::SdkEventsOvertake)) && at <= fx.now.elapsed => {}
                SendState::Due(_) | SendState::Sent { .. } => continue,
            }
            if event.wire.len() > bytes_max {
                refused.push(*id);
                continue;
            }
            event.state = SendState::Sent { until: fx.now.elapsed + limits::ANSWER_TIMEOUT };
            self.sent += 1;
            fx.send(event.wire.clone());
        }
        let too_large = |id| self.settle(id, SettledEvent::refused("too_large".to_owned()));
        refused.into_iter().filter_map(too_large).collect()
    }

    /// Handles `inbound_accepted`, or an `error` about an event.
    pub(crate) fn handle_answer(
        &mut self,
        id: u64,
        frame: &IncomingMessage,
        fx: &AdapterEffects,
    ) -> Option<EventAnswer> {
        if frame.kind() == "inbound_accepted" {
            return self.settle(id, SettledEvent::accepted(frame));
        }
        let code = frame.string("code").unwrap_or_default();
        if !frame.flag("retryable") || planted(Planted::SdkEventGivenUp) {
            tracing::warn!(code, message = frame.text("message"), "an event was refused");
            return self.settle(id, SettledEvent::refused(code));
        }
        tracing::info!(code, "an event is sent again");
        let after = frame.number("retry_after_ms").map(Duration::from_millis);
        self.postpone(id, after.unwrap_or_default().min(limits::RETRY_BUDGET), fx.now.elapsed);
        None
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self, is_active: bool) -> Option<Duration> {
        let has_room = self.sent < limits::INBOUND_AT_A_TIME;
        let at = |(id, event): (&u64, &QueuedEvent)| match event.state {
            SendState::Sent { until } => Some(until),
            SendState::Due(at) => {
                let is_first = self.lanes.get(&event.conversation).and_then(VecDeque::front) == Some(id);
                (is_active && has_room && is_first).then_some(at)
            }
        };
        self.events.iter().filter_map(at).min()
    }

    /// Schedules events without an answer again: the gateway recognises one that it has.
    pub(crate) fn handle_timeout(&mut self, fx: &AdapterEffects) {
        let is_late = |event: &QueuedEvent| match event.state {
            SendState::Sent { until } => until <= fx.now.elapsed,
            SendState::Due(_) => false,
        };
        let late: Vec<u64> = self.events.iter().filter(|(_, event)| is_late(event)).map(|(id, _)| *id).collect();
        for id in late {
            self.postpone(id, Duration::ZERO, fx.now.elapsed);
        }
    }

    /// Handles the loss of the connection: what has no answer is sent again on the next one.
    pub(crate) fn handle_lost(&mut self, now: Duration) {
        self.sent = 0;
        for event in self.events.values_mut() {
            if let SendState::Sent { .. } = event.state {
                event.state = SendState::Due(now);
            }
        }
    }

    /// Removes the events of the feed, which reads them again.
    pub(crate) fn withdraw_feed(&mut self) {
        let of_feed = |(_, event): &(&u64, &QueuedEvent)| event.origin == EventOrigin::Feed;
        let ids: Vec<u64> = self.events.iter().filter(of_feed).map(|(id, _)| *id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// Returns whether an answer is awaited.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.sent > 0
    }

    fn settle(&mut self, id: u64, settled: SettledEvent) -> Option<EventAnswer> {
        self.remove(id).map(|event| (id, event.origin, settled))
    }

    fn remove(&mut self, id: u64) -> Option<QueuedEvent> {
        let event = self.events.remove(&id)?;
        if let SendState::Sent { .. } = event.state {
            self.sent -= 1;
        }
        if let Some(lane) = self.lanes.get_mut(&event.conversation) {
            lane.retain(|other| *other != id);
            if lane.is_empty() {
                self.lanes.remove(&event.conversation);
            }
        }
        Some(event)
    }

    /// Schedules the next attempt at an event.
    fn postpone(&mut self, id: u64, at_least: Duration, now: Duration) {
        let Some(event) = self.events.get_mut(&id) else { return };
        if let SendState::Sent { .. } = event.state {
            self.sent -= 1;
        }
        let backoff = Backoff { base: limits::INBOUND_RETRY_BASE, max: limits::INBOUND_RETRY_MAX };
        let wait = backoff.delay(event.failures, &mut self.rng);
        event.failures = event.failures.saturating_add(1);
        event.state = SendState::Due(now + wait + at_least);
    }
}
