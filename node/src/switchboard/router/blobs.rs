//! Answers requests about the blobs of a session. The store decides about them; every action may be repeated.
use super::queries::unavailable;
use super::requests::refusal_of;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::{LinkId, SessionId};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::blob::{BlobAction, BlobOutcome};
use turnway_core::store::{Reply, StoreError};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Answers a request about blobs.
pub(in crate::switchboard) fn handle_answer(
    link: LinkId,
    session: &SessionId,
    action: &BlobAction,
    result: Result<Reply, StoreError>,
    sink: &mut EffectSink,
) {
    let refusal = match result {
        Ok(Reply::Blobs(reply)) => match refusal_for(action, reply.outcome) {
            None => return sink.notify(link, Notification::Reply(CommandReply::Blobs(reply))),
            Some(refusal) => refusal,
        },
        Ok(Reply::Refused(refused)) => refusal_of(refused),
        Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => unavailable(),
    };
    sink.refuse(link, None, Some(session.clone()), None, refusal);
}

/// Returns the refusal of an action that was not applied.
fn refusal_for(action: &BlobAction, outcome: BlobOutcome) -> Option<Refusal> {
    match outcome {
        BlobOutcome::Applied => None,
        BlobOutcome::SessionFull => {
            let blobs = limits::SESSION_BLOBS_MAX;
            let mebibytes = limits::SESSION_BLOB_BYTES_MAX / (1024 * 1024);
            let why = format!("a session has at most {blobs} blobs, of {mebibytes} MiB in all; delete some of them");
            Some(Refusal::new(Code::QuotaExceeded, why).retry_after(limits::QUOTA_RETRY_AFTER))
        }
        BlobOutcome::Missing if matches!(action, BlobAction::Commit { .. }) => {
            let why = "the upload took too long, and its room was given away; upload it again";
            Some(Refusal::new(Code::NotApplied, why))
        }
        BlobOutcome::Missing => Some(Refusal::new(Code::NotFound, "the session has no such blob")),
    }
}
