//! Comma commands: messages of a user to the host, not to the model.
use crate::plugin::Turn;

/// A parsed command.
pub(super) enum CommaCommand<'a> {
    /// Lists the commands.
    Help,
    /// Shows the session and the keys of its state.
    Status,
    /// A command that does not exist.
    Unknown(&'a str),
}

impl<'a> CommaCommand<'a> {
    /// Parses a command: a comma and a name at the very start of a message.
    pub(super) fn parse(content: &'a str) -> Option<Self> {
        let rest = content.strip_prefix(',')?;
        let name = rest.split_whitespace().next()?;
        // ", and so on" is not a command.
        if !rest.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return None;
        }
        Some(match name {
            "help" => Self::Help,
            "status" => Self::Status,
            name => Self::Unknown(name),
        })
    }

    /// Returns the answer to the command.
    pub(super) fn answer(&self, turn: &Turn) -> String {
        match self {
            Self::Help => ",help: list the commands\n,status: show the session and the keys of its state".to_owned(),
            Self::Status => {
                let names: Vec<&str> = turn.state.keys().map(String::as_str).collect();
                format!("session {}\nstate keys: {}", turn.session_id, names.join(", "))
            }
            Self::Unknown(name) => format!("unknown command: ,{name}\n,help lists the commands"),
        }
    }
}
