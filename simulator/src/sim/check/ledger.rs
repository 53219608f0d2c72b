//! Checks G1, G2 and G3: records what the store accepted, apart from the store, and checks every write.
use super::actions::ActionHistory;
use super::bindings::BindingHistory;
use super::handovers::HandoverHistory;
use super::members::MemberHistory;
use super::turn::TurnRecord;
use crate::sim::behaviour::pieces;
use crate::sim::fixtures;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, EventId, FenceToken, InboxPosition, NodeId, Nonce, RunId, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::session::State;
use turnway_core::store::{Append, ModelStore, Op, Reply, SnapshotWrite, StoredSession};

/// One session's log as it was written, and the state that follows from it.
#[derive(Debug, Default)]
pub(crate) struct SessionRecord {
    /// Every fact, with its token.
    pub(crate) log: Vec<(FenceToken, Arc<Entry>)>,
    /// Every turn of the log.
    pub(crate) stories: BTreeMap<RunId, TurnRecord>,
    /// Run that has begun and not ended.
    pub(crate) active: Option<RunId>,
    /// True once closing has begun.
    pub(crate) closing: bool,
    pub(super) company: MemberHistory,
    pub(super) handed: HandoverHistory,
    pub(super) acted: ActionHistory,
    pub(super) bound: BindingHistory,
    /// Steering messages that agents have accepted.
    pub(super) steered: super::steering::Taken,
    /// True if the store may lose writes, so that owners may know more than the store for a moment.
    pub(super) rewinds: bool,
}

impl SessionRecord {
    /// Returns a fact and its epoch.
    pub(crate) fn fact(&self, seq: Seq) -> Option<(Epoch, &Arc<Entry>)> {
        let at = usize::try_from(seq.0.checked_sub(1)?).ok()?;
        self.log.get(at).map(|(token, entry)| (token.epoch, entry))
    }
    /// Returns the state that results from these facts.
    pub(crate) fn state(&self, upto: Seq) -> State {
        let upto = usize::try_from(upto.0).unwrap_or(usize::MAX);
        State::from_facts(self.log.iter().take(upto).map(|(token, entry)| (token.epoch, &**entry)))
    }
}

/// An attempt that a node has ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    /// Fact by which the attempt was begun or resumed.
    pub(super) begun: Seq,
    /// Last fact that the agent was told of.
    pub(super) told: Seq,
}

/// Record of the store's answers.
#[derive(Debug)]
pub(crate) struct StoreRecord {
    pub(crate) chronicles: BTreeMap<SessionKey, SessionRecord>,
    /// End of the log when a turn's input was first accepted.
    pub(crate) tails: BTreeMap<RunId, Cursor>,
    /// Text of each attempt at each message.
    answers: BTreeMap<(u64, u32), Arc<str>>,
    /// Actions given to a runner.
    pub(super) executed: BTreeSet<EventId>,
    pub(super) directory: Arc<AgentDirectory>,
    /// Attempts that were ordered, by the fact that began or resumed them.
    pub(super) ordered: BTreeSet<(RunId, Seq)>,
    /// Last order of an attempt by each node.
    pub(super) orders: BTreeMap<(NodeId, RunId, u32), Ordered>,
    /// The turn in which an agent was asked each message of rooms, by the session and the message's number.
    pub(super) prompts: BTreeMap<(SessionKey, u64), RunId>,
    /// Runs whose agents have subscribed to further fact types.
    pub(crate) subscribed: BTreeSet<RunId>,
    pub(super) dropped: BTreeSet<(NodeId, RunId, u32)>,
    /// Steering messages passed to an attempt, by node, epoch, and the fact by which the attempt was ordered.
    pub(super) handed: BTreeSet<(NodeId, Epoch, Option<Seq>, RunId, RunId, u32)>,
    controls: BTreeMap<(SessionKey, InboxPosition), Arc<ControlEntry>>,
    /// Control entries that were answered.
    effective: BTreeSet<(SessionKey, InboxPosition)>,
    authors: BTreeMap<Nonce, NodeId>,
    claims: BTreeMap<(SessionKey, Epoch), Nonce>,
    /// Number of turns that ended.
    pub(crate) ended: u64,
    pub(super) rewinds: bool,
}

impl StoreRecord {
    pub(crate) fn new(directory: Arc<AgentDirectory>, rewinds: bool) -> Self {
        Self {
            chronicles: BTreeMap::new(),
            tails: BTreeMap::new(),
            answers: BTreeMap::new(),
            executed: BTreeSet::new(),
            directory,
            ordered: BTreeSet::new(),
            orders: BTreeMap::new(),
            prompts: BTreeMap::new(),
            subscribed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            handed: BTreeSet::new(),
            controls: BTreeMap::new(),
            effective: BTreeSet::new(),
            authors: BTreeMap::new(),
            claims: BTreeMap::new(),
            ended: 0,
            rewinds,
        }
    }

