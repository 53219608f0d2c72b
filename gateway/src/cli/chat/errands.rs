//! What is wanted of agents: to list them, to switch to one, to say something to one; and the offer to invite one that
//! is no member. Pure: says what is to be done, and is told what came of it. Called by the chat.
use super::command::yes_or_no;
use super::company::{Company, Wish};
use crate::cli::agents::Agent;
use crate::config::nearest::nearest;
use serde_json::Value;
use std::collections::VecDeque;
use turnway_client::{Failure, MemberChange, Members, Note, Open, Snapshot};

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Open the session, to be told who is a member.
    Open(Open),
    /// Ask which agents there are.
    List,
    /// Ask for a change of members.
    Change(MemberChange),
    /// Say something to a member.
    Say {
        /// To which.
        agent: String,
        /// What.
        text: String,
    },
    /// Show lines.
    Print(String),
    /// Show a remark.
    Remark(String),
    /// Something that was asked for was not done.
    Fail,
    /// The chat cannot begin as it was meant to.
    Leave,
}

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// To see the agents, and who of them is a member.
    Show,
    /// Something of an agent.
    Do(Wish),
}

/// An errand under way, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Task {
    /// To be told who is a member.
    Opening(Errand),
    /// To be told which agents there are.
    Listing(Errand),
    /// A yes or no: whether an agent is to be invited.
    Asked(Wish),
    /// The answer to a change of members.
    Changing(Wish),
}

/// The errands of a chat, one at a time, and what they know of the session's members.
#[derive(Debug)]
pub(super) struct Errands {
    company: Company,
    task: Option<Task>,
    /// The session does not exist yet, as far as is known.
    is_new: bool,
    /// The first errand decides whether the chat begins.
    is_starting: bool,
    steps: VecDeque<Step>,
}

// === impl Errands ===

impl Errands {
    pub(super) fn new(is_new: bool) -> Self {
        let (company, steps) = (Company::default(), VecDeque::new());
        Self { company, task: None, is_new, is_starting: false, steps }
    }

    /// Drains what is to be done.
    pub(super) fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Whether the next line may be taken: nothing is waited for but a line.
    pub(super) fn is_ready(&self) -> bool {
        self.task.is_none() || self.is_asking()
    }

    /// Whether a question is open.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.task, Some(Task::Asked(_)))
    }

    /// Whether something is about to be said.
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

    /// Whom to address with what is for nobody in particular; none: the session's active agent.
    pub(super) fn addressed(&self) -> Option<&str> {
        self.company.addressed()
    }

    /// Lets an agent answer from the start on; the chat does not begin if there is no such agent.
    pub(super) fn start(&mut self, agent: String) {
        self.is_starting = true;
        self.begin(Errand::Do(Wish::Switch(agent)));
    }

    /// Begins an errand.
    pub(super) fn begin(&mut self, errand: Errand) {
        if self.company.is_known() {
            return self.go_on(errand);
        }
        let active_agent = match &errand {
            // A new session that begins with an agent has it as a member: there is nothing to ask.
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
        self.remark(format!("{agent} answers from now on"));
    }

    fn remark(&mut self, text: String) {
        self.steps.push_back(Step::Remark(text));
    }

    fn fail(&mut self, why: String) {
        self.remark(why);
        self.steps.push_back(Step::Fail);
    }

    // --- what came of it ---

    /// The session exists: somebody has said something in it.
    pub(super) fn exists(&mut self) {
        self.is_new = false;
    }

    /// The session does not exist.
    pub(super) fn is_missing(&mut self) {
        self.is_new = true;
    }

    /// The session's state, as a subscription or an opening has told it.
    pub(super) fn learn(&mut self, snapshot: &Snapshot) {
        self.company.learn(snapshot);
        self.is_new = false;
        if let Some(Task::Opening(errand)) = self.task.take_if(|task| matches!(task, Task::Opening(_))) {
            self.go_on(errand);
        }
    }

    /// Which agents there are, or why that is not known.
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

    /// Who has named a wrong agent at the start does not get to talk to another one.
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
                self.fail(format!("y or n, please: is {} to be invited?", wish.agent()));
                self.task = Some(Task::Asked(wish));
            }
        }
    }

    /// Takes back a question that is not answered; false where there is none.
    pub(super) fn drop_question(&mut self) -> bool {
        let asked = self.task.take_if(|task| matches!(task, Task::Asked(_)));
        let Some(Task::Asked(wish)) = asked else { return false };
        self.not_invited(&wish);
        true
    }

    fn not_invited(&mut self, wish: &Wish) {
        self.is_starting = false;
        self.fail(format!("{} is not invited", wish.agent()));
    }

    /// Members have changed, as this chat has asked.
    pub(super) fn changed(&mut self, members: &Members) {
        self.company.changed(members);
        let changing = self.task.take_if(|task| matches!(task, Task::Changing(_)));
        let Some(Task::Changing(wish)) = changing else { return };
        match wish {
            Wish::Switch(agent) if self.company.is_active(&agent) => self.switched(&agent),
            wish @ Wish::Say { .. } if self.company.has(wish.agent()) => self.do_by_member(wish),
            Wish::Switch(agent) | Wish::Say { agent, .. } => {
                self.fail(format!("{agent} could not be made one that answers here"));
            }
        }
    }

    /// A request of an errand was refused; false where it was none.
    pub(super) fn refused(&mut self, failure: &Failure) -> bool {
        let own = ["session_open", "switch_agent", "invite_agent"].contains(&failure.asked.as_str());
        let waits = |task: &mut Task| matches!(task, Task::Opening(_) | Task::Changing(_));
        let Some(task) = self.task.take_if(|task| own && waits(task)) else { return false };
        match (task, failure.asked.as_str(), failure.code.as_str()) {
            (Task::Opening(Errand::Do(wish)), "session_open", "not_found")
            | (Task::Changing(wish), "invite_agent", "not_found") => self.no_such_agent(wish.agent(), None),
            // It has left meanwhile.
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

    /// Members have changed, whoever has asked.
    pub(super) fn note(&mut self, note: &Note) {
        let chosen = self.company.note(note);
        let is_own = matches!(self.task, Some(Task::Changing(_)));
        // What an agent has asked for is told by itself.
        let is_told = note.body.get("trigger").and_then(Value::as_str) == Some("handover");
        if let Some(agent) = chosen.filter(|_| !is_own && !is_told) {
            self.remark(format!("{agent} answers from now on"));
        }
    }
}

#[cfg(test)]
mod tests;
