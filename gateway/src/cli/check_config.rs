//! `turnway check-config`: what a node would say before it starts.
use super::serve::ServeArgs;
use super::{Exit, complain, plan, say};

/// Prints `ok`, or all mistakes.
pub fn run(args: &ServeArgs) -> Exit {
    match plan::read(args, std::env::vars_os()) {
        Ok(_) => {
            say("ok\n");
            Exit::Fine
        }
        Err(mistakes) => {
            complain(&plan::list(&mistakes));
            Exit::Usage
        }
    }
}
