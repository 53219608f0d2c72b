//! Runs one process: a task that reads its output and sends it signals. Called by the shell. The process has
//! its own group. Signals go to the whole group, and only until the first process has been waited for: until
//! then no other process can have its id.
use super::users::RunAs;
use super::{leftovers, users};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use turnway_core::id::EventId;
use turnway_core::protocol::action::OutputStream;
use turnway_tool_executor::process::{ExitStatus, Signal};
use turnway_tool_executor::programs::ProcessCommand;

/// Size of the buffer for one read.
const READ_BYTES: usize = 16 * 1024;
/// Bytes read of one process in each [`READ_WINDOW`]: forty times the amount that is forwarded. A process that prints
/// more is blocked by its full pipe, and does not keep a CPU busy with output that is never shown.
const READ_WINDOW_BYTES: usize = 1024 * 1024;
const READ_WINDOW: Duration = Duration::from_millis(100);
/// The process's own output is in the pipe when the process ends; other holders of the pipe are waited for no
/// longer than this.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// An event of a process.
#[derive(Debug)]
pub(super) enum ProcessEvent {
    /// The process has printed bytes.
    Printed(EventId, OutputStream, Vec<u8>),
    /// The process has ended.
    Exited(EventId, ExitStatus),
}

/// A running process. The process is killed when this handle is dropped.
pub(super) struct RunningProcess {
    signals: Arc<PendingSignals>,
    pub(super) pid: Option<u64>,
}

/// The signals that wait to be sent to one process, in the order of their arrival, each kind at most once. The kernel
/// holds equal standard signals once too (signal(7)), so no signal is lost, and the list is no longer than there are
/// kinds.
#[derive(Default)]
struct PendingSignals {
    list: Mutex<Vec<Signal>>,
    added: Notify,
}

struct ProcessTask {
    id: EventId,
    child: Child,
    group: Pid,
    exit_watch: oneshot::Receiver<()>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    signals: Arc<PendingSignals>,
    events: mpsc::Sender<ProcessEvent>,
    /// Bytes read in the current [`READ_WINDOW`], and the time at which the next one begins.
    window_read_bytes: usize,
    window_end: Instant,
}

// === impl RunningProcess ===

impl RunningProcess {
    /// Starts a process; its end is reported as an event.
    pub(super) fn start(
        id: EventId,
        command: &ProcessCommand,
        run_as: Option<&RunAs>,
        events: mpsc::Sender<ProcessEvent>,
    ) -> io::Result<Self> {
        let mut new = tokio::process::Command::new(&command.path);
        if let Some(RunAs { uid, gid, .. }) = run_as.filter(|_| users::is_root()) {
            // A root process that changes its user drops all supplementary groups too.
            new.gid(*gid).uid(*uid);
        }
        let mut child = new
            .args(&command.words)
            .current_dir(&command.cwd)
            .env_clear()
            .envs(&command.env)
            .env(leftovers::ACTION_ID_VARIABLE, id.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id();
        let raw = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let group = raw.ok_or_else(|| io::Error::other("the process has no id"))?;
        let ended = watch_exit(group)?;
        let signals = Arc::new(PendingSignals::default());
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let next = Instant::now() + READ_WINDOW;
        let task = ProcessTask {
            id,
            child,
            group,
            exit_watch: ended,
            stdout,
            stderr,
            signals: Arc::clone(&signals),
            events,
            window_read_bytes: 0,
            window_end: next,
        };
        tokio::spawn(task.run());
        Ok(Self { signals, pid: pid.map(u64::from) })
    }

    /// Sends a signal. A process that has ended gets none.
    pub(super) fn signal(&self, signal: Signal) {
        self.signals.add(signal);
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
    }
}

// === impl PendingSignals ===

impl PendingSignals {
    fn add(&self, signal: Signal) {
        let mut list = self.list();
        if !list.contains(&signal) {
            list.push(signal);
        }
        drop(list);
        // The notice is kept for a task that does not wait at the moment.
        self.added.notify_one();
    }

    /// Waits for signals and takes all of them. Cancel-safe.
    async fn take(&self) -> Vec<Signal> {
        loop {
            let signals = std::mem::take(&mut *self.list());
            if !signals.is_empty() {
                return signals;
            }
            self.added.notified().await;
        }
    }

    /// Returns the locked list; no code panics while it holds this lock.
    fn list(&self) -> MutexGuard<'_, Vec<Signal>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl ProcessTask ===

impl ProcessTask {
    async fn run(mut self) {
        let mut out = vec![0; READ_BYTES];
        let mut err = vec![0; READ_BYTES];
        loop {
            let pause = self.window_read_bytes >= READ_WINDOW_BYTES;
            tokio::select! {
                biased;
                signals = self.signals.take() => signals.into_iter().for_each(|signal| self.kill_group(signal)),
                _ = &mut self.exit_watch => break,
                () = sleep_until(self.window_end), if pause => self.window_read_bytes = 0,
                read = read(&mut self.stdout, &mut out), if !pause && self.stdout.is_some() => {
                    self.handle_read(OutputStream::Stdout, &out, read).await;
                }
                read = read(&mut self.stderr, &mut err), if !pause && self.stderr.is_some() => {
                    self.handle_read(OutputStream::Stderr, &err, read).await;
                }
            }
        }
        // Kills processes that the ended one has left in its group; no other process would end them.
        self.kill_group(Signal::Kill);
        let id = self.id;
        // A scan that was interrupted has still ended the processes that it found.
        let _ = tokio::task::spawn_blocking(move || leftovers::kill_all(&[id])).await;
        let _ = timeout(DRAIN_TIMEOUT, self.drain(&mut out, &mut err)).await;
        let how = self.child.wait().await.map_or(ExitStatus::Unknown, exit_kind);
        // Sending fails only if the runner is ending.
        let _ = self.events.send(ProcessEvent::Exited(id, how)).await;
    }

