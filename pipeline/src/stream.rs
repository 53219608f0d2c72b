//! An answer as a stream of pieces.
use crate::failure::HookError;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerPiece {
    Text(String),
    /// An error; the stream may continue (TP-M11).
    Error(HookError),
    /// Any other event of a model, by name.
    Other(String, Value),
}

/// An answer in progress.
pub type AnswerStream = BoxStream<'static, AnswerPiece>;

/// A whole answer as a stream of one piece (TP-M5).
pub fn single_piece(text: String) -> AnswerStream {
    stream::once(async move { AnswerPiece::Text(text) }).boxed()
}
