//! The members of a session and its active agent, as far as the chat knows them. Pure; called by the chat.
use crate::cli::agents::AgentSummary;
use crate::cli::table::{Column, Table};
use serde_json::Value;
use turnway_client::{ClientSnapshot, Members, Note};

/// A request that needs an agent to be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AgentRequest {
    /// Make the agent active.
    Switch(String),
    /// Send a message to the agent, once.
    Say { agent: String, text: String },
}

/// The members of a session, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionMembers {
    /// `None` until the gateway has sent the members.
    agents: Option<Vec<String>>,
    /// The session's active agent, which answers messages that address no agent.
    active: Option<String>,
    /// The agent to address explicitly instead of the active one. Addressing another agent once makes that
    /// agent active; the agent that was active before is kept here.
    explicit_agent: Option<String>,
}

// === impl AgentRequest ===

impl AgentRequest {
    /// Returns the agent that the request needs.
    pub(super) fn agent(&self) -> &str {
        match self {
            Self::Switch(agent) | Self::Say { agent, .. } => agent,
        }
    }
}

// === impl SessionMembers ===

impl SessionMembers {
    pub(super) fn is_known(&self) -> bool {
        self.agents.is_some()
    }

    pub(super) fn contains(&self, agent: &str) -> bool {
        self.agents.iter().flatten().any(|member| member == agent)
    }

    /// Returns whether this agent is the session's active one.
    pub(super) fn is_active(&self, agent: &str) -> bool {
        self.active.as_deref() == Some(agent)
    }

    /// Returns the agent to name in messages without an addressee; `None` means the session's active agent.
    pub(super) fn explicit_agent(&self) -> Option<&str> {
        self.explicit_agent.as_deref()
    }

    /// Returns the agent that answers messages without an addressee.
    fn answering_agent(&self) -> Option<&str> {
        self.explicit_agent().or(self.active.as_deref())
    }

    /// Takes over the members of a snapshot.
    pub(super) fn apply_snapshot(&mut self, snapshot: &ClientSnapshot) {
        let agents = snapshot.agents.iter().filter_map(Value::as_str).map(str::to_owned);
        self.agents = Some(agents.collect());
        self.active.clone_from(&snapshot.active_agent);
    }

    /// Takes over the members of the answer to a change.
    pub(super) fn apply_members(&mut self, members: &Members) {
        self.agents = Some(members.agents.clone());
        self.active.clone_from(&members.active_agent);
    }

    /// Records that an agent was made active.
    pub(super) fn set_active(&mut self, agent: &str) {
        self.explicit_agent = None;
        self.active = Some(agent.to_owned());
    }

    /// Records that an agent is addressed once; the agent that answered before answers again afterwards.
    pub(super) fn address_once(&mut self, agent: &str) {
        self.explicit_agent = self.answering_agent().map(str::to_owned);
        self.active = Some(agent.to_owned());
    }

    /// Applies a fact about members. Returns the new active agent, if somebody has chosen one.
    pub(super) fn apply_note(&mut self, note: &Note) -> Option<String> {
        let word =
            |body: &serde_json::Map<String, Value>, key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        let detail = || note.body.get("detail").and_then(Value::as_object);
        match note.name.as_str() {
            "AGENT_ADDED" => self.add(word(&note.body, "agent_id")?),
            "REMOVE_AGENT_FAILED" => self.add(word(detail()?, "agent_id")?),
            "AGENT_REMOVING" | "AGENT_REMOVED" => self.remove(&word(&note.body, "agent_id")?),
            "ACTIVE_AGENT_CHANGED" => {
                let to = word(&note.body, "to")?;
                self.active = Some(to.clone());
                // An agent that is addressed becomes active by that, whether by this client or by another.
                if word(&note.body, "trigger").as_deref() != Some("mention") {
                    self.explicit_agent = None;
                    return Some(to);
                }
            }
            _ => {}
        }
        None
    }

    fn add(&mut self, agent: String) {
        if let Some(agents) = self.agents.as_mut().filter(|agents| !agents.contains(&agent)) {
            agents.push(agent);
        }
    }

    /// Removes an agent: it has left, or the gateway has answered that it is not a member.
    pub(super) fn remove(&mut self, agent: &str) {
        if let Some(agents) = &mut self.agents {
            agents.retain(|member| member != agent);
        }
        self.explicit_agent = self.explicit_agent.take().filter(|addressed| addressed != agent);
    }

