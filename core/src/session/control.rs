//! The control lane: open, close and cancel (scenarios C and H).
use crate::id::{AgentId, Place, RequestId, RunId, UserId};
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::Order;
use crate::protocol::entry::Fact;
use crate::protocol::input::{Ask, Control};
use crate::protocol::refusal::Code;
use crate::session::attempt::Attempt;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime};
use crate::session::state::{Phase, RunPhase};
use crate::time::Now;
use std::sync::Arc;

impl SessionRuntime {
    pub(super) fn control(&mut self, now: Now, place: Place, control: Arc<Control>) {
        self.controls.push_back((place, control));
        self.run_controls(now);
    }

    /// Handles the entries of the control lane, in order. Only an open or close after a close waits, until that close
    /// is finished.
    pub(super) fn run_controls(&mut self, now: Now) {
        while let Some((place, control)) = self.controls.pop_front() {
            match &control.what {
                Ask::Open { .. } | Ask::Close if self.close.is_some() => {
                    self.controls.push_front((place, control));
                    return;
                }
                Ask::Open { agents, active } => {
                    let (agents, active) = (agents.clone(), active.clone());
                    self.open_asked(now, place, &control, agents, active);
                }
                Ask::Close => self.close_asked(now, place, control),
                Ask::Switch { .. } | Ask::Invite { .. } | Ask::Remove { .. } => {
                    self.member_asked(now, place, &control);
                }
                Ask::Handover { handover_id, confirm } => {
                    let what = (*handover_id, *confirm);
                    self.handover_decided(now, place, &control, what);
                }
                Ask::Cancel { run_id: Some(run_id) } => {
                    let run_id = run_id.clone();
                    self.cancel_asked(now, place, control, run_id);
                }
                Ask::Cancel { run_id: None } => {
                    let open = self.state.running.clone().or_else(|| self.state.waiting.first().cloned());
                    match open {
                        Some(run_id) => self.cancel(now, &run_id, "user", Some((place, &control))),
                        None => self.notice(now, "NO_ACTIVE_SPEAKING", place, &control),
                    }
                }
            }
        }
    }

    pub(super) fn open(
        &mut self,
        now: Now,
        user: &UserId,
        agents: Vec<AgentId>,
        active_agent: AgentId,
        request_id: Option<RequestId>,
        answers: Option<Place>,
    ) {
        let fact = Fact::SessionOpened { user: user.clone(), agents, active_agent, request_id };
        let closed = Some(false);
        self.record(now, fact, About { answers, closed, user: Some(user), ..About::default() });
    }

    fn open_asked(
        &mut self,
        now: Now,
        place: Place,
        control: &Arc<Control>,
        mut agents: Vec<AgentId>,
        active: Option<AgentId>,
    ) {
        if self.is_open() {
            return self.consume(place, control);
        }
        if agents.is_empty() {
            agents.clone_from(&self.state.agents);
        }
        if agents.is_empty() {
            agents = self.directory.company(active.as_ref());
        }
        let first = active.filter(|active| agents.contains(active)).or_else(|| agents.first().cloned());
        let Some(active) = first else {
            return self.notice(now, Code::SessionOpenFailed.as_str(), place, control);
        };
        let user = self.state.user.clone().unwrap_or_else(|| control.user.clone());
        self.open(now, &user, agents, active, control.request_id.clone(), Some(place));
        self.answered(control);
    }

    fn close_asked(&mut self, now: Now, place: Place, control: Arc<Control>) {
        match self.state.phase {
            Phase::Closed => return self.consume(place, &control),
            Phase::Closing => {}
            Phase::New | Phase::Open => {
                let request_id = control.request_id.clone();
                self.record(now, Fact::SessionClosing { request_id }, About::default());
            }
        }
        self.close = Some((place, control));
        let open = self.state.waiting.iter().chain(&self.state.running).cloned();
        for run_id in open.collect::<Vec<_>>() {
            self.stop(now, &run_id);
        }
    }

    /// Ends a turn of a closing session: the running turn is cancelled, a waiting turn ends at once.
    pub(super) fn stop(&mut self, now: Now, run_id: &RunId) {
        if self.state.running.as_ref() == Some(run_id) {
            return self.cancel(now, run_id, "session_close", None);
        }
        self.end(now, run_id, Ending::failed(Code::SessionClosed, "the session was closed"));
    }

