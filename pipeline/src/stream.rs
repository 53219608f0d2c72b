//! An answer as a stream of pieces.
use crate::failure::Trouble;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    /// An error; the stream may continue (TP-M11).
    Error(Trouble),
    /// Any other event of a model, by name.
    Other(String, Value),
}

/// An answer in progress.
pub type Pieces = BoxStream<'static, Piece>;

/// A whole answer as a stream of one piece (TP-M5).
pub fn whole(text: String) -> Pieces {
    stream::once(async move { Piece::Text(text) }).boxed()
}
