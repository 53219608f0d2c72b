//! G1, G2, G3: what the store took, kept apart from the store, and checked with every write.
use super::acted::Acted;
use super::company::Company;
use super::handed::Handed;
use super::story::Story;
use crate::sim::answer::pieces;
use crate::sim::cast;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, EventId, NodeId, Nonce, Place, RunId, Seq, SessionKey, Token};
use turnway_core::limits;
use turnway_core::protocol::agent::Directory;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::{Ask, Control};
use turnway_core::session::State;
use turnway_core::store::{Append, Keep, Op, Reply, Shelf, Slot};

/// One session's log as it was written, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Chronicle {
    /// Every fact, with its token.
    pub(crate) log: Vec<(Token, Arc<Entry>)>,
    /// Every turn the log tells of.
    pub(crate) stories: BTreeMap<RunId, Story>,
    /// The turn that has begun and not ended.
    pub(crate) active: Option<RunId>,
    /// Closing has begun.
    pub(crate) closing: bool,
    /// Who belongs to it.
    pub(super) company: Company,
    /// Who hands it over to whom.
    pub(super) handed: Handed,
    /// What agents have had done.
    pub(super) acted: Acted,
    /// What was handed to agents on the way.
    pub(super) steered: super::steered::Taken,
    /// The store may forget, so owners may for a moment remember more than it.
    pub(super) rewinds: bool,
}

impl Chronicle {
    /// A fact and its epoch.
    pub(crate) fn fact(&self, seq: Seq) -> Option<(Epoch, &Arc<Entry>)> {
        let at = usize::try_from(seq.0.checked_sub(1)?).ok()?;
        self.log.get(at).map(|(token, entry)| (token.epoch, entry))
    }
    /// The state these facts make.
    pub(crate) fn state(&self, upto: Seq) -> State {
        let upto = usize::try_from(upto.0).unwrap_or(usize::MAX);
        State::replay(self.log.iter().take(upto).map(|(token, entry)| (token.epoch, &**entry)))
    }
}

/// An attempt that a node has ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    /// The fact by which it was begun, or goes on.
    pub(super) begun: Seq,
    /// Up to where its agent was told of what it has subscribed to.
    pub(super) told: Seq,
}

/// What the world remembers of the store's answers.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// By session.
    pub(crate) chronicles: BTreeMap<SessionKey, Chronicle>,
    /// Where the log ended when a turn's input was first accepted.
    pub(crate) tails: BTreeMap<RunId, Cursor>,
    /// What each attempt at each message says.
    answers: BTreeMap<(u64, u32), Arc<str>>,
    /// Actions that were given to a runner.
    pub(super) executed: BTreeSet<EventId>,
    pub(super) directory: Arc<Directory>,
    /// Attempts that were ordered, by the fact that began them or let them go on.
    pub(super) ordered: BTreeSet<(RunId, Seq)>,
    /// How a node has ordered an attempt last.
    pub(super) orders: BTreeMap<(NodeId, RunId, u32), Ordered>,
    /// Runs whose agents have asked for facts of more types.
    pub(crate) subscribed: BTreeSet<RunId>,
    pub(super) dropped: BTreeSet<(NodeId, RunId, u32)>,
    /// Inputs that were handed to an attempt, by node, ownership, and the fact by which it was ordered.
    pub(super) handed: BTreeSet<(NodeId, Epoch, Option<Seq>, RunId, RunId, u32)>,
    controls: BTreeMap<(SessionKey, Place), Arc<Control>>,
    /// Control entries that were answered.
    effective: BTreeSet<(SessionKey, Place)>,
    authors: BTreeMap<Nonce, NodeId>,
    claims: BTreeMap<(SessionKey, Epoch), Nonce>,
    /// Turns that ended.
    pub(crate) ended: u64,
    pub(super) rewinds: bool,
}