    /// Finishes a close once no turn, change of members or handover is open; the close's entry stays in the lane
    /// until then, so that the close survives its owner (SR-H2).
    pub(super) fn finish_close(&mut self, now: Now) {
        let changes = !self.state.changes.is_empty() || self.state.handovers.open.is_some();
        let open = self.state.has_open_turn() || changes;
        if self.state.phase != Phase::Closing || open {
            return;
        }
        let Some((place, control)) = self.close.take() else { return };
        let request_id = control.request_id.clone();
        let about = About { answers: Some(place), closed: Some(true), ..About::default() };
        self.record(now, Fact::SessionClosed { request_id }, about);
        self.answered(&control);
    }

    fn cancel_asked(&mut self, now: Now, place: Place, control: Arc<Control>, run_id: RunId) {
        if self.state.runs.contains_key(&run_id) && self.inputs.contains_key(&run_id) {
            return self.cancel(now, &run_id, "user", Some((place, &control)));
        }
        // The turn has ended, or its input is in the inbox behind the last one read: the lanes have no common order.
        self.early_cancels.insert(run_id, (place, control));
        self.outbox.now(Output::CatchUp);
    }

    pub(super) fn caught_up(&mut self) {
        for (run_id, (place, control)) in std::mem::take(&mut self.early_cancels) {
            if self.state.runs.contains_key(&run_id) {
                // The store has lost the input of a turn that is in the log: the turn is cancelled as soon as its
                // client, which alone can, sends the input again.
                self.early_cancels.insert(run_id, (place, control));
            } else {
                self.consume(place, &control);
            }
        }
    }

    /// Cancels a turn in any phase (RX-6). Repeating the cancel changes nothing (ST-11).
    pub(super) fn cancel(
        &mut self,
        now: Now,
        run_id: &RunId,
        reason: &str,
        by: Option<(Place, &Arc<Control>)>,
    ) {
        let answers = by.map(|(place, _)| place);
        let running = self.state.running.as_ref() == Some(run_id);
        if running && self.is_cancelling(run_id) {
            if let Some((place, control)) = by {
                self.consume(place, control);
            }
            return;
        }
        let spared = planted(Mutant::CancelSkipsQueued) && !running && self.state.waiting.contains(run_id);
        if running && matches!(self.attempt, Attempt::Live(_)) {
            let agent = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
            let wait = agent.map(|agent| self.directory.policy(&agent).cancel_ack).unwrap_or_default();
            let deadline_ms = now.store.after(wait);
            let request_id = by.and_then(|(_, control)| control.request_id.clone());
            let fact = Fact::RunCancelling { reason: reason.to_owned(), deadline_ms, request_id };
            let seq = self.record(now, fact, About { answers, ..About::run(run_id) });
            let attempt = self.state.runs.get(run_id).map_or(0, |run| run.attempt);
            let (run_id, epoch) = (run_id.clone(), self.ordered_under(run_id, attempt));
            let tenant = self.key.tenant.clone();
            self.outbox.after(seq, Output::Order(Order::Cancel { tenant, run_id, attempt, epoch }));
            self.attempt.cancelling(now, wait);
        } else if !spared {
            let ending = Ending::Cancelled { reason: reason.to_owned(), forced: false, answers };
            self.end(now, run_id, ending);
        }
        if let Some((_, control)) = by {
            self.answered(control);
        }
    }

    /// Ends a cancelling turn whose owner was lost, since its agent's connection is lost too.
    pub(super) fn cancel_orphan(&mut self, now: Now, run_id: &RunId) {
        let phase = self.state.runs.get(run_id).map(|run| run.phase.clone());
        let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
        self.end(now, run_id, Ending::Cancelled { reason, forced: false, answers: None });
    }

    pub(super) fn notice(&mut self, now: Now, name: &str, place: Place, control: &Arc<Control>) {
        let fact = Fact::SessionNotice { name: name.to_owned(), request_id: control.request_id.clone() };
        self.record(now, fact, About { answers: Some(place), ..About::default() });
        self.answered(control);
    }

    pub(super) fn consume(&mut self, place: Place, control: &Arc<Control>) {
        self.outbox.now(Output::Consume { place });
        self.answer(control, false);
    }

    pub(super) fn answered(&mut self, control: &Arc<Control>) {
        self.answer(control, true);
    }

    fn answer(&mut self, control: &Arc<Control>, shown: bool) {
        let control = control.id.clone();
        self.outbox.after(self.state.tail.seq, Output::Answered { control, shown });
    }
}
