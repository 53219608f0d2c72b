//! The history file of typed lines: its path, and the lines that are kept. Called by the terminal; handles no
//! keys.
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use turnway_core::limits::{CHAT_HISTORY_BYTES_MAX, CHAT_HISTORY_LINE_BYTES_MAX};

/// Answers to questions of the chat, which are not worth keeping.
const ANSWERS: [&str; 6] = ["y", "n", "yes", "no", "/yes", "/no"];

/// Returns the path of the history: in the user's state directory, else below the home directory, or `None` if
/// neither is known.
pub(super) fn path() -> Option<PathBuf> {
    path_in(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// Relative paths are ignored, as the XDG base directory specification requires.
fn path_in(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")))?;
    Some(state.join("turnway/chat_history"))
}

/// Creates the directory, accessible to the user only, and returns whether it has a readable history.
pub(super) fn prepare(path: &Path) -> io::Result<bool> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is not a file")),
        Ok(found) if found.len() > CHAT_HISTORY_BYTES_MAX => {
            Err(io::Error::other(format!("it is larger than {CHAT_HISTORY_BYTES_MAX} bytes")))
        }
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a line is kept. As in shells, a line that begins with a space is not.
pub(super) fn is_kept(line: &str) -> bool {
    let trimmed = line.trim();
    let is_short = line.len() <= CHAT_HISTORY_LINE_BYTES_MAX;
    is_short && !trimmed.is_empty() && !line.starts_with(' ') && !ANSWERS.contains(&trimmed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_file_is_in_the_state_directory() {
        let path = |state: &str, home: &str| {
            let given = |text: &str| (text != "-").then(|| OsString::from(text));
            path_in(given(state), given(home)).map(|path| path.display().to_string())
        };
        let home = Some("/home/ann/.local/state/turnway/chat_history".to_owned());
        assert_eq!(path("/s", "/home/ann"), Some("/s/turnway/chat_history".to_owned()));
        assert_eq!(path("-", "/home/ann"), home);
        assert_eq!(path("relative", "/home/ann"), home);
        assert_eq!(path("", "/home/ann"), home);
        assert_eq!(path("-", "-"), None);
        assert_eq!(path("", ""), None);
    }

    #[test]
    fn answers_secrets_and_long_lines_are_not_saved() {
        for line in ["", "  ", "y", "no", "/yes", " a secret"] {
            assert!(!is_kept(line), "{line:?}");
        }
        assert!(is_kept("yes please") && is_kept("/switch echo"));
        assert!(is_kept(&"a".repeat(CHAT_HISTORY_LINE_BYTES_MAX)));
        assert!(!is_kept(&"a".repeat(CHAT_HISTORY_LINE_BYTES_MAX + 1)));
    }
}
