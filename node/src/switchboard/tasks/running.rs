//! One task on its way: looks for its run, else opens its session, binds it and submits its input, and waits for the end.
//! Every step has one effect however often it is made, so each owner of the parent session begins with the first.
use super::answer_text::AnswerText;
use crate::switchboard::effect::{BindingsCommand, PartEffect};
use crate::switchboard::sink::EffectSink;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::service::AskPurpose;
use turnway_core::id::{Cursor, LinkId, MessageId, RunId, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::action::{ToolError, ToolReport};
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::binding::TargetKind;
use turnway_core::protocol::delivery::InputOrigin;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::input::{Content, ControlRequest, Input, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::protocol::task::{TaskOrigin, TaskStart};
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::binding::{BindCommand, BindingCommand, BindingReply, ExpiryChange};
use turnway_wire::channel::command::{CancelTarget, LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// A task of a session that this node owns.
#[derive(Debug)]
pub(super) struct SpawnedTask {
    start: TaskStart,
    /// The node's own link, which acts as the account of the parent's conversation.
    pub(super) link: LinkId,
    session: SessionKey,
    user: UserId,
    message_id: MessageId,
    run_id: RunId,
    step: TaskStep,
    /// The action has ended: the task is to be cancelled.
    pub(super) is_cancelled: bool,
    /// The session is to be closed.
    is_closing: bool,
    /// Nothing is left to do.
    pub(super) is_over: bool,
    answer: AnswerText,
}

/// The request whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskStep {
    /// The run, which an earlier owner may have begun.
    Finding,
    Opening,
    Binding,
    Submitting,
    /// The end of the run.
    Running,
    /// The run is being cancelled.
    Cancelling,
    /// A session that cannot be used is being closed.
    Closing,
    /// A step was refused for now.
    Waiting {
        until: Mono,
    },
}

impl SpawnedTask {
    pub(super) fn new(start: TaskStart, link: LinkId, (user, message_id): (UserId, MessageId)) -> Self {
        let session = start.session();
        let run_id = RunId::derive(&session, &user, &message_id);
        let answer = AnswerText::default();
        let step = TaskStep::Finding;
        Self {
            start,
            link,
            session,
            user,
            message_id,
            run_id,
            step,
            is_cancelled: false,
            is_closing: false,
            is_over: false,
            answer,
        }
    }

    // === steps ===

    /// Looks for the run.
    fn find(&mut self, sink: &mut EffectSink) {
        self.step = TaskStep::Finding;
        self.send(LinkCommand::FindRun { run_id: self.run_id.clone() }, sink);
    }

    fn open(&mut self, sink: &mut EffectSink) {
        self.step = TaskStep::Opening;
        let session = Some(self.session.session.clone());
        let agents = vec![self.start.args.agent.clone()];
        self.send(LinkCommand::Open { request_id: None, session, agents, active: None }, sink);
    }

    fn bind_or_submit(&mut self, sink: &mut EffectSink) {
        let Some(conversation) = self.start.args.conversation.clone() else { return self.submit(sink) };
        self.step = TaskStep::Binding;
        let command = BindingCommand::Bind(Box::new(BindCommand {
            conversation,
            session: self.session.session.clone(),
            target_kind: TargetKind::Subagent,
            expected: None,
            expiry: ExpiryChange::default(),
            mirror: None,
            metadata: BTreeMap::new(),
            nonce: None,
        }));
        sink.push(BindingsCommand::Perform {
            link: self.link,
            request_id: None,
            command,
            purpose: AskPurpose::Request,
        });
    }

    fn submit(&mut self, sink: &mut EffectSink) {
        self.step = TaskStep::Submitting;
        let input = Arc::new(self.input());
        sink.push(PartEffect::SubmitTask { link: self.link, key: self.session.clone(), input });
    }

    fn input(&self) -> Input {
        let TaskStart { action_id, args, .. } = &self.start;
        let origin = args.requester.as_deref().map(|requester| {
            let depth = requester.task.map_or(0, |task| task.depth) + 1;
            let task = TaskOrigin { action_id: *action_id, show: args.show, depth };
            Box::new(InputOrigin { task: Some(task), debounce_ms: None, decision: None, ..requester.clone() })
        });
        Input {
            run_id: self.run_id.clone(),
            message_id: self.message_id.clone(),
            request_id: None,
            user: self.user.clone(),
            agent_id: Some(args.agent.clone()),
            message: Message { role: Role::User, content: Content::Text(args.message.clone()) },
            history: None,
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: None,
            origin,
            traceparent: None,
        }
    }

    /// Returns whether the run may be cancelled at once: not while its input is on its way.
    pub(super) fn may_cancel_now(&self) -> bool {
        match self.step {
            TaskStep::Finding | TaskStep::Running | TaskStep::Waiting { .. } => true,
            TaskStep::Opening | TaskStep::Binding | TaskStep::Submitting | TaskStep::Cancelling | TaskStep::Closing => {
                false
            }
        }
    }

    /// Cancels the run.
    pub(super) fn cancel(&mut self, sink: &mut EffectSink) {
        (self.step, self.is_cancelled) = (TaskStep::Cancelling, true);
        let target = CancelTarget::Run(self.run_id.clone());
        self.send(LinkCommand::Cancel { request_id: None, target, wants_receipt: true }, sink);
    }

    /// Returns the time until which the task waits, because its last step was refused for now.
    pub(super) fn waits_until(&self) -> Option<Mono> {
        if let TaskStep::Waiting { until } = self.step { Some(until) } else { None }
    }

    /// Begins, or goes on after a wait.
    pub(super) fn resume(&mut self, sink: &mut EffectSink) {
        if self.is_closing {
            self.close(sink);
        } else if self.is_cancelled {
            self.cancel(sink);
        } else {
            self.find(sink);
        }
    }

    /// Closes the session, whose run did not begin: its binding ends too.
    fn close(&mut self, sink: &mut EffectSink) {
        self.is_closing = true;
        self.step = TaskStep::Closing;
        let session = self.session.session.clone();
        self.send(LinkCommand::Control { request_id: None, session, request: ControlRequest::Close }, sink);
    }

    fn send(&self, command: LinkCommand, sink: &mut EffectSink) {
        sink.push(PartEffect::NodeCommand { link: self.link, command });
    }

    // === answers ===

    /// Handles a notification to the task's link. Returns what the parent's action is told.
    pub(super) fn handle_notice(
        &mut self,
        now: Now,
        notification: Notification,
        sink: &mut EffectSink,
    ) -> Option<ToolReport> {
        match notification {
            Notification::Reply(reply) => self.handle_reply(now, reply, sink),
            Notification::Fact { entry, .. } => self.handle_fact(&entry),
            Notification::Chunk { chunk, .. } => {
                if chunk.run_id == self.run_id && chunk.kind == TextKind::Text {
                    self.answer.add(chunk.attempt, chunk.offset, chunk.text.reveal());
                }
                None
            }
            Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => None,
        }
    }

    /// Follows the run, which has begun: its facts come after this position.
    fn follow(&mut self, after: Cursor, sink: &mut EffectSink) -> Option<ToolReport> {
        self.step = TaskStep::Running;
        let report = self.begun_report();
        if !self.is_over {
            let subscribe = SubscribeCommand {
                request_id: None,
                session: self.session.session.clone(),
                after_seq: Some(after.seq),
                after_epoch: Some(after.epoch),
                runs: Vec::new(),
                types: Vec::new(),
            };
            self.send(LinkCommand::Subscribe(subscribe), sink);
        }
        report
    }

    fn handle_reply(&mut self, now: Now, reply: CommandReply, sink: &mut EffectSink) -> Option<ToolReport> {
        match (self.step, reply) {
            (TaskStep::Finding, CommandReply::RunLocation { .. }) if self.is_cancelled => {
                self.cancel(sink);
                None
            }
            (TaskStep::Finding, CommandReply::RunLocation { after, .. }) => self.follow(after, sink),
            (TaskStep::Finding | TaskStep::Cancelling, CommandReply::Refused { refusal, .. })
                if refusal.code == Code::NotFound =>
            {
                // The session may be open although its run did not begin.
                if self.is_cancelled {
                    self.close(sink)
                } else {
                    self.open(sink)
                };
                None
            }
            // The log has lost facts, perhaps those of the run.
            (TaskStep::Running, CommandReply::Subscribed { reset: Some(_), .. }) => {
                self.step = TaskStep::Waiting { until: now.mono + limits::TASK_RETRY };
                None
            }
            (TaskStep::Opening | TaskStep::Binding, _) if self.is_cancelled => {
                self.close(sink);
                None
            }
            (TaskStep::Opening, CommandReply::Opened { .. }) => {
                self.bind_or_submit(sink);
                None
            }
            (TaskStep::Binding, CommandReply::Binding { reply, .. }) => self.use_binding(reply, sink),
            (TaskStep::Submitting, CommandReply::TurnAccepted(_)) => {
                self.step = TaskStep::Running;
                if self.is_cancelled {
                    self.cancel(sink);
                    return None;
                }
                self.begun_report()
            }
            (TaskStep::Cancelling | TaskStep::Closing, CommandReply::Refused { refusal, .. })
                if refusal.code.retryable() =>
            {
                self.wait(now, &refusal);
                None
            }
            (TaskStep::Cancelling, CommandReply::CancelAccepted { .. } | CommandReply::Refused { .. })
            | (TaskStep::Closing, CommandReply::Performed { .. } | CommandReply::Refused { .. }) => {
                self.is_over = true;
                None
            }
            (_, CommandReply::Refused { refusal, .. }) => self.handle_refusal(now, &refusal, sink),
            (_, _) => None,
        }
    }

    /// Continues if the conversation is bound to the task's session.
    fn use_binding(&mut self, reply: BindingReply, sink: &mut EffectSink) -> Option<ToolReport> {
        let bound = match reply {
            BindingReply::Bound(binding) => Some(binding),
            BindingReply::NotApplied { current } => current,
            BindingReply::Unbound(_)
            | BindingReply::Updated(_)
            | BindingReply::Listed(_)
            | BindingReply::Resolved(_)
            | BindingReply::ResolvedAll(_) => None,
        };
        if bound.is_some_and(|binding| binding.session == self.session.session) {
            self.submit(sink);
            return None;
        }
        self.close(sink);
        Some(failed("bind_failed", "the new conversation is bound to another session"))
    }

    /// Tries again later, or tells the parent that the task does not begin.
    fn handle_refusal(&mut self, now: Now, refusal: &Refusal, sink: &mut EffectSink) -> Option<ToolReport> {
        if refusal.code.retryable() {
            self.wait(now, refusal);
            return None;
        }
        let was_opened = matches!(self.step, TaskStep::Binding | TaskStep::Submitting);
        if was_opened {
            self.close(sink);
        } else {
            self.is_over = true;
        }
        Some(failed(refusal.code.as_str(), &refusal.message))
    }

    fn wait(&mut self, now: Now, refusal: &Refusal) {
        let asked = refusal.retry_after_ms.map_or(Duration::ZERO, Duration::from_millis);
        self.step = TaskStep::Waiting { until: now.mono + asked.clamp(limits::TASK_RETRY, limits::TASK_RETRY_MAX) };
    }

    /// Returns the report about a run that has begun: progress, or the end if the parent does not wait for more.
    fn begun_report(&mut self) -> Option<ToolReport> {
        let started = self.result("started");
        if !self.start.args.wake_parent || planted(Mutant::TaskEndGuessed) {
            self.is_over = true;
            return Some(ToolReport::Ended { ok: true, result: Some(started), error: None });
        }
        let is_told = std::mem::replace(&mut self.start.is_reported, true);
        (!is_told).then_some(ToolReport::Progress(started))
    }

    fn handle_fact(&mut self, entry: &Entry) -> Option<ToolReport> {
        let Fact::Run(fact) = &entry.fact else { return None };
        if entry.run_id.as_ref() != Some(&self.run_id) || self.is_cancelled {
            return None;
        }
        let (ok, status, error) = match fact {
            RunFact::TextDelta { attempt, offset, text, .. } => {
                self.answer.add(*attempt, *offset, text.reveal());
                return None;
            }
            RunFact::Done { .. } => (true, "completed", None),
            RunFact::Failed { code, message, .. } => (false, "failed", Some(ToolError::of(code.as_str(), message))),
            RunFact::Cancelled { .. } => {
                (false, "cancelled", Some(ToolError::of("canceled", "the task was cancelled in its own session")))
            }
            RunFact::Started { .. }
            | RunFact::Restarted { .. }
            | RunFact::Resumed { .. }
            | RunFact::AgentStarted { .. }
            | RunFact::AgentDone { .. }
            | RunFact::State { .. }
            | RunFact::Suspended { .. }
            | RunFact::Cancelling { .. } => return None,
        };
        self.is_over = true;
        if !self.start.args.wake_parent {
            // An earlier owner has ended the action, or this one could not: the result is that it began.
            return Some(ToolReport::Ended { ok: true, result: Some(self.result("started")), error: None });
        }
        Some(ToolReport::Ended { ok, result: Some(self.result(status)), error })
    }

    fn result(&self, status: &str) -> Json {
        let mut result = json!({
            "status": status,
            "session_id": self.session.session,
            "run_id": self.run_id,
            "agent_id": self.start.args.agent,
        });
        if let Some(conversation) = &self.start.args.conversation {
            result["conversation"] = json!(conversation);
        }
        let (text, is_cut) = self.answer.get();
        if !text.is_empty() {
            result["text"] = json!(text);
        }
        if is_cut {
            result["truncated"] = json!(true);
        }
        Json(result)
    }
}

fn failed(code: &str, why: &str) -> ToolReport {
    ToolReport::Ended { ok: false, result: None, error: Some(ToolError::of(code, why)) }
}
