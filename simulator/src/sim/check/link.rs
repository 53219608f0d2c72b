//! Checks G5 and G6 for one link and one session: facts arrive in order, once and without gaps, and text likewise.
use super::ledger::{SessionRecord, StoreRecord};
use crate::sim::fixtures::PlannedMessage;
use crate::sim::world::LineId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::{Epoch, RequestId, RunId, Seq, SessionKey};
use turnway_core::protocol::agent::{OnOwnerLoss, TextKind};
use turnway_core::protocol::entry::{Entry, Fact, InputFact, RunFact};
use turnway_core::store::ModelStore;
use turnway_wire::channel::command::{LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification, ResetReason, SessionStateSnapshot};

/// Context for checking a message to a link.
pub(crate) struct View<'a> {
    pub(crate) line: LineId,
    pub(crate) key: &'a SessionKey,
    /// Unanswered requests of the link.
    pub(crate) asks: &'a BTreeMap<RequestId, LinkCommand>,
    /// Those of `asks` that the node has received.
    pub(crate) noticed: &'a BTreeSet<RequestId>,
    pub(crate) ledger: &'a StoreRecord,
    pub(crate) model: &'a ModelStore,
    pub(crate) sayings: &'a BTreeMap<u64, PlannedMessage>,
    pub(crate) rewinds: bool,
}

impl View<'_> {
    fn chronicle(&self) -> Option<&SessionRecord> {
        self.ledger.chronicles.get(self.key)
    }

    /// Returns the runs that this link has requested and not got an answer for, without repeats that have another
    /// body.
    fn asked_runs(&self) -> impl Iterator<Item = RunId> + '_ {
        self.asks.iter().filter(|(id, _)| self.noticed.contains(*id)).filter_map(|(_, ask)| {
            let LinkCommand::Invoke(invoke) = ask else { return None };
            let here = invoke.session.as_ref() == Some(&self.key.session);
            let twisted = crate::sim::fixtures::is_twisted(invoke);
            let saying = self.sayings.get(&crate::sim::fixtures::number(&invoke.message));
            saying.filter(|_| here && !twisted).map(|saying| saying.run_id.clone())
        })
    }
}

/// Progress of a link in one attempt's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TextProgress {
    attempt: u32,
    upto: u64,
    /// True if the link's own cursor named less text than the log has recorded.
    lacking: bool,
    ended: bool,
}

/// Facts and text that one link was sent of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkHistory {
    /// Next fact that the link must be sent; `None` before the first.
    next: Option<Seq>,
    /// True if the link has subscribed to all fact types, including those that are usually not sent.
    asked_all: bool,
    heard: BTreeMap<RunId, TextProgress>,
    accepted: BTreeSet<RunId>,
}

impl LinkHistory {
    /// Returns the last fact that the link was sent.
    pub(crate) fn upto(&self) -> Option<Seq> {
        self.next.map(|next| Seq(next.0 - 1))
    }

    /// Checks the next message.
    pub(crate) fn shown(&mut self, note: &Notification, view: &View<'_>) {
        match note {
            Notification::Fact { seq, epoch, entry, .. } => self.fact(*seq, *epoch, entry, view),
            Notification::Chunk { chunk, .. } => match chunk.kind {
                TextKind::Text => self.text(&chunk.run_id, chunk.attempt, chunk.offset, chunk.text.reveal(), view),
                TextKind::Reasoning => {}
            },
            Notification::Reply(CommandReply::TurnAccepted(accepted)) => {
                let slot = view.model.session(view.key);
                let durable = slot.is_some_and(|slot| slot.accepted_messages.contains_key(&accepted.run_id));
                assert!(durable || view.rewinds, "G3: what is accepted is durable: {}", accepted.run_id);
                self.accepted.insert(accepted.run_id.clone());
            }
            Notification::Reply(CommandReply::Subscribed { request_id, snapshot, reset }) => {
                let ask = request_id.as_ref().and_then(|id| view.asks.get(id));
                let ask = match ask {
                    Some(LinkCommand::Subscribe(ask)) => Some(ask),
                    _ => None,
                };
                self.subscribed(ask, snapshot, *reset, view);
            }
            Notification::Reply(CommandReply::Opened { snapshot, .. }) => check_snapshot(snapshot, view),
            Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => {}
        }
    }

