//! The state machine of the connection of an agent that has dialed in: its orders. Its messages are in `inbound`.
use super::{DialInCommand, DialInConfig, DialInEvent};
use crate::connection::{ConnectionState, ServiceConnection, ServiceProtocol};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use turnway_core::id::{Epoch, MessageId, RunId, TenantId};
use turnway_core::limits;
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::steer::Steer;
use turnway_core::time::{Deadline, Mono, Now};
use turnway_wire::agent::render;
use turnway_wire::agent::surrogates::SurrogateJoiner;

mod inbound;

/// One connection of one agent.
pub type DialIn = ServiceConnection<DialInProtocol>;

type DialInConnection = ConnectionState<DialInEvent>;

/// The messages of an agent that has dialed in.
///
/// Keeps each attempt that was ordered here until its agent ends it or the attempt is dropped.
#[derive(Debug)]
pub struct DialInProtocol {
    has_event_ids: bool,
    /// Time of the driver's next wake-up to check for received bytes while an attempt runs.
    next_check: Mono,
    /// Facts sent to the agent since the last flush.
    unflushed_events: usize,
    runs: BTreeMap<RunId, DialInAttempt>,
    /// Runs that were dropped recently: the agent's late messages about them are ignored.
    recently_dropped: VecDeque<RunId>,
    /// Types of facts that the agent subscribes to.
    subscribed_types: Arc<[Pattern]>,
}

/// An attempt that was ordered and has not ended.
#[derive(Debug)]
struct DialInAttempt {
    tenant: TenantId,
    attempt: u32,
    /// The ownership epoch of the order.
    epoch: Epoch,
    /// The attempt resumes after an earlier event.
    is_resumed: bool,
    /// A cancel was sent.
    cancelled: bool,
    acked: bool,
    /// Bytes of the agent's messages so far (S-48).
    bytes: usize,
    /// Message ids of steered inputs; at most as many as fit into one inbox.
    steers: Vec<MessageId>,
    joiner: SurrogateJoiner,
}

// === impl DialIn ===

impl DialIn {
    /// Creates the connection of an agent that was just authenticated, and sends `welcome`.
    pub fn new(now: Now, config: &DialInConfig) -> Self {
        let protocol = DialInProtocol {
            has_event_ids: config.has_event_ids,
            next_check: now.mono + limits::DIALIN_SILENCE_CHECK,
            unflushed_events: 0,
            runs: BTreeMap::new(),
            recently_dropped: VecDeque::new(),
            subscribed_types: Arc::default(),
        };
        Self::open(now, &config.connection, protocol)
    }

    /// Returns whether an order is not older than the known attempt of the run. A previous owner that was suspended
    /// may still send an order after the next owner has continued; such an order must not be passed on.
    pub fn accepts(&self, invoke: &Invoke) -> bool {
        self.protocol().runs.get(&invoke.run_id).is_none_or(|run| run.epoch <= invoke.epoch)
    }
}

impl ServiceProtocol for DialInProtocol {
    type Command = DialInCommand;
    type Event = DialInEvent;
    const UNREAD_REASON: &'static str = "the agent did not read its messages in time";

    fn handle_text(&mut self, now: Now, connection: &mut DialInConnection, text: &str) {
        self.handle_message(now, connection, text);
    }

    fn handle_command(&mut self, now: Now, connection: &mut DialInConnection, command: DialInCommand) {
        match command {
            DialInCommand::Order(order) => self.handle_order(now, connection, *order),
            DialInCommand::PartialMessage => self.handle_part(now, connection),
        }
    }

    fn handle_flushed(&mut self) {
        self.unflushed_events = 0;
    }

    fn handle_timeout(&mut self, now: Now) {
        self.next_check = now.mono + limits::DIALIN_SILENCE_CHECK;
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        (!self.runs.is_empty()).then_some(Deadline { at: self.next_check, label: "look" })
    }

    /// Forgets the attempts; the driver reports the loss to their runs.
    fn handle_closed(&mut self) {
        self.runs.clear();
    }
}

// === orders ===

