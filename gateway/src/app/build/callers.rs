//! Who may connect at all: by which names, from where, and how many at a time.
use super::office;
use crate::cli::plan::Plan;
use crate::config::{Hosts, PerAddress};
use crate::door::browser::Rules;
use crate::listen::crowd::{Crowd, Locks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use turnway_core::limits;

/// Files that are neither connections of clients nor attempts at agents: the store, logs, timers, Redis, keys.
const FILES_RESERVE: u64 = 256;

/// How many files the process may open, and what for. The parts never exceed the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) struct FileBudget {
    /// Connections of clients by TCP.
    pub(in crate::app) connections: usize,
    /// Attempts at agents, each of which may hold a connection.
    pub(in crate::app) attempts: u64,
}

/// By which names clients may call, and from which pages.
pub(super) fn rules(plan: &Plan) -> Rules {
    let (hosts, origins) = (plan.config.hosts.clone(), plan.config.origins.clone());
    Rules { is_local: plan.config.http.ip().is_loopback(), hosts, origins }
}

/// How many may be there from one address, and which of them are not heard for a while.
pub(super) fn crowd(plan: &Plan) -> Crowd {
    let (most, counts_local) = match plan.config.per_address {
        PerAddress::Usual => (Some(limits::ADDRESS_CONNECTIONS_MAX), false),
        PerAddress::Most(most) => (Some(most), true),
        PerAddress::Off => (None, false),
    };
    // Who is called by other names than this machine's has something in front of it here.
    let is_fronted = plan.config.hosts != Hosts::default() || !plan.config.origins.is_empty();
    let locks = match (plan.config.auth.lockout, counts_local, is_fronted) {
        (false, ..) => Locks::Off,
        (true, true, _) => Locks::All,
        (true, false, true) => Locks::Others,
        (true, false, false) => Locks::Usual,
    };
    Crowd::new(most, counts_local, locks)
}

/// Raises the process's limit of open files as far as it may, and divides them. The soft limit of most systems is far
/// below the hard one, for the sake of programs that use `select`.
pub(super) fn file_budget(attempts: u64, agents: usize) -> FileBudget {
    let had = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: had.maximum, maximum: had.maximum };
    // A system that does not let us have more leaves us with what there is.
    let _ = setrlimit(Resource::Nofile, wanted);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let budget = divide(files, attempts, agents);
    let FileBudget { connections, attempts } = budget;
    tracing::info!(files, connections, attempts, "open files are divided among connections and attempts");
    budget
}

/// Divides files. Where there are too few for all bounds, attempts get the part that they have of the bounds, so that
/// neither clients nor agents are starved by the other.
fn divide(files: u64, attempts: u64, agents: usize) -> FileBudget {
    let idle = (agents * limits::AGENT_IDLE_CONNECTIONS_MAX) as u64;
    let fixed = FILES_RESERVE + office::CONNECTIONS_MAX as u64;
    let left = files.saturating_sub(fixed);
    // Idle connections to agents are given up before anything else is.
    let left = left.saturating_sub(idle.min(left / 8));
    let most = limits::CONNECTIONS_MAX as u64;
    let for_attempts = if left >= most + attempts {
        attempts
    } else {
        u64::try_from(u128::from(left) * u128::from(attempts) / u128::from(most + attempts))
            .unwrap_or(attempts)
    };
    let for_attempts = for_attempts.max(1);
    let connections = left.saturating_sub(for_attempts).clamp(1, most);
    FileBudget {
        connections: usize::try_from(connections).unwrap_or(limits::CONNECTIONS_MAX),
        attempts: for_attempts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_open_files_add_up() {
        for files in [400, 1_024, 4_096, 19_000, 20_000, 65_536, 1_048_576] {
            for agents in [0, 1, 40] {
                let FileBudget { connections, attempts } = divide(files, limits::ATTEMPTS_MAX, agents);
                let others = FILES_RESERVE + office::CONNECTIONS_MAX as u64;
                assert!(connections as u64 + attempts + others <= files, "{files} files");
                assert!(connections >= 1 && attempts >= 1);
            }
        }
        let plenty = divide(1_048_576, 8_192, 2);
        assert_eq!(plenty, FileBudget { connections: limits::CONNECTIONS_MAX, attempts: 8_192 });
        let few = divide(19_000, 8_192, 2);
        assert!(few.attempts > 5_000 && few.connections > 12_000, "{few:?}");
    }
}
