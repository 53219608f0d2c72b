//! Rendering of process output, for links that subscribe to it.
use super::reply_frame;
use crate::channel::json::frame::{MessageFrame, RawFactPayload};
use crate::channel::notification::PROCESS_OUTPUT_TYPE;
use serde::Serialize;
use turnway_core::id::{EventId, RunId, SessionId};
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput};
use turnway_core::time::Millis;

/// The field `data` of the event.
#[derive(Serialize)]
struct ProcessOutputPayload<'a> {
    action_id: EventId,
    stream: OutputStream,
    offset: u64,
    data: &'a str,
    encoding: OutputEncoding,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Renders a piece of process output, which has no position in the log.
pub(super) fn render_process_output(
    ts: Millis,
    session: &SessionId,
    run_id: &RunId,
    printed: &ProcessOutput,
) -> String {
    let ProcessOutput { action_id, stream, offset, data, encoding, truncated } = printed;
    let action_id = *action_id;
    let stream = *stream;
    let offset = *offset;
    let data = data.reveal();
    let encoding = *encoding;
    let truncated = *truncated;
    let data = ProcessOutputPayload { action_id, stream, offset, data, encoding, truncated };
    let capacity = data.data.len() + data.data.len() / 16 + 320;
    let body = RawFactPayload { name: PROCESS_OUTPUT_TYPE, data };
    let session_id = Some(session);
    let run_id = Some(run_id);
    MessageFrame { session_id, run_id, ..reply_frame(ts, "event", &None, body) }.text(capacity)
}
