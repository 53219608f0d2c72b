//! The session machine by script: what is said to it, and what it records, orders and shows.
//!
//! A script is a list of steps divided by `;`. The record is one word per output: facts by their
//! type, orders in capitals, text in quotes. Facts are durable at once unless a script says `hold`.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ControlId, Epoch, MessageId, Nonce, Place, RunId, SessionId, SessionKey, TenantId, Token, UserId,
};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{
    AgentEvent, AgentFailure, AgentPolicy, Directory, OnOwnerLoss, Order, StopReason, TextKind,
};
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::protocol::input::{Ask, Content, Control, Input as Request, Message, Role, Strategy};
use turnway_core::rng::Rng;
use turnway_core::session::{Input, Output, SessionRuntime, State};
use turnway_core::time::{Millis, Mono, Now};

struct Script {
    runtime: SessionRuntime,
    directory: Arc<Directory>,
    now: Now,
    places: u64,
    /// Inputs and control entries that are still in the store.
    inbox: BTreeMap<Place, Arc<Request>>,
    lane: BTreeMap<Place, Arc<Control>>,
    log: Vec<(Epoch, Arc<Entry>)>,
    epoch: u64,
    durable: bool,
    running: Option<(RunId, u32)>,
    record: Vec<String>,
}

fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") }
}

fn user() -> UserId {
    UserId::parse("ann").expect("a name")
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).expect("a name")
}

fn run(message: &str) -> RunId {
    RunId::derive(&key(), &user(), &MessageId::parse(message).expect("a name"))
}

