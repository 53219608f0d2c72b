//! One process, from its start to its end: a task that reads what it prints and sends it signals.
//!
//! It has a process group of its own. Signals go to all of that, and only as long as its first process has not been
//! waited for: until then nobody else can have its number.
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

/// What one read takes.
const READ_BYTES: usize = 16 * 1024;
/// What is read of one process in [`PACE`]: forty times what is carried on. One that prints more waits for its reader,
/// and does not keep a processor busy with what nobody is going to see.
const PACE_BYTES: usize = 1024 * 1024;
const PACE: Duration = Duration::from_millis(100);
/// What it has printed is there when it ends; who else holds the pipe is not waited for any longer.
const DRAIN: Duration = Duration::from_secs(1);
/// Signals that a process has not been sent yet; each counts once at most.
const SIGNALS: usize = 8;

/// What a process does.
#[derive(Debug)]
pub(super) enum Event {
    /// It prints.
    Printed(EventId, Stream, Vec<u8>),
    /// It has ended.
    Exited(EventId, How),
}

/// A process that runs. When this is dropped, it is killed.
pub(super) struct Running {
    signals: mpsc::Sender<Signal>,
    /// As the system calls it.
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
    /// What was read in this stretch of [`PACE`], and when the next one begins.
    read: usize,
    next: Instant,
}

// === impl Running ===

impl Running {
    /// Starts one; its end comes as an event.
    pub(super) fn start(
        id: EventId,
        command: &Command,
        run_as: Option<&RunAs>,
        events: mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let mut new = tokio::process::Command::new(&command.path);
        if let Some(RunAs { uid, gid, .. }) = run_as.filter(|_| users::is_root()) {
            // A process of root that becomes another user's loses all further groups with it.
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
        let group = raw.ok_or_else(|| io::Error::other("it has no number"))?;
        let (ended, (sender, signals)) = (ended(group)?, mpsc::channel(SIGNALS));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let next = Instant::now() + PACE;
        let task = Task { id, child, group, ended, stdout, stderr, signals, events, read: 0, next };
        tokio::spawn(task.run());
        Ok(Self { signals: sender, pid: pid.map(u64::from) })
    }

    /// Sends this. One that takes none has been sent enough, or has ended.
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
        // What it leaves behind has nobody who would ever end it.
        self.send(Signal::Kill);
        let id = self.id;
        // A look that did not come to its end found what it found.
        let _ = tokio::task::spawn_blocking(move || remains::end(&[id])).await;
        let _ = timeout(DRAIN, self.drain(&mut out, &mut err)).await;
        let how = self.child.wait().await.map_or(How::Unknown, how);
        // Nobody listens any more where the runner ends.
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
        // A group that has ended needs none.
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

/// Tells when a process has ended, and leaves it to be waited for. On a thread of its own, which nobody waits for: a
/// process that cannot be killed must not keep its runner from leaving.
fn ended(group: Pid) -> io::Result<oneshot::Receiver<()>> {
    let (sender, ended) = oneshot::channel();
    std::thread::Builder::new().name("process".to_owned()).spawn(move || {
        let look = || waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        while look().is_err_and(|error| error == rustix::io::Errno::INTR) {}
        // Who does not listen any more has let it go.
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
