//! One turn through scripted plugins that record their calls.
mod errors;
mod model;
mod scripted;
mod stages;

use turnway_pipeline::{BuiltinPlugin, Inbound, MessageEnvelope, Pipeline};

/// Returns a message of a chat.
fn inbound(text: &str) -> Inbound {
    let chat = |name: &str| Some(name.to_owned());
    MessageEnvelope { channel: chat("cli"), chat_id: chat("7"), ..MessageEnvelope::from_text(text) }.into()
}

/// Returns a pipeline with the built-in plugin alone.
fn plain() -> Pipeline {
    Pipeline::new("/srv/agent").with(BuiltinPlugin::new())
}
