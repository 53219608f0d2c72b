//! Calls to language models, in the formats of their APIs: the parts of a request and of an answer that the gateway
//! reads beside a relay of the bytes. Must not translate between formats, nor change a byte except where documented.
pub mod answer;
pub mod call_error;
mod json_text;
pub mod limits;
pub mod request;
mod usage;

pub use answer::{AnswerEnd, AnswerOpening, AnswerReader, ChatEnd, ChatFinish, ChatPiece, ChatReader};
pub use call_error::{CallError, CallErrorKind};
pub use request::{CallRequest, CallRequestError};
pub use usage::TokenUsage;

/// Formats of a call; each has a route of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallFormat {
    /// Defined by OpenAI, and by many others.
    ChatCompletions,
    /// Defined by OpenAI, with events that have types.
    Responses,
    /// Defined by Anthropic, with errors of its own form.
    Messages,
    /// Defined by OpenAI; never streamed.
    Embeddings,
}

// === impl CallFormat ===

impl CallFormat {
    /// Every format, each once.
    pub const ALL: [Self; 4] = [Self::ChatCompletions, Self::Responses, Self::Messages, Self::Embeddings];

    /// Returns the path below the API's base, such as `/chat/completions`.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Responses => "/responses",
            Self::Messages => "/messages",
            Self::Embeddings => "/embeddings",
        }
    }

    /// Returns the name for logs, metrics and facts.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
        }
    }
}
