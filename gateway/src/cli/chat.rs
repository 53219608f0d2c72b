//! `turnway chat`: a conversation in a terminal, or by lines from a pipe.
mod screen;

use self::screen::Screen;
use super::gateway::{Gateway, URL, refused};
use super::said::{answerer, ending, said};
use super::{Exit, Trouble, say};
use clap::Args;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, IsTerminal};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use turnway_client::{
    Client, ClientError, Done, Event, Failure, Invoke, Note, Session, Start, Strategy, Subscribe,
};

/// Lines read ahead of the conversation.
const LINES_MAX: usize = 64;
/// The past is shown before one can speak, but nobody waits for it longer than this.
const HISTORY_WAIT: Duration = Duration::from_secs(10);
/// What follows is for whoever answers just now.
const STEER: &str = "/steer ";
const HELP: &str = "/cancel  stop the answer\n/steer   say the rest of the line to the agent that answers\n/yes, /no  whether another agent may go on, as the one before has asked\n/close   close the session and leave\n/quit    leave; the \
                    session stays\n/help    this\n";

/// With whom to talk.
#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    /// Go on with this session; without it a new one
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// The agent to talk to; without it the session's own
    #[arg(long, value_name = "ID")]
    pub agent: Option<String>,
    /// Where, and as whom.
    #[command(flatten)]
    pub gateway: Gateway,
}

/// Talks until the input ends, or somebody leaves.
pub async fn run(args: ChatArgs) -> Result<Exit, Trouble> {
    let client = Client::connect(args.gateway.options()).await.map_err(|error| refused(&error))?;
    let session = match &args.session {
        Some(id) => client.session(id.clone()),
        None => client.new_session(),
    };
    let chat = Chat::new(session, &args);
    if args.session.is_some() {
        // Every type, so that the last fact of the past is seen to be the last.
        let wish = Subscribe::from(Start::Beginning).with_types([">"]);
        chat.session.subscribe(wish).await.map_err(|error| refused(&error))?;
    }
    let elsewhere =
        if args.gateway.url == URL { String::new() } else { format!(" --url {}", args.gateway.url) };
    let id = chat.session.id();
    say(&format!("session {id}\ncome back with: turnway chat --session {id}{elsewhere}\n"))?;
    chat.talk(client).await
}

/// One conversation.
struct Chat {
    session: Session,
    agent: Option<String>,
    /// A person sees what they type; a pipe's lines are shown, and wait for the answer before.
    person: bool,
    screen: Screen,
    /// Own inputs that have not ended, with their runs once those are known.
    open: BTreeMap<String, Option<String>>,
    /// Who answers in which run.
    agents: BTreeMap<String, String>,
    /// Lines of a pipe that wait for the answer before.
    backlog: VecDeque<String>,
    /// The past is being shown; until when at most.
    history: Option<Instant>,
    cancel_wanted: bool,
    /// The handover that an agent has asked for.
    handover: Option<String>,
    input_over: bool,
    closing: bool,
    away: bool,
    exit: Exit,
}

/// Whether there is more to say.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Leave,
}

impl Chat {
    fn new(session: Session, args: &ChatArgs) -> Self {
        Self {
            session,
            agent: args.agent.clone(),
            person: std::io::stdin().is_terminal(),
            screen: Screen::new(),
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
        let mut lines = read_lines();
        let mut stops = 0;
        // One ear for all of it: between two of them a Ctrl-C would go unheard.
        let mut interrupts =
            signal(SignalKind::interrupt()).map_err(|error| Trouble::Unavailable(error.to_string()))?;
        loop {
            if self.step().await == Next::Leave || self.screen.is_over() {
                break;
            }
            if self.person && self.open.is_empty() && self.history.is_none() && !self.closing {
                self.screen.prompt();
            }
            let room = !self.input_over && self.history.is_none() && self.backlog.len() < LINES_MAX;
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
                line = lines.recv(), if room => self.read(line).await,
                () = patience => {
                    self.history = None;
                    Next::Go
                }
                _ = interrupts.recv() => {
                    stops += 1;
                    if stops > 1 || self.open.is_empty() { Next::Leave } else { self.cancel().await }
                }
            };
            if next == Next::Leave {
                break;
            }
            if self.open.is_empty() {
                stops = 0;
            }
        }
        self.screen.fresh_line();
        client.close().await;
        self.screen.ended().map(|()| self.exit)
    }

    // --- what is typed ---

    /// Takes the next line of a pipe, once the answer before it is there.
    async fn step(&mut self) -> Next {
        while self.open.is_empty() && !self.closing && self.history.is_none() {
            let Some(line) = self.backlog.pop_front() else {
                return if self.input_over { Next::Leave } else { Next::Go };
            };
            if self.obey(&line).await == Next::Leave {
                return Next::Leave;
            }
        }
        Next::Go
    }

