//! Rendering of handovers (scenario F).
use super::{Teller, answer};
use crate::channel::json::frame::{Event, Frame, HandoverPrompt, HandoverState};
use crate::channel::note::Decided;
use turnway_core::protocol::entry::Fact;
use turnway_core::session::Standing;
use turnway_core::time::Millis;

/// Renders the answer to a handover decision, also to a repeated decision.
pub(super) fn told(ts: Millis, decided: &Decided) -> String {
    let (state, reason) = match decided.standing {
        Standing::Open => ("pending", None),
        Standing::Confirmed => ("confirmed", None),
        Standing::Rejected(why) => ("rejected", Some(why.as_str())),
    };
    let body = HandoverState { handover_id: decided.handover_id, state, reason };
    let session_id = Some(&decided.session);
    Frame { session_id, ..answer(ts, "handover", &decided.request_id, body) }.text(256)
}

/// Writes a requested handover or its outcome.
pub(super) fn fact<'a>(tell: &mut Teller<'a, '_>, fact: &'a Fact) {
    if let Fact::HandoverRequested(asked) = fact {
        let (handover_id, from, to) = (asked.handover_id, &asked.from, &asked.to);
        let (reason, summary) = (asked.reason.reveal(), asked.summary.reveal());
        let room = 512 + reason.len() + summary.len();
        let deadline_ts = asked.deadline_ms;
        let body = HandoverPrompt { handover_id, from, to, reason, summary, deadline_ts };
        tell.last("handover_prompt", &None, room, body);
    }
    if let Fact::HandoverConfirmed(done) = fact {
        let (handover_id, from, to) = (Some(done.handover_id), Some(&done.from), Some(&done.to));
        let body = Event { name: "HANDOVER_CONFIRMED", handover_id, from, to, ..Event::default() };
        tell.last("event", &done.request_id, 320, body);
    }
    if let Fact::HandoverRejected(ended) = fact {
        let (handover_id, from, to) = (Some(ended.handover_id), Some(&ended.from), Some(&ended.to));
        let (name, reason) = ("HANDOVER_REJECTED", Some(ended.why.as_str()));
        let body = Event { name, handover_id, from, to, reason, ..Event::default() };
        tell.last("event", &ended.request_id, 320, body);
    }
}
