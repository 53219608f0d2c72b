//! Requests of operators about accounts: hands them to the pauses and to the lookups of accounts, and performs what those ask
//! for. Called by `adapters`.
use super::lookups::{AccountLookups, LookupEffect, LookupPurpose};
use super::pauses::{AccountAsker, AccountPauses, PauseEffect};
use crate::switchboard::router::queries;
use crate::switchboard::sink::EffectSink;
use turnway_core::limits;
use turnway_core::protocol::delivery::{AccountPause, PauseReason};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;
use turnway_wire::channel::account::{AccountCommand, AccountReply};
use turnway_wire::channel::notification::{CommandReply, Notification};

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
            let begun = lookups.begin(account.key(&tenant), LookupPurpose::Show(asker));
            begun.map_err(|LookupPurpose::Show(asker)| asker)
        }
    };
    match begun {
        Ok(op) => sink.store(op),
        Err(AccountAsker { link, request_id }) => {
            let refusal = Refusal::new(Code::RateLimited, "too many requests about accounts are waiting at this node");
            sink.refuse(link, request_id, None, None, refusal.retry_after(limits::STORE_RETRY_AFTER));
        }
    }
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
            LookupEffect::Unavailable(LookupPurpose::Show(AccountAsker { link, request_id })) => {
                sink.refuse(link, request_id, None, None, queries::unavailable());
            }
        }
    }
}
