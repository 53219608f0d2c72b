//! The control lane: open, close and cancel (scenarios C and H).
use crate::id::{AgentId, InboxPosition, RequestId, RunId, UserId};
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::Order;
use crate::protocol::entry::{Fact, RunFact, SessionFact};
use crate::protocol::input::{ControlEntry, ControlRequest};
use crate::protocol::refusal::Code;
use crate::session::attempt::Attempt;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{RecordContext, SessionRuntime};
use crate::session::state::{RunPhase, SessionPhase};
use crate::time::Now;
use std::sync::Arc;

impl SessionRuntime {
    pub(super) fn handle_control(&mut self, now: Now, place: InboxPosition, control: Arc<ControlEntry>) {
        self.controls.push_back((place, control));
        self.run_controls(now);
    }

    /// Handles the entries of the control lane, in order. Only an open or close after a close waits, until that close
    /// is finished.
    pub(super) fn run_controls(&mut self, now: Now) {
        while let Some((place, control)) = self.controls.pop_front() {
            match &control.what {
                ControlRequest::Open { .. } | ControlRequest::Close if self.close.is_some() => {
                    self.controls.push_front((place, control));
                    return;
                }
                ControlRequest::Open { agents, active } => {
                    let agents = agents.clone();
                    let active = active.clone();
                    self.handle_open(now, place, &control, agents, active);
                }
                ControlRequest::Close => self.handle_close(now, place, control),
                ControlRequest::Switch { .. } | ControlRequest::Invite { .. } | ControlRequest::Remove { .. } => {
                    self.handle_member_request(now, place, &control);
                }
                ControlRequest::Handover { handover_id, confirm } => {
                    let what = (*handover_id, *confirm);
                    self.handle_handover_decision(now, place, &control, what);
                }
                ControlRequest::Cancel { run_id: Some(run_id) } => {
                    let run_id = run_id.clone();
                    self.handle_cancel(now, place, control, run_id);
                }
                ControlRequest::Cancel { run_id: None } => {
                    let open = self.state.running.clone().or_else(|| self.state.waiting.first().cloned());
                    match open {
                        Some(run_id) => self.cancel_turn(now, &run_id, "user", Some((place, &control))),
                        None => self.answer_with_notice(now, "NO_ACTIVE_SPEAKING", place, &control),
                    }
                }
            }
        }
    }

    pub(super) fn record_opened(
        &mut self,
        now: Now,
        user: &UserId,
        agents: Vec<AgentId>,
        active_agent: AgentId,
        request_id: Option<RequestId>,
        answers: Option<InboxPosition>,
    ) {
        let fact = Fact::Session(SessionFact::Opened { user: user.clone(), agents, active_agent, request_id });
        let closed = Some(false);
        self.record(now, fact, RecordContext { answers, closed, user: Some(user), ..RecordContext::default() });
    }

    fn handle_open(
        &mut self,
        now: Now,
        place: InboxPosition,
        control: &Arc<ControlEntry>,
        mut agents: Vec<AgentId>,
        active: Option<AgentId>,
    ) {
        if self.is_open() {
            return self.answer_without_fact(place, control);
        }
        if agents.is_empty() {
            agents.clone_from(&self.state.agents);
        }
        if agents.is_empty() {
            agents = self.directory.default_members(active.as_ref());
        }
        let first = active.filter(|active| agents.contains(active)).or_else(|| agents.first().cloned());
        let Some(active) = first else {
            return self.answer_with_notice(now, Code::SessionOpenFailed.as_str(), place, control);
        };
        let user = self.state.user.clone().unwrap_or_else(|| control.user.clone());
        self.record_opened(now, &user, agents, active, control.request_id.clone(), Some(place));
        self.answer_with_fact(control);
    }

    fn handle_close(&mut self, now: Now, place: InboxPosition, control: Arc<ControlEntry>) {
        match self.state.phase {
            SessionPhase::Closed => return self.answer_without_fact(place, &control),
            SessionPhase::Closing => {}
            SessionPhase::New | SessionPhase::Open => {
                let request_id = control.request_id.clone();
                self.record(now, Fact::Session(SessionFact::Closing { request_id }), RecordContext::default());
            }
        }
        self.close = Some((place, control));
        let open = self.state.waiting.iter().chain(&self.state.running).cloned();
        for run_id in open.collect::<Vec<_>>() {
            self.stop_turn(now, &run_id);
        }
    }

    /// Ends a turn of a closing session: the running turn is cancelled, a waiting turn ends at once.
    pub(super) fn stop_turn(&mut self, now: Now, run_id: &RunId) {
        if self.state.running.as_ref() == Some(run_id) {
            return self.cancel_turn(now, run_id, "session_close", None);
        }
        self.end_turn(now, run_id, Ending::failed(Code::SessionClosed, "the session was closed"));
    }