    fn subscribed(
        &mut self,
        ask: Option<&SubscribeCommand>,
        snapshot: &SessionStateSnapshot,
        reset: Option<ResetReason>,
        view: &View<'_>,
    ) {
        check_snapshot(snapshot, view);
        if ask.is_some_and(|ask| superseded(ask, view)) {
            return;
        }
        if let Some(reset) = reset {
            // The reset may have been decided before that part of the log was trimmed.
            let liar = ask.is_some_and(|ask| is_false_cursor(ask, view));
            assert!(
                liar || view.rewinds || is_trimmed(reset, ask, view),
                "G5: only a cursor that the log does not hold starts over: {reset:?} {ask:?}"
            );
            self.heard.clear();
            self.next = Some(Seq(snapshot.seq.0 + 1));
            self.asked_all = ask.map_or(self.asked_all, |ask| !ask.types.is_empty());
            return self.joins_in(snapshot, snapshot.seq, view);
        }
        let Some(ask) = ask else { panic!("G5: an answer belongs to a request: {:?} {snapshot:?}", view.line) };
        assert!(
            view.rewinds || !is_unknown_cursor(ask, view),
            "G5: a cursor that the log does not hold starts over: {ask:?}"
        );
        let after = ask.after_seq.unwrap_or(snapshot.seq);
        self.next = Some(Seq(after.0 + 1));
        self.asked_all = !ask.types.is_empty();
        self.heard.clear();
        let saved = |run_id: &RunId, attempt| {
            let state = view.chronicle().map(|chronicle| chronicle.state(after)).unwrap_or_default();
            state.runs.get(run_id).filter(|run| run.attempt == attempt).map_or(0, |run| run.saved)
        };
        for run in &ask.runs {
            let open = snapshot.runs.iter().any(|open| open.run_id == run.run_id);
            let lacking = !open && run.offset < saved(&run.run_id, run.attempt);
            let heard = TextProgress { attempt: run.attempt, upto: run.offset, lacking, ended: false };
            self.heard.insert(run.run_id.clone(), heard);
        }
        self.joins_in(snapshot, after, view);
    }

    /// Sets the text cursors of runs that had begun at the link's position: the cursor that the link named, or
    /// zero. For a run that has ended since, text recorded before is not sent again.
    fn joins_in(&mut self, snapshot: &SessionStateSnapshot, after: Seq, view: &View<'_>) {
        let state = view.chronicle().map(|chronicle| chronicle.state(after)).unwrap_or_default();
        for (run_id, run) in state.runs.iter().filter(|(_, run)| run.attempt > 0) {
            let open = snapshot.runs.iter().find(|open| open.run_id == *run_id);
            let lacking = open.is_none() && run.saved > 0;
            let nothing = TextProgress { attempt: run.attempt, lacking, ..TextProgress::default() };
            let heard = self.heard.entry(run_id.clone()).or_insert(nothing);
            if heard.attempt != run.attempt {
                *heard = TextProgress { attempt: run.attempt, lacking, ..TextProgress::default() };
            }
        }
    }

    fn fact(&mut self, seq: Seq, epoch: Epoch, entry: &Arc<Entry>, view: &View<'_>) {
        match self.next {
            None => {
                self.begins(entry, view);
                self.overhears(seq, view);
            }
            Some(next) => self.follows(next, seq, view),
        }
        self.next = Some(Seq(seq.0 + 1));
        if !view.rewinds {
            let there = view.chronicle().and_then(|chronicle| chronicle.fact(seq));
            let same = there.is_some_and(|(at, fact)| at == epoch && (Arc::ptr_eq(fact, entry) || fact == entry));
            assert!(same, "G6: what a link is shown is in the log: {} {seq:?} on {:?}", view.key, view.line);
        }
        let Some(run_id) = &entry.run_id else { return };
        if let Fact::Input(InputFact::UserMessage { .. }) = &entry.fact {
            self.after_acceptance(run_id, view);
        }
        let fact = &entry.fact;
        if let Fact::Run(RunFact::Started { attempt, .. } | RunFact::Restarted { attempt, .. }) = fact {
            self.heard.insert(run_id.clone(), TextProgress { attempt: *attempt, ..TextProgress::default() });
        }
        if let Fact::Run(
            RunFact::Done { attempt, text_bytes, .. }
            | RunFact::Failed { attempt, text_bytes, .. }
            | RunFact::Cancelled { attempt, text_bytes, .. },
        ) = fact
        {
            self.ends(
                run_id,
                *attempt,
                *text_bytes,
                matches!(fact, Fact::Run(RunFact::Done { host_run_id: None, .. })),
                view,
            );
        }
    }

