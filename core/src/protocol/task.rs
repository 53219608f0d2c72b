//! Tasks: an agent has another agent work in a session of its own, which is bound to a conversation of its own. A task is
//! an action of the agent that gives it; the node of the session's owner executes it, and no tool runner.
use crate::id::{AgentId, EventId, MessageId, SessionId, SessionKey, UserId};
use crate::mutant::{Mutant, planted};
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::InputOrigin;
use serde::{Deserialize, Serialize};

/// The tool that gives a task.
pub const SPAWN_AGENT_TOOL: &str = "agent.spawn";
/// The name of the runner in facts of tasks.
pub const TASK_RUNNER: &str = "gateway";

/// The places where the end of a task is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskShow {
    /// In the task's own conversation, as the router decides.
    #[default]
    Bound,
    /// In the conversation of the message that led to the task.
    Parent,
    Both,
    None,
}

/// The arguments of a task, as the log records them: those of the agent, and two that only the gateway writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskArgs {
    /// The agent that works on the task.
    pub agent: AgentId,
    /// The text that it gets.
    pub message: String,
    /// The name of the new conversation; absent: the beginning of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub show: TaskShow,
    /// The action stays open until the task has ended, and its result says how; otherwise it ends when the task begins.
    #[serde(default = "yes")]
    pub wake_parent: bool,
    /// The message that led to the task, copied from the fact of the input: at any depth the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Box<InputOrigin>>,
    /// The task's own conversation, once the platform has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationRef>,
}

fn yes() -> bool {
    true
}

/// The task that an input gives, as the origin of the input records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOrigin {
    /// The action of the agent that gave the task.
    pub action_id: EventId,
    pub show: TaskShow,
    /// Tasks above this one, itself included: 1 for a task given in a turn that a person began.
    pub depth: u32,
}

/// An order of a session to the node of its owner. It is given only after its fact is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOrder {
    /// Open, bind and run the session of a task. Repeated by each owner: every step has one effect.
    Start(Box<TaskStart>),
    /// The action has ended for the gateway: cancel the task, whichever owner has begun it.
    Cancel(Box<TaskStart>),
}

/// The order to begin a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStart {
    /// The session whose agent gives the task.
    pub key: SessionKey,
    pub action_id: EventId,
    pub args: TaskArgs,
    /// The log says that the task has begun.
    pub is_reported: bool,
}

impl TaskArgs {
    /// Returns the name of the new conversation: one line of at most [`crate::limits::TASK_TITLE_CHARACTERS_MAX`].
    pub fn conversation_name(&self) -> String {
        let text = self.title.as_deref().filter(|title| !title.trim().is_empty()).unwrap_or(&self.message);
        ConversationRef::name_of(text, "task")
    }
}

impl TaskStart {
    /// Returns the session of the task: the same at every owner. No user may create a session of this form.
    pub fn session(&self) -> SessionKey {
        let session = SessionId::for_task(&self.key, self.action_id);
        SessionKey { tenant: self.key.tenant.clone(), session }
    }

    /// Returns the user that the session belongs to: the account that the message came from.
    pub fn user(&self) -> Option<UserId> {
        let conversation = &self.args.requester.as_ref()?.conversation;
        Some(UserId::of_account(&conversation.channel, &conversation.account_id))
    }

    /// Returns the name of the task's input in the inbox of its session.
    pub fn message_id(&self) -> Option<MessageId> {
        let is_another = self.is_reported && planted(Mutant::TaskBegunAgain);
        let suffix = if is_another { "-again" } else { "" };
        MessageId::parse(&format!("{}{suffix}", self.action_id)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Millis;

    /// Covers: BD-C6.
    #[test]
    fn tasks_have_sessions_and_names_of_their_own() {
        let args: TaskArgs =
            serde_json::from_str(r#"{"agent":"helper","message":"find it\nsoon"}"#).expect("the defaults");
        assert_eq!((args.show, args.wake_parent), (TaskShow::Bound, true));
        assert_eq!(args.conversation_name(), "find it");
        let titled = TaskArgs { title: Some("x".repeat(300)), ..args.clone() };
        assert_eq!(titled.conversation_name().len(), crate::limits::TASK_TITLE_CHARACTERS_MAX);
        let blank = TaskArgs { title: Some(" ".to_owned()), message: "\n\t".to_owned(), ..args.clone() };
        assert_eq!(blank.conversation_name(), "task");
        let key = SessionKey {
            tenant: crate::id::TenantId::default_tenant(),
            session: SessionId::parse("s1").expect("a name"),
        };
        // Two tasks of one millisecond.
        let start = |chance| TaskStart {
            key: key.clone(),
            action_id: EventId::new(Millis(1), chance),
            args: args.clone(),
            is_reported: false,
        };
        assert_ne!(start(1 << 100).session(), start(1 << 101).session());
        assert_eq!(start(1 << 100).session(), start(1 << 100).session());
        assert_ne!(start(1 << 100).message_id(), start(1 << 101).message_id());
    }
}
