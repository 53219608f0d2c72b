//! `turnway chat`: a conversation in a terminal, or with lines from a pipe. Connects client, screen and agent
//! tasks.
mod command;
mod company;
mod errands;
mod history;
mod input;
mod layout;
mod screen;
mod terminal;

use self::command::Command;
use self::company::Wish;
use self::errands::{Errand, Errands, Step};
use self::input::Typed;
use self::screen::Screen;
use super::agents::{self, Agent};
use super::gateway::{Gateway, URL, refused};
use super::said::{answerer, ending, said};
use super::{Exit, Trouble, say};
use clap::Args;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use turnway_client::{
    Client, ClientError, Done, Event, Failure, Invoke, Note, Session, Start, Strategy, Subscribe,
};
use turnway_core::limits::CHAT_LINES_MAX;

/// Maximum wait for the session's past to be shown before input is taken.
const HISTORY_WAIT: Duration = Duration::from_secs(10);

const NOTHING_TO_CANCEL: &str = "nothing to cancel";

/// Arguments of `turnway chat`.
#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    /// Continue this session; without it a new one
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Active agent from the start, as by `/switch`; without it the session's own
    #[arg(long, value_name = "ID")]
    pub agent: Option<String>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: Gateway,
}

/// Runs a chat until the input ends or the user leaves.
pub async fn run(args: ChatArgs) -> Result<Exit, Trouble> {
    let client = Client::connect(args.gateway.options()).await.map_err(|error| refused(&error))?;
    let session = match &args.session {
        Some(id) => client.session(id.clone()),
        None => client.new_session(),
    };
    if args.session.is_some() {
        // Subscribes to every type, so that the last fact of the past is recognised.
        let wish = Subscribe::from(Start::Beginning).with_types([">"]);
        session.subscribe(wish).await.map_err(|error| refused(&error))?;
    }
    let elsewhere =
        if args.gateway.url == URL { String::new() } else { format!(" --url {}", args.gateway.url) };
    let id = session.id();
    say(&format!("session {id}\nresume with: turnway chat --session {id}{elsewhere}\n"))?;
    Chat::new(session, &args).talk(client).await
}

/// The list of agents, or the reason why there is none.
type Listed = Result<Vec<Agent>, String>;

/// The state of one chat.
struct Chat {
    session: Session,
    gateway: Gateway,
    /// The agent to begin with, until that task has been started.
    first_agent: Option<String>,
    errands: Errands,
    lists: mpsc::Sender<Listed>,
    /// Stdin is a terminal. A pipe's lines are printed, and each waits for the answer to the one before.
    person: bool,
    screen: Screen,
    /// Message ids of own inputs that have not ended, with their runs once known.
    open: BTreeMap<String, Option<String>>,
    /// Agents by run id.
    agents: BTreeMap<String, String>,
    /// Lines that wait: for a task, or, from a pipe, for the answer to the line before.
    backlog: VecDeque<String>,
    /// Deadline for showing the past; `None` once the past has been shown.
    history: Option<Instant>,
    cancel_wanted: bool,
    /// Id of the handover that waits for the user's decision.
    handover: Option<String>,
    input_over: bool,
    closing: bool,
    away: bool,
    exit: Exit,
}

/// Whether the chat continues.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Leave,
}

impl Chat {
    fn new(session: Session, args: &ChatArgs) -> Self {
        // Placeholder; `talk` replaces it by the sender of the channel that is read.
        let (lists, _) = mpsc::channel(1);
        Self {
            session,
            gateway: args.gateway.clone(),
            first_agent: args.agent.clone(),
            errands: Errands::new(args.session.is_none()),
            lists,
            person: std::io::stdin().is_terminal(),
            screen: Screen::new(command::words()),
            open: BTreeMap::new(),
            agents: BTreeMap::new(),
            backlog: VecDeque::new(),
            history: args.session.is_some().then(|| Instant::now() + HISTORY_WAIT),
            cancel_wanted: false,
            handover: None,
            input_over: false,
            closing: false,
            away: false,
            exit: Exit::Fine,
        }
    }