    /// Checks that this is the next fact, or the next one that is sent at all.
    fn follows(&self, next: Seq, seq: Seq, view: &View<'_>) {
        assert!(seq >= next || view.rewinds, "G5: no fact is shown twice: {} {seq:?} on {:?}", view.key, view.line);
        let log = view.chronicle().map_or(&[][..], |chronicle| &chronicle.log);
        let between = log.iter().take(seq.0 as usize - 1).skip(next.0 as usize - 1);
        let silent = |fact: &Fact| matches!(fact, Fact::Run(RunFact::TextDelta { .. } | RunFact::AgentDone { .. }));
        let passed = between.filter(|(_, entry)| self.asked_all || !silent(&entry.fact)).count();
        assert!(
            passed == 0 || view.rewinds,
            "G5: facts arrive without gaps: {} {seq:?} instead of {next:?} on {:?}",
            view.key,
            view.line
        );
    }

    /// Checks that a link without a subscription begins directly before a turn that it requested.
    fn begins(&self, entry: &Entry, view: &View<'_>) {
        let first = matches!(entry.fact, Fact::Input(InputFact::UserMessage { .. }));
        let asked = entry.run_id.as_ref().is_some_and(|run_id| self.accepted.contains(run_id));
        assert!(
            (first && asked) || view.rewinds,
            "G5: a link is shown what it asked for: {} {} on {:?}",
            view.key,
            entry.fact.name(),
            view.line
        );
    }

    /// Allows the text of the open run from its beginning.
    fn overhears(&mut self, seq: Seq, view: &View<'_>) {
        let state = view.chronicle().map(|chronicle| chronicle.state(seq)).unwrap_or_default();
        for (run_id, run) in state.runs.iter().filter(|(_, run)| run.attempt > 0) {
            let nothing = TextProgress { attempt: run.attempt, lacking: true, ..TextProgress::default() };
            let heard = self.heard.entry(run_id.clone()).or_insert(nothing);
            if heard.attempt != run.attempt {
                *heard = nothing;
            }
        }
    }

    fn after_acceptance(&self, run_id: &RunId, view: &View<'_>) {
        let early = !self.accepted.contains(run_id) && view.asked_runs().any(|asked| asked == *run_id);
        assert!(
            !early || view.rewinds,
            "G5: turn_accepted comes before anything else of its turn: {run_id} on {:?}",
            view.line
        );
    }

    fn text(&mut self, run_id: &RunId, attempt: u32, offset: u64, text: &str, view: &View<'_>) {
        let heard = self.heard.get_mut(run_id).filter(|heard| heard.attempt == attempt);
        let Some(heard) = heard else {
            assert!(
                view.rewinds,
                "G5: text follows the beginning of its attempt: {run_id}.{attempt} on {:?}",
                view.line
            );
            // After the store has lost an input that is in its log, a client that resends the input joins late.
            let upto = offset + text.len() as u64;
            self.heard.insert(run_id.clone(), TextProgress { attempt, upto, lacking: true, ended: false });
            return;
        };
        assert!(!heard.ended, "G5: no text follows the end of a turn: {run_id} on {:?}", view.line);
        // A link whose cursor lies inside a code point gets the whole code point again.
        let answer = view.chronicle().and_then(|chronicle| chronicle.stories.get(run_id));
        let answer = answer.and_then(|turn| view.ledger.known_answer(turn.n, attempt));
        let cut = answer.map_or(heard.upto, |answer| answer.floor_char_boundary(heard.upto as usize) as u64);
        assert!(
            cut == offset || heard.upto == offset,
            "G5: text has no gap: {run_id}.{attempt} has {} and is shown {offset} on {:?}",
            heard.upto,
            view.line
        );
        heard.upto = offset + text.len() as u64;
        let upto = heard.upto;
        let Some(turn) = view.chronicle().and_then(|chronicle| chronicle.stories.get(run_id)) else {
            assert!(view.rewinds, "G4: text belongs to a turn of the log: {run_id}");
            return;
        };
        let answer = view.ledger.known_answer(turn.n, attempt);
        let there = answer.and_then(|answer| answer.get(offset as usize..upto as usize));
        assert!(there == Some(text), "G5: a delta is what the agent said there: {run_id}.{attempt} at {offset}");
        let shy = turn.agent.as_ref().map(|agent| view.ledger.policy(agent).on_owner_loss);
        let saved = turn.saved.get(&attempt).is_some_and(|bytes| *bytes > 0);
        let shy = matches!(shy, Some(OnOwnerLoss::RetryIfSilent | OnOwnerLoss::Resume));
        let careful = !shy || saved;
        assert!(careful || view.rewinds, "G3: text that forbids another attempt is recorded first: {run_id}");
    }

