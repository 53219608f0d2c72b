//! The messages `event` and `tool_event` to a client: one row for each name. The rows of facts that are shown only on
//! request, and of tool calls, follow from the tables of facts.
use super::client::{placed, placed_in_run, rejection};
use super::connection::sent as framed;
use super::fact;
use super::shape::{FieldSpec, JsonShape, MessageSpec, integer, names, optional, required, small_integer, text, words};
use crate::channel::notification::PROCESS_OUTPUT_TYPE;
use JsonShape::Defined;
use turnway_core::protocol::action::{OutputEncoding, OutputStream};
use turnway_core::protocol::entry::{Admission, Fact};
use turnway_core::protocol::steer::SteerOutcome;

/// Returns the messages to a client.
pub(super) fn sent() -> Vec<MessageSpec> {
    let mut rows = [run_events(), member_events(), handover_events(), session_events(), raw_facts()].concat();
    rows.push(process_output());
    let known = rows.iter().filter(|row| row.kind == "event").filter_map(|row| row.variant).map(str::to_owned);
    let other = JsonShape::OtherText(known.collect());
    let fields = vec![
        required("name", other, "The name of a notice, or the type of a fact of a later release."),
        optional("run_id", Defined("run_id"), ""),
        optional("data", JsonShape::Any, "The data of the fact; to operators only."),
    ];
    rows.push(MessageSpec::new("event", "A notice, or a fact of a later release.", placed(fields)));
    rows
}

fn event(name: &'static str, summary: &str, fields: Vec<FieldSpec>) -> MessageSpec {
    MessageSpec::new("event", summary, fields).named(name)
}

fn agent_id() -> FieldSpec {
    required("agent_id", Defined("agent_id"), "")
}

fn attempt() -> FieldSpec {
    required("attempt", small_integer(), "")
}

fn run_events() -> Vec<MessageSpec> {
    let strategy = names(&[Admission::Run, Admission::Queued, Admission::Interrupts, Admission::Steered]);
    let admitted = vec![
        agent_id(),
        required("strategy", strategy, "The owner's decision on the input."),
        optional("position", small_integer(), "The number of inputs before this one, if it waits."),
        optional("host_run_id", Defined("run_id"), "The run that the input is handed to."),
        optional("replaces", Defined("run_id"), "The run whose position the input takes."),
    ];
    let outcome = names(&[SteerOutcome::Accepted, SteerOutcome::Pending, SteerOutcome::Refused]);
    let acked = vec![
        agent_id(),
        required("host_run_id", Defined("run_id"), "The run that the input was handed to."),
        attempt(),
        required("outcome", outcome, ""),
    ];
    let reason = || required("reason", text(), "The reason for the change.");
    let sent = vec![
        required("reason", text(), "`user`, `interrupt`, `rollback` or `session_close`."),
        required("deadline_ts", Defined("timestamp"), "The run is cancelled by force by then."),
    ];
    // A leading message: only the last message of a fact has a log position.
    let canceled = vec![
        required("session_id", Defined("session_id"), ""),
        required("run_id", Defined("run_id"), ""),
        required("reason", text(), "`user`, `interrupt`, `rollback`, `replaced`, `late_edit` or `session_close`."),
    ];
    vec![
        event("TURN_ADMITTED", "The owner's decision on an input.", placed_in_run(admitted)),
        event("STEER_ACK", "The agent's outcome for a steered input.", placed_in_run(acked)),
        event("AGENT_STARTED", "The agent has the input.", placed_in_run(vec![agent_id(), attempt()])),
        event("RUN_RESTARTED", "Another attempt starts.", placed_in_run(vec![agent_id(), attempt(), reason()])),
        event(
            "RUN_RESUMED",
            "The same attempt continues under another node.",
            placed_in_run(vec![agent_id(), attempt(), reason()]),
        ),
        event("RUN_SUSPENDED", "A draining node has released the attempt.", placed_in_run(vec![attempt(), reason()])),
        event("CANCEL_SENT", "The agent was told to stop.", placed_in_run(sent)),
        event("CANCELED", "The run is cancelled.", framed(canceled)),
    ]
}

