//! One turn through scripted plugins that record their calls.
mod actor;
mod errors;
mod model;
mod stages;

use turnway_pipeline::{Builtin, Envelope, Inbound, Pipeline};

/// Returns a message of a chat.
fn inbound(text: &str) -> Inbound {
    let chat = |name: &str| Some(name.to_owned());
    Envelope { channel: chat("cli"), chat_id: chat("7"), ..Envelope::text(text) }.into()
}

/// Returns a pipeline with the built-in plugin alone.
fn plain() -> Pipeline {
    Pipeline::new("/srv/agent").with(Builtin::new())
}
