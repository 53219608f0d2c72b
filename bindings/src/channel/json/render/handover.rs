//! Rendering of handovers (scenario F).
use super::{FactWriter, reply_frame};
use crate::channel::json::frame::{EventPayload, HandoverPayload, HandoverPromptPayload, MessageFrame};
use crate::channel::notification::HandoverReply;
use turnway_core::protocol::entry::{Fact, HandoverFact};
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
pub(super) fn write_handover<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a Fact) {
    if let Fact::Handover(HandoverFact::Requested(asked)) = fact {
        let handover_id = asked.handover_id;
        let from = &asked.from;
        let to = &asked.to;
        let reason = asked.reason.reveal();
        let summary = asked.summary.reveal();
        let room = 512 + reason.len() + summary.len();
        let deadline_ts = asked.deadline_ms;
        let body = HandoverPromptPayload { handover_id, from, to, reason, summary, deadline_ts };
        tell.write_final_message("handover_prompt", &None, room, body);
    }
    if let Fact::Handover(HandoverFact::Confirmed(done)) = fact {
        let handover_id = Some(done.handover_id);
        let from = Some(&done.from);
        let to = Some(&done.to);
        let body = EventPayload { name: "HANDOVER_CONFIRMED", handover_id, from, to, ..EventPayload::default() };
        tell.write_final_message("event", &done.request_id, 320, body);
    }
    if let Fact::Handover(HandoverFact::Rejected(ended)) = fact {
        let handover_id = Some(ended.handover_id);
        let from = Some(&ended.from);
        let to = Some(&ended.to);
        let name = "HANDOVER_REJECTED";
        let reason = Some(ended.why.as_str());
        let body = EventPayload { name, handover_id, from, to, reason, ..EventPayload::default() };
        tell.write_final_message("event", &ended.request_id, 320, body);
    }
}
