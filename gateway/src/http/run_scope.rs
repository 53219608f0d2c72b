//! The rights of a run's token: it reads the session of its run while the run goes on, and nothing else. Called by
//! `request_link` and for requests that need no link.
use std::time::Duration;
use turnway_core::id::SessionId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::authority::ClientOperation;
use turnway_wire::channel::command::{CommandTarget, LinkCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Longest time for which a request goes on without another look whether its run has ended: a token is dead two seconds
/// after the end.
pub const RUN_CHECK_MAX: Duration = Duration::from_secs(2);

/// Returns the refusal of everything that a run's token does not allow.
pub fn refusal() -> Refusal {
    Refusal::new(Code::Forbidden, "the token of a run allows to read the session of that run, and nothing else")
}

/// Returns the answer to a command that reads anything but this session.
pub fn refuse_beyond(session: &SessionId, command: &LinkCommand) -> Option<Notification> {
    let is_own = match command.target() {
        CommandTarget::Session(named) => named == session,
        CommandTarget::Run(named) => named.session() == *session,
        CommandTarget::None => false,
    };
    if is_own && command.kind().operation == ClientOperation::Read || planted(Planted::RunTokenUnscoped) {
        return None;
    }
    let request_id = command.request_id().cloned();
    Some(Notification::Reply(CommandReply::Refused { request_id, session: None, run_id: None, refusal: refusal() }))
}
