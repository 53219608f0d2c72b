//! The built-in plugin, which fills every stage and which every other plugin overrides (TP-N1, TP-N14).
mod commands;
mod tapes;

use crate::builtin::commands::CommaCommand;
use crate::builtin::tapes::FileTapeStore;
use crate::envelope::{MessageEnvelope, MessageKind};
use crate::failure::{HookError, PipelineStage, TurnFailure};
use crate::limits;
use crate::plugin::{Dispatcher, HookFuture, Inbound, Plugin, TapeStore, Turn, no_answer};
use crate::prompt::Prompt;
use crate::stream::{self, AnswerStream};
use futures_util::FutureExt;
use futures_util::future::ready;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncReadExt;

/// The system prompt of a host that sets no other.
const DEFAULT_SYSTEM_PROMPT: &str = "You are a helpful assistant.";

/// A model that answers prompts, such as an agent behind the gateway (TP-N7).
pub trait LanguageModel: Send + Sync {
    /// Returns the answer, piece by piece.
    fn answer<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, AnswerStream>;
}

/// The built-in plugin: its settings, and the model that it asks.
#[derive(Clone, Default)]
pub struct BuiltinPlugin {
    model: Option<Arc<dyn LanguageModel>>,
    workspace: Option<PathBuf>,
    includes_time: bool,
    omits_default_prompt: bool,
    tapes: Option<Arc<FileTapeStore>>,
}

// === impl BuiltinPlugin ===

impl BuiltinPlugin {
    /// Creates a plugin that answers commands and has no model.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(mut self, model: impl LanguageModel + 'static) -> Self {
        self.model = Some(Arc::new(model));
        self
    }

    /// Adds the `AGENTS.md` of a workspace to the system prompt (TP-N11).
    #[must_use]
    pub fn with_workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.workspace = Some(workspace.into());
        self
    }

    /// Stores turns in files of this folder, one for each session (TP-N12).
    #[must_use]
    pub fn with_tapes(mut self, folder: impl Into<PathBuf>) -> Self {
        self.tapes = Some(Arc::new(FileTapeStore::new(folder.into())));
        self
    }

    /// Omits the default system prompt, for agents that have their own. A workspace's `AGENTS.md` is still included.
    #[must_use]
    pub fn without_default_prompt(mut self) -> Self {
        self.omits_default_prompt = true;
        self
    }

    /// Returns whether a message is a command, which is not passed to a model (TP-N4).
    pub fn is_command(content: &str) -> bool {
        CommaCommand::parse(content).is_some()
    }

    /// Adds the time and the message's context to each prompt (TP-N5).
    #[must_use]
    pub fn with_time(mut self) -> Self {
        self.includes_time = true;
        self
    }

    fn prompt_text(&self, inbound: &MessageEnvelope) -> String {
        if !self.includes_time {
            return inbound.content.clone();
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let mut text = format!("[{now}]");
        for (name, value) in &inbound.context {
            text.push_str(&format!("\n[{name}: {value}]"));
        }
        text.push('\n');
        text.push_str(&inbound.content);
        text
    }
}