    /// Returns the text that an agent sends in one attempt at a message; creates it at first use.
    pub(crate) fn answer(&mut self, n: u64, attempt: u32, manner: crate::sim::behaviour::AgentBehaviour) -> Arc<str> {
        let text = || pieces(n, attempt, manner).concat().into();
        Arc::clone(self.answers.entry((n, attempt)).or_insert_with(text))
    }

    /// Records that an agent does not know an attempt.
    pub(crate) fn record_forgotten_attempt(&mut self, key: &SessionKey, run_id: &RunId, attempt: u32) {
        let turn = self.chronicles.get_mut(key).and_then(|chronicle| chronicle.stories.get_mut(run_id));
        if let Some(turn) = turn {
            turn.forgotten.insert(attempt);
        }
    }

    /// Returns the text of an attempt, without creating it.
    pub(crate) fn known_answer(&self, n: u64, attempt: u32) -> Option<&Arc<str>> {
        self.answers.get(&(n, attempt))
    }

    /// Returns the latest epoch granted for a session.
    pub(super) fn latest_claim(&self, key: &SessionKey) -> Option<Epoch> {
        let range = (key.clone(), Epoch(0))..=(key.clone(), Epoch(u64::MAX));
        self.claims.range(range).next_back().map(|((_, epoch), _)| *epoch)
    }

    /// Checks an answer of the store.
    pub(crate) fn check_reply(&mut self, node_id: NodeId, op: &Op, reply: &Reply, model: &ModelStore, ghost: bool) {
        let rewinds = self.rewinds;
        match (op, reply) {
            (Op::Append(append), reply) => {
                assert!(
                    rewinds || ghost || *reply != Reply::OutOfOrder,
                    "G1: an owner knows where its log ends: {append:?}"
                );
                let gone = matches!(reply, Reply::InputMissing { .. });
                assert!(rewinds || ghost || !gone, "G3: a turn that ends was open: {append:?}");
                if let (Reply::Appended { .. }, Some(slot)) = (reply, model.session(&append.key)) {
                    self.appended(node_id, append, slot);
                }
            }
            (Op::Claim { key, .. }, Reply::Claimed(claimed)) => self.owned_under(key, claimed.token),
            (Op::Transfer { key, .. }, Reply::Transferred { token }) => self.owned_under(key, *token),
            (Op::Accept { key, input, .. }, Reply::Accepted(accepted)) => {
                self.tails.entry(input.run_id.clone()).or_insert(accepted.tail);
                let Some(slot) = model.session(key) else { return };
                let same = slot.inbox.values().filter(|other| other.run_id == input.run_id).count();
                let ended = self.chronicles.get(key).and_then(|c| c.stories.get(&input.run_id));
                let ended = ended.is_some_and(|turn| turn.ended.is_some());
                assert!(same <= usize::from(!ended), "G2: a message is taken once: {}", input.run_id);
                let bytes: usize = slot.inbox.values().map(|input| input.weight()).sum();
                assert!(slot.inbox.len() <= limits::INBOX_INPUTS_MAX, "G8: inputs that wait are bounded");
                assert!(bytes <= limits::INBOX_BYTES_MAX, "G8: bytes that wait are bounded");
            }
            (Op::Control { key, control, .. }, Reply::Accepted(accepted)) => {
                self.controls.insert((key.clone(), accepted.position), Arc::clone(control));
                if let ControlRequest::Handover { handover_id, confirm: true } = &control.what {
                    self.chronicles.entry(key.clone()).or_default().handed.agree(*handover_id);
                }
                let waiting = model.session(key).map_or(0, |slot| slot.control.len());
                assert!(waiting <= limits::CONTROL_ENTRIES_MAX, "G8: control entries that wait are bounded");
            }
            (Op::WriteSnapshot(keep), Reply::Done) => self.kept(keep),
            _ => {}
        }
    }

    fn owned_under(&mut self, key: &SessionKey, token: FenceToken) {
        let claim = *self.claims.entry((key.clone(), token.epoch)).or_insert(token.nonce);
        assert_eq!(claim, token.nonce, "G1: an epoch is given once, whatever the store forgets");
    }

