//! Peer messages about remote attempts at dial-in agents.
use crate::run;
use std::sync::Arc;
use turnway_core::id::{AgentEventId, AgentId, Epoch, TenantId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{Order, StopReason, TextKind};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::{AgentCapacity, CallProgress, RemoteEvent, RemoteMessage};

/// Returns one message of each kind about remote attempts.
pub(crate) fn all() -> impl Iterator<Item = PeerMessage> {
    let order =
        |run_id| Arc::new(Order::Cancel { tenant: TenantId::default_tenant(), run_id, attempt: 1, epoch: Epoch(7) });
    let count = |call| CallProgress { call, received: 5, delivered: 4 };
    let id = AgentEventId::parse("e1").ok();
    let text = |kind, text: &str, id| RemoteEvent::Text { kind, text: Private(text.into()), id };
    let spoken = [
        RemoteEvent::Assigned(DialInCapabilities { steer: true, resume: false, cancel: true }),
        RemoteEvent::NoCapacity,
        text(TextKind::Text, "höh 語", id),
        text(TextKind::Reasoning, "", None),
        RemoteEvent::Other(Arc::new(AttemptEvent::Message(AgentMessage::Done {
            stop: StopReason::EndTurn,
            usage: None,
        }))),
        RemoteEvent::ConnectionLost,
    ];
    let agent = AgentId::parse("a").expect("a name");
    let some = [
        RemoteMessage::ListAgents,
        RemoteMessage::Serving { agents: vec![(agent, AgentCapacity { connections: 2, open: 3, has_room: true })] },
        RemoteMessage::Order { call: 9, n: 1, order: order(run("s1")) },
        RemoteMessage::Progress { outgoing: vec![count(1), count(2)], incoming: vec![] },
        RemoteMessage::Abandoned { call: 9 },
        RemoteMessage::GivenUp { call: 9 },
        RemoteMessage::Stop { order: order(run("s1")) },
    ];
    let spoken = spoken.into_iter().map(|spoken| RemoteMessage::Event { call: 9, n: 2, event: spoken });
    some.into_iter().chain(spoken).map(PeerMessage::RemoteAttempt)
}
