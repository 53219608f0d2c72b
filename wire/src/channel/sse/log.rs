//! A session's facts as server-sent events: the envelopes of the requested types.
use super::push_named_event;
use crate::channel::json::envelope::envelope;
use crate::channel::json::render::render;
use crate::channel::notification::{CommandReply, Notification};
use crate::channel::sse::cursor::{InvalidTurnCursor, parse_number};
use turnway_core::id::{Cursor, Epoch, RunId, Seq};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::time::Millis;

/// One reader of one log. Facts have no event name; other events have one: `subscribed` (when history is missing),
/// `error`, `go_away`.
#[derive(Debug)]
pub struct LogStream {
    types: Vec<Pattern>,
    /// Restricts the stream to this turn's facts, until the turn's end.
    run_id: Option<RunId>,
    is_over: bool,
}

/// Parses the `id:` of a log event.
pub fn parse_event_id(text: &str) -> Result<Cursor, InvalidTurnCursor> {
    let (seq, epoch) = text.split_once('-').ok_or(InvalidTurnCursor)?;
    Ok(Cursor { seq: Seq(parse_number(seq)?), epoch: Epoch(parse_number(epoch)?) })
}

// === impl LogStream ===

impl LogStream {
    /// Creates a reader of the facts whose type matches one of `types`; restricted to one turn if `run_id` is
    /// given.
    pub fn new(types: Vec<Pattern>, run_id: Option<RunId>) -> Self {
        Self { types, run_id, is_over: false }
    }

    /// Returns whether no further event can follow.
    pub fn is_finished(&self) -> bool {
        self.is_over
    }

    /// Appends the events of a notification, if the reader requested it.
    pub fn push(&mut self, ts: Millis, note: &Notification, to: &mut String) {
        match note {
            Notification::Fact { session, seq, epoch, entry, .. } => {
                if self.run_id.is_some() && entry.run_id != self.run_id {
                    return;
                }
                self.is_over |= self.run_id.is_some() && entry.fact.is_terminal();
                if self.types.iter().any(|pattern| pattern.matches(entry.fact.name())) {
                    let at = Cursor { seq: *seq, epoch: *epoch };
                    super::push_event(to, Some(&format!("{}-{}", seq.0, epoch.0)), &envelope(session, at, entry));
                }
            }
            Notification::Reply(CommandReply::Subscribed { snapshot, reset: Some(_), .. }) => {
                let of_mine = |run_id: &RunId| snapshot.runs.iter().any(|run| run.run_id == *run_id);
                self.is_over |= self.run_id.as_ref().is_some_and(|run_id| !of_mine(run_id));
                self.push_rendered("subscribed", ts, note, to);
            }
            Notification::Reply(CommandReply::Refused { .. }) => {
                self.is_over = true;
                self.push_rendered("error", ts, note, to);
            }
            Notification::GoAway { .. } => self.push_rendered("go_away", ts, note, to),
            Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_) => {}
        }
    }

    fn push_rendered(&self, name: &str, ts: Millis, note: &Notification, to: &mut String) {
        // None of these messages contains the durability.
        render(ts, "", note, &mut |text| push_named_event(to, name, &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::notification::{ResetReason, SessionStateSnapshot};
    use std::sync::Arc;
    use turnway_core::id::{EventId, SessionId};
    use turnway_core::protocol::agent::StopReason;
    use turnway_core::protocol::entry::{Entry, Fact, RunFact};

    fn session() -> SessionId {
        SessionId::parse("s1").expect("a name")
    }

    fn run(letter: &str) -> RunId {
        RunId::parse(&format!("s1.{}", letter.repeat(26))).expect("a run")
    }

    fn fact(seq: u64, letter: &str, fact: Fact) -> Notification {
        let entry = Arc::new(Entry {
            id: EventId::default(),
            time: Millis(1),
            source: "turnway".into(),
            correlation_id: "c".into(),
            causation_id: None,
            traceparent: None,
            run_id: Some(run(letter)),
            fact,
        });
        Notification::Fact { session: session(), seq: Seq(seq), epoch: Epoch(4), entry, requested: true }
    }

    fn done() -> Fact {
        let stop_reason = StopReason::EndTurn;
        let text_sha256 = String::new();
        Fact::Run(RunFact::Done { attempt: 1, stop_reason, text_bytes: 0, text_sha256, usage: None, host_run_id: None })
    }

    fn suspended() -> Fact {
        Fact::Run(RunFact::Suspended { attempt: 1, reason: String::new() })
    }

    fn ids(types: &str, run_id: Option<RunId>) -> (Vec<String>, bool) {
        let mut log = LogStream::new(vec![Pattern::parse(types).expect("a pattern")], run_id);
        let notes = [fact(7, "a", suspended()), fact(8, "b", done()), fact(9, "a", done())];
        let mut text = String::new();
        notes.iter().for_each(|note| log.push(Millis(5), note, &mut text));
        let ids = text.lines().filter_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
        (ids.collect(), log.is_finished())
    }

    /// Covers: LN-EV3, MP-T9.
    #[test]
    fn facts_are_filtered_by_type_and_turn() {
        let all = ["7-4", "8-4", "9-4"].map(str::to_owned);
        assert_eq!(ids(">", None), (all.to_vec(), false));
        assert_eq!(ids("run.done", None), (all[1..].to_vec(), false));
        assert_eq!(ids(">", Some(run("a"))), (vec![all[0].clone(), all[2].clone()], true));
        // The turn's end ends the stream, even if its fact is filtered out.
        assert_eq!(ids("run.suspended", Some(run("a"))), (all[..1].to_vec(), true));
        assert_eq!(parse_event_id("9-4"), Ok(Cursor { seq: Seq(9), epoch: Epoch(4) }));
        for bad in ["", "9", "-", "9-", "-4", "9-4-1", "+9-4", "9-x", "09-4", "99999999999999999999-1"] {
            assert_eq!(parse_event_id(bad), Err(InvalidTurnCursor), "{bad}");
        }
    }

    #[test]
    fn other_events_have_a_name_and_no_id() {
        let state = "open";
        let active_agent = None;
        let agents = Vec::new();
        let runs = Vec::new();
        let session = session();
        let seq = Seq(9);
        let epoch = Epoch(4);
        let snapshot =
            Box::new(SessionStateSnapshot { session, state, active_agent, agents, runs, handover: None, seq, epoch });
        let reset = Some(ResetReason::Trimmed { floor: Seq(8) });
        let note = Notification::Reply(CommandReply::Subscribed { request_id: None, snapshot, reset });
        for (run_id, is_over) in [(None, false), (Some(run("a")), true)] {
            let mut log = LogStream::new(Vec::new(), run_id);
            let mut text = String::new();
            log.push(Millis(5), &note, &mut text);
            assert!(text.starts_with("event: subscribed\ndata: {") && !text.contains("id: "), "{text}");
            assert!(text.contains("\"floor\":8"), "{text}");
            assert_eq!(log.is_finished(), is_over);
        }
    }
}
