//! The settings of channels: how messages of a platform are treated. An operator gives them by the channel's name; the
//! machines of nodes and sessions read them. They are the same on every node of a fleet.
use crate::id::ChannelName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The settings of one channel; the default holds for a channel that is not configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSettings {
    /// The time without a further message of the same person after which gathered messages become one turn; `None`: each
    /// message is a turn of its own, at once.
    pub debounce: Option<Duration>,
    /// An agent's turn that came from the channel may give tasks to other agents, each in a conversation of its own.
    pub spawn_subagent_sessions: bool,
    /// The completion of a task goes to the conversation of its requester if no binding applies, instead of nowhere.
    pub falls_back: bool,
    /// The age from which a message of a conversation that nobody has bound starts no turn; `None`: any age does.
    pub stale_after: Option<Duration>,
    /// The same for a conversation that is bound to a session.
    pub stale_after_bound: Option<Duration>,
    /// The last word to a conversation whose binding has ended; `None`: none.
    pub farewell: Option<Arc<str>>,
}

/// The channels that an operator has configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelDirectory(pub BTreeMap<ChannelName, ChannelSettings>);

impl ChannelDirectory {
    /// Returns the settings of a channel.
    pub fn settings(&self, channel: &ChannelName) -> ChannelSettings {
        self.0.get(channel).cloned().unwrap_or_default()
    }
}
