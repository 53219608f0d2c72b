//! The bindings of conversations at this node: performs the ops of the service and of the upkeep, tells the upkeep what the
//! service changed, and answers links. Decides nothing about bindings.
pub(super) mod repeats;
pub(super) mod sends;

use super::adapters::inbound::PlaceBindings;
use super::effect::{AdaptersCommand, BindingsCommand, PartEffect};
use super::sink::{EffectSink, Timer};
use repeats::{PossibleRepeat, RepeatAnswer, RepeatLookups};
use sends::{PendingSends, RefusedSend, SendOutcome, SendRouting};
use std::sync::Arc;
use turnway_bindings::service::{self, AskPurpose, BindingAsker, BindingService};
use turnway_bindings::upkeep::{self, BindingUpkeep};
use turnway_core::id::LinkId;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::rng::Rng;
use turnway_core::store::{ConversationOp, Op, OpTicket, Reply, StoreError};
use turnway_core::time::Now;
use turnway_wire::channel::binding::{BindingCommand, BindingReply};
use turnway_wire::channel::command::SendCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// The fact that a node must know to take part: reports go into sessions' logs, which every node reads.
pub(super) const BINDING_FACT: &str = "binding.bound";

/// The service and the upkeep of one node.
#[derive(Debug)]
pub(super) struct Bindings {
    service: BindingService,
    upkeep: BindingUpkeep,
    /// Every live node knows the facts that reports lead to. Until then, rows keep the changes.
    may_report: bool,
    sends: PendingSends,
    repeats: RepeatLookups,
    directory: Arc<AgentDirectory>,
}

impl Bindings {
    /// Creates the part of a node that has just started.
    pub(super) fn new(seed: u64, may_report: bool, directory: Arc<AgentDirectory>) -> Self {
        let mut rng = Rng::from_number(seed);
        let service = BindingService::new(Rng::from_number(rng.next_u64()));
        let sends = PendingSends::default();
        let repeats = RepeatLookups::default();
        Self { service, upkeep: BindingUpkeep::new(rng), may_report, sends, repeats, directory }
    }

    /// Sets whether every live node knows the facts that reports lead to.
    pub(super) fn set_may_report(&mut self, may_report: bool) {
        self.may_report = may_report;
    }

    /// Returns the number of requests and of rows in work; 0 when all is quiet.
    pub(super) fn open_count(&self) -> usize {
        self.service.waiting_count() + self.upkeep.open_count() + self.sends.count() + self.repeats.count()
    }

    /// Handles an effect of another part.
    pub(super) fn handle_effect(&mut self, now: Now, command: BindingsCommand, sink: &mut EffectSink) {
        match command {
            BindingsCommand::Send { link, send } => self.look_up_send(now, link, *send, sink),
            BindingsCommand::RefuseUnlessRepeated(request) => self.refuse_unless_repeated(*request, sink),
            BindingsCommand::Perform { link, request_id, command, purpose } => {
                let Some(principal) = sink.links.get(link).map(|link| link.principal.clone()) else { return };
                let asker = BindingAsker { link, request_id, principal, purpose };
                self.service.handle_input(now, service::Input::Command { asker, command });
                self.drain(now, sink);
            }
            BindingsCommand::EndAll { session, reason } => {
                self.service.handle_input(now, service::Input::SessionGone { session, reason });
                self.drain(now, sink);
            }
        }
    }

    /// Handles the reply to an op on conversations. Without a ticket, it is the upkeep's.
    pub(super) fn handle_stored(
        &mut self,
        now: Now,
        op: ConversationOp,
        ticket: Option<OpTicket>,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        match ticket {
            Some(ticket) => self.service.handle_input(now, service::Input::Stored { op, ticket, result }),
            None => self.upkeep.handle_input(now, upkeep::Input::Stored { op: op.into(), result }),
        }
        self.drain(now, sink);
    }

    /// Handles the reply to the entry that has a session's log record a change of a binding.
    pub(super) fn handle_report(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>, sink: &mut EffectSink) {
        if let (Op::Control { control, .. }, Ok(Reply::Accepted(accepted))) = (&op, &result)
            && !accepted.duplicate
        {
            count_report(control, sink);
        }
        self.upkeep.handle_input(now, upkeep::Input::Stored { op, result });
        self.drain(now, sink);
    }

    /// Searches for rows that are due.
    pub(super) fn tend(&mut self, now: Now, sink: &mut EffectSink) {
        if self.may_report {
            self.upkeep.handle_timeout(now);
            self.drain(now, sink);
        }
        let next = self.upkeep.poll_timeout().map_or(now.mono, |deadline| deadline.at);
        sink.timers.set(Timer::Bindings, next.max(now.mono + upkeep::SEARCH_INTERVAL_MIN));
    }

    /// Reads the bindings of the session to which a message belongs.
    fn look_up_send(&mut self, now: Now, link: LinkId, send: SendCommand, sink: &mut EffectSink) {
        let Some(principal) = sink.links.get(link).map(|link| link.principal.clone()) else { return };
        let request_id = send.request_id.clone();
        let command = BindingCommand::List { session: send.session.clone() };
        let number = self.sends.add((link, principal.clone()), send, (now, sink.rng.next_u128()));
        let asker = BindingAsker { link, request_id, principal, purpose: AskPurpose::Send(number) };
        self.service.handle_input(now, service::Input::Command { asker, command });
        self.drain(now, sink);
    }

