//! Finds and kills processes that outlived their action or their runner. Every descendant of a program inherits
//! the action's id in its environment, which identifies the process.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::id::EventId;

/// Environment variable that holds the action's id.
pub(super) const ACTION_ID_VARIABLE: &str = "TURNWAY_ACTION_ID";
/// Maximum scans of the process list: a process that is started during one scan is found by the next.
const SCANS_MAX: usize = 20;
/// Time that killed processes have to end. A process that hangs in a system call, for example on a disk that
/// does not answer, is waited for no longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Kills all processes of these actions and returns their number. Finds none on a system without `/proc`.
pub(super) fn kill_all(of: &[EventId]) -> usize {
    let marks: Vec<Vec<u8>> = of.iter().map(|id| format!("{ACTION_ID_VARIABLE}={id}").into_bytes()).collect();
    let mut ended = BTreeSet::new();
    let until = Instant::now() + KILL_TIMEOUT;
    for _ in 0..SCANS_MAX {
        let found = pids().filter(|pid| is_marked(*pid, &marks));
        let killed: Vec<(i32, OwnedFd)> = found.filter_map(|pid| Some((pid, kill(pid, &marks)?))).collect();
        if killed.is_empty() || Instant::now() >= until {
            break;
        }
        for (pid, process) in killed {
            ended.insert(pid);
            wait_for_exit(&process, until);
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
    // The environment of another user's process, or of one that has ended, cannot be read.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| marks.iter().any(|mark| mark == variable))
}

fn kill(pid: i32, marks: &[Vec<u8>]) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // The id may belong to another process by now, so the mark is checked again; a pidfd stays with its
    // process.
    let is_one = is_marked(pid, marks) && pidfd_send_signal(&process, Signal::KILL).is_ok();
    is_one.then_some(process)
}

/// Waits until the process has ended: its pidfd becomes readable, and its environment unreadable.
fn wait_for_exit(process: &OwnedFd, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if let Ok(left) = Timespec::try_from(left) {
        // If the wait is interrupted, the next scan finds the process again.
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left));
    }
}
