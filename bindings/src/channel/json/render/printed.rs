//! Rendering of process output, for links that subscribe to it.
use super::answer;
use crate::channel::json::frame::{Frame, Raw};
use crate::channel::note::OUTPUT;
use serde::Serialize;
use turnway_core::id::{EventId, RunId, SessionId};
use turnway_core::protocol::action::{Encoding, Printed, Stream};
use turnway_core::time::Millis;

/// The field `data` of the event.
#[derive(Serialize)]
struct Output<'a> {
    action_id: EventId,
    stream: Stream,
    offset: u64,
    data: &'a str,
    encoding: Encoding,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Renders a piece of process output, which has no position in the log.
pub(super) fn told(ts: Millis, session: &SessionId, run_id: &RunId, printed: &Printed) -> String {
    let Printed { action_id, stream, offset, data, encoding, truncated } = printed;
    let (action_id, stream, offset) = (*action_id, *stream, *offset);
    let (data, encoding, truncated) = (data.reveal(), *encoding, *truncated);
    let data = Output { action_id, stream, offset, data, encoding, truncated };
    let room = data.data.len() + data.data.len() / 16 + 320;
    let body = Raw { name: OUTPUT, data };
    let (session_id, run_id) = (Some(session), Some(run_id));
    Frame { session_id, run_id, ..answer(ts, "event", &None, body) }.text(room)
}
