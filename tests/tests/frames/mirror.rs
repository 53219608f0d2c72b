//! Peer messages declared independently, as another library encodes them.
use turnway_core::id::{AgentId, Cursor, OwnershipSnapshot, SessionKey};
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput};
use turnway_core::protocol::agent::TextKind;
use turnway_wire::peer::remote::{AgentCapacity, CallProgress, RemoteEvent, RemoteMessage};
use turnway_wire::peer::{OfferedEntry, PeerMessage};
use wincode::SchemaWrite;

/// Copy of the peer message type with plain field types.
#[derive(SchemaWrite)]
pub(crate) enum MirrorMessage {
    Bell {
        key: (String, String),
        owner: (Option<(u128, u128)>, u64),
        item: MirrorItem,
    },
    Taken {
        key: (String, String),
        run_id: String,
    },
    Answered {
        key: (String, String),
        control: String,
        shown: bool,
    },
    NotMine {
        key: (String, String),
        owner: (Option<(u128, u128)>, u64),
    },
    Hello {
        key: (String, String),
        stamp: u64,
    },
    Facts {
        key: (String, String),
        owner: (Option<(u128, u128)>, u64),
        after: (u64, u64),
        facts: Vec<(u64, String)>,
    },
    Chunk {
        key: (String, String),
        epoch: u64,
        chunk: (String, u32, u64, MirrorKind, String),
    },
    Want {
        key: (String, String),
        run_id: String,
        attempt: u32,
        offset: u64,
    },
    Beacon {
        logs: Vec<((String, String), (u64, u64))>,
    },
    Have {
        logs: Vec<((String, String), (u64, u64))>,
    },
    Adopt {
        key: (String, String),
        free: (Option<(u128, u128)>, u64),
    },
    Knock,
    Printed {
        key: (String, String),
        epoch: u64,
        run_id: String,
        printed: (Vec<u8>, MirrorStream, u64, String, MirrorEncoding, bool),
    },
    Trunk(MirrorTrunk),
    Reserve {
        key: (String, String),
        epoch: u64,
    },
    Reserved {
        key: (String, String),
        epoch: u64,
        holder: (u128, u128),
        nonce: u128,
    },
    Deliver {
        order: String,
    },
    DeliveryReport {
        key: (String, String),
        report: String,
    },
    NoAdapter {
        account: String,
    },
    AdapterArrived {
        account: String,
    },
    Signal {
        signal: String,
    },
    PreviewUnwanted {
        key: (String, String),
        preview_id: String,
    },
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorStream {
    Stdout,
    Stderr,
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorEncoding {
    Utf8,
    Base64,
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorItem {
    Input { position: u64, prev: u64, input: String },
    Control { position: u64, prev: u64, control: String },
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorKind {
    Text,
    Reasoning,
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorTrunk {
    Who,
    Serving { agents: Vec<(String, (u32, u32, bool))> },
    Order { call: u64, n: u64, order: String },
    Spoken { call: u64, n: u64, spoken: MirrorSpoken },
    Counts { begun: Vec<(u64, u64, u64)>, taken_on: Vec<(u64, u64, u64)> },
    Hung { call: u64 },
    Gone { call: u64 },
    Halt { order: String },
}

#[derive(SchemaWrite)]
pub(crate) enum MirrorSpoken {
    Placed(bool, bool, bool),
    Refused,
    Text { kind: MirrorKind, text: String, id: Option<String> },
    Word(String),
    Lost,
}

/// Returns the copy of a message.
pub(crate) fn mirror(words: &PeerMessage) -> MirrorMessage {
    let key = |key: &SessionKey| (key.tenant.as_str().to_owned(), key.session.as_str().to_owned());
    let owner = |seen: &OwnershipSnapshot| (seen.holder.map(|holder| (holder.node.0, holder.life.0)), seen.epoch.0);
    let json = |value: &dyn erased::Json| value.json();
    let at = |at: &Cursor| (at.seq.0, at.epoch.0);
    let logs = |logs: &[(SessionKey, Cursor)]| logs.iter().map(|(k, c)| (key(k), at(c))).collect::<Vec<_>>();
    match words {
        PeerMessage::Offer { key: k, owner: o, item } => {
            let item = match item {
                OfferedEntry::Input { position, prev, input } => {
                    MirrorItem::Input { position: position.0, prev: prev.0, input: json(&**input) }
                }
                OfferedEntry::Control { position, prev, control } => {
                    MirrorItem::Control { position: position.0, prev: prev.0, control: json(&**control) }
                }
            };
            MirrorMessage::Bell { key: key(k), owner: owner(o), item }
        }
        PeerMessage::InputAccepted { key: k, run_id } => {
            MirrorMessage::Taken { key: key(k), run_id: run_id.to_string() }
        }
        PeerMessage::ControlAnswered { key: k, control, shown } => {
            MirrorMessage::Answered { key: key(k), control: control.to_string(), shown: *shown }
        }
        PeerMessage::NotOwner { key: k, owner: o } => MirrorMessage::NotMine { key: key(k), owner: owner(o) },
        PeerMessage::Subscribed { key: k, stamp } => MirrorMessage::Hello { key: key(k), stamp: stamp.0 },
        PeerMessage::Facts { key: k, owner: o, after, facts } => {
            let facts = facts.iter().map(|(epoch, entry)| (epoch.0, json(&**entry))).collect();
            MirrorMessage::Facts { key: key(k), owner: owner(o), after: at(after), facts }
        }
        PeerMessage::Chunk { key: k, epoch, chunk } => {
            let kind = mirror_kind(chunk.kind);
            let text = chunk.text.reveal().to_owned();
            let chunk = (chunk.run_id.to_string(), chunk.attempt, chunk.offset, kind, text);
            MirrorMessage::Chunk { key: key(k), epoch: epoch.0, chunk }
        }
        PeerMessage::FetchText { key: k, run_id, attempt, offset } => {
            MirrorMessage::Want { key: key(k), run_id: run_id.to_string(), attempt: *attempt, offset: *offset }
        }
        PeerMessage::TailDigest { logs: l } => MirrorMessage::Beacon { logs: logs(l) },
        PeerMessage::Ack { logs: l } => MirrorMessage::Have { logs: logs(l) },
        PeerMessage::HandOff { key: k, released: free } => MirrorMessage::Adopt { key: key(k), free: owner(free) },
        PeerMessage::Probe => MirrorMessage::Knock,
        PeerMessage::ProcessOutput { key: k, epoch, run_id, printed } => {
            let ProcessOutput { action_id, stream, offset, data, encoding, truncated } = &**printed;
            let stream = mirror_stream(*stream);
            let encoding = mirror_encoding(*encoding);
            let data = data.reveal().to_string();
            let printed = (action_id.0.as_bytes().to_vec(), stream, *offset, data, encoding, *truncated);
            MirrorMessage::Printed { key: key(k), epoch: epoch.0, run_id: run_id.to_string(), printed }
        }
        PeerMessage::RemoteAttempt(words) => MirrorMessage::Trunk(trunk(words)),
        PeerMessage::Reserve { key: k, epoch } => MirrorMessage::Reserve { key: key(k), epoch: epoch.0 },
        PeerMessage::Reserved { key: k, epoch, holder, nonce } => {
            let holder = (holder.node.0, holder.life.0);
            MirrorMessage::Reserved { key: key(k), epoch: epoch.0, holder, nonce: nonce.0 }
        }
        PeerMessage::Deliver { order } => MirrorMessage::Deliver { order: json(&**order) },
        PeerMessage::DeliveryReport { key: k, report } => {
            MirrorMessage::DeliveryReport { key: key(k), report: json(&**report) }
        }
        PeerMessage::NoAdapter { account } => MirrorMessage::NoAdapter { account: json(&**account) },
        PeerMessage::AdapterArrived { account } => MirrorMessage::AdapterArrived { account: json(&**account) },
        PeerMessage::Signal { signal } => MirrorMessage::Signal { signal: json(&**signal) },
        PeerMessage::PreviewUnwanted { key: k, preview_id } => {
            MirrorMessage::PreviewUnwanted { key: key(k), preview_id: preview_id.to_string() }
        }
    }
}

fn mirror_encoding(encoding: OutputEncoding) -> MirrorEncoding {
    match encoding {
        OutputEncoding::Utf8 => MirrorEncoding::Utf8,
        OutputEncoding::Base64 => MirrorEncoding::Base64,
    }
}

fn mirror_stream(stream: OutputStream) -> MirrorStream {
    match stream {
        OutputStream::Stdout => MirrorStream::Stdout,
        OutputStream::Stderr => MirrorStream::Stderr,
    }
}

fn mirror_kind(kind: TextKind) -> MirrorKind {
    match kind {
        TextKind::Text => MirrorKind::Text,
        TextKind::Reasoning => MirrorKind::Reasoning,
    }
}

fn trunk(words: &RemoteMessage) -> MirrorTrunk {
    let json = |value: &dyn erased::Json| value.json();
    let counts = |counts: &[CallProgress]| counts.iter().map(|it| (it.call, it.received, it.delivered)).collect();
    match words {
        RemoteMessage::ListAgents => MirrorTrunk::Who,
        RemoteMessage::Serving { agents } => {
            let agent =
                |(agent, it): &(AgentId, AgentCapacity)| (agent.to_string(), (it.connections, it.open, it.has_room));
            MirrorTrunk::Serving { agents: agents.iter().map(agent).collect() }
        }
        RemoteMessage::Order { call, n, order } => MirrorTrunk::Order { call: *call, n: *n, order: json(&**order) },
        RemoteMessage::Event { call, n, event: spoken } => {
            let spoken = match spoken {
                RemoteEvent::Assigned(can) => MirrorSpoken::Placed(can.steer, can.resume, can.cancel),
                RemoteEvent::NoCapacity => MirrorSpoken::Refused,
                RemoteEvent::Text { kind, text, id } => MirrorSpoken::Text {
                    kind: mirror_kind(*kind),
                    text: text.reveal().to_owned(),
                    id: id.as_ref().map(ToString::to_string),
                },
                RemoteEvent::Other(word) => MirrorSpoken::Word(json(&**word)),
                RemoteEvent::ConnectionLost => MirrorSpoken::Lost,
            };
            MirrorTrunk::Spoken { call: *call, n: *n, spoken }
        }
        RemoteMessage::Progress { outgoing: begun, incoming: taken_on } => {
            MirrorTrunk::Counts { begun: counts(begun), taken_on: counts(taken_on) }
        }
        RemoteMessage::Abandoned { call } => MirrorTrunk::Hung { call: *call },
        RemoteMessage::GivenUp { call } => MirrorTrunk::Gone { call: *call },
        RemoteMessage::Stop { order } => MirrorTrunk::Halt { order: json(&**order) },
    }
}

/// Serialisation of any JSON value in a frame.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> String;
    }
    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).expect("JSON")
        }
    }
}
