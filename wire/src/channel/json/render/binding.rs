//! Rendering of answers to requests about bindings.
use super::reply_frame;
use crate::channel::binding::{BindingReply, BindingResolution, FoundBinding};
use crate::channel::json::binding::{BindingPayload, CandidatePayload, RequestedChildPayload};
use crate::channel::json::frame::{MessageFrame, to_json};
use crate::channel::notification::RequestedChild;
use serde::Serialize;
use turnway_core::id::RequestId;
use turnway_core::protocol::binding::{Binding, EndedBinding};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// The message of a refused compare and set.
pub const NOT_APPLIED: &str = "the conversation has another binding than the request named, or none";

#[derive(Serialize)]
struct BoundPayload<'a> {
    binding: BindingPayload<'a>,
}

#[derive(Serialize)]
struct BindingsPayload<'a> {
    bindings: Vec<BindingPayload<'a>>,
}

#[derive(Serialize)]
struct ResolvedPayload<'a> {
    binding: Option<BindingPayload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<Vec<CandidatePayload<'a>>>,
}

#[derive(Serialize)]
struct ResolutionsPayload<'a> {
    resolutions: Vec<FoundPayload<'a>>,
}

#[derive(Serialize)]
struct FoundPayload<'a> {
    conversation: &'a ConversationRef,
    binding: Option<BindingPayload<'a>>,
}

#[derive(Serialize)]
struct NotAppliedPayload<'a> {
    code: Code,
    message: &'static str,
    retryable: bool,
    current: Option<BindingPayload<'a>>,
}

/// Renders an answer as a message.
pub(super) fn render_binding_reply(ts: Millis, request_id: &Option<RequestId>, reply: &BindingReply) -> String {
    let capacity = reply.weight();
    match reply {
        BindingReply::Bound(binding) => {
            let body = BoundPayload { binding: (&**binding).into() };
            reply_frame(ts, "bound", request_id, body).text(capacity)
        }
        BindingReply::Unbound(ended) => reply_frame(ts, "unbound", request_id, all_ended(ended)).text(capacity),
        BindingReply::Updated(bindings) => {
            reply_frame(ts, "bindings_updated", request_id, all_active(bindings)).text(capacity)
        }
        BindingReply::Listed(bindings) => reply_frame(ts, "bindings", request_id, all_active(bindings)).text(capacity),
        BindingReply::Resolved(found) => reply_frame(ts, "resolved", request_id, resolved(found)).text(capacity),
        BindingReply::ResolvedAll(found) => {
            reply_frame(ts, "resolutions", request_id, resolutions(found)).text(capacity)
        }
        BindingReply::NotApplied { current } => {
            let code = Code::NotApplied;
            let current = current.as_deref().map(BindingPayload::from);
            let body = NotAppliedPayload { code, message: NOT_APPLIED, retryable: code.retryable(), current };
            reply_frame(ts, "error", request_id, body).text(capacity)
        }
    }
}

/// Renders the answer to `bind_child`.
pub(super) fn render_child_requested(ts: Millis, child: &RequestedChild) -> String {
    let session_id = Some(&child.session);
    let body = RequestedChildPayload::from(child);
    MessageFrame { session_id, ..reply_frame(ts, "child_requested", &child.request_id, body) }.text(256)
}

/// Returns the fields of an answer as a JSON object, for HTTP.
pub fn binding_reply_object(reply: &BindingReply) -> String {
    let capacity = reply.weight();
    match reply {
        BindingReply::Bound(binding) => to_json(&BindingPayload::from(&**binding), capacity),
        BindingReply::Unbound(ended) => to_json(&all_ended(ended), capacity),
        BindingReply::Updated(bindings) | BindingReply::Listed(bindings) => to_json(&all_active(bindings), capacity),
        BindingReply::Resolved(found) => to_json(&resolved(found), capacity),
        BindingReply::ResolvedAll(found) => to_json(&resolutions(found), capacity),
        BindingReply::NotApplied { current } => to_json(&current.as_deref().map(BindingPayload::from), capacity),
    }
}

fn all_active(bindings: &[Binding]) -> BindingsPayload<'_> {
    BindingsPayload { bindings: bindings.iter().map(BindingPayload::from).collect() }
}

fn all_ended(ended: &[EndedBinding]) -> BindingsPayload<'_> {
    BindingsPayload { bindings: ended.iter().map(BindingPayload::from).collect() }
}

fn resolutions<'a>(found: &'a [FoundBinding]) -> ResolutionsPayload<'a> {
    let payload = |found: &'a FoundBinding| FoundPayload {
        conversation: &found.conversation,
        binding: found.binding.as_ref().map(BindingPayload::from),
    };
    ResolutionsPayload { resolutions: found.iter().map(payload).collect() }
}

fn resolved(found: &BindingResolution) -> ResolvedPayload<'_> {
    let candidates = found.candidates.as_ref().map(|rows| rows.iter().map(CandidatePayload::from).collect());
    ResolvedPayload { binding: found.binding.as_ref().map(BindingPayload::from), candidates }
}
