//! Fuzz targets for every parser of external input, as functions of bytes: no input may cause a panic or break
//! an asserted property. `fuzz/run` searches for such bytes; `tests/kept.rs` replays all known ones, and
//! asserts that each target gets far enough with its corpus.
pub mod agents;
pub mod clients;
pub mod credentials;
pub mod dialin;
pub mod models;
pub mod nodes;
pub mod operators;
pub mod quic;
pub mod runners;
pub mod sockets;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name, as used by the fuzzer and in `fuzz/corpus` and `fuzz/crashes`.
    pub name: &'static str,
    /// Returns the number of items understood. Panics if an asserted property is broken.
    pub read: fn(&[u8]) -> usize,
}

/// Every target.
pub const TARGETS: [Target; 26] = [
    Target { name: "client_message", read: clients::message },
    Target { name: "client_turn", read: clients::turn },
    Target { name: "openai_call", read: clients::openai },
    Target { name: "cursors", read: clients::cursors },
    Target { name: "query", read: clients::query },
    Target { name: "proxy_header", read: sockets::proxy_header },
    Target { name: "upgrade_head", read: sockets::request_head },
    Target { name: "websocket_frames", read: sockets::websocket_frames },
    Target { name: "http3", read: sockets::http3 },
    Target { name: "quic_frames", read: quic::frames },
    Target { name: "quic_proofs", read: quic::ids_and_tokens },
    Target { name: "api_key", read: credentials::api_key },
    Target { name: "key_record", read: credentials::key_record },
    Target { name: "token", read: credentials::token },
    Target { name: "token_claims", read: credentials::token_claims },
    Target { name: "key_set", read: credentials::key_set },
    Target { name: "agent_events", read: agents::events },
    Target { name: "agent_messages", read: dialin::messages },
    Target { name: "runner_messages", read: runners::messages },
    Target { name: "model_stream", read: models::answer },
    Target { name: "model_call", read: models::call },
    Target { name: "node_frame", read: nodes::frame },
    Target { name: "stored_fact", read: nodes::fact },
    Target { name: "config_file", read: operators::file },
    Target { name: "agent_flag", read: operators::agent },
    Target { name: "welcome_lists", read: operators::host_and_origin_lists },
];

/// Returns the target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
