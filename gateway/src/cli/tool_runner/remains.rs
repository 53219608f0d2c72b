//! What processes leave behind that are gone, or whose runner is: found by the name of their action, which everything that
//! they start inherits in its environment.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::id::EventId;

/// The variable that has the action's id.
pub(super) const VARIABLE: &str = "TURNWAY_ACTION_ID";
/// Looks through the machine's processes at most: what is started while we look is found by the next.
const LOOKS_MAX: usize = 20;
/// What was sent KILL ends when the system comes to it. One that hangs in a call of the system, on a disk that does not
/// answer for example, is not waited for any longer.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Ends all that is left of these actions; how many processes that were. Where there is no `/proc` it finds none.
pub(super) fn end(of: &[EventId]) -> usize {
    let marks: Vec<Vec<u8>> = of.iter().map(|id| format!("{VARIABLE}={id}").into_bytes()).collect();
    let (mut ended, until) = (BTreeSet::new(), Instant::now() + ENDS_WITHIN);
    for _ in 0..LOOKS_MAX {
        let found = pids().filter(|pid| is_marked(*pid, &marks));
        let killed: Vec<(i32, OwnedFd)> = found.filter_map(|pid| Some((pid, kill(pid, &marks)?))).collect();
        if killed.is_empty() || Instant::now() >= until {
            break;
        }
        for (pid, process) in killed {
            ended.insert(pid);
            wait(&process, until);
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

fn kill(pid: i32, marks: &[Vec<u8>]) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // The number may be another process's by now; the handle stays one process's.
    let is_one = is_marked(pid, marks) && pidfd_send_signal(&process, Signal::KILL).is_ok();
    is_one.then_some(process)
}

/// Until it has ended: then there is something to read of its handle, and nothing of its environment.
fn wait(process: &OwnedFd, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if let Ok(left) = Timespec::try_from(left) {
        // Interrupted: the next look finds it again.
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left));
    }
}
