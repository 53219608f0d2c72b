//! Random operations on the bindings of a few conversations, with old generations and unfinished moves among them.
use super::name;
use std::collections::BTreeMap;
use turnway_core::id::{ConversationId, Nonce, Principal, SessionKey};
use turnway_core::protocol::binding::{Binding, ExpiryRules, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef, UncheckedConversationRef};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, BindingRow, ConversationState, NewBinding, UnnamedFields};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply};
use turnway_core::time::{Millis, Now};

/// Ids that sort differently alone and behind an account's name.
const IDS: [&str; 3] = ["7", "7-1", "7/!x:y"];
const ACCOUNTS: [&str; 2] = ["a", "a.b"];

/// The rows that the script has seen, by conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownConversations {
    rows: BTreeMap<ConversationKey, BindingRow>,
    binds: u64,
}

fn conversation(rng: &mut Rng) -> ConversationRef {
    let raw = UncheckedConversationRef {
        channel: "rooms".into(),
        account_id: ACCOUNTS[usize::from(rng.chance(20))].into(),
        conversation_id: IDS[rng.below(3) as usize].into(),
        parent_conversation_id: rng.chance(30).then(|| "9".into()),
    };
    name(ConversationRef::parse(&raw))
}

fn other_id(rng: &mut Rng) -> ConversationId {
    name(ConversationId::parse(IDS[rng.below(3) as usize]))
}

fn expiry(rng: &mut Rng, now: Now) -> ExpiryRules {
    ExpiryRules {
        idle_timeout: rng.chance(50).then(|| 20 + rng.below(4_000)),
        max_age: rng.chance(20).then(|| rng.below(6_000)),
        expires_at: rng.chance(10).then(|| Millis(now.store.0 + rng.below(6_000))),
    }
}

impl KnownConversations {
    /// Returns an operation on a conversation of a session's tenant, or on the session's list.
    pub(super) fn next(&mut self, rng: &mut Rng, now: Now, session: SessionKey, principal: Principal) -> Op {
        let op = match rng.below(20) {
            0 | 1 => ConversationOp::List { session, principal: None },
            4 => {
                let count = 1 + rng.below(5);
                let keys = (0..count).map(|_| conversation(rng).key(&session.tenant)).collect();
                ConversationOp::Read { keys }
            }
            2 | 3 => ConversationOp::FindDue { limit: 1 + rng.below(5) as u32 },
            _ => {
                let conversation = conversation(rng);
                let key = conversation.key(&session.tenant);
                let action = self.action(rng, now, &key, conversation, session, principal);
                ConversationOp::Change { key, action }
            }
        };
        op.into()
    }

    fn action(
        &mut self,
        rng: &mut Rng,
        now: Now,
        key: &ConversationKey,
        conversation: ConversationRef,
        session: SessionKey,
        principal: Principal,
    ) -> BindingAction {
        let row = self.rows.get(key).cloned().unwrap_or_default();
        let generation = if rng.chance(85) { row.generation } else { Generation(row.generation.0.saturating_sub(1)) };
        match rng.below(20) {
            0..6 => {
                // Few nonces, so that a bind repeats.
                self.binds += 1;
                let nonce = Nonce(u128::from(self.binds - rng.below(self.binds.min(2))));
                let expected = rng.chance(40).then_some(generation);
                let metadata = BTreeMap::from([("persona".to_owned(), "höh \"".to_owned())]);
                BindingAction::Bind(Box::new(NewBinding {
                    conversation,
                    session: session.session,
                    principal,
                    target_kind: [TargetKind::Session, TargetKind::Subagent][rng.below(2) as usize],
                    expected,
                    expiry: expiry(rng, now),
                    mirror: rng.chance(30),
                    metadata: if rng.chance(30) { metadata } else { BTreeMap::new() },
                    unnamed: UnnamedFields::default(),
                    nonce,
                }))
            }
            6..8 => {
                BindingAction::Touch { generation, at: Millis((now.store.0 + rng.below(2_000)).saturating_sub(1_000)) }
            }
            8 => BindingAction::SetExpiry { generation, expiry: expiry(rng, now) },
            9..11 => BindingAction::Unbind { generation, reason: UnbindReason::Manual, farewell: false },
            11..13 => BindingAction::Tend,
            13..16 => match row.reports.front() {
                Some(report) if rng.chance(90) => BindingAction::Settle {
                    generation: report.binding.generation,
                    is_end: report.ended.is_some() ^ rng.chance(5),
                },
                _ => BindingAction::Settle { generation, is_end: rng.chance(50) },
            },
            16 => BindingAction::StartMove { generation, to: other_id(rng) },
            17 => self.accept_move(rng, key, &conversation),
            18 => match &row.state {
                ConversationState::Moving { to, .. } if rng.chance(70) => {
                    BindingAction::FinishMove { generation, to: to.clone() }
                }
                ConversationState::Arriving { .. } if rng.chance(70) => BindingAction::Arrive { generation },
                ConversationState::Arriving { .. } => BindingAction::DropArrival { generation },
                ConversationState::Moving { .. }
                | ConversationState::Bound(_)
                | ConversationState::Moved { .. }
                | ConversationState::Free => BindingAction::AbandonMove { generation },
            },
            _ => BindingAction::Resolve,
        }
    }

    /// Returns the take-over of a binding that some row had last.
    fn accept_move(&self, rng: &mut Rng, key: &ConversationKey, conversation: &ConversationRef) -> BindingAction {
        let bindings: Vec<&Binding> =
            self.rows.iter().filter(|(of, _)| of.tenant == key.tenant).filter_map(|(_, row)| row.active()).collect();
        match bindings.get(rng.below(bindings.len() as u64) as usize) {
            Some(binding) => {
                let conversation = conversation.clone();
                let from = binding.conversation.conversation_id.clone();
                BindingAction::AcceptMove { binding: Box::new(Binding { conversation, ..(*binding).clone() }), from }
            }
            None => BindingAction::Resolve,
        }
    }

    /// Learns from an answer.
    pub(super) fn learn(&mut self, op: &Op, reply: &Reply) {
        if let Op::Conversation { op: ConversationOp::Change { key, .. }, .. } = op
            && let Reply::Conversation(ConversationReply::Row { row, .. }) = reply
        {
            match row {
                Some(row) => drop(self.rows.insert(key.clone(), (**row).clone())),
                None => drop(self.rows.remove(key)),
            }
        }
    }
}

/// Returns operations that read every row, list and time that a script can have written.
pub fn binding_reads(sessions: &[SessionKey]) -> Vec<Op> {
    let mut ops = vec![Op::from(ConversationOp::FindDue { limit: u32::MAX })];
    for session in sessions {
        ops.push(Op::from(ConversationOp::List { session: session.clone(), principal: None }));
        for account in ACCOUNTS {
            for id in IDS {
                let key = name(ConversationKey::parse(&format!("{}/rooms/{account}/{id}", session.tenant)));
                ops.push(Op::from(ConversationOp::Change { key, action: BindingAction::Resolve }));
            }
        }
    }
    ops
}
