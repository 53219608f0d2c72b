//! Runs one process: a task that reads its output and sends it signals. Called by the shell. The process has
//! its own group. Signals go to the whole group, and only until the first process has been waited for: until
//! then no other process can have its id.
use super::users::RunAs;
use super::{remains, users};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use turnway_bindings::toolbox::allowed::Command;
use turnway_bindings::toolbox::process::{How, Signal};
use turnway_core::id::EventId;
use turnway_core::protocol::action::Stream;

/// Size of the buffer for one read.
const READ_BYTES: usize = 16 * 1024;
/// Bytes read of one process in each [`PACE`]: forty times the amount that is forwarded. A process that prints
/// more is blocked by its full pipe, and does not keep a CPU busy with output that is never shown.
const PACE_BYTES: usize = 1024 * 1024;
const PACE: Duration = Duration::from_millis(100);
/// The process's own output is in the pipe when the process ends; other holders of the pipe are waited for no
/// longer than this.
const DRAIN: Duration = Duration::from_secs(1);
/// Capacity of the signal queue; a signal that finds the queue full is dropped.
const SIGNALS: usize = 8;

/// An event of a process.
#[derive(Debug)]
pub(super) enum Event {
    /// The process has printed bytes.
    Printed(EventId, Stream, Vec<u8>),
    /// The process has ended.
    Exited(EventId, How),
}

/// A running process. The process is killed when this handle is dropped.
pub(super) struct Running {
    signals: mpsc::Sender<Signal>,
    /// Process id.
    pub(super) pid: Option<u64>,
}

struct Task {
    id: EventId,
    child: Child,
    group: Pid,
    ended: oneshot::Receiver<()>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    signals: mpsc::Receiver<Signal>,
    events: mpsc::Sender<Event>,
    /// Bytes read in the current [`PACE`], and the time at which the next one begins.
    read: usize,
    next: Instant,
}

// === impl Running ===

impl Running {
    /// Starts a process; its end is reported as an event.
    pub(super) fn start(
        id: EventId,
        command: &Command,
        run_as: Option<&RunAs>,
        events: mpsc::Sender<Event>,
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
            .env(remains::VARIABLE, id.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id();
        let raw = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let group = raw.ok_or_else(|| io::Error::other("the process has no id"))?;
        let (ended, (sender, signals)) = (ended(group)?, mpsc::channel(SIGNALS));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let next = Instant::now() + PACE;
        let task = Task { id, child, group, ended, stdout, stderr, signals, events, read: 0, next };
        tokio::spawn(task.run());
        Ok(Self { signals: sender, pid: pid.map(u64::from) })
    }

    /// Sends a signal. A signal that cannot be queued is dropped: the queue is full or the process has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = self.signals.try_send(signal);
    }
}

// === impl Task ===

impl Task {
    async fn run(mut self) {
        let (mut out, mut err) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
        let mut kept = true;
        loop {
            let pause = self.read >= PACE_BYTES;
            tokio::select! {
                biased;
                signal = self.signals.recv(), if kept => {
                    kept = signal.is_some();
                    self.send(signal.unwrap_or(Signal::Kill));
                }
                _ = &mut self.ended => break,
                () = sleep_until(self.next), if pause => self.read = 0,
                read = read(&mut self.stdout, &mut out), if !pause && self.stdout.is_some() => {
                    self.printed(Stream::Stdout, &out, read).await;
                }
                read = read(&mut self.stderr, &mut err), if !pause && self.stderr.is_some() => {
                    self.printed(Stream::Stderr, &err, read).await;
                }
            }
        }
        // Kills processes that the ended one has left in its group; no other process would end them.
        self.send(Signal::Kill);
        let id = self.id;
        // A scan that was interrupted has still ended the processes that it found.
        let _ = tokio::task::spawn_blocking(move || remains::end(&[id])).await;
        let _ = timeout(DRAIN, self.drain(&mut out, &mut err)).await;
        let how = self.child.wait().await.map_or(How::Unknown, how);
        // Sending fails only if the runner is ending.
        let _ = self.events.send(Event::Exited(id, how)).await;
    }

    async fn drain(&mut self, out: &mut [u8], err: &mut [u8]) {
        while self.stdout.is_some() || self.stderr.is_some() {
            tokio::select! {
                read = read(&mut self.stdout, out), if self.stdout.is_some() => {
                    self.printed(Stream::Stdout, out, read).await;
                }
                read = read(&mut self.stderr, err), if self.stderr.is_some() => {
                    self.printed(Stream::Stderr, err, read).await;
                }
            }
        }
    }

    async fn printed(&mut self, stream: Stream, bytes: &[u8], read: io::Result<usize>) {
        let count = read.unwrap_or(0);
        if count == 0 {
            match stream {
                Stream::Stdout => self.stdout = None,
                Stream::Stderr => self.stderr = None,
            }
            return;
        }
        let now = Instant::now();
        if now >= self.next {
            (self.read, self.next) = (0, now + PACE);
        }
        self.read += count;
        let _ = self.events.send(Event::Printed(self.id, stream, bytes[..count].to_vec())).await;
    }

    fn send(&self, signal: Signal) {
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
fn ended(group: Pid) -> io::Result<oneshot::Receiver<()>> {
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

fn how(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Code(code),
        (None, Some(signal)) => How::Signal(signal),
        (None, None) => How::Unknown,
    }
}