    async fn read(&mut self, line: Option<String>) -> Next {
        let Some(line) = line else {
            self.input_over = true;
            return Next::Go;
        };
        if self.person {
            self.screen.entered();
            return self.obey(line.trim()).await;
        }
        match line.trim() {
            // What is to be stopped is the answer before it, so it does not wait for that.
            "/cancel" => self.cancel().await,
            line if line.starts_with(STEER) => self.obey(line).await,
            line => {
                self.backlog.push_back(line.to_owned());
                Next::Go
            }
        }
    }

    async fn obey(&mut self, line: &str) -> Next {
        match line {
            "" => Next::Go,
            "/quit" | "/exit" => Next::Leave,
            "/cancel" => self.cancel().await,
            "/yes" | "/no" => {
                let Some(handover) = self.handover.take() else {
                    self.screen.aside("nobody has asked");
                    return Next::Go;
                };
                let asked = self.session.decide(&handover, line == "/yes").await;
                self.check(asked)
            }
            "/close" => {
                self.closing = true;
                let asked = self.session.close().await;
                self.check(asked)
            }
            "/help" => {
                self.screen.print(HELP.trim_end());
                Next::Go
            }
            line if line.starts_with(STEER) => {
                let words = line[STEER.len()..].trim();
                self.speak(Invoke::text(words).strategy(Strategy::Steer)).await;
                Next::Go
            }
            line if line.starts_with('/') => {
                self.screen.aside(&format!("no such command: {line}; /help"));
                Next::Go
            }
            line => {
                self.speak(Invoke::text(line)).await;
                Next::Go
            }
        }
    }

    async fn speak(&mut self, mut invoke: Invoke) {
        invoke.agent_id.clone_from(&self.agent);
        match self.session.invoke(invoke).await {
            Ok(id) => drop(self.open.insert(id, None)),
            Err(error) => {
                self.exit = Exit::Failed;
                self.screen.aside(&error.to_string());
            }
        }
    }

    /// Stops what this chat has asked for: by name, so that nothing else is hit.
    async fn cancel(&mut self) -> Next {
        let runs: Vec<String> = self.open.values().flatten().cloned().collect();
        // What has no name yet is stopped as soon as it has one.
        self.cancel_wanted = runs.len() < self.open.len();
        for run in &runs {
            let asked = self.session.cancel(Some(run)).await;
            self.check(asked);
        }
        if self.open.is_empty() && self.backlog.is_empty() {
            // Nothing of ours is open: whatever is in flight, then.
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

    // --- what is heard ---

    #[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
    async fn hear(&mut self, event: Event) -> Next {
        match event {
            Event::Accepted(accepted) => {
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
            Event::Error(failure) => return self.fail(&failure),
            Event::CaughtUp { .. } => self.history = None,
            Event::Reset { reason, .. } => {
                self.history = None;
                self.screen.aside(&format!("what was said before may be gone: {reason}"));
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
            Event::Note(note) => self.handed(&note),
            Event::Connected { .. } => self.found(),
            _ => {}
        }
        Next::Go
    }

    /// An agent asks that another one answer, and what comes of it.
    fn handed(&mut self, note: &Note) {
        let word = |key: &str| note.body.get(key).and_then(Value::as_str).unwrap_or_default();
        match note.name.as_str() {
            "handover_prompt" => {
                self.handover = Some(word("handover_id").to_owned());
                let reason = Some(word("reason")).filter(|reason| !reason.is_empty());
                let why = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let (from, to) = (word("from"), word("to"));
                self.screen.aside(&format!("{from} asks that {to} go on{why}: /yes or /no"));
            }
            "HANDOVER_CONFIRMED" => self.screen.aside(&format!("{} goes on", word("to"))),
            "HANDOVER_REJECTED" => {
                self.handover = None;
                self.screen.aside(&format!("{} does not go on: {}", word("to"), word("reason")));
            }
            _ => {}
        }
    }

    fn lost(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.away, true) {
            self.screen.aside(&format!("connection lost ({reason}); trying again"));
        }
    }

    fn found(&mut self) {
        if std::mem::take(&mut self.away) {
            self.screen.aside("connected again");
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

    fn fail(&mut self, failure: &Failure) -> Next {
        if failure.asked == "subscribe" && failure.code == "not_found" {
            self.history = None;
            self.screen.aside("nothing has been said in it yet");
            return Next::Go;
        }
        if let Some(id) = &failure.message_id {
            self.open.remove(id);
            self.exit = if self.person { self.exit } else { Exit::Failed };
        }
        self.screen.aside(&format!("{}: {}", failure.code, failure.message));
        if failure.asked == "session_close" {
            self.exit = Exit::Failed;
            return Next::Leave;
        }
        Next::Go
    }
}

/// Lines of the standard input. A thread of its own: a read that nobody can interrupt must not
/// keep the process from ending.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    lines
}