/// Returns the contents of a workspace's `AGENTS.md`, up to the limit.
async fn agents_file(workspace: &Path) -> Result<Option<String>, HookError> {
    let path = workspace.join("AGENTS.md");
    let file = match tokio::fs::File::open(&path).await {
        Ok(file) => file,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(HookError::new("workspace", format!("{}: {why}", path.display()))),
    };
    let mut bytes = Vec::new();
    let read = file.take(limits::AGENTS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).await;
    read.map_err(|why| HookError::new("workspace", format!("{}: {why}", path.display())))?;
    if bytes.len() as u64 > limits::AGENTS_FILE_BYTES_MAX {
        bytes.truncate(usize::try_from(limits::AGENTS_FILE_BYTES_MAX).unwrap_or(usize::MAX));
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            // The cut is inside a character.
            bytes.truncate(error.valid_up_to());
        }
        let what = "AGENTS.md exceeds the limit; only its beginning is used in the system prompt";
        tracing::warn!(path = %path.display(), "{what}");
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

impl Plugin for BuiltinPlugin {
    fn name(&self) -> &'static str {
        "builtin"
    }

    /// Returns the session that the message names, or its channel and chat (TP-N2).
    fn resolve_session<'a>(&'a self, inbound: &'a Inbound) -> HookFuture<'a, Option<String>> {
        let named = inbound.envelope.session_id.clone().filter(|id| !id.is_empty());
        ready(Ok(Some(named.unwrap_or_else(|| inbound.envelope.fallback_session())))).boxed()
    }

    /// Opens the message's lifespan (TP-N3).
    fn load_state<'a>(&'a self, inbound: &'a Inbound, session_id: &'a str) -> HookFuture<'a, Map<String, Value>> {
        async move {
            if let Some(lifespan) = &inbound.lifespan {
                lifespan.open().await?;
            }
            let agent = json!({"has_model": self.model.is_some()});
            Ok(Map::from_iter([("session_id".to_owned(), session_id.into()), ("_runtime_agent".to_owned(), agent)]))
        }
        .boxed()
    }

    fn system_prompt<'a>(&'a self, _: &'a Turn) -> HookFuture<'a, Option<String>> {
        let own = (!self.omits_default_prompt).then(|| DEFAULT_SYSTEM_PROMPT.to_owned());
        let Some(workspace) = &self.workspace else { return ready(Ok(own)).boxed() };
        async move {
            Ok(match (own, agents_file(workspace).await?) {
                (Some(own), Some(told_by_workspace)) => Some(format!("{own}\n\n{told_by_workspace}")),
                (own, told_by_workspace) => own.or(told_by_workspace),
            })
        }
        .boxed()
    }

    /// Returns the text, wrapped if configured, with its media (TP-N5, TP-N6). A command is passed unchanged (TP-N4).
    fn build_prompt<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<Prompt>> {
        let inbound = &turn.inbound.envelope;
        if CommaCommand::parse(&inbound.content).is_some() {
            return ready(Ok(Some(Prompt::Text(inbound.content.clone())))).boxed();
        }
        ready(Ok(Some(Prompt::from_text(self.prompt_text(inbound), &inbound.media)))).boxed()
    }

    /// Answers commands here, before any model (TP-N4); all other prompts are answered by the model (TP-N7).
    fn run_model_stream<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<AnswerStream>> {
        if let Some(command) = CommaCommand::parse(&turn.inbound.envelope.content) {
            return ready(Ok(Some(stream::single_piece(command.answer(turn))))).boxed();
        }
        match &self.model {
            Some(model) => async move { model.answer(turn, prompt).await.map(Some) }.boxed(),
            None => ready(Ok(None)).boxed(),
        }
    }

    /// Closes the message's lifespan with the turn's result (TP-N8).
    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        match &turn.inbound.lifespan {
            Some(lifespan) => lifespan.close(turn.failure.as_ref()),
            None => no_answer(),
        }
    }

    fn provide_tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        self.tapes.clone().map(|tapes| tapes as Arc<dyn TapeStore>)
    }

    /// Returns the output as one message, unless another plugin has rendered it (TP-N9).
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Vec<MessageEnvelope>> {
        let own = turn.rendered.is_empty().then(|| turn.output_message());
        ready(Ok(own.into_iter().collect())).boxed()
    }

    /// Sends a failed turn's error to where its answer was awaited (TP-E4).
    fn on_error<'a>(
        &'a self,
        stage: PipelineStage,
        failure: &'a TurnFailure,
        inbound: &'a MessageEnvelope,
        outlet: &'a Dispatcher<'a>,
    ) -> HookFuture<'a, ()> {
        if stage != PipelineStage::Turn {
            return no_answer();
        }
        async move {
            let mut report = MessageEnvelope { kind: MessageKind::Error, ..inbound.reply(failure.to_string()) };
            report.context.insert("code".to_owned(), failure.code().into());
            outlet.dispatch(&report).await.map_err(|why| HookError::new("dispatch", why.to_string()))?;
            Ok(())
        }
        .boxed()
    }
}
