//! Handling of the gateway's messages about one session: inputs, runs, text and session state. Called by the client's
//! state machine.
use crate::conversation::{SessionTracker, SubscriptionState};
use crate::event::{Done, Event, FactPosition, InputAccepted, Note, Status, StoredMessage};
use crate::frame::{IncomingMessage, joined_text};
use crate::limits::END_NOTES_MAX;
use crate::output::Outbound;
use crate::requests::SessionRequestKind;
use crate::text::{RunText, TextUpdate};
use serde_json::Value;

impl SessionTracker {
    /// Handles a message about this session.
    pub(crate) fn handle(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        match frame.kind() {
            "turn_accepted" => self.handle_accepted(frame, fx),
            "subscribed" => self.handle_subscribed(frame, fx),
            // An error with a position is a fact: a request had no effect, and all subscribers learn of it.
            "error" if frame.position().is_none() => self.handle_error(frame, fx),
            "session_opened" => self.handle_opened(frame, fx),
            "session_closed" => self.handle_closed(frame, fx),
            "members" => self.handle_members(frame, fx),
            _ => self.handle_output(frame, fx),
        }
    }

    fn handle_accepted(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let (Some(run), Some(id)) = (frame.string("run_id"), frame.text("message_id").or(frame.text("request_id")))
        else {
            return;
        };
        self.subscribed_by_input();
        self.link_input(id, &run, frame, fx);
        if self.is_ended(&run) {
            self.inputs.retain(|input| input.invoke.message_id != id);
        }
    }

    /// Links an input to its run; reported once.
    fn link_input(&mut self, id: &str, run: &str, frame: &IncomingMessage, fx: &mut Outbound) {
        let mine = |input: &&mut crate::requests::PendingInvoke| input.invoke.message_id == id;
        let Some(input) = self.inputs.iter_mut().find(mine) else { return };
        if input.run.replace(run.to_owned()).is_none() {
            fx.emit(Event::Accepted(InputAccepted {
                session: self.id.clone(),
                message_id: id.to_owned(),
                run: run.to_owned(),
                duplicate: frame.flag("duplicate"),
                durability: frame.string("durability"),
            }));
        }
    }

    // --- facts, text, and other messages ---

    fn handle_output(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let position = frame.position();
        if !self.is_new(position) {
            return;
        }
        self.link_input_by_fact(frame, fx);
        if frame.kind() == "done" && !self.has_whole_text(frame, fx) {
            return;
        }
        self.emit_fact(position, frame, fx);
        match (frame.kind(), frame.text("name")) {
            ("delta", _) => self.handle_delta(frame, fx),
            ("done", _) => self.handle_done(position, frame, fx),
            ("message", _) => self.handle_message(position, frame, fx),
            ("run_started", _) => self.handle_run_started(frame, fx),
            ("state", _) => self.handle_state(frame, fx),
            ("event", Some("RUN_RESTARTED")) => self.handle_restarted(frame, fx),
            ("event", Some("agent.stream.delta")) => {
                // A checkpoint requested by type holds the same text. Text missing before it arrives as `delta`.
                let _ = self.take_text(frame, fx);
                self.handle_note(position, frame, fx);
            }
            ("error", _) => self.handle_failed_change(position, frame, fx),
            (_, _) => self.handle_note(position, frame, fx),
        }
        if let Some(position) = position {
            self.advance(position.seq, position.epoch, fx);
        }
    }

    /// Returns whether the message is of the current subscription and after the cursor.
    fn is_new(&self, position: Option<FactPosition>) -> bool {
        let repeat = match (position, self.cursor) {
            (Some(position), Some(cursor)) => position.seq <= cursor.seq,
            (Some(_), None) | (None, _) => false,
        };
        self.subscription == SubscriptionState::Subscribed && !repeat
    }

    fn emit_fact(&self, position: Option<FactPosition>, frame: &IncomingMessage, fx: &mut Outbound) {
        if let Some(position) = position.filter(|_| self.facts) {
            fx.emit(Event::Fact { session: self.id.clone(), position, body: frame.body().clone() });
        }
    }

    /// A fact of the run that arrives before `turn_accepted` proves that the input is durable.
    fn link_input_by_fact(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let Some(run) = frame.string("run_id") else { return };
        let message_id = frame.message_field("message_id").and_then(Value::as_str);
        for id in [message_id, frame.text("request_id")].into_iter().flatten() {
            self.link_input(id, &run, frame, fx);
        }
    }

    fn handle_delta(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let hole = match frame.text("kind") {
            None | Some("text") => self.take_text(frame, fx) == TextUpdate::Gap,
            Some("reasoning") => {
                self.take_reasoning(frame, fx);
                false
            }
            Some(_) => false,
        };
        if hole {
            // After the last repair the run's end reports the missing text.
            let _ = self.repair(fx.now);
        }
    }

