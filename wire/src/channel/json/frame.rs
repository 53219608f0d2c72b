//! Serialisable shapes of the messages to clients: borrowed views that are written straight into text.
use crate::channel::notification::{ResetReason, RunSnapshot, SessionStateSnapshot};
use serde::{Serialize, Serializer};
use serde_json::Value;
use turnway_core::id::{AgentId, Epoch, EventId, MessageId, RequestId, RunId, Seq, SessionId, UserId};
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::entry::{Admission, Scope};
use turnway_core::protocol::input::{Content, Message};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::Code;
use turnway_core::protocol::steer::SteerOutcome;
use turnway_core::session::Handover;
use turnway_core::time::Millis;

/// The fields of every message, around a body that depends on the message type.
#[derive(Serialize)]
pub struct MessageFrame<'a, B: Serialize> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) ts: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<&'a RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<&'a SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_id: Option<&'a RunId>,
    #[serde(flatten)]
    pub(super) body: B,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<Seq>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<Epoch>,
}

impl<B: Serialize> MessageFrame<'_, B> {
    /// Returns the message as JSON; `capacity` is an estimate of its length that avoids reallocation.
    pub fn text(&self, capacity: usize) -> String {
        to_json(self, capacity)
    }
}

/// Serialises a message. Messages have string keys and finite numbers only, so serialisation always succeeds, and
/// as UTF-8.
pub(super) fn to_json<T: Serialize>(value: &T, capacity: usize) -> String {
    let mut bytes = Vec::with_capacity(capacity);
    let written = serde_json::to_writer(&mut bytes, value);
    debug_assert!(written.is_ok(), "our shapes always serialise");
    String::from_utf8(bytes).unwrap_or_default()
}

/// A piece of streamed text. Most messages are deltas, so they have a shape of their own.
#[derive(Serialize)]
pub(super) struct DeltaPayload<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) ts: Millis,
    pub(super) session_id: &'a SessionId,
    pub(super) run_id: &'a RunId,
    pub(super) attempt: u32,
    pub(super) offset: u64,
    pub(super) text: &'a str,
    #[serde(rename = "kind", skip_serializing_if = "Option::is_none")]
    pub(super) text_kind: Option<TextKind>,
}

impl DeltaPayload<'_> {
    pub(super) fn text(&self) -> String {
        // Room for the frame, two ids, and a few escapes.
        to_json(self, self.text.len() + self.text.len() / 16 + 256)
    }
}

/// The body of a message without fields of its own.
#[derive(Serialize)]
pub(super) struct EmptyPayload {}

/// The body of `event`: its name, and the fields that the event has.
#[derive(Default, Serialize)]
pub(super) struct EventPayload<'a> {
    pub(super) name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_id: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<Admission>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trigger: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline_ts: Option<Millis>,
    /// On a member change: the transaction id of all messages of the change (SR-T13).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_id: Option<EventId>,
    /// On a handover: the id of all messages of the handover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handover_id: Option<EventId>,
    /// The agent was a member before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restored: Option<bool>,
    /// The run that the input was handed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host_run_id: Option<&'a RunId>,
    /// The waiting run whose queue position the input takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replaces: Option<&'a RunId>,
    /// The agent's answer to a steered input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<SteerOutcome>,
}

/// The body of the message for a plain fact: the fact's data, and the name of an `event`.
#[derive(Serialize)]
pub(super) struct PlainFactPayload {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'static str>,
    #[serde(flatten)]
    pub(super) data: Value,
}

/// The body of an `event` for a fact that is shown only on request, as stored in the log.
#[derive(Serialize)]
pub(super) struct RawFactPayload<'a, D: Serialize> {
    pub(super) name: &'a str,
    pub(super) data: D,
}

/// The data of an `agent.stream.delta`.
#[derive(Serialize)]
pub(super) struct StreamDeltaPayload<'a> {
    pub(super) attempt: u32,
    pub(super) offset: u64,
    pub(super) text: &'a str,
}

/// The data of a `turn.gathered`.
#[derive(Serialize)]
pub(super) struct GatheredPayload<'a> {
    pub(super) host_run_id: &'a RunId,
}

/// The data of an `agent.invoke.done`; also the body of `run_started`.
#[derive(Serialize)]
pub(super) struct AttemptPayload<'a> {
    pub(super) agent_id: &'a AgentId,
    pub(super) attempt: u32,
}

/// The body of `message`.
#[derive(Serialize)]
pub(super) struct UserMessagePayload<'a> {
    pub(super) role: &'static str,
    pub(super) message: &'a Message,
    pub(super) content: &'a Content,
    pub(super) message_id: &'a MessageId,
    pub(super) user_id: &'a UserId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_id: Option<&'a AgentId>,
}

/// The body of `state`.
#[derive(Serialize)]
pub(super) struct StatePayload<'a> {
    pub(super) scope: Scope,
    pub(super) state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<&'a Json>,
}

/// The body of `done`.
#[derive(Serialize)]
pub(super) struct DonePayload<'a> {
    pub(super) status: &'static str,
    pub(super) stop_reason: StopReason,
    pub(super) text_bytes: u64,
    pub(super) attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<&'a Json>,
    /// The run that the input has become part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host_run_id: Option<&'a RunId>,
}

/// The body of `error`.
#[derive(Serialize)]
pub(super) struct ErrorPayload<'a> {
    pub(super) code: Code,
    pub(super) message: &'a str,
    pub(super) retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<ErrorDetailPayload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) terminal: Option<bool>,
}

/// The field `error.detail`.
#[derive(Default, Serialize)]
pub(super) struct ErrorDetailPayload<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_code: Option<&'a str>,
    /// For operators only: the fact carries no body for other principals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_id: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_id: Option<EventId>,
}

