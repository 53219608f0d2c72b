//! Tasks that concern agents: list them, switch to one, send a message to one, and offer to invite one that is
//! not a member. Pure: returns steps to perform, and is told the results. Called by the chat.
use super::command::yes_or_no;
use super::members::{AgentRequest, SessionMembers};
use crate::cli::agents::AgentSummary;
use crate::config::nearest::nearest;
use serde_json::Value;
use std::collections::VecDeque;
use turnway_client::{ClientSnapshot, Failure, MemberChange, Members, Note, Open};

/// A step that the chat performs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatStep {
    /// Open the session; the answer has its members.
    Open(Open),
    /// Fetch the gateway's agents.
    List,
    /// Request a change of members.
    Change(MemberChange),
    /// Send a message to a member.
    Say {
        agent: String,
        text: String,
    },
    Print(String),
    /// Print a remark.
    Remark(String),
    /// Record that a request was not performed.
    Fail,
    /// End the chat, because it cannot begin with the agent that was named.
    Leave,
}

/// A task that the user has requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AgentTask {
    /// Show the agents with their membership.
    Show,
    /// A request to one agent.
    Request(AgentRequest),
}

/// The current task, by the answer it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingTask {
    /// The session's members, from its opening.
    Opening(AgentTask),
    /// The list of agents.
    Listing(AgentTask),
    /// The user's yes or no to inviting an agent.
    AwaitingConfirmation(AgentRequest),
    /// The answer to a change of members.
    Changing(AgentRequest),
}

/// The tasks of a chat, one at a time, with the session's members as far as known.
#[derive(Debug)]
pub(super) struct AgentTasks {
    members: SessionMembers,
    pending: Option<PendingTask>,
    /// The session does not exist yet, as far as is known.
    is_new: bool,
    /// The current task decides whether the chat begins.
    is_starting: bool,
    steps: VecDeque<ChatStep>,
}

// === impl AgentTasks ===

impl AgentTasks {
    pub(super) fn new(is_new: bool) -> Self {
        let members = SessionMembers::default();
        let steps = VecDeque::new();
        Self { members, pending: None, is_new, is_starting: false, steps }
    }

    /// Returns the next step to perform.
    pub(super) fn poll_step(&mut self) -> Option<ChatStep> {
        self.steps.pop_front()
    }

    /// Returns whether the next line may be taken: no task is open, or the open task waits for a line.
    pub(super) fn is_ready(&self) -> bool {
        self.pending.is_none() || self.is_asking()
    }

