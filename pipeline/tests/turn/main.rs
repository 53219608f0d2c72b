//! One turn through the plugins of a test, which write down what they are asked.
mod actor;
mod errors;
mod model;
mod stages;

use turnway_pipeline::{Builtin, Envelope, Inbound, Pipeline};

/// A message of a chat.
fn inbound(text: &str) -> Inbound {
    let chat = |name: &str| Some(name.to_owned());
    Envelope { channel: chat("cli"), chat_id: chat("7"), ..Envelope::text(text) }.into()
}

/// The built-in plugin alone.
fn plain() -> Pipeline {
    Pipeline::new("/srv/agent").with(Builtin::new())
}