impl Script {
    fn new(policy: OnOwnerLoss) -> Self {
        let policy = AgentPolicy { on_owner_loss: policy, ..AgentPolicy::default() };
        let agents = [("a", policy.clone()), ("b", policy)].map(|(name, policy)| (agent(name), policy));
        let directory = Arc::new(Directory { agents: BTreeMap::from(agents), default: Some(agent("a")) });
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_000_000) };
        let runtime = owner(&directory, 1, State::default());
        let (inbox, lane) = (BTreeMap::new(), BTreeMap::new());
        let (log, record, running) = (Vec::new(), Vec::new(), None);
        Self {
            runtime,
            directory,
            now,
            places: 0,
            inbox,
            lane,
            log,
            epoch: 1,
            durable: true,
            running,
            record,
        }
    }

    fn give(&mut self, input: Input) {
        self.runtime.handle_input(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            let before = self.log.len();
            while let Some(output) = self.runtime.poll_output() {
                self.take(output);
            }
            if self.log.len() == before || !self.durable {
                return;
            }
            let tail = self.runtime.state().tail.seq;
            self.runtime.handle_input(self.now, Input::Durable(tail));
        }
    }

    fn take(&mut self, output: Output) {
        let word = match output {
            Output::Record(record) => {
                if let Some((place, _)) = record.ends {
                    assert!(self.inbox.remove(&place).is_some(), "an input ends once");
                }
                if let Some(place) = record.answers {
                    self.lane.remove(&place);
                }
                self.log.push((Epoch(self.epoch), Arc::clone(&record.entry)));
                name(&record.entry.fact)
            }
            Output::Consume { place } => {
                self.lane.remove(&place);
                "consume".to_owned()
            }
            Output::Order(Order::Invoke(invoke)) => {
                self.running = Some((invoke.run_id, invoke.attempt));
                format!("INVOKE({},{})", invoke.agent_id, invoke.attempt)
            }
            Output::Order(Order::Cancel { .. }) => "CANCEL".to_owned(),
            Output::Order(Order::Drop { .. }) => "DROP".to_owned(),
            Output::Order(Order::Credit { upto, .. }) => format!("CREDIT({upto})"),
            Output::Chunk { offset, text, .. } => format!("{offset}'{}'", text.reveal()),
            Output::Answered { .. } => "answered".to_owned(),
            Output::CatchUp => {
                self.record.push("catch_up".to_owned());
                return;
            }
        };
        self.record.push(word);
    }

    fn place(&mut self) -> Place {
        self.places += 1;
        Place(self.places)
    }

    fn request(&mut self, message: &str, strategy: Strategy, to: Option<&str>) {
        let input = Arc::new(Request {
            run_id: run(message),
            message_id: MessageId::parse(message).expect("a name"),
            request_id: None,
            user: user(),
            agent_id: to.map(agent),
            message: Message { role: Role::User, content: Content::Text(format!("text of {message}")) },
            strategy,
            metadata: None,
            traceparent: None,
        });
        let place = self.place();
        self.inbox.insert(place, Arc::clone(&input));
        self.give(Input::Take { place, input });
    }

    fn ask(&mut self, what: Ask) {
        let place = self.place();
        let id = ControlId::parse(&format!("c{}", place.0)).expect("a label");
        let control = Arc::new(Control { id, user: user(), request_id: None, what });
        self.lane.insert(place, Arc::clone(&control));
        self.give(Input::Control { place, control });
    }

    fn report(&mut self, event: AgentEvent) {
        let (run_id, attempt) = self.running.clone().expect("an order went out");
        self.give(Input::Agent { run_id, attempt, event });
    }

    /// Another node takes over with what is durable: the log, the inbox, the control lane.
    fn crash(&mut self) {
        self.record.push("|".to_owned());
        self.epoch += 1;
        let state = State::replay(self.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
        let kept = State::from_snapshot(&state.to_snapshot().expect("a snapshot")).expect("a state");
        assert_eq!(kept, state, "a snapshot is the state");
        self.runtime = owner(&self.directory, self.epoch, kept);
        for (place, input) in self.inbox.clone() {
            self.give(Input::Take { place, input });
        }
        for (place, control) in self.lane.clone() {
            self.give(Input::Control { place, control });
        }
    }

    fn wait(&mut self, wait: Duration) {
        let until = self.now.mono + wait;
        while let Some(at) = self.runtime.poll_timeout().map(|d| d.at).filter(|at| *at <= until) {
            let passed = at - self.now.mono;
            self.now = Now { mono: at.max(self.now.mono), store: self.now.store.after(passed) };
            self.runtime.handle_timeout(self.now);
            self.drain();
        }
        let passed = until - self.now.mono;
        self.now = Now { mono: until, store: self.now.store.after(passed) };
    }

    fn step(&mut self, step: &str) {
        let words: Vec<&str> = step.split_whitespace().collect();
        match words.as_slice() {
            ["say", message] => self.request(message, Strategy::Enqueue, None),
            ["say", message, "to", to] => self.request(message, Strategy::Enqueue, Some(to)),
            ["interrupt", message] => self.request(message, Strategy::Interrupt, None),
            ["open", agents @ ..] => {
                self.ask(Ask::Open { agents: agents.iter().map(|name| agent(name)).collect(), active: None });
            }
            ["close"] => self.ask(Ask::Close),
            ["cancel"] => self.ask(Ask::Cancel { run_id: None }),
            ["cancel", message] => self.ask(Ask::Cancel { run_id: Some(run(message)) }),
            ["caught-up"] => self.give(Input::CaughtUp),
            ["ack"] => self.report(AgentEvent::Acked),
            ["text", text] => {
                self.report(AgentEvent::Delta { kind: TextKind::Text, text: Private((*text).to_owned()) })
            }
            ["think", text] => {
                self.report(AgentEvent::Delta {
                    kind: TextKind::Reasoning,
                    text: Private((*text).to_owned()),
                });
            }
            ["flood", bytes] => {
                let text = Private("x".repeat(bytes.parse().expect("a number")));
                self.report(AgentEvent::Delta { kind: TextKind::Text, text });
            }
            ["done"] => self.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None }),
            ["fail"] => self.report(AgentEvent::Failed(AgentFailure::Broken("status 500".to_owned()))),
            ["gone"] => {
                self.report(AgentEvent::Failed(AgentFailure::Unavailable("no connection".to_owned())))
            }
            ["cancel-ack"] => self.report(AgentEvent::CancelAcked),
            ["crash"] => self.crash(),
            ["drain"] => self.give(Input::Hold),
            ["suspend"] => self.give(Input::Suspend),
            ["hold"] => self.durable = false,
            ["settle"] => {
                self.durable = true;
                let tail = self.runtime.state().tail.seq;
                self.give(Input::Durable(tail));
            }
            ["wait", ms] => self.wait(Duration::from_millis(ms.parse().expect("a number"))),
            other => panic!("no such step: {other:?}"),
        }
    }
}

