//! The messages of `turnway.v1` as data: one row for each message, by role and direction. Documents are rendered from
//! the rows. Parsers and renderers do not use them: they are written by hand, and tests compare both.
mod adapter;
mod agent;
pub mod asyncapi;
mod client;
mod connection;
mod definition;
pub mod dictionary;
mod event;
mod fact;
pub mod json_schema;
pub mod markdown;
mod shape;
mod tool_runner;

pub use shape::{FieldSpec, JsonShape, MessageSpec};

/// The other end of a connection to a node, and the direction of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageGroup {
    FromClient,
    ToClient,
    FromAdapter,
    ToAdapter,
    FromAgent,
    ToAgent,
    FromToolRunner,
    ToToolRunner,
}

// === impl MessageGroup ===

impl MessageGroup {
    /// All groups, in the order of the documents.
    pub const ALL: [Self; 8] = [
        Self::FromClient,
        Self::ToClient,
        Self::FromAdapter,
        Self::ToAdapter,
        Self::FromAgent,
        Self::ToAgent,
        Self::FromToolRunner,
        Self::ToToolRunner,
    ];

    /// Returns the group's name in the documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FromClient => "from_client",
            Self::ToClient => "to_client",
            Self::FromAdapter => "from_adapter",
            Self::ToAdapter => "to_adapter",
            Self::FromAgent => "from_agent",
            Self::ToAgent => "to_agent",
            Self::FromToolRunner => "from_tool_runner",
            Self::ToToolRunner => "to_tool_runner",
        }
    }

    /// Returns the group's heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::FromClient => "Client → gateway",
            Self::ToClient => "Gateway → client",
            Self::FromAdapter => "Adapter → gateway",
            Self::ToAdapter => "Gateway → adapter",
            Self::FromAgent => "Agent that dials in → gateway",
            Self::ToAgent => "Gateway → agent that dials in",
            Self::FromToolRunner => "Tool runner → gateway",
            Self::ToToolRunner => "Gateway → tool runner",
        }
    }

    /// Returns whether a node receives the messages. A `null` field of such a message counts as absent.
    pub const fn is_received(self) -> bool {
        match self {
            Self::FromClient | Self::FromAdapter | Self::FromAgent | Self::FromToolRunner => true,
            Self::ToClient | Self::ToAdapter | Self::ToAgent | Self::ToToolRunner => false,
        }
    }

    /// Returns the rows of the group.
    pub fn messages(self) -> Vec<MessageSpec> {
        match self {
            Self::FromClient => client::received(),
            Self::ToClient => [client::sent(), event::sent()].concat(),
            Self::FromAdapter => adapter::received(),
            Self::ToAdapter => adapter::sent_messages(),
            Self::FromAgent => agent::received(),
            Self::ToAgent => agent::sent(),
            Self::FromToolRunner => tool_runner::received(),
            Self::ToToolRunner => tool_runner::sent(),
        }
    }
}

#[cfg(test)]
mod tests;
