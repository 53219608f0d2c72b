//! Requests for every operation of the channel protocol, and their answers in a comparable form.
use super::wire::invoke;
use serde_json::{Value, json};
use turnway_wire::channel::authority::ClientOperation;

/// Id of a handover that does not exist.
const NO_HANDOVER: &str = "019a0000-0000-7000-8000-000000000000";

/// Returns the requests of one action on a session and a run. The exhaustive match makes a new action a compile
/// error here.
pub fn requests(action: ClientOperation, session: &str, run: &str) -> Vec<Value> {
    match action {
        ClientOperation::Open => vec![json!({"type": "session_open", "session_id": session})],
        ClientOperation::Close => vec![json!({"type": "session_close", "session_id": session})],
        ClientOperation::Read => vec![
            json!({"type": "subscribe", "session_id": session}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 0}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 3, "after_epoch": 1}),
            json!({"type": "subscribe", "session_id": session, "runs": {run: {"attempt": 1, "offset": 0}}}),
        ],
        ClientOperation::Invoke => vec![
            invoke(session, "held", "mine now?"),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "strategy": "interrupt"}),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "strategy": "reject"}),
            json!({"type": "agent_invoke", "session_id": session, "message": {"content": "x"}, "replaces": run}),
        ],
        ClientOperation::Members => vec![
            json!({"type": "switch_agent", "session_id": session, "agent_id": "held"}),
            json!({"type": "invite_agent", "session_id": session, "agent_id": "echo", "active": true}),
            json!({"type": "remove_agent", "session_id": session, "agent_id": "held", "reason": "mine now"}),
        ],
        ClientOperation::Decide => vec![
            json!({"type": "handover_decision", "session_id": session, "handover_id": NO_HANDOVER, "decision": "confirm"}),
            json!({"type": "handover_decision", "session_id": session, "handover_id": NO_HANDOVER, "decision": "reject"}),
        ],
        ClientOperation::Cancel => vec![
            json!({"type": "cancel_run", "run_id": run}),
            json!({"type": "cancel_run", "session_id": session}),
            json!({"type": "INTERRUPT", "run_id": run}),
        ],
    }
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