    fn appended(&mut self, node_id: NodeId, append: &Append, slot: &StoredSession) {
        let author = *self.authors.entry(append.token.nonce).or_insert(node_id);
        assert_eq!(author, node_id, "G1: one token, one writer");
        assert_eq!(slot.token, append.token, "G1: nobody writes who does not own");
        let chronicle = self.chronicles.entry(append.key.clone()).or_default();
        let was_active = chronicle.active.clone();
        let known = chronicle.log.len() as u64;
        let fresh = slot.log.iter().skip(known.saturating_sub(slot.floor.0) as usize).cloned();
        let fresh: Vec<_> = fresh.collect();
        for (token, entry) in fresh {
            self.learn(&append.key, token, entry, Some(slot));
        }
        let first = append.answers.iter().filter(|at| self.effective.insert((append.key.clone(), **at)));
        let first: Vec<InboxPosition> = first.copied().collect();
        self.answered(append, &first, slot, was_active.as_ref());
    }

    /// Adds the next fact of a log.
    fn learn(&mut self, key: &SessionKey, token: FenceToken, entry: Arc<Entry>, slot: Option<&StoredSession>) {
        let answer = entry.run_id.as_ref().and_then(|_| self.text_of(key, &entry));
        let directory = Arc::clone(&self.directory);
        let chronicle = self.chronicles.entry(key.clone()).or_default();
        let last = chronicle.log.last().map(|(last, _)| *last).unwrap_or_default();
        assert!(token.epoch >= last.epoch, "G1: epochs never go back");
        let before = chronicle.log.last().map(|(_, before)| before.time).unwrap_or_default();
        assert!(entry.time >= before, "times in a log never go back: {:?} after {before:?}", entry.time);
        assert!(token.epoch > last.epoch || token.nonce == last.nonce, "G1: one epoch, one claim");
        chronicle.rewinds = self.rewinds;
        chronicle.log.push((token, Arc::clone(&entry)));
        chronicle.take(&entry, answer.as_deref(), slot, &directory);
        self.ended += u64::from(entry.fact.is_terminal());
    }

    /// Returns the agent's text in the attempt that the fact is about.
    fn text_of(&mut self, key: &SessionKey, entry: &Entry) -> Option<Arc<str>> {
        use turnway_core::protocol::entry::{Fact, InputFact, RunFact};
        let run_id = entry.run_id.as_ref()?;
        if let Fact::Input(InputFact::UserMessage { message, .. }) = &entry.fact {
            let turn = TurnRecord::new(fixtures::number(message));
            let chronicle = self.chronicles.entry(key.clone()).or_default();
            let first = chronicle.stories.insert(run_id.clone(), turn).is_none();
            assert!(first, "G2: a message opens one turn: {run_id}");
            return None;
        }
        let Fact::Run(RunFact::TextDelta { attempt, .. } | RunFact::Done { attempt, .. }) = &entry.fact else {
            return None;
        };
        let n = self.chronicles.get(key)?.stories.get(run_id)?.n;
        self.known_answer(n, *attempt).cloned()
    }

    /// Checks that answered control entries have had their effect. (ST-14)
    fn answered(&self, append: &Append, answers: &[InboxPosition], slot: &StoredSession, was_active: Option<&RunId>) {
        let Some(chronicle) = self.chronicles.get(&append.key) else { return };
        let stopped =
            |run: &RunId| chronicle.stories.get(run).is_none_or(|turn| turn.ended.is_some() || turn.cancelling);
        let taken = answers.iter().filter_map(|at| self.controls.get(&(append.key.clone(), *at)));
        for control in taken {
            let ControlRequest::Cancel { run_id } = &control.what else { continue };
            if let Some(run) = run_id {
                let open = slot.inbox.values().any(|input| input.run_id == *run);
                assert!(stopped(run) || !open, "G3: a cancel that was answered has stopped its turn: {run}");
            } else {
                assert!(was_active.is_none_or(stopped), "G3: a cancel of what speaks has stopped it");
            }
        }
    }

    /// Checks that a stored snapshot equals the state of its facts. (RX-3)
    fn kept(&self, keep: &SnapshotWrite) {
        let rewinds = self.rewinds;
        let Some(chronicle) = self.chronicles.get(&keep.key) else { return };
        if rewinds && keep.at.seq.0 > chronicle.log.len() as u64 {
            return;
        }
        let state = chronicle.state(keep.at.seq);
        if rewinds && state.tail != keep.at {
            return;
        }
        let kept = State::from_snapshot(&keep.state).expect("a kept state can be read");
        assert_eq!(kept, state, "G6: the state kept at {:?} is the one its facts make", keep.at);
    }

    /// Rebuilds the record after the store has lost writes, because the lost writes no longer bind the store.
    pub(crate) fn rewound(&mut self, model: &ModelStore) {
        self.chronicles.clear();
        self.tails.clear();
        self.ended = 0;
        for (key, slot) in model.sessions() {
            for (token, entry) in &slot.log {
                self.learn(key, *token, Arc::clone(entry), None);
            }
        }
    }
}
