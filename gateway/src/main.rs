//! The `turnway` binary.
use std::process::ExitCode;

/// Returns memory to the system after many connections have closed, even on an idle node: the system's allocator does
/// not, and other allocators wait for the next allocation of each thread. Its settings are compiled in, from
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    turnway::Node::default().main()
}
