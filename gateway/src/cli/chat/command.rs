//! Parses the lines that a user types in a chat. Pure; the chat executes the commands.
use crate::config::nearest::nearest;

/// Every command: its syntax and its description.
const COMMANDS: [(&str, &str); 10] = [
    ("/agents", "list the agents, and which of them are members of this session"),
    ("/switch AGENT", "make AGENT the active agent"),
    ("@AGENT TEXT", "send TEXT to AGENT, once"),
    ("/steer TEXT", "send TEXT to the agent that is answering"),
    ("/cancel", "stop the answer (or Ctrl-C)"),
    ("/yes, /no", "confirm or reject the handover that an agent has requested"),
    ("/close", "close the session and leave"),
    ("/quit", "leave; the session stays (or Ctrl-D)"),
    ("/help", "show this"),
    (",help", "ask the gateway itself what it can do"),
];

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    /// An empty line.
    Empty,
    /// Show the commands.
    Help,
    /// List agents and members.
    Agents,
    /// Make this agent the active one.
    Switch(String),
    /// Send text to the active agent.
    Say(String),
    /// Send text to this agent, once.
    SayTo {
        agent: String,
        text: String,
    },
    /// Send text to the agent whose run is open.
    Steer(String),
    /// Cancel the answer.
    Cancel,
    /// Confirm or reject a handover.
    Decide(bool),
    /// Close the session, and leave.
    Close,
    Quit,
    /// An invalid command, with a hint for the user.
    Invalid(String),
}

// === impl ChatCommand ===

impl ChatCommand {
    /// Parses a line.
    pub(super) fn parse(line: &str) -> Self {
        let line = line.trim();
        if let Some((agent, text)) = split_mention(line) {
            return Self::from_mention(agent, text);
        }
        if !line.starts_with('/') {
            return if line.is_empty() { Self::Empty } else { Self::Say(line.to_owned()) };
        }
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("/switch", "") => Self::Invalid("to whom? /switch AGENT; /agents lists them".to_owned()),
            ("/switch", agent) if is_agent_id(agent.trim_start_matches('@')) => {
                Self::Switch(agent.trim_start_matches('@').to_owned())
            }
            ("/switch", agent) => Self::Invalid(format!("{agent:?} is not a valid agent id; /agents lists them")),
            ("/steer", "") => Self::Invalid("with what? /steer TEXT".to_owned()),
            ("/steer", text) => Self::Steer(text.to_owned()),
            (name, rest) => match Self::parse_bare(name) {
                None => Self::unknown(name),
                Some(command) if rest.is_empty() => command,
                Some(_) => Self::Invalid(format!("{name} takes no arguments; /help shows all commands")),
            },
        }
    }

    fn unknown(name: &str) -> Self {
        let meant = nearest(name, command_names()).map(|name| format!("did you mean {name}? "));
        Self::Invalid(format!("no such command: {name}; {}/help shows all", meant.unwrap_or_default()))
    }

    /// Parses a command without arguments.
    fn parse_bare(name: &str) -> Option<Self> {
        Some(match name {
            "/help" => Self::Help,
            "/agents" => Self::Agents,
            "/cancel" => Self::Cancel,
            "/yes" => Self::Decide(true),
            "/no" => Self::Decide(false),
            "/close" => Self::Close,
            "/quit" | "/exit" => Self::Quit,
            _ => return None,
        })
    }

    fn from_mention(agent: &str, text: &str) -> Self {
        if text.is_empty() {
            return Self::Invalid(format!("what? @{agent} TEXT says it to {agent} once; /switch {agent} for more"));
        }
        Self::SayTo { agent: agent.to_owned(), text: text.to_owned() }
    }

    /// Returns whether the command concerns the open run, so that it must not wait for the run's end.
    pub(super) fn is_urgent(&self) -> bool {
        matches!(self, Self::Cancel | Self::Steer(_))
    }
}

