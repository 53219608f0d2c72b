//! `turnway chat`: a conversation in a terminal, or with lines from a pipe. Connects client, screen and agent
//! tasks.
mod agent_tasks;
mod command;
mod history;
mod input;
mod layout;
mod members;
mod screen;
mod terminal;

use self::agent_tasks::{AgentTask, AgentTasks, ChatStep};
use self::command::ChatCommand;
use self::input::TerminalInput;
use self::members::AgentRequest;
use self::screen::Screen;
use super::agents::{self, AgentSummary};
use super::gateway::{DEFAULT_URL, GatewayArgs, connect_error};
use super::render::{ending_text, message_line, speaker_name};
use super::{CliError, CliExit, write_stdout};
use clap::Args;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use turnway_client::{
    Client, ClientError, Done, Event, Failure, InputStrategy, Note, Session, Start, Subscribe, UserInput,
};
use turnway_core::limits::CHAT_LINES_MAX;

/// Maximum wait for the session's past to be shown before input is taken.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(10);

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
    pub gateway: GatewayArgs,
}

/// Runs a chat until the input ends or the user leaves.
pub async fn run(args: ChatArgs) -> Result<CliExit, CliError> {
    let client = Client::connect(args.gateway.options()).await.map_err(|error| connect_error(&error))?;
    let session = match &args.session {
        Some(id) => client.session(id.clone()),
        None => client.new_session(),
    };
    if args.session.is_some() {
        // Subscribes to every type, so that the last fact of the past is recognised.
        let subscription = Subscribe::from(Start::Beginning).with_types([">"]);
        session.subscribe(subscription).await.map_err(|error| connect_error(&error))?;
    }
    let elsewhere =
        if args.gateway.url == DEFAULT_URL { String::new() } else { format!(" --url {}", args.gateway.url) };
    let id = session.id();
    write_stdout(&format!("session {id}\nresume with: turnway chat --session {id}{elsewhere}\n"))?;
    Chat::new(session, &args).run(client).await
}

/// The list of agents, or the reason why there is none.
type AgentListResult = Result<Vec<AgentSummary>, String>;

/// The state of one chat.
struct Chat {
    session: Session,
    gateway: GatewayArgs,
    /// The agent to begin with, until that task has been started.
    first_agent: Option<String>,
    tasks: AgentTasks,
    agent_list_sender: mpsc::Sender<AgentListResult>,
    /// Stdin is a terminal. A pipe's lines are printed, and each waits for the answer to the one before.
    is_interactive: bool,
    screen: Screen,
    /// Message ids of own inputs that have not ended, with their runs once known.
    open_inputs: BTreeMap<String, Option<String>>,
    /// Agents by run id.
    agents: BTreeMap<String, String>,
    /// Lines that wait: for a task, or, from a pipe, for the answer to the line before.
    backlog: VecDeque<String>,
    /// Deadline for showing the past; `None` once the past has been shown.
    history_deadline: Option<Instant>,
    cancel_wanted: bool,
    /// Id of the handover that waits for the user's decision.
    handover: Option<String>,
    input_ended: bool,
    closing: bool,
    is_disconnected: bool,
    exit: CliExit,
}

/// Decision of a handler: the chat continues or ends.
#[derive(PartialEq, Eq)]
enum ChatFlow {
    Continue,
    Leave,
}

impl Chat {
    fn new(session: Session, args: &ChatArgs) -> Self {
        // Placeholder; `run` replaces it by the sender of the channel that is read.
        let (agent_list_sender, _) = mpsc::channel(1);
        Self {
            session,
            gateway: args.gateway.clone(),
            first_agent: args.agent.clone(),
            tasks: AgentTasks::new(args.session.is_none()),
            agent_list_sender,
            is_interactive: std::io::stdin().is_terminal(),
            screen: Screen::new(command::completions()),
            open_inputs: BTreeMap::new(),
            agents: BTreeMap::new(),
            backlog: VecDeque::new(),
            history_deadline: args.session.is_some().then(|| Instant::now() + HISTORY_TIMEOUT),
            cancel_wanted: false,
            handover: None,
            input_ended: false,
            closing: false,
            is_disconnected: false,
            exit: CliExit::Success,
        }
    }

