//! Turnway with a planted bug, which `TURNWAY_PLANTED` names: `./test planted` holds tests against it.
use std::process::ExitCode;
use turnway_core::planted::{Planted, VARIABLE};

/// As the product has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code of a wrong use (sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let node = Planted::ALL.iter().map(|(name, _)| *name);
    let names: Vec<&str> = node.chain(turnway_client::PLANTED.iter().copied()).collect();
    match std::env::var(VARIABLE) {
        Ok(name) if !names.contains(&name.as_str()) => {
            eprintln!("{VARIABLE}={name}: no such bug; there are: {}", names.join(" "));
            ExitCode::from(USAGE)
        }
        Ok(_) | Err(_) => turnway::Node::default().main(),
    }
}
