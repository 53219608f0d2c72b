//! One link's subscription to one session: a cursor, never a queue.
use crate::switchboard::sink::EffectSink;
use crate::switchboard::stats::SubscriptionStart;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, LinkId, RequestId, RunId, Seq, SessionKey};
use turnway_core::invariant;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::private::Private;
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::session::{RunPhase, SessionPhase, State};
use turnway_core::shrink::Shrink;
use turnway_wire::channel::notification::{
    CommandReply, Notification, PROCESS_OUTPUT_TYPE, RunSnapshot, SessionStateSnapshot,
};

/// The way in which a link receives its facts at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionMode {
    /// Waits until the feed's state is known. Holds the cursor that the link named; `None`: from now on.
    Joining { requested_cursor: Option<(Seq, Option<Epoch>)> },
    /// Reads the facts that the link lacks, from after `scan`; facts up to the cursor are read for their text only.
    Reading { scan: Seq },
    /// Has everything, and receives new facts as they arrive.
    Live,
    /// Too much is in flight to the link: its cursor is paused, and reading continues from after `scan` later.
    Paused { scan: Seq },
}

/// A link's position in one attempt's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextPosition {
    pub(super) attempt: u32,
    pub(super) offset: u64,
    /// The owner has shown that there is no further text, or the text that directly follows.
    pub(super) is_current: bool,
    /// The log was read again for this text, which is done only once.
    rescanned: bool,
    /// The client named the position, and no fact has confirmed the attempt yet.
    unconfirmed: bool,
}

impl TextPosition {
    pub(super) fn confirmed(attempt: u32, offset: u64) -> Self {
        Self { attempt, offset, is_current: false, rescanned: false, unconfirmed: false }
    }
    /// Creates a position that a client named and no fact has confirmed.
    pub(super) fn unconfirmed(attempt: u32, offset: u64) -> Self {
        Self { unconfirmed: true, ..Self::confirmed(attempt, offset) }
    }
}

/// One link's subscription to one session.
#[derive(Debug)]
pub(super) struct Subscription {
    /// The last fact that was shown or silently skipped.
    pub(super) cursor: Cursor,
    pub(super) mode: SubscriptionMode,
    /// Number of the view at the time of the request; only a state that was read later answers it.
    pub(super) view_number: u64,
    /// Nothing is held back any more, and the text of open runs is still to be found.
    pub(super) text_search_pending: bool,
    /// Nothing is shown before the first fact of this turn.
    pub(super) hold_until_run: Option<RunId>,
    /// Requests that still await `subscribed`: a later request may move the link before an earlier one was
    /// answered.
    pub(super) pending_requests: Vec<Option<RequestId>>,
    /// The fact at this position must have this epoch.
    pub(super) verify: Option<(Seq, Epoch)>,
    pub(super) types: Vec<Pattern>,
    pub(super) texts: BTreeMap<RunId, TextPosition>,
}

/// The result of showing one fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShowOutcome {
    /// The fact was shown, or did not have to be.
    Done,
    /// The link is full; its cursor stays before the fact.
    Full,
    /// Text of this run is missing before the fact; the text is found further back in the log.
    TextMissing(RunId),
}

impl Subscription {
    pub(super) fn joining(requested_cursor: Option<(Seq, Option<Epoch>)>) -> Self {
        Self {
            cursor: Cursor::default(),
            mode: SubscriptionMode::Joining { requested_cursor },
            view_number: 0,
            text_search_pending: false,
            hold_until_run: None,
            pending_requests: Vec::new(),
            verify: None,
            types: Vec::new(),
            texts: BTreeMap::new(),
        }
    }

    /// Shows a fact if it directly follows the cursor, together with the part of its text that live pieces have not
    /// delivered.
    pub(super) fn show_fact(
        &mut self,
        sink: &mut EffectSink,
        link: LinkId,
        key: &SessionKey,
        at: Cursor,
        entry: &Arc<Entry>,
    ) -> ShowOutcome {
        if sink.links.is_full(link, key) {
            return ShowOutcome::Full;
        }
        if let Some(hole) = self.show_recorded_text(sink, link, key, at, entry) {
            return ShowOutcome::TextMissing(hole);
        }
        if at.seq <= self.cursor.seq {
            return ShowOutcome::Done;
        }
        let next = at.seq.0 == self.cursor.seq.0 + 1 || planted(Mutant::EdgeSkipsGap);
        invariant!(next, "only the next fact gets through: {:?} after {:?}", at.seq, self.cursor.seq);
        self.cursor = at;
        if let Some(run_id) = &self.hold_until_run {
            if entry.run_id.as_ref() != Some(run_id) {
                return ShowOutcome::Done;
            }
            self.hold_until_run = None;
            self.text_search_pending = true;
        }
        if let Some(run_id) = &entry.run_id {
            if let Fact::Run(RunFact::Started { attempt, .. } | RunFact::Restarted { attempt, .. }) = &entry.fact {
                self.texts.insert(run_id.clone(), TextPosition::confirmed(*attempt, 0));
            } else if entry.fact.is_terminal() {
                self.texts.remove(run_id);
                self.texts.shrink_if_empty();
            }
        }
        let requested = self.types.iter().any(|pattern| pattern.matches(entry.fact.name()));
        let silent = matches!(entry.fact, Fact::Run(RunFact::TextDelta { .. } | RunFact::AgentDone { .. }));
        if requested || !silent {
            sink.stats.facts_shown += 1;
            let is_operator = sink.links.get(link).is_some_and(|there| there.principal.operator);
            let entry = if is_operator { Arc::clone(entry) } else { entry.for_users() };
            let session = key.session.clone();
            let note = Notification::Fact { session, seq: at.seq, epoch: at.epoch, entry, requested };
            sink.notify(link, note);
        }
        ShowOutcome::Done
    }