/// Returns the text that `/help` shows.
pub(super) fn help() -> String {
    let width = COMMANDS.iter().map(|(form, _)| form.len()).max().unwrap_or_default();
    let line = |(form, what): &(&str, &str)| format!("{form:<width$}  {what}");
    COMMANDS.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the words that the editor completes; a command with an argument ends with a space.
pub(super) fn completions() -> Vec<String> {
    let space = |name: &str| if matches!(name, "/switch" | "/steer") { " " } else { "" };
    command_names().map(|name| format!("{name}{}", space(name))).collect()
}

/// Parses an answer to a question: yes, no, or neither.
pub(super) fn yes_or_no(line: &str) -> Option<bool> {
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" | "/yes" => Some(true),
        "n" | "no" | "/no" => Some(false),
        _ => None,
    }
}

fn command_names() -> impl Iterator<Item = &'static str> {
    let words = COMMANDS.iter().flat_map(|(form, _)| form.split([' ', ',']));
    words.filter(|word| word.starts_with('/'))
}

/// Splits `@AGENT TEXT` as the gateway does: an `@` before anything that is not an agent id is plain text.
fn split_mention(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('@')?;
    let (agent, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    is_agent_id(agent).then_some((agent, text.trim()))
}

/// Returns whether the text is a valid agent id.
fn is_agent_id(text: &str) -> bool {
    turnway_core::id::AgentId::parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_line_is_a_command_or_text() {
        for (line, command) in [
            ("", ChatCommand::Empty),
            (" hello there ", ChatCommand::Say("hello there".to_owned())),
            (",help", ChatCommand::Say(",help".to_owned())),
            ("/agents", ChatCommand::Agents),
            ("/switch  counter ", ChatCommand::Switch("counter".to_owned())),
            ("/switch @counter", ChatCommand::Switch("counter".to_owned())),
            ("/steer\tstop there", ChatCommand::Steer("stop there".to_owned())),
            ("/exit", ChatCommand::Quit),
            ("/no", ChatCommand::Decide(false)),
            ("@counter  count to 3", ChatCommand::SayTo { agent: "counter".to_owned(), text: "count to 3".to_owned() }),
            ("@a.b hello", ChatCommand::Say("@a.b hello".to_owned())),
            ("@ hello", ChatCommand::Say("@ hello".to_owned())),
        ] {
            assert_eq!(ChatCommand::parse(line), command, "{line:?}");
        }
    }

    #[test]
    fn unknown_command_gets_a_hint() {
        for (line, hint) in [
            ("/swich echo", "no such command: /swich; did you mean /switch? /help shows all"),
            ("/frobnicate", "no such command: /frobnicate; /help shows all"),
            ("/switch", "to whom? /switch AGENT; /agents lists them"),
            ("/switch a b", "\"a b\" is not a valid agent id; /agents lists them"),
            ("/quit now", "/quit takes no arguments; /help shows all commands"),
            ("@echo", "what? @echo TEXT says it to echo once; /switch echo for more"),
            ("/steer", "with what? /steer TEXT"),
        ] {
            assert_eq!(ChatCommand::parse(line), ChatCommand::Invalid(hint.to_owned()), "{line:?}");
        }
    }

    /// Every command that `/help` shows can be parsed and is completed.
    #[test]
    fn help_lists_every_command() {
        let help = help();
        for name in command_names() {
            assert!(help.contains(name), "{name}");
            let line = if matches!(name, "/switch" | "/steer") { format!("{name} a") } else { name.to_owned() };
            assert!(!matches!(ChatCommand::parse(&line), ChatCommand::Invalid(_)), "{name}");
            assert!(completions().iter().any(|word| word.trim_end() == name), "{name}");
        }
        assert_eq!(command_names().count(), 9);
    }

    #[test]
    fn answer_is_parsed_as_yes_no_or_neither() {
        assert_eq!(["Y", "yes ", "/yes"].map(yes_or_no), [Some(true); 3]);
        assert_eq!(["n", "NO", "/no"].map(yes_or_no), [Some(false); 3]);
        assert_eq!(["", "hello", "yes please"].map(yes_or_no), [None; 3]);
    }
}