impl DialInProtocol {
    /// Reports every acknowledged attempt as alive, because the attempt of an incomplete message is not known yet.
    fn handle_part(&mut self, now: Now, connection: &mut DialInConnection) {
        connection.record_activity(now);
        let begun = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        for (run_id, run) in begun {
            connection.push_event(DialInEvent::AttemptAlive { run_id: run_id.clone(), attempt: run.attempt });
        }
    }

    fn handle_order(&mut self, now: Now, connection: &mut DialInConnection, order: Order) {
        match order {
            Order::Invoke(invoke) => self.send_invoke(now, connection, &invoke),
            // The tenant is known from the run's own order.
            Order::Cancel { tenant: _, run_id, attempt, epoch: _ } => {
                if let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.attempt == attempt)
                    && !std::mem::replace(&mut run.cancelled, true)
                {
                    let tenant = run.tenant.clone();
                    connection.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                }
            }
            Order::Steer(steer) => self.send_steer(now, connection, &steer),
            // A resumable attempt may be resumed by another owner over another connection, so it is not cancelled;
            // `Stop` cancels it if nobody will resume it.
            Order::Drop { run_id, attempt } => {
                self.drop_attempt(now, connection, &run_id, attempt, !self.has_event_ids)
            }
            // The agent may still run the attempt, whichever connection received its order.
            Order::Stop { tenant, run_id, attempt, .. } => {
                connection.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                self.remember_dropped(run_id);
            }
            Order::News(delivery) => self.send_event(now, connection, &delivery),
            // Backpressure needs no credit here: if too much uncredited text is in flight, the driver stops
            // reading.
            Order::Credit { .. } => {}
        }
    }

    fn send_invoke(&mut self, now: Now, connection: &mut DialInConnection, invoke: &Invoke) {
        let run = DialInAttempt {
            tenant: invoke.key.tenant.clone(),
            attempt: invoke.attempt,
            epoch: invoke.epoch,
            is_resumed: invoke.resume.is_some(),
            cancelled: false,
            acked: false,
            bytes: 0,
            steers: Vec::new(),
            joiner: SurrogateJoiner::default(),
        };
        self.recently_dropped.retain(|run_id| *run_id != invoke.run_id);
        self.runs.insert(invoke.run_id.clone(), run);
        connection.write(now, render::invoke(now.store, invoke));
    }

    fn send_steer(&mut self, now: Now, connection: &mut DialInConnection, steer: &Steer) {
        let Some(run) = self.runs.get_mut(&steer.run_id).filter(|run| run.attempt == steer.attempt) else {
            return;
        };
        if !run.steers.contains(&steer.message_id) {
            run.steers.push(steer.message_id.clone());
        }
        connection.write(now, render::steer(now.store, steer));
    }

    /// Sends the result of an action or a subscribed fact. An agent that reads too slowly misses some of them; the
    /// context of its next input contains the state of its actions.
    fn send_event(&mut self, now: Now, connection: &mut DialInConnection, delivery: &FactDelivery) {
        let runs = self.runs.get(&delivery.run_id);
        if self.unflushed_events < limits::FACT_DELIVERIES_MAX
            && runs.is_some_and(|run| run.attempt == delivery.attempt && !run.cancelled)
        {
            self.unflushed_events += 1;
            connection.write(now, render::event(now.store, delivery));
        }
    }

    /// Drops an attempt without a listener; `is_notified` sends a cancel, unless one was sent or the attempt has ended.
    fn drop_attempt(
        &mut self,
        now: Now,
        connection: &mut DialInConnection,
        run_id: &RunId,
        attempt: u32,
        is_notified: bool,
    ) {
        if self.runs.get(run_id).is_none_or(|run| run.attempt != attempt) {
            return;
        }
        let Some(run) = self.runs.remove(run_id) else { return };
        if is_notified && !run.cancelled {
            connection.write(now, render::cancel(now.store, &run.tenant, run_id, attempt));
        }
        self.remember_dropped(run_id.clone());
    }

    fn remember_dropped(&mut self, run_id: RunId) {
        if self.recently_dropped.contains(&run_id) {
            return;
        }
        if self.recently_dropped.len() >= limits::DIALIN_STOPPED_RUNS_MAX {
            self.recently_dropped.pop_front();
        }
        self.recently_dropped.push_back(run_id);
    }
}