    async fn talk(mut self, mut client: Client) -> Result<Exit, Trouble> {
        let unheard = |error: std::io::Error| Trouble::Unavailable(error.to_string());
        // One signal handler for the whole run: a Ctrl-C between two handlers would be lost.
        let mut interrupts = signal(SignalKind::interrupt()).map_err(unheard)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(unheard)?;
        let mut lines = self.screen.read();
        let (lists, mut listed) = mpsc::channel(1);
        self.lists = lists;
        let mut stops = 0;
        loop {
            if self.step().await == Next::Leave || self.screen.is_over() {
                break;
            }
            if self.person && self.open.is_empty() && self.is_ready() {
                self.screen.prompt();
            }
            // A terminal is always read, because Ctrl-C may come at any time; a pipe is read no faster than
            // needed.
            let may_read = self.person || self.history.is_none();
            let room = !self.input_over && may_read && self.backlog.len() < CHAT_LINES_MAX;
            let patience = self.history;
            let patience = async move {
                match patience {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                event = client.next_event() => match event {
                    Some(event) => self.hear(event).await,
                    None => Next::Leave,
                },
                typed = lines.recv(), if room => match typed {
                    Some(Typed::Interrupt { had_text: true }) if self.open.is_empty() => Next::Go,
                    Some(Typed::Interrupt { .. }) => self.interrupt(&mut stops).await,
                    typed => self.read(typed).await,
                },
                Some(found) = listed.recv() => {
                    self.errands.listed(found);
                    self.perform().await
                }
                () = patience => {
                    self.history = None;
                    Next::Go
                }
                _ = interrupts.recv() => self.interrupt(&mut stops).await,
                _ = terminations.recv() => Next::Leave,
            };
            if next == Next::Leave {
                break;
            }
            if self.open.is_empty() {
                stops = 0;
            }
        }
        client.close().await;
        self.screen.close();
        self.screen.ended().map(|()| self.exit)
    }

    // --- input ---

    /// Returns whether the next line may be taken.
    fn is_ready(&self) -> bool {
        let may_speak = self.history.is_none() && !self.closing;
        may_speak && self.errands.is_ready() && (self.person || self.open.is_empty())
    }

    /// Executes waiting lines, as long as nothing before them is open.
    async fn step(&mut self) -> Next {
        while self.is_ready() {
            let next = if let Some(agent) = self.first_agent.take() {
                self.errands.start(agent);
                self.perform().await
            } else if let Some(line) = self.backlog.pop_front() {
                self.obey(&line).await
            } else if self.input_over && self.open.is_empty() {
                self.errands.drop_question();
                self.perform().await;
                return Next::Leave;
            } else {
                return Next::Go;
            };
            if next == Next::Leave {
                return Next::Leave;
            }
        }
        Next::Go
    }

    async fn read(&mut self, typed: Option<Typed>) -> Next {
        let line = match typed {
            Some(Typed::Line(line)) => line,
            Some(Typed::Remark(remark)) => {
                self.screen.aside(&remark);
                return Next::Go;
            }
            Some(Typed::Interrupt { .. }) => return Next::Go,
            None => {
                self.input_over = true;
                return Next::Go;
            }
        };
        if self.person {
            self.screen.entered(&line);
        }
        // A command that concerns the open run does not wait for the run's end.
        if Command::parse(&line).is_urgent() {
            return self.obey(&line).await;
        }
        self.backlog.push_back(line);
        Next::Go
    }

    async fn obey(&mut self, line: &str) -> Next {
        let command = Command::parse(line);
        let is_answer = !matches!(command, Command::Cancel | Command::Close | Command::Quit | Command::Help);
        if is_answer && self.errands.is_asking() {
            self.errands.answer(line);
            return self.perform().await;
        }
        match command {
            Command::Nothing => {}
            Command::Help => self.screen.print(&command::help()),
            Command::Agents => self.errands.begin(Errand::Show),
            Command::Switch(agent) => self.errands.begin(Errand::Do(Wish::Switch(agent))),
            Command::SayTo { agent, text } => self.errands.begin(Errand::Do(Wish::Say { agent, text })),
            Command::Say(text) => {
                let mut invoke = Invoke::text(text);
                invoke.agent_id = self.errands.addressed().map(str::to_owned);
                self.speak(invoke).await;
            }
            Command::Steer(text) => self.speak(Invoke::text(text).strategy(Strategy::Steer)).await,
            Command::Cancel => return self.cancel().await,
            Command::Decide(confirm) => return self.decide(confirm).await,
            Command::Close => {
                self.closing = true;
                let asked = self.session.close().await;
                return self.check(asked);
            }
            Command::Quit => return Next::Leave,
            Command::Wrong(hint) => self.screen.aside(&hint),
        }
        self.perform().await
    }

    async fn speak(&mut self, invoke: Invoke) {
        match self.session.invoke(invoke).await {
            Ok(id) => drop(self.open.insert(id, None)),
            Err(error) => {
                self.exit = Exit::Failed;
                self.screen.aside(&error.to_string());
            }
        }
    }

    async fn decide(&mut self, confirm: bool) -> Next {
        let Some(handover) = self.handover.take() else {
            self.screen.aside("no handover is waiting for a decision");
            return Next::Go;
        };
        let asked = self.session.decide(&handover, confirm).await;
        self.check(asked)
    }

    /// Handles Ctrl-C: withdraws a question, cancels an answer, or leaves.
    async fn interrupt(&mut self, stops: &mut u32) -> Next {
        if self.errands.drop_question() {
            return self.perform().await;
        }
        *stops += 1;
        if *stops > 1 || self.open.is_empty() { Next::Leave } else { self.cancel().await }
    }

    /// Cancels this chat's own runs by id, so that no other run is affected.
    async fn cancel(&mut self) -> Next {
        if self.errands.drop_question() {
            return self.perform().await;
        }
        let runs: Vec<String> = self.open.values().flatten().cloned().collect();
        // A run whose id is not known yet is cancelled as soon as the id arrives.
        self.cancel_wanted = runs.len() < self.open.len() || self.errands.is_saying();
        for run in &runs {
            let asked = self.session.cancel(Some(run)).await;
            self.check(asked);
        }
        if self.open.is_empty() && self.backlog.is_empty() && !self.cancel_wanted {
            // This chat has no open run, so it cancels any run that is open in the session.
            let asked = self.session.cancel(None).await;
            self.check(asked);
        }
        Next::Go
    }

    fn check(&mut self, asked: Result<(), ClientError>) -> Next {
        if let Err(error) = asked {
            self.screen.aside(&error.to_string());
        }
        Next::Go
    }

    /// Performs the steps of the agent tasks.
    async fn perform(&mut self) -> Next {
        while let Some(step) = self.errands.poll() {
            let asked = match step {
                Step::Open(open) => self.session.open(open).await,
                Step::Change(change) => self.session.change_members(change).await,
                Step::List => {
                    let (gateway, lists) = (self.gateway.clone(), self.lists.clone());
                    // Sending fails only if the chat has ended.
                    tokio::spawn(async move { lists.send(list(&gateway).await).await });
                    Ok(())
                }
                Step::Say { agent, text } => {
                    self.speak(Invoke::text(text).agent(agent)).await;
                    Ok(())
                }
                Step::Print(text) => {
                    self.screen.print(&text);
                    Ok(())
                }
                Step::Remark(text) => {
                    self.screen.aside(&text);
                    Ok(())
                }
                Step::Fail => {
                    self.failed();
                    Ok(())
                }
                Step::Leave => {
                    self.exit = Exit::Failed;
                    return Next::Leave;
                }
            };
            self.check(asked);
        }
        Next::Go
    }

    /// Sets the exit code to failed if a pipe's request was not performed.
    fn failed(&mut self) {
        self.exit = if self.person { self.exit } else { Exit::Failed };
    }

    // --- events ---

    #[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
    async fn hear(&mut self, event: Event) -> Next {
        match event {
            Event::Accepted(accepted) => {
                self.errands.exists();
                if let Some(run) = self.open.get_mut(&accepted.message_id) {
                    *run = Some(accepted.run);
                    if std::mem::take(&mut self.cancel_wanted) {
                        return self.cancel().await;
                    }
                }
            }
            Event::Message(message) => {
                let mine = message.message_id.as_ref().is_some_and(|id| self.open.contains_key(id));
                if !(mine && self.person) {
                    self.screen.print(&said(&message));
                }
            }
            Event::RunStarted { run, agent, .. } => drop(self.agents.insert(run, agent)),
            Event::Text { run, text, .. } => {
                let agent = self.agents.get(&run).map(String::as_str);
                self.screen.stream(&run, answerer(agent), &text);
            }
            Event::Restarted { run, .. } => self.screen.void(&run),
            Event::Done(done) => self.end(&done),
            Event::Error(failure) => return self.fail(&failure).await,
            Event::Subscribed { snapshot, .. } => self.errands.learn(&snapshot),
            Event::Opened { snapshot: Some(snapshot), .. } => self.errands.learn(&snapshot),
            Event::Members(members) => self.errands.changed(&members),
            Event::CaughtUp { .. } => self.history = None,
            Event::Reset { reason, snapshot, .. } => {
                self.history = None;
                if let Some(snapshot) = snapshot {
                    self.errands.learn(&snapshot);
                }
                self.screen.aside(&format!("earlier messages may be missing: {reason}"));
            }
            Event::Closed { .. } => {
                self.screen.aside("the session is closed");
                return if self.closing { Next::Leave } else { Next::Go };
            }
            Event::Disconnected { reason, retry_in: None, .. } => {
                self.screen.aside(&format!("disconnected: {reason}"));
                self.exit = Exit::Unavailable;
                return Next::Leave;
            }
            Event::Disconnected { reason, .. } => self.lost(&reason),
            Event::Note(note) => {
                self.handed(&note);
                // Facts of the past are skipped: their result is already in the snapshot.
                if self.history.is_none() {
                    self.errands.note(&note);
                    if note.name == "NO_ACTIVE_SPEAKING" {
                        self.screen.aside(NOTHING_TO_CANCEL);
                    }
                }
            }
            Event::Connected { .. } => self.found(),
            _ => {}
        }
        self.perform().await
    }

    /// Prints a handover that an agent has requested, or its outcome.
    fn handed(&mut self, note: &Note) {
        let word = |key: &str| note.body.get(key).and_then(Value::as_str).unwrap_or_default();
        match note.name.as_str() {
            "handover_prompt" => {
                self.handover = Some(word("handover_id").to_owned());
                let reason = Some(word("reason")).filter(|reason| !reason.is_empty());
                let why = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let (from, to) = (word("from"), word("to"));
                self.screen.aside(&format!("{from} asks to hand over to {to}{why}: /yes or /no"));
            }
            "HANDOVER_CONFIRMED" => self.screen.aside(&format!("handed over to {}", word("to"))),
            "HANDOVER_REJECTED" => {
                self.handover = None;
                self.screen.aside(&format!("handover to {} rejected: {}", word("to"), word("reason")));
            }
            _ => {}
        }
    }

    fn lost(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.away, true) {
            self.screen.aside(&format!("connection lost ({reason}); reconnecting"));
        }
    }

