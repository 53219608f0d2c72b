//! What `turnway-bench` does, one file for each mode.
pub mod agent;
pub mod commit;
pub mod direct;
pub mod echo;
pub mod echo_server;
pub mod fanout;
pub mod first_delta;
pub mod history;
pub mod idle;
pub mod reconnect;
pub mod stream;
pub mod take_up;
pub mod talk;
pub mod turns;

use crate::cli::Mode;
use crate::print::say;
use crate::run::Run;
use crate::trouble::Trouble;
use talk::{Job, Talk};
use turnway::cli::Exit;

/// Does it; says how the process ends.
pub async fn run(mode: Mode) -> Result<Exit, Trouble> {
    match mode {
        Mode::Turns(args) if args.bare => echo::run(&args.common, args.size).await,
        Mode::Turns(args) => turns::run(args).await,
        Mode::Stream(args) => stream::run(args).await,
        Mode::Idle(args) => idle::run(args).await,
        Mode::Reconnect(args) => reconnect::run(args).await,
        Mode::Fanout(args) => fanout::run(args).await,
        Mode::FirstDelta(args) => first_delta::run(args).await,
        Mode::Echo(args) => echo::run(&args.common, args.size).await,
        Mode::History(args) => history::run(args).await,
        Mode::TakeUp(args) => take_up::run(args).await,
        Mode::EchoServer(args) => echo_server::run(args).await,
        Mode::Agent(args) => agent::run(args).await,
        Mode::Commit(args) => commit::run(&args),
    }
}

/// Connections that have had one whole turn each, so that what is measured is not the first.
async fn talks(run: &std::rc::Rc<Run>, job: &std::rc::Rc<Job>, count: usize) -> Result<Vec<Talk>, Trouble> {
    let open = |n| async move {
        let mut talk = Talk::open(run, job, n).await?;
        talk.one_turn().await?;
        Ok(talk)
    };
    run.gather(count, open).await
}

/// Where a server of ours can be found; the first line of its output.
fn announce(address: std::net::SocketAddr) {
    say(&format!("ready {address}\n"));
}
