//! The interface of every state machine in this workspace. Drivers (the gateway and the simulator) call it.
use crate::time::{Deadline, Now};

/// A pure state machine: inputs and time go in, outputs and a deadline come out.
///
/// One generic test holds every machine to five laws. **Drain**: after any `handle_*` the number of outputs is
/// bounded, and the driver drains them before the next `handle_*`. **Progress**: after `handle_timeout(now)` the next
/// deadline is later than `now`. **Spurious wake-ups are free**: a call before the deadline does nothing.
/// **Silence**: no input, no output. **Replay**: the same seed, inputs and times give the same outputs.
pub trait Machine {
    /// An event that the machine handles.
    type Input;
    /// An effect that the driver performs for the machine.
    type Output;
    /// Handles one input. This never fails: a refusal is an output.
    fn handle_input(&mut self, now: Now, input: Self::Input);
    /// Handles the passing of time. A call before the deadline does nothing.
    fn handle_timeout(&mut self, now: Now);
    /// Returns the next output; `None` means that there are none until the next `handle_*`.
    #[must_use]
    fn poll_output(&mut self) -> Option<Self::Output>;
    /// Returns the time at which the machine next needs [`Machine::handle_timeout`].
    #[must_use]
    fn poll_timeout(&self) -> Option<Deadline>;
}