    /// Returns the run of a piece at the piece's attempt; none if the attempt is over or there is no room.
    fn run_of(&mut self, frame: &IncomingMessage, fx: &mut Outbound) -> Option<(String, &mut RunText)> {
        let id = frame.string("run_id")?;
        if self.is_ended(&id) {
            return None;
        }
        let run = self.open_run(&id)?;
        let attempt = frame.attempt().unwrap_or(run.attempt.max(1));
        if attempt > run.attempt {
            let void = run.attempt > 0;
            run.restart(attempt);
            if void {
                fx.emit(Event::Restarted { session: self.id.clone(), run: id.clone(), attempt });
            }
        }
        let run = self.runs.get_mut(&id).filter(|run| run.attempt == attempt)?;
        Some((id, run))
    }

    fn take_text(&mut self, frame: &IncomingMessage, fx: &mut Outbound) -> TextUpdate {
        let Some(piece) = frame.string("text") else { return TextUpdate::Known };
        let Some((id, run)) = self.run_of(frame, fx) else { return TextUpdate::Known };
        let offset = frame.number("offset").unwrap_or(run.text.len() as u64);
        let took = run.push(offset, &piece);
        if let TextUpdate::New(text) = &took {
            let text = text.clone();
            self.repairs = 0;
            fx.emit(Event::Text { session: self.id.clone(), run: id, text });
        }
        took
    }

    fn take_reasoning(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let Some(piece) = frame.string("text") else { return };
        let session = self.id.clone();
        let Some((run, text)) = self.run_of(frame, fx) else { return };
        if let Some(text) = text.push_reasoning(frame.number("offset").unwrap_or(u64::MAX), &piece) {
            fx.emit(Event::Reasoning { session, run, text });
        }
    }

    fn handle_run_started(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let agent = frame.string("agent_id");
        let session = self.id.clone();
        let Some((run, text)) = self.run_of(frame, fx) else { return };
        text.agent.clone_from(&agent);
        let attempt = text.attempt;
        fx.emit(Event::RunStarted { session, run, agent: agent.unwrap_or_default(), attempt });
    }

    fn handle_restarted(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let Some(id) = frame.string("run_id") else { return };
        // No text of a run that cannot be opened was delivered, so none has to be taken back.
        let Some(run) = self.open_run(&id) else { return };
        let attempt = frame.attempt().unwrap_or(run.attempt + 1);
        if attempt > run.attempt {
            run.restart(attempt);
            fx.emit(Event::Restarted { session: self.id.clone(), run: id, attempt });
        }
    }

    fn handle_message(&self, position: Option<FactPosition>, frame: &IncomingMessage, fx: &mut Outbound) {
        let Some(position) = position else { return };
        let word = |key: &str| frame.message_field(key).and_then(Value::as_str).map(str::to_owned);
        let content = frame.message_field("content").cloned().unwrap_or_default();
        fx.emit(Event::Message(Box::new(StoredMessage {
            session: self.id.clone(),
            position,
            run: frame.string("run_id"),
            message_id: word("message_id"),
            role: word("role").unwrap_or_else(|| "user".to_owned()),
            sender: word("user_id").or_else(|| word("user")).or_else(|| word("agent_id")),
            text: joined_text(&content),
            content,
        })));
    }

    fn handle_state(&self, frame: &IncomingMessage, fx: &mut Outbound) {
        fx.emit(Event::State {
            session: self.id.clone(),
            run: frame.string("run_id"),
            scope: frame.string("scope").unwrap_or_else(|| "run".to_owned()),
            state: frame.string("state").unwrap_or_default(),
            detail: frame.get("detail").cloned(),
        });
    }

    pub(crate) fn handle_note(&mut self, position: Option<FactPosition>, frame: &IncomingMessage, fx: &mut Outbound) {
        let name = match frame.kind() {
            "event" => frame.string("name").unwrap_or_default(),
            "error" => frame.string("code").unwrap_or_default(),
            kind => kind.to_owned(),
        };
        if matches!(name.as_str(), "CANCEL_SENT" | "CANCELED" | "NO_ACTIVE_SPEAKING") {
            self.requests.retain(|ask| ask.kind != SessionRequestKind::Cancel { run: None });
        }
        if frame.kind() == "handover" {
            self.requests.retain(|ask| frame.text("request_id") != Some(&ask.request_id));
        }
        let session = self.id.clone();
        let run = frame.string("run_id");
        let note = Note { session, position, name, run, body: frame.body().clone() };
        match note.run.as_ref().and_then(|run| self.runs.get_mut(run)) {
            // Part of a fact whose last message is still to come; all its messages may be repeated.
            Some(run) if note.position.is_none() => {
                if run.end_notes.len() < END_NOTES_MAX {
                    run.end_notes.push(note);
                }
            }
            Some(_) | None => fx.emit(Event::Note(Box::new(note))),
        }
    }

    // --- the end of a turn ---