    /// Shows the part of a recorded piece of text that the link lacks. Returns the run if earlier text is missing.
    fn show_recorded_text(
        &mut self,
        sink: &mut EffectSink,
        link: LinkId,
        key: &SessionKey,
        at: Cursor,
        entry: &Arc<Entry>,
    ) -> Option<RunId> {
        let Fact::Run(RunFact::TextDelta { attempt, offset, text, .. }) = &entry.fact else { return None };
        let run_id = entry.run_id.as_ref().filter(|_| self.hold_until_run.is_none())?;
        if at.seq > self.cursor.seq {
            // A link that names no offset of a run has none of its text (protocol.md §1.4). A link that names
            // another attempt, which may never have existed, has none of this attempt's text.
            let pos = self.texts.entry(run_id.clone()).or_insert(TextPosition::confirmed(*attempt, 0));
            if pos.attempt < *attempt || (pos.unconfirmed && pos.attempt != *attempt) {
                *pos = TextPosition::confirmed(*attempt, 0);
            }
            pos.unconfirmed = false;
        }
        let pos = self.texts.get_mut(run_id).filter(|pos| pos.attempt == *attempt)?;
        if pos.offset < *offset && !planted(Mutant::TextSkipsGap) {
            let first = !std::mem::replace(&mut pos.rescanned, true);
            return first.then(|| run_id.clone());
        }
        let text = Private(Arc::from(text.reveal()));
        let chunk =
            TextChunk { run_id: run_id.clone(), attempt: *attempt, offset: *offset, kind: TextKind::Text, text };
        show_text(sink, link, key, pos, &chunk);
        None
    }

    /// Shows a live piece of text if it follows the link's position; otherwise marks the position as uncertain.
    pub(super) fn show_chunk(&mut self, sink: &mut EffectSink, link: LinkId, key: &SessionKey, chunk: &TextChunk) {
        let Some(pos) = self.texts.get_mut(&chunk.run_id).filter(|pos| pos.attempt == chunk.attempt) else {
            return;
        };
        if sink.links.is_full(link, key) {
            self.mode = SubscriptionMode::Paused { scan: self.cursor.seq };
            sink.stats.slow_links += 1;
            return;
        }
        match chunk.kind {
            TextKind::Reasoning => {
                let note = Notification::Chunk { session: key.session.clone(), chunk: chunk.clone() };
                sink.notify(link, note);
            }
            TextKind::Text => {
                pos.is_current = chunk.offset <= pos.offset;
                if pos.is_current || planted(Mutant::TextSkipsGap) {
                    show_text(sink, link, key, pos, chunk);
                }
            }
        }
    }
}

impl Subscription {
    /// Shows a piece of process output to a link that subscribes to it and has capacity.
    pub(super) fn show_process_output(
        &self,
        sink: &mut EffectSink,
        link: LinkId,
        key: &SessionKey,
        run_id: &RunId,
        printed: &ProcessOutput,
    ) {
        let is_requested =
            self.hold_until_run.is_none() && self.types.iter().any(|pattern| pattern.matches(PROCESS_OUTPUT_TYPE));
        if is_requested && !sink.links.is_full(link, key) {
            let session = key.session.clone();
            let run_id = run_id.clone();
            let printed = Box::new(printed.clone());
            sink.notify(link, Notification::ProcessOutput { session, run_id, output: printed });
        }
    }
}

/// Shows the part of a piece of text beyond the link's offset.
fn show_text(sink: &mut EffectSink, link: LinkId, key: &SessionKey, pos: &mut TextPosition, chunk: &TextChunk) {
    if chunk.end() <= pos.offset {
        return;
    }
    let chunk = chunk.after(pos.offset);
    pos.offset = chunk.end();
    sink.stats.deltas_shown += 1;
    sink.notify(link, Notification::Chunk { session: key.session.clone(), chunk });
}

