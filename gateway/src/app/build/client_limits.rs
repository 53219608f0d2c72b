//! Limits for connections: allowed host names and origins, connections for each address, and the budget of open files.
//! Called by `app::build`.
use super::admin_listener;
use crate::auth::host_policy::HostPolicy;
use crate::cli::plan::NodePlan;
use crate::config::{AllowedHosts, PerAddress};
use crate::listen::address_limiter::{AddressLimiter, LockoutPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use turnway_core::limits;

/// Files reserved for uses other than clients and agents: the store, logs, timers, Redis, keys.
const FILES_RESERVE: u64 = 256;

/// The number of files that the process may open, divided by use. The parts must not exceed the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) struct FileBudget {
    /// Client connections over TCP.
    pub(in crate::app) connections: usize,
    /// Attempts at agents, each of which may hold a connection.
    pub(in crate::app) attempts: u64,
    /// Open calls of models, each of which holds a connection to an upstream.
    pub(in crate::app) model_calls: usize,
}

/// Returns the host names and origins that clients may use.
pub(super) fn rules(plan: &NodePlan) -> HostPolicy {
    let hosts = plan.config.hosts.clone();
    let origins = plan.config.origins.clone();
    HostPolicy { is_local: plan.config.http.ip().is_loopback(), hosts, origins }
}

/// Returns the limit of connections for each address, and the addresses subject to lockout.
pub(super) fn address_limiter(plan: &NodePlan) -> AddressLimiter {
    let (most, counts_local) = match plan.config.per_address {
        PerAddress::Default => (Some(limits::ADDRESS_CONNECTIONS_MAX), false),
        PerAddress::Limit(most) => (Some(most), true),
        PerAddress::Off => (None, false),
    };
    // A node that is called by other names than this machine's has a proxy in front of it on this machine.
    let is_fronted = plan.config.hosts != AllowedHosts::default() || !plan.config.origins.is_empty();
    let locks = match (plan.config.auth.lockout, counts_local, is_fronted) {
        (false, ..) => LockoutPolicy::Off,
        (true, true, _) => LockoutPolicy::All,
        (true, false, true) => LockoutPolicy::Remote,
        (true, false, false) => LockoutPolicy::RemoteAndPages,
    };
    AddressLimiter::new(most, counts_local, locks)
}

/// Raises the process's limit of open files as far as allowed, and divides it. The soft limit of most systems is far
/// below the hard one, for programs that use `select`.
pub(super) fn file_budget(plan: &NodePlan) -> FileBudget {
    let had = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: had.maximum, maximum: had.maximum };
    // If the limit cannot be raised, the current limit applies.
    let _ = setrlimit(Resource::Nofile, wanted);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let budget = divide_files(files, plan.config.holding.attempts, plan.agents.len(), plan.config.models.len());
    let FileBudget { connections, attempts, model_calls } = budget;
    let what = "dividing the open file limit between connections, attempts and calls of models";
    tracing::info!(files, connections, attempts, model_calls, "{what}");
    budget
}

/// Divides the files. If they are too few for all maxima, attempts and calls of models get shares in proportion to their
/// maxima, so that clients, agents and upstreams cannot starve each other.
fn divide_files(files: u64, attempts: u64, agents: usize, models: usize) -> FileBudget {
    let idle = (agents * limits::AGENT_IDLE_CONNECTIONS_MAX + models * limits::MODEL_IDLE_CONNECTIONS_MAX) as u64;
    let fixed = FILES_RESERVE + admin_listener::CONNECTIONS_MAX as u64;
    let left = files.saturating_sub(fixed);
    // Idle connections are given up first.
    let left = left.saturating_sub(idle.min(left / 8));
    let most = limits::CONNECTIONS_MAX as u64;
    let calls = if models > 0 { limits::MODEL_CALLS_MAX as u64 } else { 0 };
    let wanted = most + attempts + calls;
    let share = |part: u64| {
        let share = u128::from(left) * u128::from(part) / u128::from(wanted);
        if left >= wanted { part } else { u64::try_from(share).unwrap_or(part) }
    };
    let for_attempts = share(attempts).max(1);
    // Without upstreams no call is opened.
    let for_calls = share(calls).max(1);
    let others = for_attempts + if models > 0 { for_calls } else { 0 };
    let connections = left.saturating_sub(others).clamp(1, most);
    FileBudget {
        connections: usize::try_from(connections).unwrap_or(limits::CONNECTIONS_MAX),
        attempts: for_attempts,
        model_calls: usize::try_from(for_calls).unwrap_or(limits::MODEL_CALLS_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_limits_fit_into_the_open_file_limit() {
        for files in [400, 1_024, 4_096, 19_000, 20_000, 65_536, 1_048_576] {
            for (agents, models) in [(0, 0), (1, 0), (40, 0), (1, 1), (40, 9)] {
                let FileBudget { connections, attempts, model_calls } =
                    divide_files(files, limits::ATTEMPTS_MAX, agents, models);
                let others = FILES_RESERVE + admin_listener::CONNECTIONS_MAX as u64;
                let calls = if models > 0 { model_calls as u64 } else { 0 };
                assert!(connections as u64 + attempts + calls + others <= files, "{files} files");
                assert!(connections >= 1 && attempts >= 1 && model_calls >= 1);
            }
        }
        let plenty = divide_files(1_048_576, 8_192, 2, 1);
        let all =
            FileBudget { connections: limits::CONNECTIONS_MAX, attempts: 8_192, model_calls: limits::MODEL_CALLS_MAX };
        assert_eq!(plenty, all);
        let few = divide_files(19_000, 8_192, 2, 0);
        assert!(few.attempts > 5_000 && few.connections > 12_000, "{few:?}");
    }
}
