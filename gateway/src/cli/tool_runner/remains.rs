//! What processes leave behind that are gone, or whose runner is: found by the name of their action, which everything that
//! they start inherits in its environment.
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use turnway_core::id::EventId;

/// The variable that has the action's id.
pub(super) const VARIABLE: &str = "TURNWAY_ACTION_ID";
/// Looks through the machine's processes at most: what is started while we look is found by the next, and what was sent
/// KILL takes a moment to end.
const LOOKS_MAX: usize = 20;

/// Ends all that is left of these actions; how many processes that were. Where there is no `/proc` it finds none.
pub(super) fn end(of: &[EventId]) -> usize {
    let marks: Vec<Vec<u8>> = of.iter().map(|id| format!("{VARIABLE}={id}").into_bytes()).collect();
    let mut ended = BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let found = pids().filter(|pid| is_marked(*pid, &marks)).filter(|pid| end_one(*pid, &marks));
        let before = ended.len();
        let left = found.map(|pid| ended.insert(pid)).count();
        if left == 0 {
            break;
        }
        if before == ended.len() {
            std::thread::yield_now();
        }
    }
    ended.len()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(move |pid| u32::try_from(*pid).is_ok_and(|pid| pid != own))
}

fn is_marked(pid: i32, marks: &[Vec<u8>]) -> bool {
    // Of somebody else's process, and of one that has ended, nothing can be read.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| marks.iter().any(|mark| mark == variable))
}

fn end_one(pid: i32, marks: &[Vec<u8>]) -> bool {
    let Some(process) = Pid::from_raw(pid) else { return false };
    let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return false };
    // The number may be another process's by now; the handle stays one process's.
    is_marked(pid, marks) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}
