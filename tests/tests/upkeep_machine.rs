//! The upkeep of bindings against the laws of state machines.
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_bindings::upkeep::{BindingUpkeep, Input};
use turnway_core::id::{Nonce, Principal, SessionId, TenantId, UserId};
use turnway_core::protocol::binding::{ExpiryRules, TargetKind};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, NewBinding, UnnamedFields, change_row};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::Millis;
use turnway_simulator::laws::{Step, laws};

fn step(after: u64, input: Input) -> Step<Input> {
    Step { after: Duration::from_millis(after), input: Some(input) }
}

/// Returns a row with a binding that no log has.
fn changed(id: &str) -> Input {
    let conversation = ConversationRef::without_parent("rooms", "a", id).expect("a reference");
    let tenant = TenantId::default_tenant();
    let key = conversation.key(&tenant);
    let new = NewBinding {
        conversation,
        session: SessionId::parse("s").expect("a name"),
        principal: Principal { tenant, user: UserId::local(), operator: true, writes: true },
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryRules::default(),
        mirror: false,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(1),
    };
    let (_, row) = change_row(None, Millis(1_000_000), &BindingAction::Bind(Box::new(new)));
    Input::Changed { key, row: Box::new(row.expect("a row")) }
}

fn due(keys: &[&str]) -> Input {
    let keys = keys.iter().map(|key| ConversationKey::parse(key).expect("a key")).collect();
    let op = Op::from(ConversationOp::FindDue { limit: 256 });
    Input::Stored { op, result: Ok(Reply::Conversation(ConversationReply::Due(keys))) }
}

fn tended(key: &str, result: Result<Reply, StoreError>) -> Input {
    let key = ConversationKey::parse(key).expect("a key");
    Input::Stored { op: Op::from(ConversationOp::Change { key, action: BindingAction::Tend }), result }
}

/// Covers: BD-S1.
#[test]
fn binding_upkeep_obeys_the_laws() {
    let forgotten = Reply::Conversation(ConversationReply::Row {
        outcome: turnway_core::store::binding::BindingOutcome::Applied,
        row: None,
    });
    let script = [
        step(10, changed("7")),
        step(10, changed("7")),
        step(2_000, due(&["default/rooms/a/7", "default/rooms/a/8", "default/rooms/a/9"])),
        step(5, tended("default/rooms/a/8", Ok(forgotten))),
        step(5, tended("default/rooms/a/9", Err(StoreError::Unknown))),
        step(5, tended("default/rooms/b/9", Ok(Reply::Refused(StoreRefusal::NotFound)))),
        step(60_000, due(&[])),
    ];
    let make = |_| BindingUpkeep::new(Rng::from_number(1));
    let outputs = laws(make, &script, 4, |op| op.name().to_owned());
    let count = |name: &str| outputs.iter().filter(|output| output.ends_with(&format!(" {name}"))).count();
    assert_eq!((count("control"), count("conversation")), (1, 2), "{outputs:?}");
    // 62 s, and a search every 2 to 4 s.
    assert!((15..32).contains(&count("due_bindings")), "{outputs:?}");
}
