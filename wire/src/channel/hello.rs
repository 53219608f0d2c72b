//! The first message of a client: its identity and the role of its connection.
use crate::channel::adapter::AdapterHello;
use serde::{Deserialize, Serialize};
use std::fmt;
use turnway_core::id::{AgentId, RunnerId, ToolName, UserId};

/// The identity that a client claims in `hello`; the gateway's authentication verifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloRequest {
    pub user: Option<UserId>,
    /// `api_key` or `token`; never printed.
    pub credential: Option<Credential>,
    pub role: ConnectionRole,
    /// `agent_id` of `role: "agent"`.
    pub agent_id: Option<AgentId>,
    /// `capabilities` of `role: "agent"`.
    pub capabilities: DialInCapabilities,
    /// The account and the abilities of an adapter, for `role: "adapter"`.
    pub adapter: Option<Box<AdapterHello>>,
    /// The tool runner's id and tools, for `role: "tool_runner"`.
    pub runner: Option<Box<RunnerHello>>,
    /// `streams`: the client accepts server-initiated streams for text (QUIC); default true.
    pub streams: bool,
}

/// The id of a tool runner and the tools it offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerHello {
    /// `runner_id`: stable across reconnects.
    pub runner_id: RunnerId,
    pub tools: Vec<ToolName>,
}

/// The optional features of an agent that dials in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialInCapabilities {
    /// Accepts further inputs while it answers; default false.
    pub steer: bool,
    /// Can continue an attempt after a given event, also on another connection; default false.
    pub resume: bool,
    /// Answers `cancel` with `cancel_ack`; default true.
    pub cancel: bool,
}

impl Default for DialInCapabilities {
    fn default() -> Self {
        Self { steer: false, resume: false, cancel: true }
    }
}

/// A secret that a client presents; its `Debug` output hides the value.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(pub String);

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<credential>")
    }
}

/// The role of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionRole {
    #[default]
    User,
    /// An adapter of a chat system.
    Adapter,
    /// An agent that dials in.
    Agent,
    ToolRunner,
}
