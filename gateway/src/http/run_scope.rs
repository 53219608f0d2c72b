//! The rights of a run's token: while the run goes on, it reads the session of the run, adds files to it, calls models,
//! and does nothing else.
//! Called by `request_link` and for requests that need no link.
use std::time::Duration;
use turnway_core::id::RunId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::blob::BlobAction;
use turnway_wire::channel::authority::ClientOperation;
use turnway_wire::channel::command::{CommandTarget, LinkCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Longest time for which a request goes on without another look whether its run has ended: a token is dead two seconds
/// after the end.
pub const RUN_CHECK_MAX: Duration = Duration::from_secs(2);

/// Returns the refusal of everything that a run's token does not allow.
pub fn refusal() -> Refusal {
    let why = "the token of a run allows to read the session of that run, to add files to it and to call models, and nothing else";
    Refusal::new(Code::Forbidden, why)
}

/// Returns whether a command is a step of an upload.
fn is_upload(command: &LinkCommand) -> bool {
    let LinkCommand::Blob { action, .. } = command else { return false };
    match action {
        BlobAction::Reserve { .. } | BlobAction::Commit { .. } | BlobAction::Abandon { .. } => true,
        BlobAction::Read | BlobAction::Remove { .. } | BlobAction::Tend => false,
    }
}

/// Returns the answer to a command that neither reads the session of a run nor adds a file to it.
pub fn refuse_beyond(run: &RunId, command: &LinkCommand) -> Option<Notification> {
    let session = run.session();
    let is_own = match command.target() {
        CommandTarget::Session(named) => *named == session,
        CommandTarget::Run(named) => named.session() == session,
        CommandTarget::None => false,
    };
    let is_upload = is_upload(command);
    if is_upload && planted(Planted::RunUploadsAnywhere) {
        return None;
    }
    let is_allowed = is_upload || command.kind().operation == ClientOperation::Read;
    if is_own && is_allowed || planted(Planted::RunTokenUnscoped) {
        return None;
    }
    let request_id = command.request_id().cloned();
    Some(Notification::Reply(CommandReply::Refused { request_id, session: None, run_id: None, refusal: refusal() }))
}