/// Returns a state as links see it.
pub(super) fn session_snapshot(key: &SessionKey, state: &State) -> Box<SessionStateSnapshot> {
    let handed = state.runs.iter().filter(|(_, run)| run.steered.is_some()).map(|(run_id, _)| run_id);
    let order = state.running.iter().chain(handed).chain(&state.waiting);
    let runs = order.filter_map(|run_id| {
        let run = state.runs.get(run_id)?;
        Some(RunSnapshot {
            run_id: run_id.clone(),
            agent_id: run.agent.clone()?,
            user: run.user.clone(),
            state: run.state(),
            attempt: run.attempt,
            text_bytes: run.saved,
        })
    });
    Box::new(SessionStateSnapshot {
        session: key.session.clone(),
        state: match state.phase {
            SessionPhase::New | SessionPhase::Open => "open",
            SessionPhase::Closing => "closing",
            SessionPhase::Closed => "closed",
        },
        active_agent: state.active.clone(),
        agents: state.agents.clone(),
        runs: runs.collect(),
        handover: state.handovers.open.clone(),
        seq: state.tail.seq,
        epoch: state.tail.epoch,
    })
}

impl Subscription {
    /// Sends `subscribed` for every waiting request, or to report a reset.
    pub(super) fn send_subscribed(
        &mut self,
        sink: &mut EffectSink,
        link: LinkId,
        key: &SessionKey,
        state: &State,
        start: SubscriptionStart,
    ) {
        let reset = start.reset_reason();
        let mut greets = std::mem::take(&mut self.pending_requests);
        if greets.is_empty() && reset.is_some() {
            greets.push(None);
        }
        for request_id in greets {
            sink.stats.subscribed.add(start.number());
            let note = Notification::Reply(CommandReply::Subscribed {
                request_id,
                snapshot: session_snapshot(key, state),
                reset,
            });
            sink.notify(link, note);
        }
    }

    /// Starts at the end of the feed, with the text of open runs from its beginning.
    pub(super) fn start_over(&mut self, state: &State) {
        self.cursor = state.tail;
        (self.hold_until_run, self.verify) = (None, None);
        self.texts.clear();
        self.follow_open_runs(state);
        self.mode = self.read_for_text(state);
    }

    /// Adds a text position for every open run that started before the link's cursor.
    pub(super) fn follow_open_runs(&mut self, state: &State) {
        for (run_id, run) in state.runs.iter().filter(|(_, run)| run.phase != RunPhase::Waiting) {
            if run.began > self.cursor.seq || self.hold_until_run.is_some() {
                continue;
            }
            let pos = self.texts.entry(run_id.clone()).or_insert(TextPosition::confirmed(run.attempt, 0));
            if pos.attempt != run.attempt {
                *pos = TextPosition::confirmed(run.attempt, 0);
            }
        }
    }

    /// Reads again from before a turn's first text; facts up to the cursor are read for their text only.
    pub(super) fn read_missing_text(&mut self, state: &State, run_id: &RunId) {
        // The attempt with the missing text may be earlier than the one in the state.
        let first = state.runs.get(run_id).map_or(Seq(0), |run| run.first);
        self.mode = SubscriptionMode::Reading { scan: first.min(self.cursor.seq) };
    }

    /// Looks for the text of open runs once nothing is held back from the link any more.
    pub(super) fn look_for_text(&mut self, state: &State) {
        // A state older than the link's cursor does not know which runs have ended since; nor does a state of facts
        // that the store has lost, which may end at the same position.
        let is_older = state.tail.seq < self.cursor.seq || state.tail.epoch < self.cursor.epoch;
        if !self.text_search_pending || is_older {
            return;
        }
        self.text_search_pending = false;
        self.follow_open_runs(state);
        if let SubscriptionMode::Reading { scan } = self.read_for_text(state)
            && scan < self.cursor.seq
        {
            self.mode = SubscriptionMode::Reading { scan };
        }
    }

    /// Returns whether a piece was not shown because the link lacks text before it.
    pub(super) fn lacks_before(&self, chunk: &TextChunk) -> bool {
        let pos = self.texts.get(&chunk.run_id).filter(|pos| pos.attempt == chunk.attempt);
        pos.is_some_and(|pos| !pos.is_current)
    }

    /// Returns the mode that also reads the text before the cursor that the link lacks.
    pub(super) fn read_for_text(&self, state: &State) -> SubscriptionMode {
        let lacking = self.texts.iter().filter_map(|(run_id, pos)| {
            let run = state.runs.get(run_id)?;
            (run.attempt == pos.attempt && pos.offset < run.saved).then_some(Seq(run.began.0.saturating_sub(1)))
        });
        let scan = lacking.min().map_or(self.cursor.seq, |scan| scan.min(self.cursor.seq));
        if scan >= state.tail.seq { SubscriptionMode::Live } else { SubscriptionMode::Reading { scan } }
    }
}
