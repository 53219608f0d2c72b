//! An answer, piece by piece.
use crate::failure::Trouble;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// More text.
    Text(String),
    /// Something went wrong; the stream may go on (TP-M11).
    Error(Trouble),
    /// Anything else that a model tells, by name.
    Other(String, Value),
}

/// An answer on its way.
pub type Pieces = BoxStream<'static, Piece>;

/// A whole answer as a stream of one piece (TP-M5).
pub fn whole(text: String) -> Pieces {
    stream::once(async move { Piece::Text(text) }).boxed()
}
