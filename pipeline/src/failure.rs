//! What goes wrong in a turn, and where.
use std::fmt;
use thiserror::Error;

/// A stage of the pipeline, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Which session it is.
    ResolveSession,
    /// What is known.
    LoadState,
    /// Whether it is done at all.
    Admit,
    /// What the model is asked.
    BuildPrompt,
    /// What it answers.
    RunModel,
    /// What is known afterwards.
    SaveState,
    /// What is said.
    RenderOutbound,
    /// Saying it.
    DispatchOutbound,
    /// The turn as a whole.
    Turn,
}

impl Stage {
    /// Its name, as hooks and logs have it.
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

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a hook could not do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Trouble {
    /// A stable name, such as `agent_error`.
    pub code: String,
    /// For people.
    pub message: String,
}

impl Trouble {
    /// A trouble by this name.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// Why a turn came to no good end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// A hook failed, or panicked.
    #[error("{stage}: {plugin}: {trouble}")]
    Hook {
        /// Where.
        stage: Stage,
        /// Whose.
        plugin: String,
        /// What.
        trouble: Trouble,
    },
    /// A plugin refused it ([`admit`](crate::Plugin::admit)).
    #[error("refused: {0}")]
    Refused(Trouble),
    /// The model gave no output.
    #[error("run_model: nobody answered")]
    NoOutput,
    /// The model told of an error in mid-answer.
    #[error("run_model: {0}")]
    Told(Trouble),
    /// Over a limit.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Failure {
    /// The stage and the plugin, where it is one's, for logs: no word of a hook's own.
    pub fn place(&self) -> String {
        match self {
            Self::Hook { stage, plugin, .. } => format!("{stage}: {plugin}"),
            Self::Refused(_) => Stage::Admit.to_string(),
            Self::NoOutput | Self::Told(_) | Self::TooLarge(_) => Stage::RunModel.to_string(),
            Self::Cancelled => Stage::Turn.to_string(),
        }
    }

    /// A stable code for whoever is told.
    pub fn code(&self) -> &str {
        match self {
            Self::Hook { trouble, .. } | Self::Refused(trouble) | Self::Told(trouble) => &trouble.code,
            Self::NoOutput => "no_output",
            Self::TooLarge(_) => "too_large",
            Self::Cancelled => "cancelled",
        }
    }
}
