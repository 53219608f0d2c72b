//! Parses an agent's `action` into an action request (protocol.md §1.7).
//! Over HTTP the event is named `action`, and `type` is the kind of action. A message of an agent that has dialed
//! in has the type `action` itself; its kind is `action_type`, or is derived from the fields present.
use super::message::{broken_message, check_size, field};
use crate::channel::json::fields::{self, Fields};
use serde_json::{Map, Value};
use std::time::Duration;
use turnway_core::id::{AgentEventId, QualifiedRun, ToolName};
use turnway_core::limits::{self, ACTION_DATA_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::action::{ActionRequest, ActionSpec};
use turnway_core::protocol::agent::AgentFailure;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::qualified::{unqualify_changed_run, unqualify_processes};

/// Parses an action request.
pub(super) fn parse(mut body: Fields, run: &QualifiedRun) -> Result<ActionRequest, AgentFailure> {
    let mut text = |label| field("action", fields::text(&mut body, label));
    let action_id = text("action_id")?;
    let event = text("type")?;
    let action_type = text("action_type")?;
    let tool = text("tool")?;
    let text = text("text")?;
    let timeout_ms = field("action", fields::integer(&mut body, "timeout_ms"))?;
    let args = fields::any(&mut body, "args");
    let name = action_id.map(|id| AgentEventId::parse(&id)).transpose();
    let name = name.map_err(|_| broken_message("action_id must be 1 to 128 visible ASCII characters"))?;
    let kind = action_type.or(event.filter(|kind| kind != "action"));
    let what = match (kind.as_deref(), tool) {
        (Some("say"), _) => say(text.unwrap_or_default())?,
        (None, None) if text.is_some() => say(text.unwrap_or_default())?,
        (Some("tool_call") | None, None) => return Err(broken_message("action has no tool")),
        (Some("tool_call") | None, Some(tool)) => {
            let tool = ToolName::parse(&tool).map_err(|_| broken_message("action has an invalid tool name"))?;
            let args = check_size(unqualify_args(&tool, args, run)?)?;
            let args = args.unwrap_or_else(|| Json(Value::Object(Map::default())));
            ActionSpec::ToolCall { tool, args }
        }
        (Some(_), _) => return Err(broken_message("action has an unknown type")),
    };
    let timeout = timeout_ms.map(Duration::from_millis).map(|wait| wait.min(limits::ACTION_TIMEOUT_MAX));
    Ok(ActionRequest { name, what, timeout })
}

/// Replaces qualified ids of processes and runs by plain ones; the log contains plain ids only.
fn unqualify_args(tool: &ToolName, args: Option<Value>, run: &QualifiedRun) -> Result<Option<Value>, AgentFailure> {
    let Some(args) = args.as_ref().filter(|_| !run.tenant.is_default()) else { return Ok(args) };
    let bare = unqualify_processes(&run.key(), tool.as_str(), Json(args.clone()).text());
    let bare = unqualify_changed_run(&run.key(), tool.as_str(), bare);
    let args = serde_json::from_str::<Json>(&bare).map_err(|_| broken_message("malformed args"))?;
    Ok(Some(args.0))
}

fn say(text: String) -> Result<ActionSpec, AgentFailure> {
    if text.len() > ACTION_DATA_BYTES_MAX {
        return Err(AgentFailure::TooLarge);
    }
    Ok(ActionSpec::Say { text: Private(text) })
}