    async fn drain(&mut self, out: &mut [u8], err: &mut [u8]) {
        while self.stdout.is_some() || self.stderr.is_some() {
            tokio::select! {
                read = read(&mut self.stdout, out), if self.stdout.is_some() => {
                    self.handle_read(OutputStream::Stdout, out, read).await;
                }
                read = read(&mut self.stderr, err), if self.stderr.is_some() => {
                    self.handle_read(OutputStream::Stderr, err, read).await;
                }
            }
        }
    }

    async fn handle_read(&mut self, stream: OutputStream, bytes: &[u8], read: io::Result<usize>) {
        let count = read.unwrap_or(0);
        if count == 0 {
            match stream {
                OutputStream::Stdout => self.stdout = None,
                OutputStream::Stderr => self.stderr = None,
            }
            return;
        }
        let now = Instant::now();
        if now >= self.window_end {
            (self.window_read_bytes, self.window_end) = (0, now + READ_WINDOW);
        }
        self.window_read_bytes += count;
        let _ = self.events.send(ProcessEvent::Printed(self.id, stream, bytes[..count].to_vec())).await;
    }

    fn kill_group(&self, signal: Signal) {
        let signal = match signal {
            Signal::Term => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Int => rustix::process::Signal::INT,
            Signal::Hup => rustix::process::Signal::HUP,
            Signal::Usr1 => rustix::process::Signal::USR1,
            Signal::Usr2 => rustix::process::Signal::USR2,
        };
        // Signalling fails only if the group has ended.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

/// Reports the end of a process without reaping it. A dedicated thread waits, and nothing joins that thread: a
/// process that cannot be killed must not keep the runner from leaving.
fn watch_exit(group: Pid) -> io::Result<oneshot::Receiver<()>> {
    let (sender, ended) = oneshot::channel();
    std::thread::Builder::new().name("process".to_owned()).spawn(move || {
        let look = || waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        while look().is_err_and(|error| error == rustix::io::Errno::INTR) {}
        // The receiver is gone if the process was dropped.
        let _ = sender.send(());
    })?;
    Ok(ended)
}

async fn read(from: &mut Option<impl AsyncRead + Unpin>, into: &mut [u8]) -> io::Result<usize> {
    match from {
        Some(from) => from.read(into).await,
        None => std::future::pending().await,
    }
}

fn exit_kind(status: process::ExitStatus) -> ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use turnway_core::time::Millis;

    const PATIENCE: Duration = Duration::from_secs(20);
    /// More signals than any queue between the handle and the task has held.
    const BURST: usize = 100;

    fn shell(script: &str) -> ProcessCommand {
        ProcessCommand {
            program: "shell".to_owned(),
            path: "/bin/sh".to_owned(),
            words: ["-c", script].map(str::to_owned).to_vec(),
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
        }
    }

    /// Starts a process that ignores HUP. Ids differ between test processes, because the end of an action kills every
    /// process with its id.
    async fn start_deaf(n: u64) -> (RunningProcess, mpsc::Receiver<ProcessEvent>) {
        let id = EventId::new(Millis(n), u128::from(process::id()) << 64);
        let (sender, mut events) = mpsc::channel(8);
        let command = shell("trap '' HUP; echo up; exec /bin/sleep 1000");
        let running = RunningProcess::start(id, &command, None, sender).expect("it starts");
        let up = timeout(PATIENCE, events.recv()).await.expect("in time").expect("an event");
        assert!(matches!(&up, ProcessEvent::Printed(_, OutputStream::Stdout, bytes) if bytes == b"up\n"), "{up:?}");
        (running, events)
    }

    async fn exit_of(events: &mut mpsc::Receiver<ProcessEvent>) -> ExitStatus {
        loop {
            let event = timeout(PATIENCE, events.recv()).await.expect("it ends in time").expect("an event");
            if let ProcessEvent::Exited(_, how) = event {
                return how;
            }
        }
    }

    /// The process's task runs on the thread of the test: while the test does not wait, no signal is taken.
    #[tokio::test]
    async fn kill_behind_many_signals_ends_the_process() {
        for (n, last, number) in [(1, Signal::Kill, 9), (2, Signal::Term, 15)] {
            let (running, mut events) = start_deaf(n).await;
            for _ in 0..BURST {
                running.signal(Signal::Hup);
            }
            running.signal(last);
            assert_eq!(exit_of(&mut events).await, ExitStatus::Signal(number), "{last:?}");
        }
    }

    #[tokio::test]
    async fn dropped_handle_behind_many_signals_kills_the_process() {
        let (running, mut events) = start_deaf(3).await;
        for _ in 0..BURST {
            running.signal(Signal::Hup);
        }
        drop(running);
        assert_eq!(exit_of(&mut events).await, ExitStatus::Signal(9));
    }

    #[tokio::test]
    async fn pending_signals_are_taken_once_in_order() {
        let pending = PendingSignals::default();
        for _ in 0..BURST {
            [Signal::Usr1, Signal::Int, Signal::Usr2].into_iter().for_each(|signal| pending.add(signal));
        }
        pending.add(Signal::Term);
        pending.add(Signal::Kill);
        let all = [Signal::Usr1, Signal::Int, Signal::Usr2, Signal::Term, Signal::Kill];
        assert_eq!(pending.take().await, all);
        pending.add(Signal::Hup);
        assert_eq!(timeout(PATIENCE, pending.take()).await.expect("in time"), [Signal::Hup]);
    }
}