fn member_events() -> Vec<MessageSpec> {
    let tx_id = || required("tx_id", Defined("event_id"), "The change of members.");
    let reason = || optional("reason", text(), "In the user's words.");
    let deadline = || required("deadline_ts", Defined("timestamp"), "The change has ended by then.");
    let requested = || placed(vec![agent_id(), tx_id(), reason(), deadline()]);
    let restored = || optional("restored", JsonShape::Flag, "The agent was a member before.");
    let changed = || placed(vec![agent_id(), tx_id(), reason(), restored()]);
    let trigger = words(&["switch_agent", "invite_agent", "remove_agent", "mention", "handover"]);
    let switched = vec![
        optional("run_id", Defined("run_id"), "The turn that caused the switch."),
        required("from", Defined("agent_id"), "The previous active agent."),
        required("to", Defined("agent_id"), "The new active agent."),
        required("reason", text(), ""),
        required("trigger", trigger, "The cause of the switch."),
    ];
    vec![
        event("ADDING_AGENT", "An agent is about to become a member.", requested()),
        event("AGENT_ADDED", "The agent has become a member.", changed()),
        event("AGENT_REMOVING", "A member is about to leave.", requested()),
        event("AGENT_REMOVED", "The member has left.", changed()),
        event("ACTIVE_AGENT_CHANGED", "Another member is active from now on.", placed(switched)),
    ]
}

fn handover_events() -> Vec<MessageSpec> {
    let handover = || {
        vec![
            optional("run_id", Defined("run_id"), ""),
            required("handover_id", Defined("event_id"), ""),
            required("from", Defined("agent_id"), ""),
            required("to", Defined("agent_id"), ""),
        ]
    };
    let rejected = [handover(), vec![required("reason", rejection(), "")]].concat();
    vec![
        event("HANDOVER_CONFIRMED", "The handover is confirmed.", placed(handover())),
        event("HANDOVER_REJECTED", "The handover is rejected.", placed(rejected)),
    ]
}

fn session_events() -> Vec<MessageSpec> {
    let mut rows = plain_facts();
    rows.push(event("NO_ACTIVE_SPEAKING", "There was nothing to cancel.", placed(Vec::new())));
    rows
}

/// Returns the rows of plain facts: their fields are the facts' data.
fn plain_facts() -> Vec<MessageSpec> {
    let row = |row: fact::FactRow| {
        let kind = Fact::kinds().find(|kind| kind.name == row.name)?;
        let (_, name) = kind.plain_message()?;
        let fields = row.fields.into_iter().filter(|field| field.name != "request_id").collect();
        Some(event(name?, row.summary, placed(fields)))
    };
    fact::rows().into_iter().filter_map(row).collect()
}

/// Returns the rows of facts whose messages carry the fact's data.
fn raw_facts() -> Vec<MessageSpec> {
    let row = |row: fact::FactRow| {
        let kind = Fact::kinds().find(|kind| kind.name == row.name)?;
        let message = if kind.messages.is_empty() { "event" } else { kind.messages.split(' ').next()? };
        if !kind.messages.is_empty() && message != "tool_event" {
            return None;
        }
        let data = required("data", Defined(row.definition()), "");
        let fields = placed(vec![optional("run_id", Defined("run_id"), ""), data]);
        Some(MessageSpec::new(message, row.summary, fields).named(row.name))
    };
    fact::rows().into_iter().filter_map(row).collect()
}

fn process_output() -> MessageSpec {
    let data = vec![
        required("action_id", Defined("event_id"), ""),
        required("stream", names(&[OutputStream::Stdout, OutputStream::Stderr]), ""),
        required("offset", integer(), "The position of the first byte in the stream."),
        required("data", text(), ""),
        required("encoding", names(&[OutputEncoding::Utf8, OutputEncoding::Base64]), ""),
        optional("truncated", JsonShape::Flag, "Output before it was left out."),
    ];
    let fields = vec![
        required("session_id", Defined("session_id"), ""),
        required("run_id", Defined("run_id"), "The run that started the process."),
        required("data", JsonShape::Object(data), ""),
    ];
    event(PROCESS_OUTPUT_TYPE, "A piece of a process's output; on request, and not logged.", framed(fields))
}