    /// Formats the agents with their membership; without a list, the members alone.
    pub(super) fn table(&self, listed: Option<&[AgentSummary]>) -> String {
        let mut table = Table::new(vec![Column::Left("AGENT"), Column::Left("MEMBER"), Column::Left("HEALTH")]);
        let listed = listed.unwrap_or_default();
        let is_unlisted = |member: &&String| !listed.iter().any(|agent| agent.agent_id == **member);
        let rows = listed.iter().map(|agent| (agent.agent_id.as_str(), agent.health()));
        // Members that are not listed, such as agents removed from the gateway's configuration.
        let others = self.agents.iter().flatten().filter(is_unlisted).map(|member| (member.as_str(), ""));
        for (agent, health) in rows.chain(others) {
            let member = match (self.contains(agent), self.answering_agent() == Some(agent)) {
                (true, true) => "answers",
                (true, false) => "yes",
                (false, _) => "",
            };
            table.push_row([agent.to_owned(), member.to_owned(), health.to_owned()]);
        }
        table.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn company(agents: &[&str], active: &str) -> SessionMembers {
        let mut company = SessionMembers::default();
        let agents = agents.iter().map(|agent| Value::from(*agent)).collect();
        company.apply_snapshot(&ClientSnapshot {
            agents,
            active_agent: Some(active.to_owned()),
            ..ClientSnapshot::default()
        });
        company
    }

    fn note(name: &str, body: Value) -> Note {
        let Value::Object(body) = body else { panic!("an object") };
        Note { session: "s".to_owned(), position: None, name: name.to_owned(), run: None, body }
    }

    #[test]
    fn agent_addressed_once_is_not_kept_for_the_next_input() {
        let mut company = company(&["echo", "counter"], "echo");
        assert_eq!(company.explicit_agent(), None, "the session's own agent is not named");
        company.address_once("counter");
        assert_eq!(company.explicit_agent(), Some("echo"));
        let mention = json!({"from": "echo", "to": "counter", "trigger": "mention"});
        assert_eq!(company.apply_note(&note("ACTIVE_AGENT_CHANGED", mention)), None);
        company.address_once("counter");
        assert_eq!(company.explicit_agent(), Some("echo"), "twice is not for good");
        assert!(company.is_active("counter"));
        company.set_active("counter");
        assert_eq!(company.explicit_agent(), None);
    }

    #[test]
    fn agent_switch_by_another_client_is_followed() {
        let mut company = company(&["echo", "counter"], "echo");
        company.address_once("counter");
        let switch = json!({"from": "counter", "to": "echo", "trigger": "switch_agent"});
        assert_eq!(company.apply_note(&note("ACTIVE_AGENT_CHANGED", switch)), Some("echo".to_owned()));
        assert_eq!((company.explicit_agent(), company.is_active("echo")), (None, true));
    }

    #[test]
    fn members_are_added_and_removed() {
        let mut company = company(&["echo"], "echo");
        for (name, body, is_member) in [
            ("AGENT_ADDED", json!({"agent_id": "ada"}), true),
            ("AGENT_REMOVING", json!({"agent_id": "ada"}), false),
            ("REMOVE_AGENT_FAILED", json!({"detail": {"agent_id": "ada"}}), true),
            ("AGENT_REMOVING", json!({"agent_id": "ada"}), false),
            ("AGENT_REMOVED", json!({"agent_id": "ada"}), false),
        ] {
            company.apply_note(&note(name, body));
            assert_eq!(company.contains("ada"), is_member, "{name}");
        }
        assert!(company.contains("echo") && company.is_known() && !SessionMembers::default().is_known());
    }

    #[test]
    fn agent_list_marks_members() {
        let agents = json!([
            {"agent_id": "ada", "kind": "http", "default": true, "healthy": false},
            {"agent_id": "echo", "kind": "builtin", "default": false, "healthy": true},
        ]);
        let agents: Vec<AgentSummary> = serde_json::from_value(agents).expect("agents");
        let company = company(&["echo", "gone"], "echo");
        assert_eq!(
            company.table(Some(&agents)),
            "AGENT  MEMBER   HEALTH\nada             unreachable\necho   answers  healthy\ngone   yes\n"
        );
        assert_eq!(company.table(None), "AGENT  MEMBER   HEALTH\necho   answers\ngone   yes\n");
    }
}