fn owner(directory: &Arc<Directory>, epoch: u64, state: State) -> SessionRuntime {
    let token = Token { epoch: Epoch(epoch), nonce: Nonce(u128::from(epoch)) };
    SessionRuntime::new(key(), token, Arc::clone(directory), Rng::from_number(epoch), state)
}

fn name(fact: &Fact) -> String {
    match fact {
        Fact::RunFailed { code, .. } => format!("failed({})", code.as_str()),
        Fact::RunDone { text_bytes, .. } => format!("done({text_bytes})"),
        Fact::RunCancelled { reason, forced, .. } => {
            format!("cancelled({reason}{})", if *forced { ",forced" } else { "" })
        }
        Fact::TurnAdmitted { agent_id, strategy, position } => {
            let position = position.map(|position| format!(",{position}")).unwrap_or_default();
            format!("admitted({agent_id},{strategy:?}{position})")
        }
        Fact::AgentStreamDelta { offset, text, .. } => format!("stretch({offset}+{})", text.reveal().len()),
        Fact::SessionNotice { name, .. } => name.clone(),
        other => other.name().to_owned(),
    }
}

/// Runs a script for an agent that is safe to repeat.
fn check(script: &str, expected: &str) {
    check_with(OnOwnerLoss::Retry, script, expected);
}

fn check_with(policy: OnOwnerLoss, script: &str, expected: &str) {
    let mut world = Script::new(policy);
    for step in script.split(';').map(str::trim).filter(|step| !step.is_empty()) {
        world.step(step);
    }
    let live = world.runtime.state().clone();
    let rebuilt = State::replay(world.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
    assert_eq!(rebuilt, live, "state is a projection of the log (RX-3)");
    let record = world.record.join(" ");
    assert_eq!(record, expected.split_whitespace().collect::<Vec<_>>().join(" "), "script: {script}");
}

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1)";

/// Covers: SR-A2, SR-A3, SR-A5, SR-A7, SR-A9, SR-A11, SR-A12, SR-G4, SR-G6, SR-G7, SR-K1, MP-T2, MP-T3, MP-T4.
#[test]
fn a_plain_input_is_routed_acked_streamed_and_done() {
    check(
        "say m1; ack; text he; text llo; done",
        &format!("{BEGUN} agent.invoke.started 0'he' 2'llo' stretch(0+5) agent.invoke.done done(5)"),
    );
}

/// Covers: G4, RX-7.
#[test]
fn no_order_before_its_fact_is_durable() {
    check("hold; say m1", "session.opened user.message admitted(a,Run) run.started");
    check("hold; say m1; settle", BEGUN);
}

/// Covers: SR-A10, LN-SR1, LN-SR22.
#[test]
fn an_agent_that_never_acks_is_a_route_timeout() {
    check("say m1; wait 14999", BEGUN);
    check("say m1; wait 15000", &format!("{BEGUN} failed(ROUTE_TIMEOUT) DROP"));
    check("say m1; wait 14999; ack; wait 2", &format!("{BEGUN} agent.invoke.started"));
}

/// Covers: SR-G5 (a first chunk implies the start), SR-T8.
#[test]
fn text_before_the_ack_implies_the_start() {
    check(
        "say m1; text hi; wait 16000; done",
        &format!("{BEGUN} run.state 0'hi' stretch(0+2) CREDIT(2) agent.invoke.done done(2)"),
    );
}

#[test]
fn an_agent_that_falls_silent_is_given_up() {
    check("say m1; ack; wait 120000", &format!("{BEGUN} agent.invoke.started failed(agent_timeout) DROP"));
}

