//! Rendering of handovers (scenario F).
use super::{FactWriter, reply_frame};
use crate::channel::json::frame::{EventPayload, HandoverPayload, HandoverPromptPayload, MessageFrame};
use crate::channel::notification::HandoverReply;
use turnway_core::protocol::entry::HandoverFact;
use turnway_core::session::HandoverStatus;
use turnway_core::time::Millis;

/// Renders the answer to a handover decision, also to a repeated decision.
pub(super) fn render_decision_reply(ts: Millis, decided: &HandoverReply) -> String {
    let (state, reason) = match decided.standing {
        HandoverStatus::Open => ("pending", None),
        HandoverStatus::Confirmed => ("confirmed", None),
        HandoverStatus::Rejected(why) => ("rejected", Some(why.as_str())),
    };
    let body = HandoverPayload { handover_id: decided.handover_id, state, reason };
    let session_id = Some(&decided.session);
    MessageFrame { session_id, ..reply_frame(ts, "handover", &decided.request_id, body) }.text(256)
}

/// Writes a requested handover or its outcome.
pub(super) fn write_handover<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a HandoverFact) {
    match fact {
        HandoverFact::Requested(requested) => {
            let handover_id = requested.handover_id;
            let from = &requested.from;
            let to = &requested.to;
            let reason = requested.reason.reveal();
            let summary = requested.summary.reveal();
            let room = 512 + reason.len() + summary.len();
            let deadline_ts = requested.deadline_ms;
            let body = HandoverPromptPayload { handover_id, from, to, reason, summary, deadline_ts };
            tell.write_final_message("handover_prompt", &None, room, body);
        }
        HandoverFact::Confirmed(confirmed) => {
            let handover_id = Some(confirmed.handover_id);
            let from = Some(&confirmed.from);
            let to = Some(&confirmed.to);
            let body = EventPayload { name: "HANDOVER_CONFIRMED", handover_id, from, to, ..EventPayload::default() };
            tell.write_final_message("event", &confirmed.request_id, 320, body);
        }
        HandoverFact::Rejected(rejected) => {
            let handover_id = Some(rejected.handover_id);
            let from = Some(&rejected.from);
            let to = Some(&rejected.to);
            let name = "HANDOVER_REJECTED";
            let reason = Some(rejected.why.as_str());
            let body = EventPayload { name, handover_id, from, to, reason, ..EventPayload::default() };
            tell.write_final_message("event", &rejected.request_id, 320, body);
        }
    }
}
