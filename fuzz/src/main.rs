//! Runs libFuzzer on the target named by `FUZZ_TARGET`.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use turnway_fuzz::{Target, target};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name} is none of the targets in fuzz/src/lib.rs"))
});

fuzz_target!(|bytes: &[u8]| {
    let _ = (CHOSEN.read)(bytes);
});
