//! `turnway check-config`: what a node would say before it starts.
use super::serve::ServeArgs;
use super::{Exit, Trouble, plan, say, say_json};
use crate::config::Mistake;
use serde::Serialize;

/// All of it, as JSON.
#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    mistakes: &'a [Mistake],
}

/// Prints `ok`, or all mistakes: they are what was asked for, so as JSON they go to stdout.
pub fn run(args: &ServeArgs, json: bool) -> Result<Exit, Trouble> {
    let mistakes = plan::read(args, std::env::vars_os()).err().unwrap_or_default();
    let ok = mistakes.is_empty();
    if json {
        say_json(&Verdict { ok, mistakes: &mistakes })?;
        return Ok(if ok { Exit::Fine } else { Exit::Usage });
    }
    if !ok {
        return Err(Trouble::Mistakes(mistakes));
    }
    say("ok\n")?;
    Ok(Exit::Fine)
}