/// Covers: SR-G10, SR-S9, MP-G7, LN-MP25 (one terminal, one error).
#[test]
fn an_agents_failures_have_their_codes() {
    check("say m1; fail; done; text x", &format!("{BEGUN} failed(agent_error) DROP"));
    check("say m1; gone", &format!("{BEGUN} failed(agent_unavailable) DROP"));
    check(
        "say m1; ack; done; done; fail",
        &format!("{BEGUN} agent.invoke.started agent.invoke.done done(0)"),
    );
}

/// Covers: SR-C3, SR-C4, SR-C5, SR-C6, SR-C7, SR-C8, SR-C9, SR-K2, RX-5, ST-12, LN-SR19, LN-MP24.
#[test]
fn a_cancel_waits_for_its_ack_and_is_sticky() {
    let cancelling = format!("{BEGUN} agent.invoke.started 0'so' run.cancelling CANCEL answered");
    check("say m1; ack; text so; cancel m1", &cancelling);
    check(
        "say m1; ack; text so; cancel m1; text late; cancel-ack; text later; done",
        &format!("{cancelling} stretch(0+2) cancelled(user) DROP"),
    );
    check(
        "say m1; ack; text so; cancel m1; done",
        &format!("{cancelling} stretch(0+2) cancelled(user) DROP"),
    );
}

/// Covers: LN-SR2, SR-C7 (the wait has an end), ST-17 (partial text stays).
#[test]
fn a_cancel_without_ack_is_forced() {
    check(
        "say m1; ack; text so; cancel; wait 2000",
        &format!(
            "{BEGUN} agent.invoke.started 0'so' run.cancelling CANCEL answered stretch(0+2) cancelled(user,forced) DROP"
        ),
    );
}

/// Covers: SR-C2, RX-6, ST-11, ST-13.
#[test]
fn a_cancel_that_comes_too_late_hits_nothing() {
    let done = format!("{BEGUN} agent.invoke.started agent.invoke.done done(0)");
    check("say m1; ack; done; cancel", &format!("{done} NO_ACTIVE_SPEAKING answered"));
    check("say m1; ack; done; cancel m1; caught-up", &format!("{done} catch_up consume answered"));
    check(
        "say m1; ack; say m2; cancel m2; cancel m2; caught-up; done",
        &format!(
            "{BEGUN} agent.invoke.started user.message admitted(a,Queued,1) cancelled(user) answered catch_up consume answered agent.invoke.done done(0)"
        ),
    );
}

/// Covers: ST-14, LN-SR20: a cancel may overtake the input that it names.
#[test]
fn a_cancel_that_comes_first_still_hits() {
    check("cancel m1; say m1", "catch_up session.opened user.message cancelled(user) answered");
}

/// Covers: ST-6, I6: inputs begin in order, an interrupt begins next.
#[test]
fn a_second_input_waits_or_interrupts() {
    check(
        "say m1; say m2; done; done",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) agent.invoke.done done(0) run.started INVOKE(a,1) agent.invoke.done done(0)"
        ),
    );
    check(
        "say m1; say m2; interrupt m3; cancel-ack; done; done",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) user.message admitted(a,Interrupts) run.cancelling CANCEL \
             cancelled(interrupt) DROP run.started INVOKE(a,1) agent.invoke.done done(0) run.started INVOKE(a,1) \
             agent.invoke.done done(0)"
        ),
    );
}

/// Covers: SR-B4, SR-B6, SR-B8, LN-SR11.
#[test]
fn an_addressed_member_answers_and_a_stranger_does_not() {
    check(
        "open a b; say m1 to b; done; say m2",
        "session.opened answered user.message agent.switched admitted(b,Run) run.started INVOKE(b,1) \
         agent.invoke.done done(0) user.message admitted(b,Run) run.started INVOKE(b,1)",
    );
    check("open a; say m1 to b", "session.opened answered user.message failed(agent_not_in_session)");
}

/// Covers: SR-H1, SR-H2, SR-H5, SR-H6, G3.
#[test]
fn a_close_stops_what_speaks_and_ends_what_waits() {
    check(
        "say m1; say m2; close; say m3; cancel-ack; say m4; open; say m5",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) session.closing failed(session_closed) run.cancelling CANCEL \
             user.message failed(session_closed) cancelled(session_close) DROP session.closed answered user.message \
             failed(session_closed) session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1)"
        ),
    );
    check(
        "open; open; close; close",
        "session.opened answered consume answered session.closing session.closed answered consume answered",
    );
}

