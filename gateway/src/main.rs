//! Turnway: a distributed edge gateway for conversations with AI agents.
use std::process::ExitCode;

/// Gives memory back after many connections have closed, also where nothing happens any more: the
/// system's allocator does not, and others wait for the next allocation of each thread. Its settings
/// are compiled in, from `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    turnway::Node::default().main()
}