    /// Finishes a close once no turn, change of members or handover is open; the close's entry stays in the lane
    /// until then, so that the close survives its owner (SR-H2).
    pub(super) fn finish_close(&mut self, now: Now) {
        let changes = !self.state.changes.is_empty() || self.state.handovers.open.is_some();
        let open = self.state.has_open_turn() || changes;
        if self.state.phase != SessionPhase::Closing || open {
            return;
        }
        let Some((place, control)) = self.close.take() else { return };
        let request_id = control.request_id.clone();
        let about = RecordContext { answers: Some(place), closed: Some(true), ..RecordContext::default() };
        self.record(now, Fact::Session(SessionFact::Closed { request_id }), about);
        self.answer_with_fact(&control);
    }

    fn handle_cancel(&mut self, now: Now, place: InboxPosition, control: Arc<ControlEntry>, run_id: RunId) {
        if self.state.runs.contains_key(&run_id) && self.inputs.contains_key(&run_id) {
            return self.cancel_turn(now, &run_id, "user", Some((place, &control)));
        }
        // The turn has ended, or its input is in the inbox behind the last one read: the lanes have no common order.
        self.early_cancels.insert(run_id, (place, control));
        self.outbox.push(Output::ReadInbox);
    }

    pub(super) fn handle_inbox_read(&mut self) {
        for (run_id, (place, control)) in std::mem::take(&mut self.early_cancels) {
            if self.state.runs.contains_key(&run_id) {
                // The store has lost the input of a turn that is in the log: the turn is cancelled as soon as its
                // client, which alone can, sends the input again.
                self.early_cancels.insert(run_id, (place, control));
            } else {
                self.answer_without_fact(place, &control);
            }
        }
    }

    /// Cancels a turn in any phase (RX-6). Repeating the cancel changes nothing (ST-11).
    pub(super) fn cancel_turn(
        &mut self,
        now: Now,
        run_id: &RunId,
        reason: &str,
        by: Option<(InboxPosition, &Arc<ControlEntry>)>,
    ) {
        let answers = by.map(|(place, _)| place);
        let running = self.state.running.as_ref() == Some(run_id);
        if running && self.is_cancelling(run_id) {
            if let Some((place, control)) = by {
                self.answer_without_fact(place, control);
            }
            return;
        }
        let spared = planted(Mutant::CancelSkipsQueued) && !running && self.state.waiting.contains(run_id);
        if running && matches!(self.attempt, Attempt::Live(_)) {
            let agent = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
            let wait = agent.map(|agent| self.directory.policy(&agent).cancel_ack).unwrap_or_default();
            let deadline_ms = now.store.after(wait);
            let request_id = by.and_then(|(_, control)| control.request_id.clone());
            let fact = Fact::Run(RunFact::Cancelling { reason: reason.to_owned(), deadline_ms, request_id });
            let seq = self.record(now, fact, RecordContext { answers, ..RecordContext::run(run_id) });
            let attempt = self.state.runs.get(run_id).map_or(0, |run| run.attempt);
            let epoch = self.ordering_epoch(run_id, attempt);
            let run_id = run_id.clone();
            let tenant = self.key.tenant.clone();
            self.outbox.push_after(seq, Output::Order(Order::Cancel { tenant, run_id, attempt, epoch }));
            self.attempt.start_cancel(now, wait);
        } else if !spared {
            let ending = Ending::Cancelled { reason: reason.to_owned(), forced: false, answers };
            self.end_turn(now, run_id, ending);
        }
        if let Some((_, control)) = by {
            self.answer_with_fact(control);
        }
    }

    /// Ends a cancelling turn whose owner was lost, since its agent's connection is lost too.
    pub(super) fn cancel_orphan(&mut self, now: Now, run_id: &RunId) {
        let phase = self.state.runs.get(run_id).map(|run| run.phase.clone());
        let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
        self.end_turn(now, run_id, Ending::Cancelled { reason, forced: false, answers: None });
    }

    pub(super) fn answer_with_notice(
        &mut self,
        now: Now,
        name: &str,
        place: InboxPosition,
        control: &Arc<ControlEntry>,
    ) {
        let fact = Fact::Session(SessionFact::Notice { name: name.to_owned(), request_id: control.request_id.clone() });
        self.record(now, fact, RecordContext { answers: Some(place), ..RecordContext::default() });
        self.answer_with_fact(control);
    }

    pub(super) fn answer_without_fact(&mut self, place: InboxPosition, control: &Arc<ControlEntry>) {
        self.outbox.push(Output::RemoveControl { place });
        self.answer(control, false);
    }

    pub(super) fn answer_with_fact(&mut self, control: &Arc<ControlEntry>) {
        self.answer(control, true);
    }

    fn answer(&mut self, control: &Arc<ControlEntry>, shown: bool) {
        let control = control.id.clone();
        self.outbox.push_after(self.state.tail.seq, Output::ControlAnswered { control, shown });
    }
}