/// Covers: SR-H2 across a change of owner.
#[test]
fn a_close_survives_its_owner() {
    check(
        "say m1; close; crash",
        &format!(
            "{BEGUN} session.closing run.cancelling CANCEL | cancelled(session_close) session.closed answered"
        ),
    );
}

/// Covers: G2, G3, RX-8: attempts are counted, the third after a while, and then no more.
#[test]
fn a_turn_that_kills_its_owners_is_poison() {
    check(
        "say m1; crash; crash; wait 999; wait 1; crash",
        &format!("{BEGUN} | run.restarted INVOKE(a,2) | run.restarted INVOKE(a,3) | failed(poison_turn)"),
    );
}

#[test]
fn a_turn_of_a_lost_owner_goes_by_its_agents_policy() {
    check_with(OnOwnerLoss::Fail, "say m1; crash", &format!("{BEGUN} | failed(owner_lost)"));
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; crash",
        &format!("{BEGUN} agent.invoke.started | run.restarted INVOKE(a,2)"),
    );
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; text hi; crash",
        &format!("{BEGUN} agent.invoke.started stretch(0+2) 0'hi' CREDIT(2) | failed(owner_lost)"),
    );
    // Of an agent that is asked again only if it was silent, nothing is shown that is not recorded.
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; hold; text hi; text ho; settle",
        &format!("{BEGUN} agent.invoke.started stretch(0+2) 0'hi' CREDIT(2)"),
    );
}

/// A node that leaves does not use up an attempt (ownership: drains do not count).
#[test]
fn a_suspended_attempt_does_not_count() {
    let again = "| run.restarted INVOKE(a,2) | run.restarted INVOKE(a,3) | run.restarted INVOKE(a,4)";
    let script = "say m1; ack; text hi; suspend; crash; crash; crash; wait 1000";
    check(
        script,
        &format!("{BEGUN} agent.invoke.started 0'hi' stretch(0+2) run.suspended DROP CREDIT(2) {again}")
            .replace(" CREDIT(2)", ""),
    );
}

/// Covers: EV-E10, RX-2, S-48: text is recorded in stretches, and not without end.
#[test]
fn text_is_recorded_in_bounded_stretches() {
    check(
        "say m1; ack; flood 20000; wait 2100",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+16384) stretch(16384+3616) 0'{}' CREDIT(20000)",
            "x".repeat(20000)
        ),
    );
    let text = "x".repeat(4 * 1024 * 1024);
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.step("say m1");
    world.step(&format!("flood {}", text.len()));
    world.step("text y");
    assert!(world.record.iter().any(|word| word == "failed(too_large)"));
    let facts = world.log.iter().filter(|(_, entry)| matches!(entry.fact, Fact::AgentStreamDelta { .. }));
    assert_eq!(facts.count(), 256);
}

/// Covers: ST-23: reasoning is shown and neither recorded nor counted.
#[test]
fn reasoning_is_beside_the_text() {
    check(
        "say m1; ack; think hm; text hi; done",
        &format!("{BEGUN} agent.invoke.started 0'hm' 0'hi' stretch(0+2) agent.invoke.done done(2)"),
    );
}

/// The first byte goes at once, what follows within 20 ms is gathered (protocol: coalescing).
#[test]
fn deltas_are_gathered() {
    check(
        "say m1; ack; text a; text b; text c; wait 20; text d; wait 40; text e",
        &format!("{BEGUN} agent.invoke.started 0'a' 1'bc' 3'd' 4'e'"),
    );
}

/// Covers: S-38: what people say is not printed by `Debug`.
#[test]
fn no_content_in_debug_output() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say canary", "ack", "text canary-text"] {
        world.step(step);
    }
    let shown = format!("{:?}", world.runtime);
    assert!(!shown.contains("canary-text") && !shown.contains("text of canary"), "{shown}");
}
