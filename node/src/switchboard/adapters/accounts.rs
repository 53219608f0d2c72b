//! Requests of operators about accounts, and for conversations of accounts: hands them to the pauses and to the lookups of
//! accounts, and performs what those ask for. Called by `adapters`.
use super::lookups::{AccountLookups, LookupEffect, LookupPurpose};
use super::pauses::{AccountAsker, AccountPauses, PauseEffect};
use crate::switchboard::bindings::repeats::{PossibleRepeat, creation_control};
use crate::switchboard::bindings::sends::given_name;
use crate::switchboard::effect::{BindingsCommand, PartEffect};
use crate::switchboard::router::queries;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::{DeliveryId, LinkId, RequestId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::delivery::{AccountKey, AccountPause, PauseReason};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;
use turnway_wire::channel::account::{AccountCommand, AccountReply, AccountView};
use turnway_wire::channel::binding::BindChildCommand;
use turnway_wire::channel::notification::{CommandReply, Notification, RequestedChild};

/// Begins a request about an account of the operator's tenant.
pub(super) fn ask(
    (pauses, lookups): (&mut AccountPauses, &mut AccountLookups),
    now: Now,
    asker: AccountAsker,
    command: AccountCommand,
    sink: &mut EffectSink,
) {
    let Some(tenant) = sink.links.get(asker.link).map(|there| there.principal.tenant.clone()) else { return };
    let begun = match command {
        AccountCommand::Pause(account) => {
            let pause = AccountPause { reason: PauseReason::Operator, since: now.store, misplaced: None };
            pauses.ask(account.key(&tenant), asker, Some(pause))
        }
        AccountCommand::Resume(account) => pauses.ask(account.key(&tenant), asker, None),
        AccountCommand::ListPaused => pauses.ask_list(tenant, asker),
        AccountCommand::Show(account) => {
            let begun = lookups.begin(account.key(&tenant), LookupPurpose::Show(asker.clone()));
            begun.map_err(|_| asker)
        }
    };
    match begun {
        Ok(op) => sink.store(op),
        Err(AccountAsker { link, request_id }) => refuse_for_now(link, request_id, sink),
    }
}

fn refuse_for_now(link: LinkId, request_id: Option<RequestId>, sink: &mut EffectSink) {
    let refusal = Refusal::new(Code::RateLimited, "too many requests about accounts are waiting at this node");
    sink.refuse(link, request_id, None, None, refusal.retry_after(limits::STORE_RETRY_AFTER));
}

/// Begins to check whether the adapter of an account makes conversations: a request that it cannot carry out is refused
/// before anything is recorded.
pub(super) fn check_placement(
    lookups: &mut AccountLookups,
    link: LinkId,
    bind: Box<BindChildCommand>,
    sink: &mut EffectSink,
) {
    let Some(tenant) = sink.links.get(link).map(|there| there.principal.tenant.clone()) else { return };
    let request_id = bind.request_id.clone();
    match lookups.begin(AccountKey::of(&tenant, &bind.parent), LookupPurpose::Create { link, bind }) {
        Ok(op) => sink.store(op),
        Err(_) => refuse_for_now(link, request_id, sink),
    }
}

/// Returns the refusal of a request for a conversation by the state of the account; `None`: it can be made. An adapter
/// whose capabilities are not known, because its node is of an earlier release, is asked.
fn placement_refusal(view: &AccountView) -> Option<Refusal> {
    if view.service.is_none() {
        let refusal = Refusal::new(Code::AdapterUnavailable, "no adapter serves the account now; try again later");
        return Some(refusal.retry_after(limits::STORE_RETRY_AFTER));
    }
    (view.creates_conversations() == Some(false) && !planted(Planted::PlacementUnchecked)).then(|| {
        let why = "placement `child`: the adapter of the account makes no conversations within others";
        Refusal::new(Code::PlacementUnsupported, why)
    })
}

/// Refuses a request for a conversation, unless it repeats an accepted one: the adapter may have left since.
fn refuse_creation(link: LinkId, bind: BindChildCommand, refusal: Refusal, sink: &mut EffectSink) {
    let BindChildCommand { request_id, session, creation_id, .. } = bind;
    let principal = sink.links.get(link).map(|there| there.principal.clone());
    // A request without a name is no repetition.
    let Some((principal, creation_id)) = principal.zip(given_name(creation_id.as_ref(), request_id.as_ref())) else {
        return sink.refuse(link, request_id, Some(session), None, refusal);
    };
    let key = SessionKey { tenant: principal.tenant.clone(), session: session.clone() };
    let delivery_id = DeliveryId::of_creation(&key, &principal.user, &creation_id);
    let control = creation_control(&delivery_id);
    let child = RequestedChild { request_id: request_id.clone(), session, creation_id, delivery_id };
    let accepted = CommandReply::ChildRequested(Box::new(child));
    let repeat = PossibleRepeat { link, request_id, key, principal, control, accepted, refusal };
    sink.push(BindingsCommand::RefuseUnlessRepeated(Box::new(repeat)));
}

/// Performs the effects of requests about accounts.
pub(super) fn perform(now: Now, effects: Vec<PauseEffect>, sink: &mut EffectSink) {
    for effect in effects {
        match effect {
            PauseEffect::Store(op) => sink.store(op),
            PauseEffect::StoreLater(op) => sink.retry(now, op),
            PauseEffect::Reply(AccountAsker { link, request_id }, reply) => {
                sink.notify(link, Notification::Reply(CommandReply::Account { request_id, reply }));
            }
            PauseEffect::Unavailable(AccountAsker { link, request_id }) => {
                sink.refuse(link, request_id, None, None, queries::unavailable());
            }
        }
    }
}

/// Performs the effects of lookups of accounts.
pub(super) fn perform_lookups(effects: Vec<LookupEffect>, sink: &mut EffectSink) {
    for effect in effects {
        match effect {
            LookupEffect::Store(op) => sink.store(op),
            LookupEffect::Known(LookupPurpose::Show(AccountAsker { link, request_id }), view) => {
                let reply = AccountReply::Shown(Box::new(view));
                sink.notify(link, Notification::Reply(CommandReply::Account { request_id, reply }));
            }
            LookupEffect::Known(LookupPurpose::Create { link, bind }, view) => match placement_refusal(&view) {
                Some(refusal) => refuse_creation(link, *bind, refusal, sink),
                None => sink.push(PartEffect::SubmitCreation { link, bind }),
            },
            LookupEffect::Unavailable(LookupPurpose::Show(AccountAsker { link, request_id })) => {
                sink.refuse(link, request_id, None, None, queries::unavailable());
            }
            LookupEffect::Unavailable(LookupPurpose::Create { link, bind }) => {
                sink.refuse(link, bind.request_id, Some(bind.session), None, queries::unavailable());
            }
        }
    }
}
