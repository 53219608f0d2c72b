//! What goes into a node and what comes out.
use crate::channel::command::Command;
use crate::channel::note::Note;
use crate::peer::Words;
use std::collections::BTreeSet;
use turnway_core::id::{Epoch, EventId, LinkId, NodeId, Principal, RunId, SessionId, SessionKey};
use turnway_core::protocol::action::{ToolOrder, ToolReport};
use turnway_core::protocol::agent::{AgentEvent, Order};
use turnway_core::store::{Op, Reply, StoreError};

/// What may happen to a node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A link was admitted.
    Connect {
        /// Named per accepted connection, never by its client.
        link: LinkId,
        /// Who is at its other end.
        principal: Principal,
    },
    /// A link is gone.
    Disconnect {
        /// Which.
        link: LinkId,
    },
    /// A link asks for something.
    Say {
        /// Which.
        link: LinkId,
        /// What.
        command: Command,
    },
    /// A link has written notes of this weight to its peer since it last said so. It says so at the
    /// latest after [`turnway_core::limits::LINK_REPORT_BYTES`].
    Written {
        /// Which.
        link: LinkId,
        /// Sum of [`Note::weight`].
        weight: usize,
    },
    /// A link is to be shown nothing more of a session for a while, because its client does not take the text
    /// of it; or it is again.
    Hold {
        /// Which.
        link: LinkId,
        /// Which session.
        session: SessionId,
        /// From now on, or not any more.
        is_held: bool,
    },
    /// Another node speaks.
    Peer {
        /// Which.
        from: NodeId,
        /// What.
        words: Words,
    },
    /// The bus had nobody to give our words to.
    Unheard {
        /// Which node.
        to: NodeId,
    },
    /// The subscription to this node's inbox was made anew: words may have been missed.
    Gap,
    /// The store answered; the request is its own continuation.
    Stored {
        /// The request.
        op: Op,
        /// The answer.
        result: Result<Reply, StoreError>,
    },
    /// An agent reports.
    Agent {
        /// Which session.
        key: SessionKey,
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// The ownership it was ordered under.
        epoch: Epoch,
        /// What it said, in order, since it was last listened to; their facts go out together.
        events: Vec<AgentEvent>,
    },
    /// Something is heard of an action.
    Tool {
        /// Which session.
        key: SessionKey,
        /// Which action.
        action_id: EventId,
        /// What.
        report: ToolReport,
    },
    /// Leave: take on nothing, let running turns end for [`turnway_core::limits::DRAIN`], hand over, exit.
    Drain,
    /// The nodes that can take over what a leaving one has. Said once it leaves, if there are any.
    Heirs(BTreeSet<NodeId>),
}

impl Input {
    /// The session it is about, where it is about one.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Stored { op, .. } => op.key(),
            Self::Agent { key, .. } | Self::Tool { key, .. } => Some(key),
            Self::Peer { words, .. } => words.key(),
            Self::Connect { .. }
            | Self::Disconnect { .. }
            | Self::Say { .. }
            | Self::Written { .. }
            | Self::Unheard { .. }
            | Self::Gap
            | Self::Drain
            | Self::Hold { .. }
            | Self::Heirs(_) => None,
        }
    }
}

/// What a node asks its shell to do.
#[derive(Clone, Debug)]
pub enum Output {
    /// Ask the store.
    Store(Op),
    /// Send to a node's inbox.
    Publish {
        /// Which node.
        to: NodeId,
        /// What.
        words: Words,
    },
    /// Tell an agent.
    Order(Order),
    /// Tell a tool runner.
    Tool(ToolOrder),
    /// Show a local link: facts in order, without gaps or repeats.
    Send {
        /// Which.
        link: LinkId,
        /// What.
        note: Note,
    },
    /// Nothing is left to do here.
    Exit,
}
