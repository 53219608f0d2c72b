//! The modes of `turnway-bench`, one file each. `main` calls [`run`].
pub mod agent;
pub mod commit;
pub mod compare;
pub mod direct;
pub mod echo;
pub mod echo_server;
pub mod fanout;
pub mod first_delta;
pub mod history;
pub mod idle;
pub mod model_upstream;
pub mod models;
pub mod reconnect;
pub mod session_client;
pub mod stream;
pub mod take_up;
pub mod turns;

use crate::cli::{Mode, Owner};
use crate::error::BenchError;
use crate::output::print_stdout;
use crate::run::Run;
use crate::target::Target;
use session_client::{SessionClient, Workload};
use std::rc::Rc;
use turnway::cli::CliExit;

/// Runs a mode, and returns the exit code of the process.
pub async fn run(mode: Mode) -> Result<CliExit, BenchError> {
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
        Mode::Models(args) => models::run(args).await,
        Mode::ModelUpstream(args) => model_upstream::run(args).await,
        Mode::Commit(args) => commit::run(&args),
        Mode::Compare(args) => compare::run(&args).await,
    }
}

/// Opens connections whose sessions have each had one whole turn at the node that is to own them.
async fn open_session_clients(
    run: &Rc<Run>,
    job: &Rc<Workload>,
    owner: &Owner,
    count: usize,
) -> Result<Vec<SessionClient>, BenchError> {
    let is_mine = run.aim().i_own_this_target;
    let first = owner.begin_at.as_deref().map(|url| Target::find(url, "ws", None, is_mine)).transpose()?;
    let first = first.as_ref();
    let open = |n| async move {
        let mut talk = SessionClient::open_at(run, job, n, first.unwrap_or(run.target())).await?;
        talk.first_turn().await?;
        if first.is_some() {
            talk.move_to(run.target()).await?;
        }
        Ok(talk)
    };
    run.make_all(count, open).await
}

/// Prints the address of a server of ours as the first line of output.
fn print_ready(address: std::net::SocketAddr) {
    print_stdout(&format!("ready {address}\n"));
}
