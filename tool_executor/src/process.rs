//! One process of a tool executor, from its start to its result.
use crate::journal::ToolOutcome;
use crate::output_buffer::{OutputBuffer, OutputPiece};
use serde_json::{Value, json};
use turnway_core::id::QualifiedSession;
use turnway_core::protocol::action::{OutputStream, ToolError};
use turnway_core::protocol::json::Json;
use turnway_core::rate::OutputRate;
use turnway_core::time::Mono;

/// A signal that can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Asks the process to end.
    Term,
    /// Ends the process.
    Kill,
    /// As sent by Ctrl-C.
    Int,
    /// As sent when a terminal closes.
    Hup,
    Usr1,
    Usr2,
}

/// The exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// Exited with this code.
    Code(i32),
    /// Killed by this signal, in the system's numbering.
    Signal(i32),
    /// The status could not be determined.
    Unknown,
}

/// The reason for stopping a process. The first reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessStopCause {
    /// The gateway's deadline has passed.
    Deadline,
    /// The operator's time limit has passed.
    TimeLimit,
    /// The gateway has cancelled the action.
    Canceled,
    /// An agent has asked to kill the process.
    Killed,
    /// The executor is shutting down.
    Leaving,
}

/// A process that has not ended.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) session: QualifiedSession,
    pub(super) program: String,
    pub(super) pid: Option<u64>,
    pub(super) stop_cause: Option<ProcessStopCause>,
    started_at: Mono,
    stdout: OutputBuffer,
    stderr: OutputBuffer,
    output_rate: OutputRate,
    throttled: bool,
}

// === impl Signal ===

impl Signal {
    /// Parses a signal's name, with or without `SIG`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("SIG").unwrap_or(name) {
            "TERM" => Self::Term,
            "KILL" => Self::Kill,
            "INT" => Self::Int,
            "HUP" => Self::Hup,
            "USR1" => Self::Usr1,
            "USR2" => Self::Usr2,
            _ => return None,
        })
    }
}

// === impl ProcessStopCause ===

impl ProcessStopCause {
    fn error(self) -> ToolError {
        match self {
            Self::Deadline => ToolError::of("tool_timeout", "the action timed out"),
            Self::TimeLimit => ToolError::of("time_limit", "the process exceeded the time limit of its program"),
            Self::Canceled => ToolError::of("canceled", "the gateway cancelled the process"),
            Self::Killed => ToolError::of("killed", "the process was killed on request"),
            Self::Leaving => ToolError::of("runner_stopped", "the runner was shut down"),
        }
    }
}

// === impl Process ===

impl Process {
    pub(super) fn new(now: Mono, session: QualifiedSession, program: String) -> Self {
        let stdout = OutputBuffer::default();
        let stderr = OutputBuffer::default();
        let output_rate = OutputRate::default();
        Self {
            session,
            program,
            pid: None,
            stop_cause: None,
            started_at: now,
            stdout,
            stderr,
            output_rate,
            throttled: false,
        }
    }

    /// Adds output. Returns true when output is dropped for the first time.
    pub(super) fn print(
        &mut self,
        now: Mono,
        stream: OutputStream,
        bytes: &[u8],
        pieces: &mut Vec<OutputPiece>,
    ) -> bool {
        let (buffer, pace) = match stream {
            OutputStream::Stdout => (&mut self.stdout, &mut self.output_rate),
            OutputStream::Stderr => (&mut self.stderr, &mut self.output_rate),
        };
        buffer.push(now, bytes, pace, pieces);
        self.is_throttled()
    }

    /// Emits the pending output of a stream if its wait has expired, or if it is the last output.
    pub(super) fn flush(&mut self, now: Mono, stream: OutputStream, last: bool, pieces: &mut Vec<OutputPiece>) -> bool {
        let (buffer, pace) = match stream {
            OutputStream::Stdout => (&mut self.stdout, &mut self.output_rate),
            OutputStream::Stderr => (&mut self.stderr, &mut self.output_rate),
        };
        if last {
            buffer.finish(now, pace, pieces)
        } else {
            buffer.flush(now, pace, pieces)
        }
        self.is_throttled()
    }

    fn is_throttled(&mut self) -> bool {
        (self.stdout.has_dropped() || self.stderr.has_dropped()) && !std::mem::replace(&mut self.throttled, true)
    }

    /// Returns the time at which pending output of a stream must be emitted.
    pub(super) fn flush_deadline(&self, stream: OutputStream) -> Option<Mono> {
        match stream {
            OutputStream::Stdout => self.stdout.flush_deadline(),
            OutputStream::Stderr => self.stderr.flush_deadline(),
        }
    }

    /// Returns the state of the running process.
    pub(super) fn status(&self, now: Mono) -> Value {
        let mut status = self.report(now, false);
        (status["state"], status["pid"]) = ("running".into(), self.pid.into());
        if self.stop_cause.is_some() {
            status["state"] = "stopping".into();
        }
        status
    }

    /// Returns the result of the ended process.
    pub(super) fn outcome(&self, now: Mono, how: ExitStatus) -> ToolOutcome {
        let mut result = self.report(now, true);
        result["state"] = "exited".into();
        let (exit, error) = match how {
            ExitStatus::Code(0) => (json!(0), None),
            ExitStatus::Code(code) => {
                (json!(code), Some(ToolError::of("exit_code", &format!("the process exited with code {code}"))))
            }
            ExitStatus::Signal(signal) => {
                result["signal"] = signal.into();
                let why = format!("the process was killed by signal {signal}");
                (Value::Null, Some(ToolError::of("signal", &why)))
            }
            ExitStatus::Unknown => {
                let why = "the exit status of the process is unknown";
                (Value::Null, Some(ToolError::of("abnormal_exit", why)))
            }
        };
        result["exit_code"] = exit;
        let error = self.stop_cause.map(ProcessStopCause::error).or(error);
        ToolOutcome { ok: error.is_none(), result: Some(Json(result)), error }
    }

    fn report(&self, now: Mono, is_over: bool) -> Value {
        let mut report = json!({
            "program": self.program, "runtime_ms": u64::try_from((now - self.started_at).as_millis()).unwrap_or(u64::MAX),
            "stdout": self.stdout.tail(is_over), "stdout_bytes": self.stdout.bytes(),
            "stderr": self.stderr.tail(is_over), "stderr_bytes": self.stderr.bytes(),
        });
        if self.stdout.has_dropped() || self.stderr.has_dropped() {
            report["throttled"] = true.into();
        }
        report
    }
}
