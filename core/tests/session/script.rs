//! The script language of these tests: steps divided by `;`, and a record with one word for each output:
//! facts by type, orders in capitals, text in quotes. Facts are durable at once unless the script says
//! `hold`.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentEventId, AgentId, ChannelName, ControlId, Epoch, EventId, FenceToken, InboxPosition, MessageId, Nonce, RunId,
    SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{
    AgentDirectory, AgentEvent, AgentFailure, AgentPolicy, ErrorResponse, EventMark, Invoke, OnOwnerLoss, Order,
    StopReason, TextKind,
};
use turnway_core::protocol::channels::{ChannelDirectory, ChannelSettings};
use turnway_core::protocol::delivery::DeliveryOrder;
use turnway_core::protocol::entry::{
    ActionFact, Entry, Fact, HandoverFact, InputFact, MemberFact, RunFact, Scope, SessionFact,
};
use turnway_core::protocol::handover::HandoverRequest;
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, ControlEntry, ControlRequest, Input as Request, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::member::{Member, SessionTask, SessionTaskResult};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::route::RouteQuestion;
use turnway_core::protocol::steer::SteerOutcome;
use turnway_core::protocol::task::TaskOrder;
use turnway_core::rng::Rng;
use turnway_core::session::{Input, Output, SessionRuntime, State};
use turnway_core::time::{Millis, Mono, Now};

pub(crate) struct Script {
    pub(crate) runtime: SessionRuntime,
    directory: Arc<AgentDirectory>,
    now: Now,
    places: u64,
    /// Inputs and control entries that are still in the store.
    inbox: BTreeMap<InboxPosition, Arc<Request>>,
    lane: BTreeMap<InboxPosition, Arc<ControlEntry>>,
    /// The control entry that the last fact has answered.
    answered: Option<(InboxPosition, Arc<ControlEntry>)>,
    pub(crate) log: Vec<(Epoch, Arc<Entry>)>,
    epoch: u64,
    pub(super) durable: bool,
    running: Option<(RunId, u32, Epoch)>,
    pending_task: Option<SessionTask>,
    kept_member: Option<Member>,
    /// Orders to send parts of deliveries, the last one last.
    pub(super) sending: Vec<Arc<DeliveryOrder>>,
    /// The last question about bindings.
    pub(super) question: Option<RouteQuestion>,
    pub(crate) record: Vec<String>,
    /// The prompts that agents were sent, each with the platform message that it answers.
    pub(super) prompts: Vec<(Content, Option<MessageId>)>,
}

pub(crate) fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") }
}

pub(crate) fn user() -> UserId {
    UserId::parse("ann").expect("a name")
}

pub(crate) fn agent(name: &str) -> AgentId {
    AgentId::parse(name).expect("a name")
}

pub(crate) fn run(message: &str) -> RunId {
    RunId::derive(&key(), &user(), &MessageId::parse(message).expect("a name"))
}

pub(super) fn said(id: &str) -> AgentEventId {
    AgentEventId::parse(id).expect("a name")
}