    fn found(&mut self) {
        if std::mem::take(&mut self.away) {
            self.screen.aside("reconnected");
        }
    }

    fn end(&mut self, done: &Done) {
        self.agents.remove(&done.run);
        if let Some(ending) = ending(done) {
            self.screen.print(&format!("{}: {ending}", answerer(done.agent.as_deref())));
        }
        self.screen.fresh_line();
        let mine = done.message_id.as_ref().and_then(|id| self.open.remove(id));
        if mine.is_some() && done.status.as_str() == "failed" && !self.person {
            self.exit = Exit::Failed;
        }
    }

    async fn fail(&mut self, failure: &Failure) -> Next {
        match failure.asked.as_str() {
            "subscribe" if failure.code == "not_found" => {
                self.history = None;
                self.errands.is_missing();
                self.screen.aside("the session has no messages yet");
                return Next::Go;
            }
            "cancel_run" if failure.code == "not_found" => {
                self.screen.aside(NOTHING_TO_CANCEL);
                return Next::Go;
            }
            _ if self.errands.refused(failure) => return self.perform().await,
            _ => {}
        }
        if let Some(id) = &failure.message_id {
            self.open.remove(id);
            self.failed();
        }
        self.screen.aside(&format!("{}: {}", failure.code, failure.message));
        if failure.asked == "session_close" {
            self.exit = Exit::Failed;
            return Next::Leave;
        }
        Next::Go
    }
}

/// Fetches the list of agents by HTTP, if the gateway's address allows that.
async fn list(gateway: &Gateway) -> Listed {
    if gateway.url.starts_with("quic:") {
        return Err("the list of all agents needs HTTP, and this chat uses QUIC".to_owned());
    }
    agents::list(gateway).await.map_err(|trouble| trouble.to_string())
}
