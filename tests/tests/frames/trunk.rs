//! Peer messages about remote attempts at dial-in agents.
use crate::run;
use std::sync::Arc;
use turnway_bindings::dialin::Word;
use turnway_bindings::dialin::said::Said;
use turnway_bindings::link::Capabilities;
use turnway_bindings::peer::Words;
use turnway_bindings::peer::trunk::{Count, Serving, Spoken, TrunkWords};
use turnway_core::id::{AgentId, Epoch, SaidId, TenantId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{Order, StopReason, TextKind};

/// Returns one message of each kind about remote attempts.
pub(crate) fn all() -> impl Iterator<Item = Words> {
    let order = |run_id| {
        Arc::new(Order::Cancel { tenant: TenantId::default_tenant(), run_id, attempt: 1, epoch: Epoch(7) })
    };
    let count = |call| Count { call, got: 5, taken: 4 };
    let id = SaidId::parse("e1").ok();
    let text = |kind, text: &str, id| Spoken::Text { kind, text: Private(text.into()), id };
    let spoken = [
        Spoken::Placed(Capabilities { steer: true, resume: false, cancel: true }),
        Spoken::Refused,
        text(TextKind::Text, "höh 語", id),
        text(TextKind::Reasoning, "", None),
        Spoken::Word(Arc::new(Word::Said(Said::Done { stop: StopReason::EndTurn, usage: None }))),
        Spoken::Lost,
    ];
    let agent = AgentId::parse("a").expect("a name");
    let some = [
        TrunkWords::Who,
        TrunkWords::Serving { agents: vec![(agent, Serving { connections: 2, open: 3, has_room: true })] },
        TrunkWords::Order { call: 9, n: 1, order: order(run("s1")) },
        TrunkWords::Counts { begun: vec![count(1), count(2)], taken_on: vec![] },
        TrunkWords::Hung { call: 9 },
        TrunkWords::Gone { call: 9 },
        TrunkWords::Halt { order: order(run("s1")) },
    ];
    let spoken = spoken.into_iter().map(|spoken| TrunkWords::Spoken { call: 9, n: 2, spoken });
    some.into_iter().chain(spoken).map(Words::Trunk)
}
