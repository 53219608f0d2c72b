//! `turnway.v1` as JSON texts: what a client sent, and what a link is shown.
//!
//! One message is one JSON object, whatever carries it. Reading is strict about form and silent about
//! content: what is wrong is named by its field, never quoted (S-38).
//!
//! # Layout (each line leans only on those below it)
//! - [`parse`]: a text into a [`parse::ClientMessage`]; [`render`]: a note into texts; [`envelope`]: a fact
//!   as it lies in the log.
//! - `mention`: whom an input addresses; `frame`: the shapes that are written.
//! - `fields`: one field of one kind; [`strict`]: JSON within bounds.
//! - [`malformed`]: what can be wrong.
pub mod envelope;
pub(crate) mod fields;
mod frame;
pub mod malformed;
pub(in crate::channel) mod mention;
pub mod parse;
pub mod render;
pub mod strict;
