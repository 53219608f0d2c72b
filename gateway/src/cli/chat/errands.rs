//! Tasks that concern agents: list them, switch to one, send a message to one, and offer to invite one that is
//! not a member. Pure: returns steps to perform, and is told the results. Called by the chat.
use super::command::yes_or_no;
use super::company::{Company, Wish};
use crate::cli::agents::Agent;
use crate::config::nearest::nearest;
use serde_json::Value;
use std::collections::VecDeque;
use turnway_client::{Failure, MemberChange, Members, Note, Open, Snapshot};

/// A step that the chat performs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Open the session; the answer has its members.
    Open(Open),
    /// Fetch the gateway's agents.
    List,
    /// Request a change of members.
    Change(MemberChange),
    /// Send a message to a member.
    Say {
        /// Agent id.
        agent: String,
        /// Message text.
        text: String,
    },
    /// Print lines.
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
pub(super) enum Errand {
    /// Show the agents with their membership.
    Show,
    /// A request to one agent.
    Do(Wish),
}

/// The current task, by the answer it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Task {
    /// The session's members, from its opening.
    Opening(Errand),
    /// The list of agents.
    Listing(Errand),
    /// The user's yes or no to inviting an agent.
    Asked(Wish),
    /// The answer to a change of members.
    Changing(Wish),
}

/// The tasks of a chat, one at a time, with the session's members as far as known.
#[derive(Debug)]
pub(super) struct Errands {
    company: Company,
    task: Option<Task>,
    /// The session does not exist yet, as far as is known.
    is_new: bool,
    /// The current task decides whether the chat begins.
    is_starting: bool,
    steps: VecDeque<Step>,
}

// === impl Errands ===

impl Errands {
    pub(super) fn new(is_new: bool) -> Self {
        let (company, steps) = (Company::default(), VecDeque::new());
        Self { company, task: None, is_new, is_starting: false, steps }
    }

    /// Returns the next step to perform.
    pub(super) fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Returns whether the next line may be taken: no task is open, or the open task waits for a line.
    pub(super) fn is_ready(&self) -> bool {
        self.task.is_none() || self.is_asking()
    }

