//! `turnway check-config`: checks a node's configuration without starting the node. Called by `main`.
use super::serve::ServeArgs;
use super::{Exit, Trouble, complain, plan, say, say_json};
use crate::config::Mistake;
use serde::Serialize;

/// The JSON form of the result.
#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    mistakes: &'a [Mistake],
    warnings: &'a [Mistake],
}

/// Prints `ok`, or every mistake. The mistakes are the requested result, so as JSON they go to stdout.
pub fn run(args: &ServeArgs, json: bool) -> Result<Exit, Trouble> {
    let (mistakes, warnings) = match plan::read(args, std::env::vars_os()) {
        Ok(plan) => (Vec::new(), plan.warnings),
        Err(mistakes) => (mistakes, Vec::new()),
    };
    let ok = mistakes.is_empty();
    if json {
        say_json(&Verdict { ok, mistakes: &mistakes, warnings: &warnings })?;
        return Ok(if ok { Exit::Fine } else { Exit::Usage });
    }
    if !ok {
        return Err(Trouble::Mistakes(mistakes));
    }
    warnings.iter().for_each(|warning| complain(&format!("turnway: warning: {warning}\n")));
    say("ok\n")?;
    Ok(Exit::Fine)
}
