//! The client protocol `turnway.v1` without its transport: commands, notifications, and their encodings.
pub mod account;
pub mod adapter;
pub mod authority;
pub mod binding;
pub mod close_code;
pub mod command;
pub mod hello;
pub mod json;
pub mod notification;
pub mod openai;
pub mod run;
pub mod run_usage;
pub mod service;
pub mod sse;
pub mod transcript;

/// The name of the protocol, as in `welcome.protocol`, as a WebSocket's subprotocol and as WebTransport's.
pub const PROTOCOL: &str = "turnway.v1";
