//! The plugins of a node: decides which turns pass through them, and restricts agent features that do not work behind
//! plugins. Used by `agent` and `node`.
use crate::agent::directory::AgentSpec;
use crate::agent::pipeline_bridge::PipelineBridge;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use turnway_core::id::{QualifiedRun, QualifiedSession};
use turnway_core::protocol::agent::{Invoke, OnOwnerLoss};
use turnway_core::protocol::input::Content;
use turnway_pipeline::pipeline::{keeps_text, plugin_name};
use turnway_pipeline::{BuiltinPlugin, MessageEnvelope, Pipeline, Plugin};

/// Channel name that plugins see for every message.
const CHANNEL: &str = "turnway";

/// The plugins of a node, in the order of their registration; the builtin plugin always runs before all of them.
#[derive(Clone, Default)]
pub struct Plugins {
    plugins: Vec<Arc<dyn Plugin>>,
    workspace: Option<PathBuf>,
}

// === impl Plugins ===

impl Plugins {
    /// Adds a plugin, which runs before those added earlier (TP-N14).
    #[must_use]
    pub fn with(mut self, plugin: impl Plugin + 'static) -> Self {
        self.plugins.push(Arc::new(plugin));
        self
    }

    /// Sets the workspace, whose `AGENTS.md` is sent to every agent as `context.system_prompt` (TP-N11).
    #[must_use]
    pub fn with_workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.workspace = Some(workspace.into());
        self
    }

    /// Returns whether a message passes through the pipeline. Without plugins and workspace only a command does
    /// (TP-N4): every other message goes straight to its agent, at the cost of a node without a pipeline.
    pub(super) fn applies_to(&self, content: &Content) -> bool {
        !self.plugins.is_empty() || self.workspace.is_some() || is_command(content)
    }

    /// Restricts an agent's features to those that work behind the plugins.
    ///
    /// Behind a plugin that changes text, an agent's byte offsets are not those of the text that clients were shown, so
    /// the agent cannot be asked for the rest of an answer: a turn whose owner is lost is retried from its beginning.
    /// Behind any plugin an agent gets no steering input: the input passes through the pipeline as the next turn.
    pub(super) fn restrict_features(&self, mut spec: AgentSpec) -> AgentSpec {
        let changes = self.plugins.iter().find(|plugin| !keeps_text(&***plugin));
        if let (Some(plugin), OnOwnerLoss::Resume) = (changes, spec.policy.on_owner_loss) {
            let agent = spec.id.as_str();
            let plugin = plugin_name(&**plugin);
            let what = "the plugin changes text, so a lost attempt is retried instead of resumed";
            tracing::warn!(agent, plugin, "{what}");
            spec.policy.on_owner_loss = OnOwnerLoss::Retry;
        }
        spec.policy.steer &= self.plugins.is_empty();
        spec
    }

    /// Builds the pipeline of one attempt from all plugins.
    pub(super) fn pipeline(&self, bridge: &PipelineBridge) -> Pipeline {
        let mut builtin = BuiltinPlugin::new().with_model(bridge.clone()).without_default_prompt();
        if let Some(workspace) = &self.workspace {
            builtin = builtin.with_workspace(workspace);
        }
        let workspace = self.workspace.clone().unwrap_or_else(|| PathBuf::from("."));
        let pipeline = Pipeline::new(workspace).with(builtin).with_router(bridge.clone());
        self.plugins.iter().fold(pipeline, |pipeline, plugin| pipeline.with_shared(Arc::clone(plugin)))
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.plugins.iter().map(|plugin| plugin_name(&**plugin))).finish()
    }
}

/// Returns whether a message is a command to the gateway (TP-N4).
pub(super) fn is_command(content: &Content) -> bool {
    match content {
        Content::Text(text) => BuiltinPlugin::is_command(text),
        Content::Parts(parts) => {
            let first = parts.iter().find_map(|part| part.get("text")?.as_str());
            first.is_some_and(|text| text.starts_with(',')) && BuiltinPlugin::is_command(&content.plain_text())
        }
    }
}

/// Builds the envelope that plugins get for an agent's input. The switchboard has decided the session already: a
/// session that a plugin resolves has no effect outside the pipeline.
pub(super) fn envelope(invoke: &Invoke) -> MessageEnvelope {
    let Invoke { key, run_id, attempt, agent_id, user, message, .. } = invoke;
    // Qualified ids: sessions and runs of two tenants may have equal ids, and a plugin serves all tenants.
    let tenant = Some(key.tenant.as_str()).filter(|_| !key.tenant.is_default()).map(str::to_owned);
    let session = QualifiedSession::from(key).to_string();
    let media = match &message.content {
        Content::Text(_) => Vec::new(),
        Content::Parts(parts) => {
            parts.iter().filter(|part| !part.get("text").is_some_and(Value::is_string)).cloned().collect()
        }
    };
    let known: [(&str, Value); 5] = [
        ("agent_id", agent_id.as_str().into()),
        ("attempt", (*attempt).into()),
        ("run_id", QualifiedRun::of(key, run_id).to_string().into()),
        ("tenant", key.tenant.as_str().into()),
        ("user_id", user.as_str().into()),
    ];
    MessageEnvelope {
        tenant,
        channel: Some(CHANNEL.to_owned()),
        chat_id: Some(session.clone()),
        session_id: Some(session),
        media,
        context: known.map(|(name, value)| (name.to_owned(), value)).into(),
        ..MessageEnvelope::from_text(message.content.plain_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::limits;

    /// A plugin that panics in each method without a stage.
    struct Panicking;

    impl Plugin for Panicking {
        fn name(&self) -> &str {
            panic!("as the test wants")
        }
        fn keeps_text(&self) -> bool {
            panic!("as the test wants")
        }
    }

    /// Covers: LN-TP13.
    #[test]
    fn plugin_that_panics_at_start_restricts_agents_like_any_other() {
        let spec =
            AgentSpec::parse("ada", [("url", "http://127.0.0.1:1"), ("on_owner_loss", "resume"), ("steer", "true")])
                .expect("an agent");
        let plugins = Plugins::default().with(Panicking);
        let restricted = plugins.restrict_features(spec);
        assert_eq!((restricted.policy.on_owner_loss, restricted.policy.steer), (OnOwnerLoss::Retry, false));
        assert_eq!(format!("{plugins:?}"), r#"["unnamed"]"#);
    }

    /// The session's own limit ends an attempt, before the pipeline's limit on what it keeps.
    ///
    /// Covers: S-48.
    #[test]
    fn pipeline_keeps_twice_the_text_of_an_attempt() {
        assert_eq!(turnway_pipeline::limits::OUTPUT_BYTES_MAX, 2 * limits::TURN_TEXT_BYTES_MAX);
    }
}
