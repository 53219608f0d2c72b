//! A node's knowledge of one session.
use turnway_core::id::{Cursor, FenceToken, InboxPosition, ListenersVersion, OwnershipSnapshot, RunId};
use turnway_core::store::{InboxContents, Op, Reply};

/// Facts about one session that the script has learned from answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) seen: OwnershipSnapshot,
    pub(super) tokens: Vec<FenceToken>,
    pub(super) tail: Cursor,
    pub(super) inputs: Vec<(InboxPosition, RunId)>,
    pub(super) controls: Vec<InboxPosition>,
    pub(super) version: ListenersVersion,
    pub(super) fenced: bool,
}

impl Known {
    /// Learns from an answer.
    pub(super) fn learn(&mut self, op: &Op, reply: &Reply) {
        self.fenced = *reply == Reply::Fenced;
        #[expect(clippy::wildcard_enum_match_arm, reason = "the rest teaches nothing")]
        match reply {
            Reply::Accepted(accepted) => {
                self.seen = accepted.owner;
                match op {
                    Op::Accept { input, .. } if !accepted.duplicate => {
                        self.inputs.push((accepted.position, input.run_id.clone()));
                    }
                    Op::Control { .. } if !accepted.duplicate => self.controls.push(accepted.position),
                    _ => {}
                }
            }
            Reply::Claimed(claimed) => {
                self.tokens.push(claimed.token);
                (self.tail, self.version) = (claimed.view.tail, claimed.version);
                self.seen.epoch = claimed.token.epoch;
                if let Op::Claim { holder, .. } = op {
                    self.seen.holder = Some(*holder);
                }
                self.learn_inputs(&claimed.inbox);
            }
            Reply::Transferred { token } => self.tokens.push(*token),
            Reply::OwnershipConflict { owner } => self.seen = *owner,
            Reply::Appended { tail, version, .. } => (self.tail.seq, self.version) = (*tail, *version),
            Reply::Released => self.seen.holder = None,
            Reply::Listening { owner, tail } => (self.seen, self.tail) = (*owner, *tail),
            Reply::View(view) => (self.seen, self.tail) = (view.owner, view.tail),
            Reply::Inbox(inputs) => self.learn_inputs(inputs),
            _ => {}
        }
    }

    fn learn_inputs(&mut self, inputs: &InboxContents) {
        self.inputs = inputs.inputs.iter().map(|(at, input)| (*at, input.run_id.clone())).collect();
        self.controls = inputs.controls.iter().map(|(at, _)| *at).collect();
    }
}
