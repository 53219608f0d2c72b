//! Decisions on what an agent does with messages of conversations: actions that the gateway carries out. Called by
//! `action_decide`.
use crate::id::RunId;
use crate::protocol::delivery::{ButtonDisplay, ButtonSet};
use crate::protocol::json::Json;
use crate::session::context::SessionContext;
use serde_json::json;

/// The level of facts since which sessions know their latest answers, and their buttons.
const MESSAGE_LEVEL: u32 = 4;

/// A stable code and a description of the reason for which an action is refused.
pub(super) type MessageRefusal = (&'static str, &'static str);

/// Checks the buttons that an agent wants below its answer. Returns the result of the action, which says how they are shown.
pub(super) fn check_buttons(context: &SessionContext, run_id: &RunId, args: &Json) -> Result<Json, MessageRefusal> {
    if context.fact_level < MESSAGE_LEVEL {
        return Err(("not_supported", "a node of an earlier release is running"));
    }
    let set: ButtonSet = serde_json::from_value(args.0.clone()).map_err(|_| {
        ("invalid_buttons", "the arguments need `buttons`, a list of `id`, `label` and perhaps `style`")
    })?;
    set.check().map_err(|why| ("invalid_buttons", why))?;
    let Some(open) = context.state.deliveries.origins.get(run_id) else {
        return Err(("no_conversation", "the turn did not come from a conversation of a platform"));
    };
    let display = ButtonDisplay::of_level(open.origin.buttons);
    if display == ButtonDisplay::Rejected {
        return Err(("not_supported", "the adapter of the conversation takes no buttons"));
    }
    Ok(Json(json!({"shown": display.as_str()})))
}
