//! The checks, one function for each, in a module for each grade. A check works on rooms of its own and leaves the adapter
//! connected and active.
mod attachments;
mod bronze;
mod chaos;
mod gold;
mod silver;

use crate::bench::{CheckBench, CheckResult};
use crate::catalog::AdapterCheck;

pub(crate) use chaos::ChaosScript;

/// Performs a check, once the adapter is connected and active; returns false if the adapter does nothing of its subject.
pub(crate) async fn perform(check: AdapterCheck, bench: &CheckBench, script: ChaosScript) -> CheckResult<bool> {
    let performed = match check {
        AdapterCheck::Hello => bronze::hello(bench),
        AdapterCheck::Inbound => bronze::inbound(bench).await,
        AdapterCheck::Deliver => bronze::deliver(bench).await,
        AdapterCheck::Receipts => bronze::receipts(bench).await,
        AdapterCheck::Reconnect => bronze::reconnect(bench).await,
        AdapterCheck::Duplicates => silver::duplicates(bench).await,
        AdapterCheck::Reorder => silver::reorder(bench).await,
        AdapterCheck::SlowAcks => silver::slow_acks(bench).await,
        AdapterCheck::Lease => silver::lease(bench).await,
        AdapterCheck::Offsets => silver::offsets(bench).await,
        AdapterCheck::Edits => gold::edits(bench).await,
        AdapterCheck::Deletes => gold::deletes(bench).await,
        AdapterCheck::Reactions => gold::reactions(bench).await,
        AdapterCheck::Typing => gold::typing(bench).await,
        AdapterCheck::Previews => gold::previews(bench).await,
        AdapterCheck::Attachments => return attachments::attachments(bench).await,
        AdapterCheck::UnknownSends => gold::unknown_sends(bench).await,
        AdapterCheck::ErrorClasses => gold::error_classes(bench).await,
        AdapterCheck::Capabilities => gold::capabilities(bench).await,
        AdapterCheck::Chaos => chaos::chaos(bench, script).await,
    };
    performed.map(|()| true)
}