/// The body of `session_opened`.
#[derive(Serialize)]
pub(super) struct SessionOpenedPayload<'a> {
    pub(super) agents: &'a [AgentId],
    pub(super) active_agent: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<SnapshotPayload<'a>>,
}

/// The body of `members`.
#[derive(Serialize)]
pub(super) struct MembersPayload<'a> {
    pub(super) agents: &'a [AgentId],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) active_agent: Option<&'a AgentId>,
}

/// The body of `handover_prompt`.
#[derive(Serialize)]
pub(super) struct HandoverPromptPayload<'a> {
    pub(super) handover_id: EventId,
    pub(super) from: &'a AgentId,
    pub(super) to: &'a AgentId,
    pub(super) reason: &'a str,
    pub(super) summary: &'a str,
    pub(super) deadline_ts: Millis,
}

/// The body of `handover`.
#[derive(Serialize)]
pub(super) struct HandoverPayload {
    pub(super) handover_id: EventId,
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
}

/// The body of `subscribed`.
#[derive(Serialize)]
pub(super) struct SubscribedPayload<'a> {
    pub(super) snapshot: SnapshotPayload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reset: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    /// Facts up to this position have been trimmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) floor: Option<Seq>,
}

impl<'a> SubscribedPayload<'a> {
    pub(super) fn new(snapshot: &'a SessionStateSnapshot, reset: Option<ResetReason>) -> Self {
        let (reason, floor) = match reset {
            None => (None, None),
            Some(ResetReason::Trimmed { floor }) => (Some("trimmed"), Some(floor)),
            Some(ResetReason::Regressed) => (Some("regressed"), None),
        };
        Self { snapshot: SnapshotPayload::new(snapshot), reset: reason.map(|_| true), reason, floor }
    }
}

/// A session's present state.
#[derive(Serialize)]
pub(super) struct SnapshotPayload<'a> {
    session_id: &'a SessionId,
    state: &'a str,
    active_agent: Option<&'a AgentId>,
    agents: &'a [AgentId],
    #[serde(serialize_with = "serialize_runs")]
    runs: &'a [RunSnapshot],
    pending: PendingPayload<'a>,
    seq: Seq,
    epoch: Epoch,
}

/// Decisions that a session waits for from a person. Clients may rely on the lists being present; approvals and
/// tools will fill them.
#[derive(Default, Serialize)]
struct PendingPayload<'a> {
    approvals: [(); 0],
    tool_requests: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    handover: Option<PendingHandoverPayload<'a>>,
}

/// A handover that awaits a person's decision, and the run that requested it.
#[derive(Serialize)]
struct PendingHandoverPayload<'a> {
    run_id: &'a RunId,
    #[serde(flatten)]
    prompt: HandoverPromptPayload<'a>,
}

#[derive(Serialize)]
struct RunPayload<'a> {
    run_id: &'a RunId,
    agent_id: &'a AgentId,
    state: &'a str,
    attempt: u32,
    text_bytes: u64,
}

fn serialize_runs<S: Serializer>(runs: &[RunSnapshot], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(runs.iter().map(|run| RunPayload {
        run_id: &run.run_id,
        agent_id: &run.agent_id,
        state: run.state,
        attempt: run.attempt,
        text_bytes: run.text_bytes,
    }))
}

impl<'a> PendingHandoverPayload<'a> {
    fn new(open: &'a Handover) -> Self {
        let Handover { id, run_id, from, to, reason, summary, deadline, joining: _, answer_tail: _ } = open;
        let reason = reason.reveal();
        let summary = summary.reveal();
        let prompt = HandoverPromptPayload { handover_id: *id, from, to, reason, summary, deadline_ts: *deadline };
        Self { run_id, prompt }
    }
}

impl<'a> SnapshotPayload<'a> {
    pub(super) fn new(note: &'a SessionStateSnapshot) -> Self {
        Self {
            session_id: &note.session,
            state: note.state,
            active_agent: note.active_agent.as_ref(),
            agents: &note.agents,
            runs: &note.runs,
            pending: PendingPayload {
                handover: note.handover.as_deref().map(PendingHandoverPayload::new),
                ..PendingPayload::default()
            },
            seq: note.seq,
            epoch: note.epoch,
        }
    }
}

/// The body of `turn_accepted`.
#[derive(Serialize)]
pub(super) struct TurnAcceptedPayload<'a> {
    pub(super) turn_id: &'a RunId,
    pub(super) message_id: &'a MessageId,
    pub(super) duplicate: bool,
    pub(super) durability: &'a str,
}

/// The body of `go_away`.
#[derive(Serialize)]
pub(super) struct GoAwayPayload {
    pub(super) reason: &'static str,
    pub(super) reconnect_within_ms: u64,
    pub(super) jitter_ms: u64,
}

/// The body of `welcome`.
#[derive(Serialize)]
pub(super) struct WelcomePayload<'a> {
    pub(super) connection_id: &'a str,
    pub(super) node_id: String,
    pub(super) protocol: &'static str,
    pub(super) heartbeat_ms: u64,
    pub(super) limits: WelcomeLimits,
    pub(super) resume_window_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_ts: Option<u64>,
}

/// The body of `refreshed`.
#[derive(Serialize)]
pub(super) struct RefreshedPayload {
    pub(super) expires_ts: u64,
}

/// The field `welcome.limits`.
#[derive(Serialize)]
pub(super) struct WelcomeLimits {
    pub(super) max_message_bytes: usize,
    pub(super) max_json_depth: usize,
    pub(super) max_json_values: usize,
    pub(super) max_subscriptions: usize,
    pub(super) max_requests: usize,
    pub(super) max_waiting_inputs: usize,
}
