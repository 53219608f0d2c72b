//! Who may connect at all: by which names, from where, and how many at a time.
use crate::cli::plan::Plan;
use crate::config::{Hosts, PerAddress};
use crate::door::browser::Rules;
use crate::listen::crowd::{Crowd, Locks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use turnway_core::limits;

/// Files that are not connections of clients: the store, agents, operators.
const FILES_RESERVE: u64 = 512;

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

/// As many as the process may open files for, and no more than [`limits::CONNECTIONS_MAX`]. The soft
/// limit of most systems is far below the hard one, for the sake of programs that use `select`.
pub(super) fn connections_max() -> usize {
    let had = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: had.maximum, maximum: had.maximum };
    // A system that does not let us have more leaves us with what there is.
    let _ = setrlimit(Resource::Nofile, wanted);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let rest = usize::try_from(files.saturating_sub(FILES_RESERVE)).unwrap_or(usize::MAX);
    rest.clamp(1, limits::CONNECTIONS_MAX)
}