    async fn run(mut self, mut client: Client) -> Result<CliExit, CliError> {
        let unheard = |error: std::io::Error| CliError::Unavailable(error.to_string());
        // One signal handler for the whole run: a Ctrl-C between two handlers would be lost.
        let mut interrupts = signal(SignalKind::interrupt()).map_err(unheard)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(unheard)?;
        let mut lines = self.screen.start_input();
        let (lists, mut listed) = mpsc::channel(1);
        self.agent_list_sender = lists;
        let mut stops = 0;
        loop {
            if self.process_backlog().await == ChatFlow::Leave || self.screen.has_failed() {
                break;
            }
            if self.is_interactive && self.open_inputs.is_empty() && self.is_ready() {
                self.screen.prompt();
            }
            // A terminal is always read, because Ctrl-C may come at any time; a pipe is read no faster than
            // needed.
            let may_read = self.is_interactive || self.history_deadline.is_none();
            let has_room = !self.input_ended && may_read && self.backlog.len() < CHAT_LINES_MAX;
            let patience = self.history_deadline;
            let patience = async move {
                match patience {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                event = client.next_event() => match event {
                    Some(event) => self.handle_event(event).await,
                    None => ChatFlow::Leave,
                },
                typed = lines.recv(), if has_room => match typed {
                    Some(TerminalInput::Interrupt { had_text: true }) if self.open_inputs.is_empty() => ChatFlow::Continue,
                    Some(TerminalInput::Interrupt { .. }) => self.interrupt(&mut stops).await,
                    typed => self.handle_input(typed).await,
                },
                Some(found) = listed.recv() => {
                    self.tasks.handle_agent_list(found);
                    self.perform_steps().await
                }
                () = patience => {
                    self.history_deadline = None;
                    ChatFlow::Continue
                }
                _ = interrupts.recv() => self.interrupt(&mut stops).await,
                _ = terminations.recv() => ChatFlow::Leave,
            };
            if next == ChatFlow::Leave {
                break;
            }
            if self.open_inputs.is_empty() {
                stops = 0;
            }
        }
        client.close().await;
        self.screen.close();
        self.screen.result().map(|()| self.exit)
    }

    // --- input ---

    /// Returns whether the next line may be taken.
    fn is_ready(&self) -> bool {
        let may_speak = self.history_deadline.is_none() && !self.closing;
        may_speak && self.tasks.is_ready() && (self.is_interactive || self.open_inputs.is_empty())
    }

    /// Executes waiting lines, as long as nothing before them is open.
    async fn process_backlog(&mut self) -> ChatFlow {
        while self.is_ready() {
            let next = if let Some(agent) = self.first_agent.take() {
                self.tasks.start(agent);
                self.perform_steps().await
            } else if let Some(line) = self.backlog.pop_front() {
                self.execute_line(&line).await
            } else if self.input_ended && self.open_inputs.is_empty() {
                self.tasks.cancel_question();
                self.perform_steps().await;
                return ChatFlow::Leave;
            } else {
                return ChatFlow::Continue;
            };
            if next == ChatFlow::Leave {
                return ChatFlow::Leave;
            }
        }
        ChatFlow::Continue
    }

    async fn handle_input(&mut self, typed: Option<TerminalInput>) -> ChatFlow {
        let line = match typed {
            Some(TerminalInput::Line(line)) => line,
            Some(TerminalInput::Remark(remark)) => {
                self.screen.print_remark(&remark);
                return ChatFlow::Continue;
            }
            Some(TerminalInput::Interrupt { .. }) => return ChatFlow::Continue,
            None => {
                self.input_ended = true;
                return ChatFlow::Continue;
            }
        };
        if self.is_interactive {
            self.screen.handle_entered(&line);
        }
        // A command that concerns the open run does not wait for the run's end.
        if ChatCommand::parse(&line).is_urgent() {
            return self.execute_line(&line).await;
        }
        self.backlog.push_back(line);
        ChatFlow::Continue
    }

    async fn execute_line(&mut self, line: &str) -> ChatFlow {
        let command = ChatCommand::parse(line);
        let is_answer =
            !matches!(command, ChatCommand::Cancel | ChatCommand::Close | ChatCommand::Quit | ChatCommand::Help);
        if is_answer && self.tasks.is_asking() {
            self.tasks.handle_answer(line);
            return self.perform_steps().await;
        }
        match command {
            ChatCommand::Empty => {}
            ChatCommand::Help => self.screen.print(&command::help()),
            ChatCommand::Agents => self.tasks.begin(AgentTask::Show),
            ChatCommand::Switch(agent) => self.tasks.begin(AgentTask::Request(AgentRequest::Switch(agent))),
            ChatCommand::SayTo { agent, text } => {
                self.tasks.begin(AgentTask::Request(AgentRequest::Say { agent, text }))
            }
            ChatCommand::Say(text) => {
                let mut invoke = UserInput::text(text);
                invoke.agent_id = self.tasks.addressed().map(str::to_owned);
                self.invoke(invoke).await;
            }
            ChatCommand::Steer(text) => self.invoke(UserInput::text(text).strategy(InputStrategy::Steer)).await,
            ChatCommand::Cancel => return self.cancel().await,
            ChatCommand::Decide(confirm) => return self.decide(confirm).await,
            ChatCommand::Close => {
                self.closing = true;
                let sent = self.session.close().await;
                return self.report_error(sent);
            }
            ChatCommand::Quit => return ChatFlow::Leave,
            ChatCommand::Invalid(hint) => self.screen.print_remark(&hint),
        }
        self.perform_steps().await
    }

    async fn invoke(&mut self, invoke: UserInput) {
        match self.session.invoke(invoke).await {
            Ok(id) => drop(self.open_inputs.insert(id, None)),
            Err(error) => {
                self.exit = CliExit::Failed;
                self.screen.print_remark(&error.to_string());
            }
        }
    }

    async fn decide(&mut self, confirm: bool) -> ChatFlow {
        let Some(handover) = self.handover.take() else {
            self.screen.print_remark("no handover is waiting for a decision");
            return ChatFlow::Continue;
        };
        let sent = self.session.decide(&handover, confirm).await;
        self.report_error(sent)
    }

    /// Handles Ctrl-C: withdraws a question, cancels an answer, or leaves.
    async fn interrupt(&mut self, stops: &mut u32) -> ChatFlow {
        if self.tasks.cancel_question() {
            return self.perform_steps().await;
        }
        *stops += 1;
        if *stops > 1 || self.open_inputs.is_empty() { ChatFlow::Leave } else { self.cancel().await }
    }

    /// Cancels this chat's own runs by id, so that no other run is affected.
    async fn cancel(&mut self) -> ChatFlow {
        if self.tasks.cancel_question() {
            return self.perform_steps().await;
        }
        let runs: Vec<String> = self.open_inputs.values().flatten().cloned().collect();
        // A run whose id is not known yet is cancelled as soon as the id arrives.
        self.cancel_wanted = runs.len() < self.open_inputs.len() || self.tasks.is_saying();
        for run in &runs {
            let sent = self.session.cancel(Some(run)).await;
            self.report_error(sent);
        }
        if self.open_inputs.is_empty() && self.backlog.is_empty() && !self.cancel_wanted {
            // This chat has no open run, so it cancels any run that is open in the session.
            let sent = self.session.cancel(None).await;
            self.report_error(sent);
        }
        ChatFlow::Continue
    }

    fn report_error(&mut self, sent: Result<(), ClientError>) -> ChatFlow {
        if let Err(error) = sent {
            self.screen.print_remark(&error.to_string());
        }
        ChatFlow::Continue
    }

    /// Performs the steps of the agent tasks.
    async fn perform_steps(&mut self) -> ChatFlow {
        while let Some(step) = self.tasks.poll_step() {
            let sent = match step {
                ChatStep::Open(open) => self.session.open(open).await,
                ChatStep::Change(change) => self.session.change_members(change).await,
                ChatStep::List => {
                    let gateway = self.gateway.clone();
                    let lists = self.agent_list_sender.clone();
                    // Sending fails only if the chat has ended.
                    tokio::spawn(async move { lists.send(fetch_agents(&gateway).await).await });
                    Ok(())
                }
                ChatStep::Say { agent, text } => {
                    self.invoke(UserInput::text(text).agent(agent)).await;
                    Ok(())
                }
                ChatStep::Print(text) => {
                    self.screen.print(&text);
                    Ok(())
                }
                ChatStep::Remark(text) => {
                    self.screen.print_remark(&text);
                    Ok(())
                }
                ChatStep::Fail => {
                    self.mark_failed();
                    Ok(())
                }
                ChatStep::Leave => {
                    self.exit = CliExit::Failed;
                    return ChatFlow::Leave;
                }
            };
            self.report_error(sent);
        }
        ChatFlow::Continue
    }

    /// Sets the exit code to failed if a pipe's request was not performed.
    fn mark_failed(&mut self) {
        self.exit = if self.is_interactive { self.exit } else { CliExit::Failed };
    }

    // --- events ---

    #[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
    async fn handle_event(&mut self, event: Event) -> ChatFlow {
        match event {
            Event::Accepted(accepted) => {
                self.tasks.set_existing();
                if let Some(run) = self.open_inputs.get_mut(&accepted.message_id) {
                    *run = Some(accepted.run);
                    if std::mem::take(&mut self.cancel_wanted) {
                        return self.cancel().await;
                    }
                }
            }
            Event::Message(message) => {
                let mine = message.message_id.as_ref().is_some_and(|id| self.open_inputs.contains_key(id));
                if !(mine && self.is_interactive) {
                    self.screen.print(&message_line(&message));
                }
            }
            Event::RunStarted { run, agent, .. } => drop(self.agents.insert(run, agent)),
            Event::Text { run, text, .. } => {
                let agent = self.agents.get(&run).map(String::as_str);
                self.screen.print_answer_text(&run, speaker_name(agent), &text);
            }
            Event::Restarted { run, .. } => self.screen.discard_answer(&run),
            Event::Done(done) => self.handle_done(&done),
            Event::Error(failure) => return self.handle_failure(&failure).await,
            Event::Subscribed { snapshot, .. } => self.tasks.handle_snapshot(&snapshot),
            Event::Opened { snapshot: Some(snapshot), .. } => self.tasks.handle_snapshot(&snapshot),
            Event::Members(members) => self.tasks.handle_members(&members),
            Event::CaughtUp { .. } => self.history_deadline = None,
            Event::Reset { reason, snapshot, .. } => {
                self.history_deadline = None;
                if let Some(snapshot) = snapshot {
                    self.tasks.handle_snapshot(&snapshot);
                }
                self.screen.print_remark(&format!("earlier messages may be missing: {reason}"));
            }
            Event::Closed { .. } => {
                self.screen.print_remark("the session is closed");
                return if self.closing { ChatFlow::Leave } else { ChatFlow::Continue };
            }
            Event::Disconnected { reason, retry_in: None, .. } => {
                self.screen.print_remark(&format!("disconnected: {reason}"));
                self.exit = CliExit::Unavailable;
                return ChatFlow::Leave;
            }
            Event::Disconnected { reason, .. } => self.handle_disconnected(&reason),
            Event::Note(note) => {
                self.handle_handover_note(&note);
                // Facts of the past are skipped: their result is already in the snapshot.
                if self.history_deadline.is_none() {
                    self.tasks.handle_note(&note);
                    if note.name == "NO_ACTIVE_SPEAKING" {
                        self.screen.print_remark(NOTHING_TO_CANCEL);
                    }
                }
            }
            Event::Connected { .. } => self.handle_reconnected(),
            _ => {}
        }
        self.perform_steps().await
    }

    /// Prints a handover that an agent has requested, or its outcome.
    fn handle_handover_note(&mut self, note: &Note) {
        let word = |key: &str| note.body.get(key).and_then(Value::as_str).unwrap_or_default();
        match note.name.as_str() {
            "handover_prompt" => {
                self.handover = Some(word("handover_id").to_owned());
                let reason = Some(word("reason")).filter(|reason| !reason.is_empty());
                let why = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let from = word("from");
                let to = word("to");
                self.screen.print_remark(&format!("{from} asks to hand over to {to}{why}: /yes or /no"));
            }
            "HANDOVER_CONFIRMED" => self.screen.print_remark(&format!("handed over to {}", word("to"))),
            "HANDOVER_REJECTED" => {
                self.handover = None;
                self.screen.print_remark(&format!("handover to {} rejected: {}", word("to"), word("reason")));
            }
            _ => {}
        }
    }

    fn handle_disconnected(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_disconnected, true) {
            self.screen.print_remark(&format!("connection lost ({reason}); reconnecting"));
        }
    }

