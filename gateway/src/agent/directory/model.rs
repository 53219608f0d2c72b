//! The settings of an agent that is a model: parses the values of its keys, and reads the file with its system prompt.
//! Called by `directory`.
use super::{BadAgentKey, invalid};
use std::io::Read;
use std::sync::Arc;
use turnway_core::limits;
use turnway_core::private::Private;

/// Characters of a model's name, as in the configuration of models.
const NAME_CHARACTERS_MAX: usize = 128;

/// An agent that is a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEndpoint {
    /// Name of a configured model.
    pub model: String,
    pub system: Option<SystemPrompt>,
    /// Estimated tokens of the earlier conversation that are sent at most.
    pub context_tokens: u32,
    /// Maximum of an answer, in tokens.
    pub max_output: Option<u32>,
}

/// The text of a system prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemPrompt(pub Private<Arc<str>>);

/// The settings of a model while they are parsed.
#[derive(Debug, Default)]
pub(super) struct ModelOptions {
    system: Option<SystemPrompt>,
    /// `None` if not configured.
    context_tokens: Option<u32>,
    max_output: Option<u32>,
}

// === impl ModelEndpoint ===

impl ModelEndpoint {
    /// Creates an agent that is the model of this name, with the default settings. Whether the model is configured is
    /// checked later.
    pub(super) fn new(name: &str) -> Result<Self, &'static str> {
        let is_name = (1..=NAME_CHARACTERS_MAX).contains(&name.len()) && !name.chars().any(char::is_whitespace);
        if !is_name || name.contains("://") {
            return Err("expected model:NAME with the name of a configured model");
        }
        let context_tokens = limits::MODEL_AGENT_CONTEXT_TOKENS;
        Ok(Self { model: name.to_owned(), system: None, context_tokens, max_output: None })
    }

    pub(super) fn with_options(self, options: ModelOptions) -> Self {
        let ModelOptions { system, context_tokens, max_output } = options;
        Self { system, context_tokens: context_tokens.unwrap_or(self.context_tokens), max_output, ..self }
    }
}

// === impl ModelOptions ===

impl ModelOptions {
    pub(super) fn set_system(&mut self, path: &str) -> Result<(), BadAgentKey> {
        if path == "none" {
            return Ok(());
        }
        let read = read_prompt(path).map_err(|why| BadAgentKey::File { path: path.to_owned(), why })?;
        self.system = Some(read);
        Ok(())
    }

    pub(super) fn set_context(&mut self, value: &str) -> Result<(), BadAgentKey> {
        let tokens = value.parse().ok().filter(|tokens| *tokens <= limits::MODEL_AGENT_CONTEXT_TOKENS_MAX);
        let tokens = tokens.ok_or_else(|| invalid(value, "a number of tokens from 0 to 1000000"))?;
        self.context_tokens = Some(tokens);
        Ok(())
    }

    pub(super) fn set_max_output(&mut self, value: &str) -> Result<(), BadAgentKey> {
        if value == "none" {
            return Ok(());
        }
        let tokens = value.parse().ok().filter(|tokens| (1..=limits::MODEL_AGENT_OUTPUT_TOKENS_MAX).contains(tokens));
        let tokens = tokens.ok_or_else(|| invalid(value, "a number of tokens from 1 to 1000000, or none"))?;
        self.max_output = Some(tokens);
        Ok(())
    }

    /// Checks that an agent that is no model has no such setting, except a default.
    pub(super) fn check_unused(&self) -> Result<(), (&'static str, BadAgentKey)> {
        let why = "no value: only agents with url = \"model:NAME\" have this key";
        if self.system.is_some() {
            return Err(("system", invalid("a file", why)));
        }
        if let Some(tokens) = self.context_tokens.filter(|tokens| *tokens != limits::MODEL_AGENT_CONTEXT_TOKENS) {
            return Err(("context", invalid(&tokens.to_string(), why)));
        }
        match self.max_output {
            Some(tokens) => Err(("max_output", invalid(&tokens.to_string(), why))),
            None => Ok(()),
        }
    }
}

/// Reads a system prompt, without the white space at its end, which editors add.
fn read_prompt(path: &str) -> Result<SystemPrompt, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let most = limits::MODEL_AGENT_SYSTEM_BYTES_MAX;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > most {
        return Err(format!("is longer than {most} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    Ok(SystemPrompt(Private(text.trim_end().into())))
}