    /// Checks that the whole text was sent before the end of its turn.
    fn ends(&mut self, run_id: &RunId, attempt: u32, text_bytes: u64, done: bool, view: &View<'_>) {
        let Some(heard) = self.heard.get_mut(run_id).filter(|heard| heard.attempt == attempt) else { return };
        let all = if done { heard.upto == text_bytes } else { heard.upto >= text_bytes };
        assert!(
            all || heard.lacking || view.rewinds,
            "G5: the whole text is shown before its end: {run_id}.{attempt} has {} of {text_bytes} on {:?}",
            heard.upto,
            view.line
        );
        heard.ended = true;
    }
}

/// Returns whether the requested position, or the turn that the link was told of, is trimmed.
fn is_trimmed(reset: ResetReason, ask: Option<&SubscribeCommand>, view: &View<'_>) -> bool {
    let ResetReason::Trimmed { floor } = reset else { return false };
    let kept = view.model.session(view.key).map_or(Seq(0), |slot| slot.floor);
    floor > Seq(0) && floor <= kept && ask.and_then(|ask| ask.after_seq).is_none_or(|after| after < floor)
}

/// Returns whether the link has sent a later subscribe, which replaces this one.
fn superseded(ask: &SubscribeCommand, view: &View<'_>) -> bool {
    let number = |id: &Option<RequestId>| id.as_ref().and_then(|id| id.as_str().strip_prefix('r')?.parse::<u64>().ok());
    let mine = number(&ask.request_id);
    let noticed = view.asks.iter().filter(|(id, _)| view.noticed.contains(*id));
    noticed.map(|(_, other)| other).any(|other| {
        let LinkCommand::Subscribe(other) = other else { return false };
        other.session == ask.session && number(&other.request_id) > mine
    })
}

/// Returns whether the kept log does not contain the fact that this cursor names.
fn is_unknown_cursor(ask: &SubscribeCommand, view: &View<'_>) -> bool {
    let floor = view.model.session(view.key).map_or(Seq(0), |slot| slot.floor);
    ask.after_seq.is_some_and(|after| after > floor) && is_false_cursor(ask, view)
}

/// Returns whether the log never contained the fact that this cursor names.
fn is_false_cursor(ask: &SubscribeCommand, view: &View<'_>) -> bool {
    let Some(after) = ask.after_seq.filter(|after| after.0 > 0) else { return false };
    let there = view.chronicle().and_then(|chronicle| chronicle.fact(after));
    match (there, ask.after_epoch) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some((epoch, _)), Some(after_epoch)) => epoch != after_epoch,
    }
}

/// Checks that a snapshot shows the state of the facts up to the one that it names.
fn check_snapshot(snapshot: &SessionStateSnapshot, view: &View<'_>) {
    if view.rewinds || snapshot.seq == Seq(0) {
        return;
    }
    let Some(chronicle) = view.chronicle() else { panic!("G6: a snapshot is of a log: {}", view.key) };
    let there = chronicle.fact(snapshot.seq).map(|(epoch, _)| epoch);
    assert_eq!(there, Some(snapshot.epoch), "G6: a snapshot names a fact of the log: {} {:?}", view.key, snapshot.seq);
    let state = chronicle.state(snapshot.seq);
    let mut shown: Vec<_> =
        snapshot.runs.iter().map(|run| (&run.run_id, run.attempt, run.state, run.text_bytes)).collect();
    let admitted = state.runs.iter().filter(|(_, run)| run.agent.is_some());
    let mut real: Vec<_> = admitted.map(|(id, run)| (id, run.attempt, run.state(), run.saved)).collect();
    shown.sort_unstable();
    real.sort_unstable();
    assert_eq!(shown, real, "G6: a snapshot shows the turns that are open: {} {:?}", view.key, snapshot.seq);
}