    fn handle_reconnected(&mut self) {
        if std::mem::take(&mut self.is_disconnected) {
            self.screen.print_remark("reconnected");
        }
    }

    fn handle_done(&mut self, done: &Done) {
        self.agents.remove(&done.run);
        if let Some(ending) = ending_text(done) {
            self.screen.print(&format!("{}: {ending}", speaker_name(done.agent.as_deref())));
        }
        self.screen.start_line();
        let mine = done.message_id.as_ref().and_then(|id| self.open_inputs.remove(id));
        if mine.is_some() && done.status.as_str() == "failed" && !self.is_interactive {
            self.exit = CliExit::Failed;
        }
    }

    async fn handle_failure(&mut self, failure: &Failure) -> ChatFlow {
        match failure.request_type.as_str() {
            "subscribe" if failure.code == "not_found" => {
                self.history_deadline = None;
                self.tasks.set_missing();
                self.screen.print_remark("the session has no messages yet");
                return ChatFlow::Continue;
            }
            "cancel_run" if failure.code == "not_found" => {
                self.screen.print_remark(NOTHING_TO_CANCEL);
                return ChatFlow::Continue;
            }
            _ if self.tasks.handle_refusal(failure) => return self.perform_steps().await,
            _ => {}
        }
        if let Some(id) = &failure.message_id {
            self.open_inputs.remove(id);
            self.mark_failed();
        }
        self.screen.print_remark(&format!("{}: {}", failure.code, failure.message));
        if failure.request_type == "session_close" {
            self.exit = CliExit::Failed;
            return ChatFlow::Leave;
        }
        ChatFlow::Continue
    }
}

/// Fetches the list of agents by HTTP, if the gateway's address allows that.
async fn fetch_agents(gateway: &GatewayArgs) -> AgentListResult {
    if gateway.url.starts_with("quic:") {
        return Err("the list of all agents needs HTTP, and this chat uses QUIC".to_owned());
    }
    agents::list(gateway).await.map_err(|error| error.to_string())
}
