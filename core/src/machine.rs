//! The one shape every state machine in this workspace has.
use crate::time::{Deadline, Now};

/// A pure state machine: inputs and time go in, outputs and a deadline come out.
///
/// Five laws, held by one generic test for every machine. **Drain**: after any `handle_*` the
/// outputs end within a bound, and the driver drains them before the next `handle_*`. **Progress**:
/// after `handle_timeout(now)` the next deadline is later than `now`. **Spurious wake-ups are free.**
/// **Silence**: no input, no output. **Replay**: the same seed, inputs and times give the same outputs.
pub trait Machine {
    /// What may happen to it.
    type Input;
    /// What it asks its driver to do.
    type Output;
    /// Takes one input. Never fails: a refusal is an output.
    fn handle_input(&mut self, now: Now, input: Self::Input);
    /// Lets time pass. A call before the deadline does nothing.
    fn handle_timeout(&mut self, now: Now);
    /// Drains what it wants done; `None` means quiet until the next `handle_*`.
    #[must_use]
    fn poll_output(&mut self) -> Option<Self::Output>;
    /// When it next needs [`Machine::handle_timeout`].
    #[must_use]
    fn poll_timeout(&self) -> Option<Deadline>;
}
