//! Parses an agent's `action` into an action request (protocol.md §1.7).
//! Over HTTP the event is named `action`, and `type` is the kind of action. A message of an agent that has dialed
//! in has the type `action` itself; its kind is `action_type`, or is derived from the fields present.
use super::said::{broken, carried, field};
use crate::channel::json::fields::{self, Fields};
use serde_json::{Map, Value};
use std::time::Duration;
use turnway_core::id::{QualifiedRun, SaidId, ToolName};
use turnway_core::limits::{self, ACTION_DATA_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::action::{ActionWish, Doing};
use turnway_core::protocol::agent::AgentFailure;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::qualified::bare_processes;

/// Parses an action request.
pub(super) fn read(mut body: Fields, run: &QualifiedRun) -> Result<ActionWish, AgentFailure> {
    let mut text = |label| field("action", fields::text(&mut body, label));
    let (action_id, event, action_type) = (text("action_id")?, text("type")?, text("action_type")?);
    let (text, tool) = (text("text")?, text("tool")?);
    let timeout_ms = field("action", fields::integer(&mut body, "timeout_ms"))?;
    let args = fields::any(&mut body, "args");
    let name = action_id.map(|id| SaidId::parse(&id)).transpose();
    let name = name.map_err(|_| broken("action_id must be 1 to 128 visible ASCII characters"))?;
    let kind = action_type.or(event.filter(|kind| kind != "action"));
    let what = match (kind.as_deref(), tool) {
        (Some("say"), _) => say(text.unwrap_or_default())?,
        (None, None) if text.is_some() => say(text.unwrap_or_default())?,
        (Some("tool_call") | None, None) => return Err(broken("action without a tool")),
        (Some("tool_call") | None, Some(tool)) => {
            let tool = ToolName::parse(&tool).map_err(|_| broken("action has an invalid tool name"))?;
            let args = carried(bare_args(&tool, args, run)?)?;
            let args = args.unwrap_or_else(|| Json(Value::Object(Map::default())));
            Doing::ToolCall { tool, args }
        }
        (Some(_), _) => return Err(broken("action has an unknown type")),
    };
    let timeout = timeout_ms.map(Duration::from_millis).map(|wait| wait.min(limits::ACTION_TIMEOUT_MAX));
    Ok(ActionWish { name, what, timeout })
}

/// Replaces qualified process ids by plain ones; the log contains plain ids only.
fn bare_args(
    tool: &ToolName,
    args: Option<Value>,
    run: &QualifiedRun,
) -> Result<Option<Value>, AgentFailure> {
    let Some(args) = args.as_ref().filter(|_| !run.tenant.is_default()) else { return Ok(args) };
    let bare = bare_processes(&run.key(), tool.as_str(), Json(args.clone()).text());
    let args = serde_json::from_str::<Json>(&bare).map_err(|_| broken("malformed args"))?;
    Ok(Some(args.0))
}

fn say(text: String) -> Result<Doing, AgentFailure> {
    if text.len() > ACTION_DATA_BYTES_MAX {
        return Err(AgentFailure::TooLarge);
    }
    Ok(Doing::Say { text: Private(text) })
}