    /// Returns whether a question to the user is open.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.pending, Some(PendingTask::AwaitingConfirmation(_)))
    }

    /// Returns whether the current task is going to send a message.
    pub(super) fn is_saying(&self) -> bool {
        let request = match &self.pending {
            Some(
                PendingTask::Opening(AgentTask::Request(request))
                | PendingTask::Listing(AgentTask::Request(request))
                | PendingTask::Changing(request),
            ) => request,
            Some(
                PendingTask::Opening(AgentTask::Show)
                | PendingTask::Listing(AgentTask::Show)
                | PendingTask::AwaitingConfirmation(_),
            )
            | None => {
                return false;
            }
        };
        matches!(request, AgentRequest::Say { .. })
    }

    /// Returns the agent to name in messages without an addressee; `None` means the session's active agent.
    pub(super) fn addressed(&self) -> Option<&str> {
        self.members.explicit_agent()
    }

    /// Begins the chat with an agent; the chat ends if there is no such agent.
    pub(super) fn start(&mut self, agent: String) {
        self.is_starting = true;
        self.begin(AgentTask::Request(AgentRequest::Switch(agent)));
    }

    /// Begins a task.
    pub(super) fn begin(&mut self, task: AgentTask) {
        if self.members.is_known() {
            return self.proceed(task);
        }
        let active_agent = match &task {
            // A new session that begins with an agent is opened with that agent as a member, so no question is
            // needed.
            AgentTask::Request(AgentRequest::Switch(agent)) => {
                Some(agent).filter(|_| self.is_new && self.is_starting).cloned()
            }
            AgentTask::Request(AgentRequest::Say { .. }) | AgentTask::Show => None,
        };
        self.steps.push_back(ChatStep::Open(Open { agents: Vec::new(), active_agent }));
        self.pending = Some(PendingTask::Opening(task));
    }

    fn proceed(&mut self, task: AgentTask) {
        match task {
            AgentTask::Request(request) if self.members.contains(request.agent()) => self.perform_with_member(request),
            task @ (AgentTask::Request(_) | AgentTask::Show) => {
                self.steps.push_back(ChatStep::List);
                self.pending = Some(PendingTask::Listing(task));
            }
        }
    }

    fn perform_with_member(&mut self, request: AgentRequest) {
        match request {
            AgentRequest::Switch(agent) if self.members.is_active(&agent) => self.finish_switch(&agent),
            AgentRequest::Switch(agent) => {
                self.request_change(MemberChange::switch(agent.clone()), AgentRequest::Switch(agent))
            }
            AgentRequest::Say { agent, text } => {
                self.members.address_once(&agent);
                self.steps.push_back(ChatStep::Say { agent, text });
            }
        }
    }

    fn request_change(&mut self, change: MemberChange, request: AgentRequest) {
        self.steps.push_back(ChatStep::Change(change));
        self.pending = Some(PendingTask::Changing(request));
    }

    fn finish_switch(&mut self, agent: &str) {
        self.is_starting = false;
        self.members.set_active(agent);
        self.push_remark(format!("{agent} is now the active agent"));
    }

    fn push_remark(&mut self, text: String) {
        self.steps.push_back(ChatStep::Remark(text));
    }

    fn push_failure(&mut self, why: String) {
        self.push_remark(why);
        self.steps.push_back(ChatStep::Fail);
    }

    // --- results ---

    /// Records that the session exists, because a message in it was accepted.
    pub(super) fn set_existing(&mut self) {
        self.is_new = false;
    }

    /// Records that the session does not exist.
    pub(super) fn set_missing(&mut self) {
        self.is_new = true;
    }

    /// Takes over the session's state, from a subscription or an opening.
    pub(super) fn handle_snapshot(&mut self, snapshot: &ClientSnapshot) {
        self.members.apply_snapshot(snapshot);
        self.is_new = false;
        if let Some(PendingTask::Opening(errand)) = self.pending.take_if(|task| matches!(task, PendingTask::Opening(_)))
        {
            self.proceed(errand);
        }
    }

    /// Takes over the list of agents, or the reason why there is none.
    pub(super) fn handle_agent_list(&mut self, listed: Result<Vec<AgentSummary>, String>) {
        match self.pending.take_if(|task| matches!(task, PendingTask::Listing(_))) {
            Some(PendingTask::Listing(AgentTask::Show)) => {
                let table = self.members.table(listed.as_deref().ok());
                self.steps.push_back(ChatStep::Print(table.trim_end().to_owned()));
                if let Err(why) = listed {
                    self.push_failure(format!("only members are shown: {why}"));
                }
            }
            Some(PendingTask::Listing(AgentTask::Request(request))) => {
                let known = listed.unwrap_or_default();
                let names = || known.iter().map(|agent| agent.agent_id.as_str());
                if known.is_empty() || names().any(|name| name == request.agent()) {
                    return self.offer_invitation(request);
                }
                self.report_unknown_agent(request.agent(), nearest(request.agent(), names()));
            }
            Some(PendingTask::Opening(_) | PendingTask::AwaitingConfirmation(_) | PendingTask::Changing(_)) | None => {}
        }
    }

    fn offer_invitation(&mut self, request: AgentRequest) {
        self.push_remark(format!("{} is not a member of this session. Invite it? (y/n)", request.agent()));
        self.pending = Some(PendingTask::AwaitingConfirmation(request));
    }

    /// Reports an unknown agent. A chat that was started with an unknown agent ends instead of talking to
    /// another one.
    fn report_unknown_agent(&mut self, agent: &str, meant: Option<&str>) {
        let meant = meant.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        self.push_failure(format!("there is no agent {agent}; {meant}/agents lists them"));
        if std::mem::take(&mut self.is_starting) {
            self.steps.push_back(ChatStep::Leave);
        }
    }

    /// Takes an answer to the question whether to invite an agent.
    pub(super) fn handle_answer(&mut self, line: &str) {
        let Some(PendingTask::AwaitingConfirmation(request)) =
            self.pending.take_if(|task| matches!(task, PendingTask::AwaitingConfirmation(_)))
        else {
            return;
        };
        let invite = MemberChange::invite(request.agent());
        match (yes_or_no(line), &request) {
            (Some(true), AgentRequest::Switch(_)) => self.request_change(invite.active(), request),
            (Some(true), AgentRequest::Say { .. }) => self.request_change(invite, request),
            (Some(false), _) => self.report_not_invited(&request),
            (None, _) => {
                self.push_failure(format!("please answer y or n: invite {}?", request.agent()));
                self.pending = Some(PendingTask::AwaitingConfirmation(request));
            }
        }
    }

    /// Withdraws an open question; false if there is none.
    pub(super) fn cancel_question(&mut self) -> bool {
        let pending = self.pending.take_if(|task| matches!(task, PendingTask::AwaitingConfirmation(_)));
        let Some(PendingTask::AwaitingConfirmation(request)) = pending else { return false };
        self.report_not_invited(&request);
        true
    }

    fn report_not_invited(&mut self, request: &AgentRequest) {
        self.is_starting = false;
        self.push_failure(format!("{} was not invited", request.agent()));
    }

    /// Handles the answer to this chat's change of members.
    pub(super) fn handle_members(&mut self, members: &Members) {
        self.members.apply_members(members);
        let changing = self.pending.take_if(|task| matches!(task, PendingTask::Changing(_)));
        let Some(PendingTask::Changing(request)) = changing else { return };
        match request {
            AgentRequest::Switch(agent) if self.members.is_active(&agent) => self.finish_switch(&agent),
            request @ AgentRequest::Say { .. } if self.members.contains(request.agent()) => {
                self.perform_with_member(request)
            }
            AgentRequest::Switch(agent) | AgentRequest::Say { agent, .. } => {
                self.push_failure(format!("{agent} cannot answer in this session"));
            }
        }
    }

    /// Handles a refusal; false if the refused request does not belong to a task.
    pub(super) fn handle_refusal(&mut self, failure: &Failure) -> bool {
        let own = ["session_open", "switch_agent", "invite_agent"].contains(&failure.request_type.as_str());
        let waits = |task: &mut PendingTask| matches!(task, PendingTask::Opening(_) | PendingTask::Changing(_));
        let Some(task) = self.pending.take_if(|task| own && waits(task)) else { return false };
        match (task, failure.request_type.as_str(), failure.code.as_str()) {
            (PendingTask::Opening(AgentTask::Request(request)), "session_open", "not_found")
            | (PendingTask::Changing(request), "invite_agent", "not_found") => {
                self.report_unknown_agent(request.agent(), None)
            }
            // The agent has left the session since its membership was known.
            (PendingTask::Changing(request), "switch_agent", "agent_not_in_session") => {
                self.members.remove(request.agent());
                self.proceed(AgentTask::Request(request));
            }
            (_, _, code) => {
                self.push_failure(format!("{code}: {}", failure.message));
                if std::mem::take(&mut self.is_starting) {
                    self.steps.push_back(ChatStep::Leave);
                }
            }
        }
        true
    }

    /// Handles a change of members, whoever has requested it.
    pub(super) fn handle_note(&mut self, note: &Note) {
        let chosen = self.members.apply_note(note);
        let is_own = matches!(self.pending, Some(PendingTask::Changing(_)));
        // A handover is reported by the chat itself.
        let is_told = note.body.get("trigger").and_then(Value::as_str) == Some("handover");
        if let Some(agent) = chosen.filter(|_| !is_own && !is_told) {
            self.push_remark(format!("{agent} is now the active agent"));
        }
    }
}

#[cfg(test)]
mod tests;
