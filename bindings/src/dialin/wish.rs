//! An agent's `action`, from JSON to a wish (protocol.md §1.7).
//!
//! Over HTTP the event is named `action`, and `type` says of which kind it is. A message of an agent that has dialed in
//! is of the type `action` itself: there the kind is `action_type`, or follows from what there is.
use super::said::{broken, carried};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;
use turnway_core::id::{QualifiedRun, SaidId, ToolName};
use turnway_core::limits::{self, ACTION_DATA_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::action::{ActionWish, Doing};
use turnway_core::protocol::agent::AgentFailure;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::qualified::bare_processes;

/// An action as it is written.
#[derive(Deserialize)]
pub(super) struct Action<'a> {
    #[serde(default, borrow)]
    action_id: Option<Cow<'a, str>>,
    #[serde(default, rename = "type", borrow)]
    event: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    action_type: Option<Cow<'a, str>>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default, borrow)]
    tool: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    args: Option<&'a RawValue>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

/// What it asks for.
pub(super) fn read(action: Action<'_>, run: &QualifiedRun) -> Result<ActionWish, AgentFailure> {
    let Action { action_id, event, action_type, text, tool, args, timeout_ms } = action;
    let name = action_id.map(|id| SaidId::parse(&id)).transpose();
    let name = name.map_err(|_| broken("an action whose name is not 1 to 128 visible ASCII characters"))?;
    let kind = action_type.or(event.filter(|kind| kind != "action"));
    let what = match (kind.as_deref(), tool) {
        (Some("say"), _) => say(text.unwrap_or_default())?,
        (None, None) if text.is_some() => say(text.unwrap_or_default())?,
        (Some("tool_call") | None, None) => return Err(broken("an action without a tool")),
        (Some("tool_call") | None, Some(tool)) => {
            let tool = ToolName::parse(&tool).map_err(|_| broken("an action of no tool"))?;
            let bare = bare_args(&tool, args, run).map_err(|_| broken("malformed args"))?;
            let args = carried(bare.as_deref().or(args))?
                .unwrap_or_else(|| Json(serde_json::Value::Object(serde_json::Map::default())));
            Doing::ToolCall { tool, args }
        }
        (Some(_), _) => return Err(broken("an action of no kind")),
    };
    let timeout = timeout_ms.map(Duration::from_millis).map(|wait| wait.min(limits::ACTION_TIMEOUT_MAX));
    Ok(ActionWish { name, what, timeout })
}

/// Names processes by their bare ids, where the agent may have named them otherwise: the log has no other names.
fn bare_args(
    tool: &ToolName,
    args: Option<&RawValue>,
    run: &QualifiedRun,
) -> serde_json::Result<Option<Box<RawValue>>> {
    let Some(args) = args.filter(|_| !run.tenant.is_default()) else { return Ok(None) };
    RawValue::from_string(bare_processes(&run.key(), tool.as_str(), args.get().to_owned())).map(Some)
}

fn say(text: String) -> Result<Doing, AgentFailure> {
    if text.len() > ACTION_DATA_BYTES_MAX {
        return Err(AgentFailure::TooLarge);
    }
    Ok(Doing::Say { text: Private(text) })
}
