//! The tasks of sessions that this node owns, and the questions of these sessions about their bindings. Both act through
//! links of the node itself, so that they go the ways of every client, to whichever node owns the session of a task.
mod answer_text;
mod questions;
mod running;

use super::effect::{BindingsCommand, OwnershipCommand, PartEffect, TasksCommand};
use super::sink::{EffectSink, Timer};
use questions::{LookupReply, PendingQuestion};
use running::SpawnedTask;
use std::collections::BTreeMap;
use turnway_bindings::service::AskPurpose;
use turnway_core::id::{EventId, LinkId, Principal, SessionKey};
use turnway_core::protocol::action::ToolReport;
use turnway_core::protocol::route::RouteQuestion;
use turnway_core::protocol::task::{TaskOrder, TaskStart};
use turnway_core::session::Input as RuntimeInput;
use turnway_core::time::Now;
use turnway_wire::channel::notification::Notification;

/// An action of a session that gives a task.
type TaskKey = (SessionKey, EventId);

/// The tasks and questions of one node. Bounded by the actions that each owned session may have open, and by its ended
/// tasks.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tasks: BTreeMap<TaskKey, SpawnedTask>,
    by_link: BTreeMap<LinkId, TaskKey>,
    questions: BTreeMap<LinkId, PendingQuestion>,
    last_link: u64,
}

impl Tasks {
    /// Returns the number of tasks and questions; 0 when all is quiet.
    pub(super) fn open_count(&self) -> usize {
        self.tasks.len() + self.questions.len()
    }

    /// Handles an effect of another part.
    pub(super) fn handle_effect(&mut self, now: Now, command: TasksCommand, sink: &mut EffectSink) {
        match command {
            TasksCommand::Order(TaskOrder::Start(start)) => self.start(*start, sink),
            TasksCommand::Order(TaskOrder::Cancel(start)) => self.cancel(*start, sink),
            TasksCommand::Ask { key, question } => self.ask(key, question, sink),
            TasksCommand::Notice { link, notification } => self.handle_notice(now, link, *notification, sink),
            TasksCommand::ForgetSession(key) => self.forget_session(&key, sink),
        }
    }

    // === tasks ===

    /// Begins a task, unless this node is at it.
    fn start(&mut self, start: TaskStart, sink: &mut EffectSink) {
        let key = (start.key.clone(), start.action_id);
        if !self.tasks.contains_key(&key) {
            self.add(key, start, false, sink);
        }
    }

    /// Cancels a task, also one that an earlier owner of its session has begun.
    fn cancel(&mut self, start: TaskStart, sink: &mut EffectSink) {
        let key = (start.key.clone(), start.action_id);
        match self.tasks.get_mut(&key) {
            Some(task) => {
                task.is_cancelled = true;
                if task.may_cancel_now() {
                    task.cancel(sink);
                }
            }
            None => self.add(key, start, true, sink),
        }
    }

    fn add(&mut self, key: TaskKey, start: TaskStart, is_cancelled: bool, sink: &mut EffectSink) {
        let Some((user, message_id)) = start.user().zip(start.message_id()) else { return };
        // The operator has allowed tasks of this channel; the session of the task belongs to the account.
        let principal = Principal { tenant: key.0.tenant.clone(), user, operator: true, writes: true };
        let link = self.connect(&principal, sink);
        let mut task = SpawnedTask::new(start, link, (principal.user, message_id));
        task.is_cancelled = is_cancelled;
        task.resume(sink);
        self.by_link.insert(link, key.clone());
        self.tasks.insert(key, task);
    }

    /// Adds a link of the node itself.
    fn connect(&mut self, principal: &Principal, sink: &mut EffectSink) -> LinkId {
        self.last_link += 1;
        let link = LinkId::of_node(self.last_link);
        sink.links.connect(link, principal.clone());
        link
    }

    /// Handles a notification to one of the node's own links.
    fn handle_notice(&mut self, now: Now, link: LinkId, notification: Notification, sink: &mut EffectSink) {
        if self.questions.contains_key(&link) {
            return self.use_lookup(now, link, notification, sink);
        }
        let Some(key) = self.by_link.get(&link).cloned() else { return };
        let Some(task) = self.tasks.get_mut(&key) else { return };
        let report = task.handle_notice(now, notification, sink);
        if let Some(until) = task.waits_until() {
            sink.timers.set_earlier(Timer::Tasks, until);
        }
        let is_over = task.is_over;
        if let Some(report) = report {
            report_task(&key, report, sink);
        }
        if is_over {
            self.remove(&key, sink);
        }
    }

    /// Tries tasks again whose last step was refused for now.
    pub(super) fn handle_timeout(&mut self, now: Now, sink: &mut EffectSink) {
        for task in self.tasks.values_mut().filter(|task| task.waits_until().is_some_and(|until| until <= now.mono)) {
            task.resume(sink);
        }
        let next = self.tasks.values().filter_map(SpawnedTask::waits_until).min();
        sink.timers.set_or_clear(Timer::Tasks, next);
    }

    fn remove(&mut self, key: &TaskKey, sink: &mut EffectSink) {
        if let Some(task) = self.tasks.remove(key) {
            self.by_link.remove(&task.link);
            sink.push(PartEffect::DropLink(task.link));
        }
    }

    /// Forgets the tasks and questions of a session that this node does not own any more: its next owner has them.
    fn forget_session(&mut self, session: &SessionKey, sink: &mut EffectSink) {
        let first = (session.clone(), EventId::default());
        let of_session = self.tasks.range(first..).map(|(key, _)| key).take_while(|key| key.0 == *session);
        for key in of_session.cloned().collect::<Vec<_>>() {
            // A cancel needs no owner: the action that it is for has ended.
            if !self.tasks.get(&key).is_some_and(|task| task.is_cancelled) {
                self.remove(&key, sink);
            }
        }
        let asked = self.questions.iter().filter(|(_, pending)| pending.key == *session);
        for link in asked.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.questions.remove(&link);
            sink.push(PartEffect::DropLink(link));
        }
    }

    // === questions ===

    fn use_lookup(&mut self, now: Now, link: LinkId, notification: Notification, sink: &mut EffectSink) {
        let Some(reply) = LookupReply::of(notification) else { return };
        let Some(pending) = self.questions.remove(&link) else { return };
        let (key, answer) = pending.answer(now, reply);
        sink.push(PartEffect::DropLink(link));
        sink.stats.count_route(&answer);
        sink.push(OwnershipCommand::Report { key, input: RuntimeInput::Route(answer) });
    }

    fn ask(&mut self, key: SessionKey, question: RouteQuestion, sink: &mut EffectSink) {
        let principal = Principal { tenant: key.tenant.clone(), operator: true, writes: false, ..Principal::first() };
        let link = self.connect(&principal, sink);
        let pending = PendingQuestion { key, question };
        let command = pending.command();
        self.questions.insert(link, pending);
        sink.push(BindingsCommand::Perform { link, request_id: None, command, purpose: AskPurpose::Request });
    }
}

fn report_task(key: &TaskKey, report: ToolReport, sink: &mut EffectSink) {
    let (key, action_id) = key.clone();
    sink.push(OwnershipCommand::Report { key, input: RuntimeInput::Tool { action_id, report } });
}