impl Script {
    pub(crate) fn new(policy: OnOwnerLoss) -> Self {
        let policy = AgentPolicy { on_owner_loss: policy, ..AgentPolicy::default() };
        // `a` and `b` accept steers, `c` does not.
        let names = ["a", "b", "c"].map(|name| (name, AgentPolicy { steer: name != "c", ..policy.clone() }));
        let mut agents = BTreeMap::from(names.map(|(name, policy)| (agent(name), policy)));
        // `w` subscribes to some facts.
        let events = ["user.message", "run.*", "tool.>"].map(|text| Pattern::parse(text).expect("a pattern"));
        agents.insert(agent("w"), AgentPolicy { events: events.into(), ..policy });
        let directory = Arc::new(AgentDirectory { agents, default: Some(agent("a")), channels: channels() });
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_000_000) };
        let runtime = owner(&directory, 1, State::default());
        let inbox = BTreeMap::new();
        let lane = BTreeMap::new();
        let log = Vec::new();
        let record = Vec::new();
        let running = None;
        Self {
            runtime,
            directory,
            now,
            places: 0,
            inbox,
            lane,
            answered: None,
            log,
            epoch: 1,
            durable: true,
            running,
            pending_task: None,
            kept_member: None,
            sending: Vec::new(),
            question: None,
            record,
            prompts: Vec::new(),
        }
    }

    pub(super) fn give(&mut self, input: Input) {
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
                if let Some(ended) = record.ends {
                    assert!(self.inbox.remove(&ended.position).is_some(), "an input ends once");
                }
                self.answered = record.answers.and_then(|place| Some((place, self.lane.remove(&place)?)));
                self.log.push((Epoch(self.epoch), Arc::clone(&record.entry)));
                name(&record.entry.fact)
            }
            Output::Task(TaskOrder::Start(start)) => self.take_task(&start),
            Output::Task(TaskOrder::Cancel(_)) => "CANCEL_TASK".to_owned(),
            Output::Route(question) => self.take_question(question),
            Output::WithdrawDelivery(_) => "WITHDRAW".to_owned(),
            Output::Deliver(order) => self.take_delivery(order),
            Output::RemoveControl { position: place } => {
                self.lane.remove(&place);
                "consume".to_owned()
            }
            Output::Order(Order::Invoke(invoke)) => self.take_invoke(invoke),
            Output::Order(Order::News(news)) => format!("NEWS({})", news.entry.fact.name()),
            Output::Tool(order) => crate::acting::order(&order),
            Output::Order(Order::Stop { attempt, .. }) => format!("STOP({attempt})"),
            Output::Order(Order::Cancel { .. }) => "CANCEL".to_owned(),
            Output::Order(Order::Drop { .. }) => "DROP".to_owned(),
            Output::Order(Order::Credit { upto, .. }) => format!("CREDIT({upto})"),
            Output::Order(Order::Steer(steer)) => format!("STEER({})", steer.message_id),
            Output::Chunk(chunk) => format!("{}'{}'", chunk.offset, chunk.text.reveal()),
            Output::ProcessOutput { printed, .. } => format!("PRINTED({})", printed.data.reveal()),
            Output::ControlAnswered { .. } => "answered".to_owned(),
            Output::SessionTask(task) => {
                let word = if task.record_to_keep.is_some() { "REQUEST_REMOVE" } else { "REQUEST_ADD" };
                let word = format!("{word}({})", task.agent_id);
                self.pending_task = Some(task);
                word
            }
            Output::ReadInbox => {
                self.record.push("catch_up".to_owned());
                return;
            }
            Output::ReadContent => {
                self.record.push("read_content".to_owned());
                return;
            }
        };
        self.record.push(word);
    }

    fn take_invoke(&mut self, invoke: Invoke) -> String {
        self.running = Some((invoke.run_id, invoke.attempt, invoke.epoch));
        let answered = invoke.origin.map(|origin| origin.message_id);
        self.prompts.push((invoke.message.content, answered));
        let after =
            invoke.history.map(|history| format!(",{}", history.inline().unwrap_or("file"))).unwrap_or_default();
        match invoke.resume {
            Some(resume) => {
                let mark = resume.after.as_ref().map_or("-", |mark| mark.event_id.as_str());
                let from = resume.text_offset();
                let saved = resume.saved;
                format!("RESUME({},{} after {mark}:{from} of {saved})", invoke.agent_id, invoke.attempt)
            }
            None => {
                let told = invoke.handover.map(|told| match told.text.reveal() {
                    "" => format!(",from {}", told.from),
                    said => format!(",from {}:{said}", told.from),
                });
                let told = told.unwrap_or_default();
                let acts = invoke.actions.as_deref();
                let acts = acts.map(|it| format!(",{}+{}", it.open_actions.len(), it.ended_actions.len()));
                let acts = acts.unwrap_or_default();
                format!("INVOKE({},{}{after}{told}{acts})", invoke.agent_id, invoke.attempt)
            }
        }
    }

    fn take_delivery(&mut self, order: Arc<DeliveryOrder>) -> String {
        let doubt = if order.may_be_sent { "?" } else { "" };
        let DeliveryOrder { attempt, part, parts, .. } = &*order;
        let ids = order.buttons.iter().flat_map(|set| &set.buttons).map(|button| button.id.as_str());
        let ids = ids.collect::<Vec<_>>().join(",");
        let buttons = if ids.is_empty() { ids } else { format!("[{ids}]") };
        let text = order.text.reveal().replace('\n', "/");
        let change = order.change.as_ref().map(|_| format!("[{}]", crate::changes::shown(&order))).unwrap_or_default();
        let word = format!("DELIVER({part}/{parts},{attempt}{doubt} {text}){buttons}{change}");
        self.sending.push(order);
        word
    }

    fn place(&mut self) -> InboxPosition {
        self.places += 1;
        InboxPosition(self.places)
    }

    fn request(&mut self, message: &str, strategy: Strategy, to: Option<&str>, after: Option<&str>) {
        self.submit(Request {
            run_id: run(message),
            message_id: MessageId::parse(message).expect("a name"),
            request_id: None,
            user: user(),
            agent_id: to.map(agent),
            message: Message { role: Role::User, content: Content::Text(format!("text of {message}")) },
            history: after.map(|earlier| History::from_messages(&[earlier.into()]).expect("short")),
            strategy,
            replaces: None,
            metadata: None,
            origin: None,
            traceparent: None,
        });
    }

    fn interrupt(&mut self, way: &str, message: &str) {
        let strategy = if way == "rollback" { Strategy::Rollback } else { Strategy::Interrupt };
        self.request(message, strategy, None, None);
    }

    /// Submits an input that replaces an earlier one.
    fn replace(&mut self, way: &str, message: &str, old: &str) {
        let strategy = if way == "steer" { Strategy::Steer } else { Strategy::Enqueue };
        let by = if way == "another" { UserId::local() } else { user() };
        let content = Content::Text(format!("text of {message}"));
        self.submit(Request {
            run_id: run(message),
            message_id: MessageId::parse(message).expect("a name"),
            request_id: None,
            user: by,
            agent_id: None,
            message: Message { role: Role::User, content },
            history: None,
            strategy,
            replaces: Some(run(old)),
            metadata: None,
            origin: None,
            traceparent: None,
        });
    }

    pub(super) fn submit(&mut self, input: Request) {
        let input = Arc::new(input);
        let place = self.place();
        self.inbox.insert(place, Arc::clone(&input));
        self.give(Input::Take { position: place, input });
    }

    pub(super) fn ask(&mut self, what: ControlRequest) {
        let place = self.place();
        let id = ControlId::parse(&format!("c{}", place.0)).expect("a label");
        let control = Arc::new(ControlEntry { id, user: user(), request_id: None, what });
        self.lane.insert(place, Arc::clone(&control));
        self.give(Input::Control { position: place, control });
    }

    pub(super) fn report(&mut self, event: AgentEvent) {
        let (run_id, attempt, epoch) = self.running.clone().expect("an order went out");
        self.give(Input::Agent { run_id, attempt, epoch, event });
    }

    /// Answers the pending task; state that a removal kept is returned by the next successful task.
    fn receipt(&mut self, receipt: SessionTaskResult) {
        let task = self.pending_task.take().expect("an errand went out");
        self.kept_member = task.record_to_keep;
        self.give(Input::TaskResult { tx_id: task.tx_id, receipt });
    }

    fn say(&mut self, text: &str, id: Option<AgentEventId>) {
        self.report(AgentEvent::Delta { kind: TextKind::Text, text: Private(text.to_owned()), id });
    }

    /// Continues at another node from the durable parts: the log, the inbox and the control lane.
    fn crash(&mut self) {
        self.record.push("|".to_owned());
        self.epoch += 1;
        let state = State::from_facts(self.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
        let kept = State::from_snapshot(&state.to_snapshot().expect("a snapshot")).expect("a state");
        assert_eq!(kept, state, "a snapshot is the state");
        self.runtime = owner(&self.directory, self.epoch, kept);
        for (place, input) in self.inbox.clone() {
            self.give(Input::Take { position: place, input });
        }
        for (place, control) in self.lane.clone() {
            self.give(Input::Control { position: place, control });
        }
    }

    /// Loses the last fact, which was not durable; a control entry that it answered is back.
    fn lose_fact(&mut self) {
        self.log.pop();
        self.lane.extend(self.answered.take());
    }

    /// Loses the owner; the next one takes the session over after a while.
    fn crash_for(&mut self, absence: Duration) {
        self.now = Now { mono: self.now.mono + absence, store: self.now.store.after(absence) };
        self.crash();
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

    fn control(&mut self, words: &[&str]) {
        self.ask(match words {
            ["open", agents @ ..] => {
                ControlRequest::Open { agents: agents.iter().map(|name| agent(name)).collect(), active: None }
            }
            ["close"] => ControlRequest::Close,
            ["cancel"] => ControlRequest::Cancel { run_id: None },
            ["cancel", message] => ControlRequest::Cancel { run_id: Some(run(message)) },
            // Any other request, as it is stored.
            ["control", json] => serde_json::from_str(json).expect("a request"),
            other => panic!("no such step: {other:?}"),
        });
    }

    fn members(&mut self, words: &[&str]) {
        match words {
            ["switch", to] => self.ask(ControlRequest::Switch { agent_id: agent(to), reason: None }),
            ["invite", who] => {
                self.ask(ControlRequest::Invite { agent_id: agent(who), reason: None, activate: false });
            }
            ["invite", who, "active"] => {
                self.ask(ControlRequest::Invite { agent_id: agent(who), reason: None, activate: true });
            }
            ["remove", who] => self.ask(ControlRequest::Remove { agent_id: agent(who), reason: None }),
            ["errand-done"] => {
                let kept = self.kept_member.take();
                self.receipt(SessionTaskResult::Done(kept));
            }
            ["errand-failed"] => self.receipt(SessionTaskResult::Failed("the store is away".to_owned())),
            other => panic!("no such step: {other:?}"),
        }
    }

    fn handover(&mut self, words: &[&str]) {
        let confirm = match words {
            ["asks", to, id @ ..] => {
                let reason = Private("why".to_owned());
                let summary = Private("what".to_owned());
                let request = Box::new(HandoverRequest { to: agent(to), reason, summary });
                return self.report(AgentEvent::Handover { request, id: id.first().map(|id| said(id)) });
            }
            ["yes"] => true,
            ["no"] => false,
            other => panic!("no such step: {other:?}"),
        };
        let asked = self.log.iter().rev().find_map(|(_, entry)| {
            let Fact::Handover(HandoverFact::Requested(asked)) = &entry.fact else { return None };
            Some(asked.handover_id)
        });
        let handover_id = asked.unwrap_or(EventId::new(Millis(1), 1));
        self.ask(ControlRequest::Handover { handover_id, confirm });
    }

    fn steer(&mut self, words: &[&str]) {
        let outcome = match words {
            ["steer", message] => return self.request(message, Strategy::Steer, None, None),
            ["steer", message, "to", to] => return self.request(message, Strategy::Steer, Some(to), None),
            ["steer", message, "after", earlier] => {
                return self.request(message, Strategy::Steer, None, Some(earlier));
            }
            ["takes", _] => SteerOutcome::Accepted,
            ["ponders", _] => SteerOutcome::Pending,
            ["refuses", _] => SteerOutcome::Refused,
            other => panic!("no such step: {other:?}"),
        };
        let message_id = MessageId::parse(words[1]).expect("a name");
        self.report(AgentEvent::Steered { message_id, outcome });
    }

    pub(crate) fn step(&mut self, step: &str) {
        let words: Vec<&str> = step.split_whitespace().collect();
        match words.as_slice() {
            ["say", message] => self.request(message, Strategy::Enqueue, None, None),
            ["say", message, "to", to] => self.request(message, Strategy::Enqueue, Some(to), None),
            ["say", message, "after", earlier] => {
                self.request(message, Strategy::Enqueue, None, Some(earlier));
            }
            [way, message, "for", old] => self.replace(way, message, old),
            ["steer" | "takes" | "ponders" | "refuses", ..] => self.steer(&words),
            ["interrupt" | "rollback", message] => self.interrupt(words[0], message),
            ["open" | "close" | "cancel" | "control", ..] => self.control(&words),
            ["switch" | "invite" | "remove" | "errand-done" | "errand-failed", ..] => self.members(&words),
            ["asks" | "yes" | "no", ..] => self.handover(&words),
            ["calls" | "called", ..] => self.call(&words),
            ["act" | "tool", ..] => self.act(&words),
            ["task" | "given" | "route" | "stands" | "bound", ..] => self.task(&words),
            ["hears" | "delivery" | "receipt" | "operator", ..] => self.deliver(&words),
            ["level" | "buttons" | "presses", ..] => self.use_messages(&words),
            ["edits" | "deletes" | "reacts" | "unreacts", ..] => self.change_messages(&words),
            ["writes" | "shows", ..] => self.write(&words),
            ["caught-up"] => self.give(Input::InboxRead),
            ["ack"] => self.report(AgentEvent::Acked),
            ["text", text] => self.say(text, None),
            ["blank"] => self.say("\n\u{2003}\n", None),
            ["text", text, id] => self.say(text, Some(said(id))),
            ["state", word, id] => {
                self.report(AgentEvent::State { state: (*word).to_owned(), detail: None, id: Some(said(id)) });
            }
            ["think", text] => {
                let text = Private((*text).to_owned());
                self.report(AgentEvent::Delta { kind: TextKind::Reasoning, text, id: None });
            }
            ["flood", bytes] => {
                self.say(&"x".repeat(bytes.parse().expect("a number")), None);
            }
            ["murmur", bytes] => {
                self.say(&"\u{1}".repeat(bytes.parse().expect("a number")), None);
            }
            ["state", bytes] => {
                let detail = Some(Json("x".repeat(bytes.parse().expect("a number")).into()));
                self.report(AgentEvent::State { state: "busy".to_owned(), detail, id: None });
            }
            ["done", bytes] => {
                let usage = Some(Json("x".repeat(bytes.parse().expect("a number")).into()));
                self.report(AgentEvent::Done { stop: StopReason::EndTurn, usage });
            }
            ["done"] => self.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None }),
            [word @ ("fail" | "gone" | "refuse" | "not-known" | "head" | "502" | "503" | "429")] => {
                self.report(AgentEvent::Failed(failure(word)));
            }
            ["disconnect"] => self.report(lost()),
            ["alive"] => self.report(AgentEvent::Alive),
            ["cancel-ack"] => self.report(AgentEvent::CancelAcked),
            ["crash"] => self.crash(),
            ["crash", ms] => self.crash_for(Duration::from_millis(ms.parse().expect("a time"))),
            ["lose"] => self.lose_fact(),
            ["drain"] => self.give(Input::Hold),
            ["hand-over"] => self.give(Input::HandOver),
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

/// Returns the settings of the channels: in `rooms`, agents may give tasks, and bindings end with a farewell.
fn channels() -> ChannelDirectory {
    let settings =
        ChannelSettings { spawn_subagent_sessions: true, farewell: Some("bye".into()), ..ChannelSettings::default() };
    ChannelDirectory(BTreeMap::from([(ChannelName::parse("rooms").expect("a name"), settings)]))
}

fn owner(directory: &Arc<AgentDirectory>, epoch: u64, state: State) -> SessionRuntime {
    let token = FenceToken { epoch: Epoch(epoch), nonce: Nonce(u128::from(epoch)) };
    SessionRuntime::new(key(), token, Arc::clone(directory), Rng::from_number(epoch), state)
}

/// Describes how far an attempt is recorded: event id and byte position.
fn shown(mark: Option<&EventMark>) -> String {
    mark.map(|mark| format!(" {}:{}", mark.event_id, mark.text_bytes)).unwrap_or_default()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most facts have no more to say than their name")]
fn name(fact: &Fact) -> String {
    match fact {
        Fact::Run(RunFact::Failed { code, retry_after_ms: Some(wait), agent_body, .. }) => {
            let body = agent_body.as_ref().map_or("", Private::reveal);
            format!("failed({},{wait},{body})", code.as_str())
        }
        Fact::Run(RunFact::Failed { code, .. }) => format!("failed({})", code.as_str()),
        Fact::Run(RunFact::Done { host_run_id: Some(_), .. }) => "done(steered)".to_owned(),
        Fact::Run(RunFact::Done { text_bytes, .. }) => format!("done({text_bytes})"),
        Fact::Input(InputFact::SteerAcked { outcome, .. }) => format!("steer({})", outcome.as_str()),
        Fact::Run(RunFact::Cancelled { reason, forced, .. }) => {
            format!("cancelled({reason}{})", if *forced { ",forced" } else { "" })
        }
        Fact::Input(InputFact::Admitted { agent_id, strategy, position, replaces, .. }) => {
            let position = position.map(|position| format!(",{position}")).unwrap_or_default();
            let replaces = if replaces.is_some() { ",instead" } else { "" };
            format!("admitted({agent_id},{strategy:?}{position}{replaces})")
        }
        Fact::Run(RunFact::TextDelta { offset, text, mark, .. }) => {
            format!("stretch({offset}+{}{})", text.reveal().len(), shown(mark.as_ref()))
        }
        Fact::Run(RunFact::State { scope: Scope::Agent, mark: mark @ Some(_), .. }) => {
            format!("run.state({})", shown(mark.as_ref()).trim_start())
        }
        Fact::Model(fact) => crate::models::word(fact),
        Fact::Session(SessionFact::Notice { name, .. }) => name.clone(),
        Fact::Member(MemberFact::Switched { to, trigger, .. }) => format!("switched({to},{trigger})"),
        Fact::Member(MemberFact::Adding(asked)) => format!("adding({})", asked.agent_id),
        Fact::Member(MemberFact::Added(done)) if done.restored => format!("added({},again)", done.agent_id),
        Fact::Member(MemberFact::Added(done)) => format!("added({})", done.agent_id),
        Fact::Member(MemberFact::Removing(asked)) => format!("removing({})", asked.agent_id),
        Fact::Member(MemberFact::Removed(done)) => format!("removed({})", done.agent_id),
        Fact::Member(MemberFact::AddFailed(failed) | MemberFact::RemoveFailed(failed)) => {
            format!("{}({})", failed.code.as_str(), failed.agent_id)
        }
        Fact::Handover(HandoverFact::Requested(asked)) => format!("asked({})", asked.to),
        Fact::Handover(HandoverFact::Confirmed(done)) => format!("confirmed({})", done.to),
        Fact::Handover(HandoverFact::Rejected(ended)) => format!("rejected({})", ended.why.as_str()),
        Fact::Action(ActionFact::Ended(ended)) => crate::acting::shown(ended),
        Fact::Delivery(fact) => crate::delivery::shown(fact),
        other => match other.annotation().map(|annotation| annotation.text) {
            Some(text) => format!("{}({})", other.name(), text.as_ref().map_or("", Private::reveal)),
            None => other.name().to_owned(),
        },
    }
}

/// Runs a script with a retryable agent.
pub(crate) fn check(script: &str, expected: &str) {
    check_with(OnOwnerLoss::Retry, script, expected);
}

pub(crate) fn check_with(policy: OnOwnerLoss, script: &str, expected: &str) {
    let mut world = Script::new(policy);
    for step in script.split(';').map(str::trim).filter(|step| !step.is_empty()) {
        world.step(step);
    }
    let live = world.runtime.state().clone();
    let rebuilt = State::from_facts(world.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
    assert_eq!(rebuilt, live, "state is a projection of the log (RX-3)");
    crate::delivery::assert_counted(&world.log);
    let record = world.record.join(" ");
    assert_eq!(record, expected.split_whitespace().collect::<Vec<_>>().join(" "), "script: {script}");
}

/// Returns the failure of a lost dial-in connection.
fn lost() -> AgentEvent {
    AgentEvent::Failed(AgentFailure::Lost("the connection to the agent was lost".to_owned()))
}

/// Returns the agent failure for a script word.
fn failure(word: &str) -> AgentFailure {
    match word {
        "gone" => AgentFailure::Unavailable("cannot connect".to_owned()),
        "refuse" => {
            let code = "rude".to_owned();
            let message = Private("not in these words".to_owned());
            AgentFailure::Blocked { code, message }
        }
        "not-known" => AgentFailure::NotKnown,
        "head" => AgentFailure::HeadTooLarge,
        "502" => {
            let why = "status 502".to_owned();
            let body = None;
            let is_away = true;
            let is_busy = false;
            let retry_after_ms = Some(7_000);
            AgentFailure::Answered(Box::new(ErrorResponse { why, is_away, is_busy, retry_after_ms, body }))
        }
        "503" | "429" => {
            let why = format!("status {word}");
            let body = Some(Private("busy".to_owned()));
            let is_away = word == "503";
            let is_busy = true;
            let retry_after_ms = Some(7_000);
            AgentFailure::Answered(Box::new(ErrorResponse { why, is_away, is_busy, retry_after_ms, body }))
        }
        _ => AgentFailure::Broken("status 500".to_owned()),
    }
}
