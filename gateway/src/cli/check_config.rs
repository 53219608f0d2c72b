//! `turnway check-config`: checks a node's configuration without starting the node. Called by `main`.
use super::serve::ServeArgs;
use super::{CliError, CliExit, plan, write_json, write_stderr, write_stdout};
use crate::config::ConfigMistake;
use serde::Serialize;

/// The JSON form of the result.
#[derive(Serialize)]
struct ConfigCheckReport<'a> {
    ok: bool,
    mistakes: &'a [ConfigMistake],
    warnings: &'a [ConfigMistake],
}

/// Prints `ok`, or every mistake. The mistakes are the requested result, so as JSON they go to stdout.
pub fn run(args: &ServeArgs, json: bool) -> Result<CliExit, CliError> {
    let (mistakes, warnings) = match plan::read(args, std::env::vars_os()) {
        Ok(plan) => (Vec::new(), plan.warnings),
        Err(mistakes) => (mistakes, Vec::new()),
    };
    let ok = mistakes.is_empty();
    if json {
        write_json(&ConfigCheckReport { ok, mistakes: &mistakes, warnings: &warnings })?;
        return Ok(if ok { CliExit::Success } else { CliExit::Usage });
    }
    if !ok {
        return Err(CliError::InvalidConfig(mistakes));
    }
    warnings.iter().for_each(|warning| write_stderr(&format!("turnway: warning: {warning}\n")));
    write_stdout("ok\n")?;
    Ok(CliExit::Success)
}
