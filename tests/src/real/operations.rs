//! Requests for every operation of the channel protocol, and their answers in a comparable form.
use super::wire::invoke;
use serde_json::{Value, json};
use turnway_wire::channel::authority::ClientOperation;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::parse::{self, ClientMessage};
use turnway_wire::schema::{JsonShape, MessageGroup, MessageSpec};

/// Id of a handover that does not exist.
const NO_HANDOVER: &str = "019a0000-0000-7000-8000-000000000000";

/// Id of a delivery that does not exist.
const NO_DELIVERY: &str = "abcdefghijklmnopqrstuvwxyz";

/// Types of requests that name no session and no run: they are in no tenant's matrix.
pub const NAME_NO_SESSION: [&str; 6] =
    ["resolve", "touch", "pause_account", "resume_account", "list_paused_accounts", "show_account"];

/// Returns the requests of one action on a session and a run: those written below, and one of each other type of the
/// table of messages.
pub fn requests(action: ClientOperation, session: &str, run: &str) -> Vec<Value> {
    let samples: Vec<Value> = ClientOperation::ALL.iter().flat_map(|action| written(*action, session, run)).collect();
    let is_written =
        |kind: &str| NAME_NO_SESSION.contains(&kind) || samples.iter().any(|request| request["type"] == kind);
    let rows = MessageGroup::FromClient.messages().into_iter().filter(|row| !is_written(row.kind));
    let others = rows.map(|row| of_row(&row, session)).filter(|request| operation_of(request) == Some(action));
    written(action, session, run).into_iter().chain(others).collect()
}

/// Returns a request with the required fields of a row.
fn of_row(row: &MessageSpec, session: &str) -> Value {
    let mut request = json!({"type": row.kind});
    for field in row.fields.iter().filter(|field| field.is_required) {
        request[field.name] = if field.shape == JsonShape::Defined("session_id") {
            session.into()
        } else if let JsonShape::Text(text) = &field.shape {
            text.examples.first().copied().unwrap_or("x").into()
        } else {
            panic!("write a request of type {} below: {:?}", row.kind, field.shape)
        };
    }
    request
}

/// Returns the operation of a request, if it has one and is answered; `unsubscribe` is not.
fn operation_of(request: &Value) -> Option<ClientOperation> {
    let Ok(ClientMessage::Command(command)) = parse::parse(&request.to_string()) else { return None };
    (!matches!(command, LinkCommand::Unsubscribe { .. })).then(|| command.kind().operation)
}

/// Returns the requests with fields that no table gives. The exhaustive match makes a new action a compile error here.
fn written(action: ClientOperation, session: &str, run: &str) -> Vec<Value> {
    match action {
        ClientOperation::Open => vec![json!({"type": "session_open", "session_id": session})],
        ClientOperation::Close => vec![json!({"type": "session_close", "session_id": session})],
        ClientOperation::Read => vec![
            json!({"type": "subscribe", "session_id": session}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 0}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 3, "after_epoch": 1}),
            json!({"type": "subscribe", "session_id": session, "runs": {run: {"attempt": 1, "offset": 0}}}),
            json!({"type": "list_deliveries", "session_id": session}),
        ],
        ClientOperation::Invoke => vec![
            invoke(session, "held", "mine now?"),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "strategy": "interrupt"}),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "strategy": "reject"}),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "replaces": run}),
        ],
        ClientOperation::Change => vec![
            json!({"type": "switch_agent", "session_id": session, "agent_id": "held"}),
            json!({"type": "invite_agent", "session_id": session, "agent_id": "echo", "active": true}),
            json!({"type": "remove_agent", "session_id": session, "agent_id": "held", "reason": "mine now"}),
            json!({"type": "settle_delivery", "session_id": session, "delivery_id": NO_DELIVERY, "decision": "drop"}),
            json!({"type": "send_message", "session_id": session, "text": "from me now"}),
        ],
        ClientOperation::Decide => vec![
            json!({"type": "handover_decision", "session_id": session, "handover_id": NO_HANDOVER, "decision": "confirm"}),
            json!({"type": "handover_decision", "session_id": session, "handover_id": NO_HANDOVER, "decision": "reject"}),
        ],
        ClientOperation::Bind => {
            let conversation = json!({"channel": "rooms", "account_id": "main", "conversation_id": "7"});
            vec![
                json!({"type": "bind", "session_id": session, "conversation": conversation}),
                json!({"type": "bind_child", "session_id": session, "parent": conversation, "title": "mine now"}),
                json!({"type": "unbind", "session_id": session}),
                json!({"type": "set_binding_expiry", "session_id": session, "max_age_ms": 1}),
            ]
        }
        ClientOperation::PauseAccount
        | ClientOperation::ReadAccounts
        | ClientOperation::ReadBindings
        | ClientOperation::Adapt => Vec::new(),
        ClientOperation::Cancel => vec![
            json!({"type": "cancel_run", "run_id": run}),
            json!({"type": "cancel_run", "session_id": session}),
            json!({"type": "INTERRUPT", "run_id": run}),
        ],
    }
}

/// Returns the codes with which a request may be refused that names an unknown session. An operation for operators, and
/// one for a conversation whose adapter is away, are refused before the session is looked for.
pub fn refused_as(action: ClientOperation, request: &Value) -> Vec<&'static str> {
    let early = [(action.needs_operator(), "forbidden"), (request["type"] == "bind_child", "adapter_unavailable")];
    early.into_iter().filter_map(|(is_early, code)| is_early.then_some(code)).chain(["not_found"]).collect()
}

/// Removes the parts that must differ between answers: the time, and the names from the request.
pub fn bare(mut answer: Value, names: [&str; 2]) -> String {
    answer["ts"] = Value::Null;
    let mut text = answer.to_string();
    for name in names {
        text = text.replace(name, "NAME");
    }
    text
}
