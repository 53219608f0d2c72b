//! Errors of hooks and failures of turns, with the stage in which they occurred.
use std::fmt;
use thiserror::Error;

/// A stage of the pipeline, in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PipelineStage {
    /// Determines the session of the message.
    ResolveSession,
    /// Loads the state of the session.
    LoadState,
    /// Decides whether the turn is executed at all.
    Admit,
    /// Builds the prompt for the model.
    BuildPrompt,
    /// Gets the answer of the model.
    RunModel,
    /// Saves the state after the turn.
    SaveState,
    /// Renders the messages to be sent.
    RenderOutbound,
    /// Sends the messages.
    DispatchOutbound,
    /// The turn as a whole; not a stage of its own.
    Turn,
}

impl PipelineStage {
    /// Returns the stage's name in hooks and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResolveSession => "resolve_session",
            Self::LoadState => "load_state",
            Self::Admit => "admit",
            Self::BuildPrompt => "build_prompt",
            Self::RunModel => "run_model",
            Self::SaveState => "save_state",
            Self::RenderOutbound => "render_outbound",
            Self::DispatchOutbound => "dispatch_outbound",
            Self::Turn => "turn",
        }
    }
}

impl fmt::Display for PipelineStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct HookError {
    /// A stable code, such as `agent_error`.
    pub code: String,
    /// A description, for people.
    pub message: String,
}

impl HookError {
    /// Creates an error with this code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// The reason why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TurnFailure {
    /// A hook failed, or panicked.
    #[error("{stage}: {plugin}: {trouble}")]
    Hook { stage: PipelineStage, plugin: String, trouble: HookError },
    /// A plugin refused the turn ([`admit`](crate::Plugin::admit)).
    #[error("refused: {0}")]
    Refused(HookError),
    /// No plugin gave an output.
    #[error("run_model: no plugin gave an output")]
    NoOutput,
    /// The model reported an error in the middle of its answer.
    #[error("run_model: {0}")]
    ModelError(HookError),
    /// A limit was exceeded.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    #[error("cancelled")]
    Cancelled,
}

impl TurnFailure {
    /// Returns the stage, and the plugin if the failure is a plugin's, for logs; contains no text of a hook.
    pub fn location(&self) -> String {
        match self {
            Self::Hook { stage, plugin, .. } => format!("{stage}: {plugin}"),
            Self::Refused(_) => PipelineStage::Admit.to_string(),
            Self::NoOutput | Self::ModelError(_) | Self::TooLarge(_) => PipelineStage::RunModel.to_string(),
            Self::Cancelled => PipelineStage::Turn.to_string(),
        }
    }

    /// Returns a stable code for clients.
    pub fn code(&self) -> &str {
        match self {
            Self::Hook { trouble: error, .. } | Self::Refused(error) | Self::ModelError(error) => &error.code,
            Self::NoOutput => "no_output",
            Self::TooLarge(_) => "too_large",
            Self::Cancelled => "cancelled",
        }
    }
}
