//! Comma commands: what a user says to the host, not to the model.
use crate::plugin::Turn;

/// A command, as it was said.
pub(super) enum Command<'a> {
    /// What there is.
    Help,
    /// Where one is.
    Status,
    /// Nobody knows it.
    Unknown(&'a str),
}

impl<'a> Command<'a> {
    /// Whether a message is a command: a comma and a name at its very start.
    pub(super) fn of(content: &'a str) -> Option<Self> {
        let rest = content.strip_prefix(',')?;
        let name = rest.split_whitespace().next()?;
        // ", and so on" is no command.
        if !rest.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return None;
        }
        Some(match name {
            "help" => Self::Help,
            "status" => Self::Status,
            name => Self::Unknown(name),
        })
    }

    /// What is said to it.
    pub(super) fn answer(&self, turn: &Turn) -> String {
        match self {
            Self::Help => ",help: this\n,status: the session, and what is known of it".to_owned(),
            Self::Status => {
                let names: Vec<&str> = turn.state.keys().map(String::as_str).collect();
                format!("session {}\nknown: {}", turn.session_id, names.join(", "))
            }
            Self::Unknown(name) => format!("no such command: ,{name}\n,help says which there are"),
        }
    }
}