    /// Returns whether a question to the user is open.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.task, Some(Task::Asked(_)))
    }

    /// Returns whether the current task is going to send a message.
    pub(super) fn is_saying(&self) -> bool {
        let wish = match &self.task {
            Some(
                Task::Opening(Errand::Do(wish)) | Task::Listing(Errand::Do(wish)) | Task::Changing(wish),
            ) => wish,
            Some(Task::Opening(Errand::Show) | Task::Listing(Errand::Show) | Task::Asked(_)) | None => {
                return false;
            }
        };
        matches!(wish, Wish::Say { .. })
    }

    /// Returns the agent to name in messages without an addressee; `None` means the session's active agent.
    pub(super) fn addressed(&self) -> Option<&str> {
        self.company.addressed()
    }

    /// Begins the chat with an agent; the chat ends if there is no such agent.
    pub(super) fn start(&mut self, agent: String) {
        self.is_starting = true;
        self.begin(Errand::Do(Wish::Switch(agent)));
    }

    /// Begins a task.
    pub(super) fn begin(&mut self, errand: Errand) {
        if self.company.is_known() {
            return self.go_on(errand);
        }
        let active_agent = match &errand {
            // A new session that begins with an agent is opened with that agent as a member, so no question is
            // needed.
            Errand::Do(Wish::Switch(agent)) => {
                Some(agent).filter(|_| self.is_new && self.is_starting).cloned()
            }
            Errand::Do(Wish::Say { .. }) | Errand::Show => None,
        };
        self.steps.push_back(Step::Open(Open { agents: Vec::new(), active_agent }));
        self.task = Some(Task::Opening(errand));
    }

    fn go_on(&mut self, errand: Errand) {
        match errand {
            Errand::Do(wish) if self.company.has(wish.agent()) => self.do_by_member(wish),
            errand @ (Errand::Do(_) | Errand::Show) => {
                self.steps.push_back(Step::List);
                self.task = Some(Task::Listing(errand));
            }
        }
    }

    fn do_by_member(&mut self, wish: Wish) {
        match wish {
            Wish::Switch(agent) if self.company.is_active(&agent) => self.switched(&agent),
            Wish::Switch(agent) => self.change(MemberChange::switch(agent.clone()), Wish::Switch(agent)),
            Wish::Say { agent, text } => {
                self.company.addressed_once(&agent);
                self.steps.push_back(Step::Say { agent, text });
            }
        }
    }

    fn change(&mut self, change: MemberChange, wish: Wish) {
        self.steps.push_back(Step::Change(change));
        self.task = Some(Task::Changing(wish));
    }

    fn switched(&mut self, agent: &str) {
        self.is_starting = false;
        self.company.chosen(agent);
        self.remark(format!("{agent} is now the active agent"));
    }

    fn remark(&mut self, text: String) {
        self.steps.push_back(Step::Remark(text));
    }

    fn fail(&mut self, why: String) {
        self.remark(why);
        self.steps.push_back(Step::Fail);
    }

    // --- results ---

    /// Records that the session exists, because a message in it was accepted.
    pub(super) fn exists(&mut self) {
        self.is_new = false;
    }

    /// Records that the session does not exist.
    pub(super) fn is_missing(&mut self) {
        self.is_new = true;
    }

    /// Takes over the session's state, from a subscription or an opening.
    pub(super) fn learn(&mut self, snapshot: &Snapshot) {
        self.company.learn(snapshot);
        self.is_new = false;
        if let Some(Task::Opening(errand)) = self.task.take_if(|task| matches!(task, Task::Opening(_))) {
            self.go_on(errand);
        }
    }

    /// Takes over the list of agents, or the reason why there is none.
    pub(super) fn listed(&mut self, listed: Result<Vec<Agent>, String>) {
        match self.task.take_if(|task| matches!(task, Task::Listing(_))) {
            Some(Task::Listing(Errand::Show)) => {
                let table = self.company.table(listed.as_deref().ok());
                self.steps.push_back(Step::Print(table.trim_end().to_owned()));
                if let Err(why) = listed {
                    self.fail(format!("only members are shown: {why}"));
                }
            }
            Some(Task::Listing(Errand::Do(wish))) => {
                let known = listed.unwrap_or_default();
                let names = || known.iter().map(|agent| agent.agent_id.as_str());
                if known.is_empty() || names().any(|name| name == wish.agent()) {
                    return self.offer(wish);
                }
                self.no_such_agent(wish.agent(), nearest(wish.agent(), names()));
            }
            Some(Task::Opening(_) | Task::Asked(_) | Task::Changing(_)) | None => {}
        }
    }

    fn offer(&mut self, wish: Wish) {
        self.remark(format!("{} is not a member of this session. Invite it? (y/n)", wish.agent()));
        self.task = Some(Task::Asked(wish));
    }

    /// Reports an unknown agent. A chat that was started with an unknown agent ends instead of talking to
    /// another one.
    fn no_such_agent(&mut self, agent: &str, meant: Option<&str>) {
        let meant = meant.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        self.fail(format!("there is no agent {agent}; {meant}/agents lists them"));
        if std::mem::take(&mut self.is_starting) {
            self.steps.push_back(Step::Leave);
        }
    }

    /// Takes an answer to the question whether to invite an agent.
    pub(super) fn answer(&mut self, line: &str) {
        let Some(Task::Asked(wish)) = self.task.take_if(|task| matches!(task, Task::Asked(_))) else {
            return;
        };
        let invite = MemberChange::invite(wish.agent());
        match (yes_or_no(line), &wish) {
            (Some(true), Wish::Switch(_)) => self.change(invite.active(), wish),
            (Some(true), Wish::Say { .. }) => self.change(invite, wish),
            (Some(false), _) => self.not_invited(&wish),
            (None, _) => {
                self.fail(format!("please answer y or n: invite {}?", wish.agent()));
                self.task = Some(Task::Asked(wish));
            }
        }
    }

    /// Withdraws an open question; false if there is none.
    pub(super) fn drop_question(&mut self) -> bool {
        let asked = self.task.take_if(|task| matches!(task, Task::Asked(_)));
        let Some(Task::Asked(wish)) = asked else { return false };
        self.not_invited(&wish);
        true
    }

    fn not_invited(&mut self, wish: &Wish) {
        self.is_starting = false;
        self.fail(format!("{} was not invited", wish.agent()));
    }

    /// Handles the answer to this chat's change of members.
    pub(super) fn changed(&mut self, members: &Members) {
        self.company.changed(members);
        let changing = self.task.take_if(|task| matches!(task, Task::Changing(_)));
        let Some(Task::Changing(wish)) = changing else { return };
        match wish {
            Wish::Switch(agent) if self.company.is_active(&agent) => self.switched(&agent),
            wish @ Wish::Say { .. } if self.company.has(wish.agent()) => self.do_by_member(wish),
            Wish::Switch(agent) | Wish::Say { agent, .. } => {
                self.fail(format!("could not make {agent} the active agent"));
            }
        }
    }

    /// Handles a refusal; false if the refused request does not belong to a task.
    pub(super) fn refused(&mut self, failure: &Failure) -> bool {
        let own = ["session_open", "switch_agent", "invite_agent"].contains(&failure.asked.as_str());
        let waits = |task: &mut Task| matches!(task, Task::Opening(_) | Task::Changing(_));
        let Some(task) = self.task.take_if(|task| own && waits(task)) else { return false };
        match (task, failure.asked.as_str(), failure.code.as_str()) {
            (Task::Opening(Errand::Do(wish)), "session_open", "not_found")
            | (Task::Changing(wish), "invite_agent", "not_found") => self.no_such_agent(wish.agent(), None),
            // The agent has left the session since its membership was known.
            (Task::Changing(wish), "switch_agent", "agent_not_in_session") => {
                self.company.strike(wish.agent());
                self.go_on(Errand::Do(wish));
            }
            (_, _, code) => {
                self.fail(format!("{code}: {}", failure.message));
                if std::mem::take(&mut self.is_starting) {
                    self.steps.push_back(Step::Leave);
                }
            }
        }
        true
    }

    /// Handles a change of members, whoever has requested it.
    pub(super) fn note(&mut self, note: &Note) {
        let chosen = self.company.note(note);
        let is_own = matches!(self.task, Some(Task::Changing(_)));
        // A handover is reported by the chat itself.
        let is_told = note.body.get("trigger").and_then(Value::as_str) == Some("handover");
        if let Some(agent) = chosen.filter(|_| !is_own && !is_told) {
            self.remark(format!("{agent} is now the active agent"));
        }
    }
}

#[cfg(test)]
mod tests;