    /// Returns whether all the text that `done` counts has arrived; otherwise requests it, and `done` is repeated. The
    /// text of a run that cannot be opened is not requested: there would be no room for it.
    fn has_whole_text(&mut self, frame: &IncomingMessage, fx: &mut Outbound) -> bool {
        let Some(id) = frame.string("run_id") else { return true };
        let Some(run) = self.open_run(&id) else { return true };
        let attempt = frame.attempt().unwrap_or(run.attempt);
        let is_other = attempt != run.attempt;
        let void = is_other && !run.text.is_empty();
        if is_other {
            // The attempt that counts is not the current one.
            run.restart(attempt);
        }
        let have = run.text.len() as u64;
        if void {
            fx.emit(Event::Restarted { session: self.id.clone(), run: id, attempt });
        }
        frame.number("text_bytes").is_none_or(|bytes| bytes <= have) || !self.repair(fx.now)
    }

    /// Returns whether less of a run's text has arrived than its `done` counts.
    pub(crate) fn lacks_text(&self, id: &str, done: &IncomingMessage) -> bool {
        if self.subscription != SubscriptionState::Subscribed || self.is_ended(id) || !self.can_open_run(id) {
            return false;
        }
        let run = self.runs.get(id).filter(|run| done.attempt().is_none_or(|attempt| attempt == run.attempt));
        let have = run.map_or(0, |run| run.text.len() as u64);
        done.number("text_bytes").is_some_and(|bytes| bytes > have)
    }

    fn handle_done(&mut self, position: Option<FactPosition>, frame: &IncomingMessage, fx: &mut Outbound) {
        let Some(id) = frame.string("run_id") else { return };
        let mut run = self.runs.remove(&id).unwrap_or_default();
        let text_bytes = frame.number("text_bytes").unwrap_or(run.text.len() as u64);
        run.truncate(text_bytes);
        let mine = self.inputs.iter().find(|input| input.run.as_ref() == Some(&id));
        let message_id = mine.map(|input| input.invoke.message_id.clone());
        self.inputs.retain(|input| input.run.as_ref() != Some(&id));
        self.requests.retain(|ask| match &ask.kind {
            SessionRequestKind::Cancel { run } => run.as_ref().is_some_and(|run| *run != id),
            SessionRequestKind::Open(_)
            | SessionRequestKind::Close
            | SessionRequestKind::Decide(_)
            | SessionRequestKind::Members(_) => true,
        });
        self.remember_end(&id);
        run.end_notes.into_iter().for_each(|note| fx.emit(Event::Note(Box::new(note))));
        fx.emit(Event::Done(Box::new(Done {
            session: self.id.clone(),
            position,
            run: id,
            message_id,
            agent: run.agent,
            status: Status::parse(frame.text("status").unwrap_or_default()),
            stop_reason: frame.string("stop_reason"),
            attempt: frame.attempt().unwrap_or(run.attempt),
            text_bytes,
            complete: run.text.len() as u64 == text_bytes,
            text: run.text,
            usage: frame.get("usage").cloned(),
            host_run: frame.string("host_run_id"),
            error: run.failure,
        })));
    }

    // --- the session's life ---

    fn handle_opened(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let before = self.requests.len();
        let answers = |ask: &crate::requests::SessionRequest| match ask.kind {
            SessionRequestKind::Open(_) => frame.text("request_id").is_none_or(|id| id == ask.request_id),
            SessionRequestKind::Close
            | SessionRequestKind::Cancel { .. }
            | SessionRequestKind::Decide(_)
            | SessionRequestKind::Members(_) => false,
        };
        self.requests.retain(|ask| !answers(ask));
        let answered = self.requests.len() < before;
        // The answer holds a snapshot and its position; only the fact moves the cursor.
        let position =
            frame.position().filter(|position| frame.get("snapshot").is_none() && self.is_new(Some(*position)));
        // The requesting client may receive both the answer and the fact.
        let known = frame.text("request_id").is_some_and(|id| fx.is_mine(id)) && !answered;
        if (answered || position.is_some()) && !known {
            self.emit_fact(position, frame, fx);
            let snapshot = frame.get("snapshot").map(|_| Box::new(self.snapshot_of(frame)));
            fx.emit(Event::Opened { session: self.id.clone(), snapshot });
        }
        if answered && self.subscription == SubscriptionState::Unsubscribed {
            let snapshot = self.snapshot_of(frame);
            // Subscribes to everything after the answer's snapshot.
            self.follow(&snapshot, fx.now);
        }
        if let Some(position) = position {
            self.advance(position.seq, position.epoch, fx);
        }
    }

    fn handle_closed(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let before = self.requests.len();
        let mine = frame.text("request_id");
        self.requests
            .retain(|ask| ask.kind != SessionRequestKind::Close || mine.is_some_and(|id| id != ask.request_id));
        let answered = self.requests.len() < before;
        let position = frame.position().filter(|_| self.is_new(frame.position()));
        let known = mine.is_some_and(|id| fx.is_mine(id)) && !answered;
        if (answered || position.is_some()) && !known {
            self.emit_fact(position, frame, fx);
            fx.emit(Event::Closed { session: self.id.clone() });
        }
        if let Some(position) = position {
            self.advance(position.seq, position.epoch, fx);
        }
    }
}
