//! Messages about remote attempts in frames of version 1.
use super::{TextKindVersion1, json};
use crate::agent::AttemptEvent;
use crate::channel::hello::DialInCapabilities;
use crate::peer::remote::{AgentCapacity, CallProgress, RemoteEvent, RemoteMessage};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{AgentEventId, AgentId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::Order;
use turnway_core::protocol::versioned::{FormList, VersionedForm};

/// The form of a [`RemoteMessage`].
#[derive(Serialize, Deserialize)]
pub(in crate::peer::frame) enum RemoteMessageVersion1<'a> {
    ListAgents,
    Serving {
        agents: FormList<'a, (AgentId, AgentCapacity), (Cow<'a, AgentId>, AgentCapacityVersion1)>,
    },
    Order {
        call: u64,
        n: u64,
        #[serde(with = "json")]
        order: Cow<'a, Arc<Order>>,
    },
    Event {
        call: u64,
        n: u64,
        event: RemoteEventVersion1<'a>,
    },
    Progress {
        outgoing: FormList<'a, CallProgress, CallProgressVersion1>,
        incoming: FormList<'a, CallProgress, CallProgressVersion1>,
    },
    Abandoned {
        call: u64,
    },
    GivenUp {
        call: u64,
    },
    Stop {
        #[serde(with = "json")]
        order: Cow<'a, Arc<Order>>,
    },
}

/// The form of an [`AgentCapacity`].
#[derive(Serialize, Deserialize)]
pub(in crate::peer::frame) struct AgentCapacityVersion1 {
    connections: u32,
    open: u32,
    has_room: bool,
}

/// The form of a [`CallProgress`].
#[derive(Serialize, Deserialize)]
pub(in crate::peer::frame) struct CallProgressVersion1 {
    call: u64,
    received: u64,
    delivered: u64,
}

/// The form of a [`RemoteEvent`].
#[derive(Serialize, Deserialize)]
pub(in crate::peer::frame) enum RemoteEventVersion1<'a> {
    Assigned(DialInCapabilitiesVersion1),
    NoCapacity,
    Text { kind: TextKindVersion1, text: Cow<'a, Arc<str>>, id: Option<Cow<'a, AgentEventId>> },
    Other(#[serde(with = "json")] Cow<'a, Arc<AttemptEvent>>),
    ConnectionLost,
}

/// The form of [`DialInCapabilities`].
#[derive(Serialize, Deserialize)]
pub(in crate::peer::frame) struct DialInCapabilitiesVersion1 {
    steer: bool,
    resume: bool,
    cancel: bool,
}

impl<'a> VersionedForm<'a> for RemoteMessageVersion1<'a> {
    type Domain = RemoteMessage;

    #[inline(always)]
    fn borrow(message: &'a RemoteMessage) -> Self {
        match message {
            RemoteMessage::ListAgents => Self::ListAgents,
            RemoteMessage::Serving { agents } => Self::Serving { agents: FormList::Borrowed(agents) },
            RemoteMessage::Order { call, n, order } => Self::Order { call: *call, n: *n, order: Cow::Borrowed(order) },
            RemoteMessage::Event { call, n, event } => {
                Self::Event { call: *call, n: *n, event: RemoteEventVersion1::borrow(event) }
            }
            RemoteMessage::Progress { outgoing, incoming } => {
                Self::Progress { outgoing: FormList::Borrowed(outgoing), incoming: FormList::Borrowed(incoming) }
            }
            RemoteMessage::Abandoned { call } => Self::Abandoned { call: *call },
            RemoteMessage::GivenUp { call } => Self::GivenUp { call: *call },
            RemoteMessage::Stop { order } => Self::Stop { order: Cow::Borrowed(order) },
        }
    }

    fn into_domain(self) -> RemoteMessage {
        match self {
            Self::ListAgents => RemoteMessage::ListAgents,
            Self::Serving { agents } => RemoteMessage::Serving { agents: agents.into_domain() },
            Self::Order { call, n, order } => RemoteMessage::Order { call, n, order: order.into_owned() },
            Self::Event { call, n, event } => RemoteMessage::Event { call, n, event: event.into_domain() },
            Self::Progress { outgoing, incoming } => {
                RemoteMessage::Progress { outgoing: outgoing.into_domain(), incoming: incoming.into_domain() }
            }
            Self::Abandoned { call } => RemoteMessage::Abandoned { call },
            Self::GivenUp { call } => RemoteMessage::GivenUp { call },
            Self::Stop { order } => RemoteMessage::Stop { order: order.into_owned() },
        }
    }
}

impl VersionedForm<'_> for AgentCapacityVersion1 {
    type Domain = AgentCapacity;

    #[inline(always)]
    fn borrow(capacity: &AgentCapacity) -> Self {
        let AgentCapacity { connections, open, has_room } = *capacity;
        Self { connections, open, has_room }
    }

    fn into_domain(self) -> AgentCapacity {
        let Self { connections, open, has_room } = self;
        AgentCapacity { connections, open, has_room }
    }
}

impl VersionedForm<'_> for CallProgressVersion1 {
    type Domain = CallProgress;

    #[inline(always)]
    fn borrow(progress: &CallProgress) -> Self {
        let CallProgress { call, received, delivered } = *progress;
        Self { call, received, delivered }
    }

    fn into_domain(self) -> CallProgress {
        let Self { call, received, delivered } = self;
        CallProgress { call, received, delivered }
    }
}

impl<'a> VersionedForm<'a> for RemoteEventVersion1<'a> {
    type Domain = RemoteEvent;

    #[inline(always)]
    fn borrow(event: &'a RemoteEvent) -> Self {
        match event {
            RemoteEvent::Assigned(can) => Self::Assigned(DialInCapabilitiesVersion1::borrow(can)),
            RemoteEvent::NoCapacity => Self::NoCapacity,
            RemoteEvent::Text { kind, text: Private(text), id } => Self::Text {
                kind: TextKindVersion1::borrow(kind),
                text: Cow::Borrowed(text),
                id: id.as_ref().map(Cow::Borrowed),
            },
            RemoteEvent::Other(event) => Self::Other(Cow::Borrowed(event)),
            RemoteEvent::ConnectionLost => Self::ConnectionLost,
        }
    }

    fn into_domain(self) -> RemoteEvent {
        match self {
            Self::Assigned(can) => RemoteEvent::Assigned(can.into_domain()),
            Self::NoCapacity => RemoteEvent::NoCapacity,
            Self::Text { kind, text, id } => RemoteEvent::Text {
                kind: kind.into_domain(),
                text: Private(text.into_owned()),
                id: id.map(Cow::into_owned),
            },
            Self::Other(event) => RemoteEvent::Other(event.into_owned()),
            Self::ConnectionLost => RemoteEvent::ConnectionLost,
        }
    }
}

impl VersionedForm<'_> for DialInCapabilitiesVersion1 {
    type Domain = DialInCapabilities;

    #[inline(always)]
    fn borrow(can: &DialInCapabilities) -> Self {
        let DialInCapabilities { steer, resume, cancel } = *can;
        Self { steer, resume, cancel }
    }

    fn into_domain(self) -> DialInCapabilities {
        let Self { steer, resume, cancel } = self;
        DialInCapabilities { steer, resume, cancel }
    }
}