    /// Submits a message whose place the router has chosen, or tells its link why there is none.
    fn route_send(&mut self, now: Now, number: u64, reply: Result<BindingReply, Refusal>, sink: &mut EffectSink) {
        let Some(SendRouting { outcome, answer }) = self.sends.route(now, &self.directory, number, reply) else {
            return;
        };
        if let Some((mode, reason)) = answer {
            sink.stats.count_destination(mode, reason);
        }
        match outcome {
            SendOutcome::Routed(routed) => sink.push(PartEffect::SubmitSend(routed)),
            SendOutcome::Unplaced(request) => self.refuse_unless_repeated(*request, sink),
            SendOutcome::Refused(refused) => refuse_send(refused, sink),
        }
    }

    /// Finds out whether a request that is refused was accepted before.
    fn refuse_unless_repeated(&mut self, request: PossibleRepeat, sink: &mut EffectSink) {
        match self.repeats.begin(request) {
            Ok(op) => sink.store(op),
            Err(refused) => refuse_request(*refused, sink),
        }
    }

    /// Handles the answer whether a request was accepted before. While the entry waits for the session's owner, the store is
    /// asked again.
    pub(super) fn handle_control_found(
        &mut self,
        now: Now,
        op: Op,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let Op::FindControl { ticket, .. } = &op else { return };
        if let Ok(Reply::ControlFound { ended: false }) = result
            && self.repeats.link_of(*ticket).is_some_and(|link| sink.links.get(link).is_some())
        {
            return sink.retry(now, op);
        }
        match self.repeats.use_found(*ticket, result) {
            Some(RepeatAnswer::Accepted { link, reply }) => sink.notify(link, Notification::Reply(reply)),
            Some(RepeatAnswer::Refused(refused)) => refuse_request(*refused, sink),
            None => {}
        }
    }

    /// Performs the outputs of both machines. Those of the service may be inputs of the upkeep.
    fn drain(&mut self, now: Now, sink: &mut EffectSink) {
        while let Some(output) = self.service.poll_output() {
            match output {
                service::Output::Store(op) => sink.store(op),
                service::Output::StoreLater(op) => sink.retry(now, op),
                service::Output::Changed { key, row } if self.may_report => {
                    self.upkeep.handle_input(now, upkeep::Input::Changed { key, row });
                }
                service::Output::Changed { .. } => {}
                service::Output::Reply { asker: BindingAsker { link, request_id, purpose, .. }, reply } => {
                    match (purpose, reply) {
                        (AskPurpose::Inbound(number), reply) => {
                            let result = reply.map(PlaceBindings::of_reply);
                            sink.push(AdaptersCommand::UseBinding { number, result });
                        }
                        (AskPurpose::Files(number), reply) => {
                            let result = reply.map(PlaceBindings::of_reply);
                            sink.push(AdaptersCommand::UseFilesBinding { link, number, result });
                        }
                        (AskPurpose::Send(number), reply) => self.route_send(now, number, reply, sink),
                        (AskPurpose::Request, Ok(reply)) => {
                            let reply = CommandReply::Binding { request_id, reply };
                            sink.notify(link, Notification::Reply(reply));
                        }
                        (AskPurpose::Request, Err(refusal)) => sink.refuse(link, request_id, None, None, refusal),
                    }
                }
            }
        }
        while let Some(op) = self.upkeep.poll_output() {
            sink.store(op);
        }
    }
}

fn refuse_send(refused: RefusedSend, sink: &mut EffectSink) {
    let RefusedSend { link, request_id, session, refusal } = refused;
    sink.refuse(link, request_id, Some(session), None, refusal);
}

fn refuse_request(refused: PossibleRepeat, sink: &mut EffectSink) {
    let PossibleRepeat { link, request_id, key, refusal, .. } = refused;
    sink.refuse(link, request_id, Some(key.session), None, refusal);
}

/// Returns whether an op reports the change of a binding: no link can ask for one.
pub(super) fn is_report(op: &Op) -> bool {
    let Op::Control { control, .. } = op else { return false };
    matches!(&control.what, ControlRequest::RecordBinding { .. } | ControlRequest::RecordBindingEnd { .. })
}

/// Counts a change that a log is to record for the first time.
fn count_report(control: &ControlEntry, sink: &mut EffectSink) {
    match &control.what {
        ControlRequest::RecordBinding { .. } => sink.stats.bindings_bound += 1,
        ControlRequest::RecordBindingEnd { ended, .. } => sink.stats.bindings_ended.add(ended.reason as usize),
        ControlRequest::StartModelCall { .. }
        | ControlRequest::EndModelCall { .. }
        | ControlRequest::Open { .. }
        | ControlRequest::Close
        | ControlRequest::Cancel { .. }
        | ControlRequest::Switch { .. }
        | ControlRequest::Invite { .. }
        | ControlRequest::Remove { .. }
        | ControlRequest::Handover { .. }
        | ControlRequest::Label { .. }
        | ControlRequest::SettleDelivery { .. }
        | ControlRequest::SendMessage { .. }
        | ControlRequest::CreateConversation { .. } => {}
    }
}
