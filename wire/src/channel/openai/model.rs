//! Model names and the model list: every agent is a model, and so is every name of an upstream.
use serde::Serialize;
use turnway_core::id::AgentId;
use turnway_core::time::Millis;

/// Prefix of a model name; the rest is the agent's id.
const MODEL_PREFIX: &str = "agent/";

/// One entry of the list of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenAiModel {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

/// The list of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenAiModelList {
    object: &'static str,
    data: Vec<OpenAiModel>,
}

/// Returns an agent's model name.
pub fn model_name(agent: &AgentId) -> String {
    format!("{MODEL_PREFIX}{agent}")
}

/// Returns whether a model name is one of an agent, known or not.
pub fn is_agent_name(model: &str) -> bool {
    model.starts_with(MODEL_PREFIX)
}

/// Returns the agent that a model name means, or `None` if the name is not of the form `agent/<agent_id>`.
pub fn parse_model_name(model: &str) -> Option<AgentId> {
    AgentId::parse(model.strip_prefix(MODEL_PREFIX)?).ok()
}

// === impl OpenAiModel ===

impl OpenAiModel {
    /// Creates an entry for an agent; `since` is the time from which the agent was known.
    pub fn new(agent: &AgentId, since: Millis) -> Self {
        Self { id: model_name(agent), object: "model", created: since.0 / 1000, owned_by: "turnway" }
    }

    /// Creates an entry for a model of an upstream.
    pub fn upstream(name: &str, since: Millis) -> Self {
        Self { id: name.to_owned(), object: "model", created: since.0 / 1000, owned_by: "upstream" }
    }
}

// === impl OpenAiModelList ===

impl OpenAiModelList {
    /// Creates the list: agents, then models of upstreams.
    pub fn new<'a>(
        agents: impl IntoIterator<Item = &'a AgentId>,
        upstream_models: impl IntoIterator<Item = &'a str>,
        since: Millis,
    ) -> Self {
        let agents = agents.into_iter().map(|agent| OpenAiModel::new(agent, since));
        let upstream_models = upstream_models.into_iter().map(|name| OpenAiModel::upstream(name, since));
        let data = agents.chain(upstream_models).collect();
        Self { object: "list", data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Covers: ST-41.
    #[test]
    fn model_names_map_to_agents() {
        let echo = AgentId::parse("echo").expect("a name");
        assert_eq!(parse_model_name("agent/echo"), Some(echo.clone()));
        for other in ["echo", "gpt-5", "agent/", "agent/a b", "agent/a/b", "Agent/echo", ""] {
            assert_eq!(parse_model_name(other), None, "{other}");
        }
        let listed =
            serde_json::to_value(OpenAiModelList::new([&echo], ["gpt"], Millis(1_764_000_000_999))).expect("JSON");
        let model = json!({ "id": "agent/echo", "object": "model", "created": 1_764_000_000, "owned_by": "turnway" });
        let upstream = json!({ "id": "gpt", "object": "model", "created": 1_764_000_000, "owned_by": "upstream" });
        assert_eq!(listed, json!({ "object": "list", "data": [model, upstream] }));
    }
}