impl Ledger {
    pub(crate) fn new(directory: Arc<Directory>, rewinds: bool) -> Self {
        Self {
            chronicles: BTreeMap::new(),
            tails: BTreeMap::new(),
            answers: BTreeMap::new(),
            executed: BTreeSet::new(),
            directory,
            ordered: BTreeSet::new(),
            orders: BTreeMap::new(),
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

    /// What an agent says in one attempt at a message.
    pub(crate) fn answer(&mut self, n: u64, attempt: u32, manner: crate::sim::answer::Manner) -> Arc<str> {
        let text = || pieces(n, attempt, manner).concat().into();
        Arc::clone(self.answers.entry((n, attempt)).or_insert_with(text))
    }

    /// An agent says that it does not know of an attempt.
    pub(crate) fn forgot(&mut self, key: &SessionKey, run_id: &RunId, attempt: u32) {
        let story = self.chronicles.get_mut(key).and_then(|chronicle| chronicle.stories.get_mut(run_id));
        if let Some(story) = story {
            story.forgotten.insert(attempt);
        }
    }

    /// What was said so far, without making it up.
    pub(crate) fn known_answer(&self, n: u64, attempt: u32) -> Option<&Arc<str>> {
        self.answers.get(&(n, attempt))
    }

    /// The latest ownership of a session that was given.
    pub(super) fn latest_claim(&self, key: &SessionKey) -> Option<Epoch> {
        let range = (key.clone(), Epoch(0))..=(key.clone(), Epoch(u64::MAX));
        self.claims.range(range).next_back().map(|((_, epoch), _)| *epoch)
    }

    /// The store answered an operation.
    pub(crate) fn replied(&mut self, boot: NodeId, op: &Op, reply: &Reply, shelf: &Shelf, ghost: bool) {
        let rewinds = self.rewinds;
        match (op, reply) {
            (Op::Append(append), reply) => {
                assert!(
                    rewinds || ghost || *reply != Reply::Order,
                    "G1: an owner knows where its log ends: {append:?}"
                );
                let gone = matches!(reply, Reply::Gone { .. });
                assert!(rewinds || ghost || !gone, "G3: a turn that ends was open: {append:?}");
                if let (Reply::Appended { .. }, Some(slot)) = (reply, shelf.session(&append.key)) {
                    self.appended(boot, append, slot);
                }
            }
            (Op::Claim { key, .. }, Reply::Claimed(claimed)) => self.owned_under(key, claimed.token),
            (Op::Transfer { key, .. }, Reply::Transferred { token }) => self.owned_under(key, *token),
            (Op::Accept { key, input, .. }, Reply::Accepted(accepted)) => {
                self.tails.entry(input.run_id.clone()).or_insert(accepted.tail);
                let Some(slot) = shelf.session(key) else { return };
                let same = slot.inbox.values().filter(|other| other.run_id == input.run_id).count();
                let ended = self.chronicles.get(key).and_then(|c| c.stories.get(&input.run_id));
                let ended = ended.is_some_and(|story| story.ended.is_some());
                assert!(same <= usize::from(!ended), "G2: a message is taken once: {}", input.run_id);
                let bytes: usize = slot.inbox.values().map(|input| input.weight()).sum();
                assert!(slot.inbox.len() <= limits::INBOX_INPUTS_MAX, "G8: inputs that wait are bounded");
                assert!(bytes <= limits::INBOX_BYTES_MAX, "G8: bytes that wait are bounded");
            }
            (Op::Control { key, control, .. }, Reply::Accepted(accepted)) => {
                self.controls.insert((key.clone(), accepted.place), Arc::clone(control));
                if let Ask::Handover { handover_id, confirm: true } = &control.what {
                    self.chronicles.entry(key.clone()).or_default().handed.agree(*handover_id);
                }
                let waiting = shelf.session(key).map_or(0, |slot| slot.control.len());
                assert!(waiting <= limits::CONTROL_ENTRIES_MAX, "G8: control entries that wait are bounded");
            }
            (Op::Keep(keep), Reply::Done) => self.kept(keep),
            _ => {}
        }
    }

    fn owned_under(&mut self, key: &SessionKey, token: Token) {
        let claim = *self.claims.entry((key.clone(), token.epoch)).or_insert(token.nonce);
        assert_eq!(claim, token.nonce, "G1: an epoch is given once, whatever the store forgets");
    }

    fn appended(&mut self, boot: NodeId, append: &Append, slot: &Slot) {
        let author = *self.authors.entry(append.token.nonce).or_insert(boot);
        assert_eq!(author, boot, "G1: one token, one writer");
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
        let first: Vec<Place> = first.copied().collect();
        self.answered(append, &first, slot, was_active.as_ref());
    }

    /// Takes the next fact of a log.
    fn learn(&mut self, key: &SessionKey, token: Token, entry: Arc<Entry>, slot: Option<&Slot>) {
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

    /// What the agent of this turn says in the attempt that the fact is about.
    fn text_of(&mut self, key: &SessionKey, entry: &Entry) -> Option<Arc<str>> {
        use turnway_core::protocol::entry::Fact;
        let run_id = entry.run_id.as_ref()?;
        if let Fact::UserMessage { message, .. } = &entry.fact {
            let story = Story::new(cast::number(message));
            let chronicle = self.chronicles.entry(key.clone()).or_default();
            let first = chronicle.stories.insert(run_id.clone(), story).is_none();
            assert!(first, "G2: a message opens one turn: {run_id}");
            return None;
        }
        let (Fact::AgentStreamDelta { attempt, .. } | Fact::RunDone { attempt, .. }) = &entry.fact else {
            return None;
        };
        let n = self.chronicles.get(key)?.stories.get(run_id)?.n;
        self.known_answer(n, *attempt).cloned()
    }

    /// Control entries that were answered have had their effect. (ST-14)
    fn answered(&self, append: &Append, answers: &[Place], slot: &Slot, was_active: Option<&RunId>) {
        let Some(chronicle) = self.chronicles.get(&append.key) else { return };
        let stopped = |run: &RunId| {
            chronicle.stories.get(run).is_none_or(|story| story.ended.is_some() || story.cancelling)
        };
        let taken = answers.iter().filter_map(|at| self.controls.get(&(append.key.clone(), *at)));
        for control in taken {
            match &control.what {
                Ask::Cancel { run_id: Some(run) } => {
                    let open = slot.inbox.values().any(|input| input.run_id == *run);
                    assert!(
                        stopped(run) || !open,
                        "G3: a cancel that was answered has stopped its turn: {run}"
                    );
                }
                Ask::Cancel { run_id: None } => {
                    assert!(was_active.is_none_or(stopped), "G3: a cancel of what speaks has stopped it");
                }
                Ask::Open { .. }
                | Ask::Close
                | Ask::Switch { .. }
                | Ask::Invite { .. }
                | Ask::Remove { .. }
                | Ask::Handover { .. } => {}
            }
        }
    }

    /// A kept state is the one that its facts make. (RX-3)
    fn kept(&self, keep: &Keep) {
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

    /// The store forgot: so must we, or we would hold it to what is gone.
    pub(crate) fn rewound(&mut self, shelf: &Shelf) {
        self.chronicles.clear();
        self.tails.clear();
        self.ended = 0;
        for (key, slot) in shelf.sessions() {
            for (token, entry) in &slot.log {
                self.learn(key, *token, Arc::clone(entry), None);
            }
        }
    }
}
