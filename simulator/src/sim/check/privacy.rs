//! Checks G7: a session's facts reach only principals that may read it, and others do not learn that it exists.
use turnway_core::id::{Principal, SessionId, SessionKey};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::ModelStore;
use turnway_wire::channel::command::{CommandTarget, LinkCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Checks that a principal may get a message about this session.
pub(crate) fn privacy(principal: &Principal, key: &SessionKey, model: &ModelStore, rewinds: bool) {
    let owner = model.session(key).and_then(|slot| slot.user.as_ref());
    let entitled = principal.operator || owner == Some(&principal.user);
    assert!(entitled || (rewinds && owner.is_none()), "G7: {} is shown {key} of {owner:?}", principal.user);
}

fn session_of(command: &LinkCommand) -> Option<SessionId> {
    match command.target() {
        CommandTarget::Session(session) => Some(session.clone()),
        CommandTarget::Run(run_id) => Some(run_id.session()),
        CommandTarget::None => None,
    }
}

/// Checks that a refusal is allowed here, and that it reveals nothing to a stranger.
pub(crate) fn refused(
    principal: &Principal,
    ask: Option<&LinkCommand>,
    note: &Notification,
    (model, rewinds, early): (&ModelStore, bool, bool),
) {
    let (Notification::Reply(CommandReply::Refused { refusal, session, .. }), Some(ask)) = (note, ask) else { return };
    let named = session_of(ask);
    assert!(session.is_none() || *session == named, "G7: a refusal names what was asked for: {note:?} {ask:?}");
    let passing =
        matches!(refusal.code, Code::StoreUnavailable | Code::Draining | Code::RateLimited | Code::TooManyPending);
    let Some(named) = named else { return };
    let key = SessionKey { tenant: principal.tenant.clone(), session: named };
    let owner = model.session(&key).and_then(|slot| slot.user.as_ref());
    let stranger = !principal.operator && owner.is_none_or(|owner| *owner != principal.user);
    // The session had an owner when the refusal was sent, and the store has lost the owner since.
    let forgotten = rewinds && owner.is_none();
    if stranger && !passing && !forgotten {
        assert_eq!(*refusal, Refusal::not_found(), "G7: a stranger learns nothing: {ask:?}");
    }
    let found = refusal.code != Code::NotFound || stranger || rewinds || early;
    let cancel = matches!(ask, LinkCommand::Cancel { .. });
    assert!(found || cancel, "G7: one's own session is found: {ask:?}");
}
