//! Tests any state machine against five laws: drain, progress, free wake-ups, silence and replay. A script of
//! inputs runs several times: with wake-ups on time, late, spurious, and once more for comparison.
use std::time::Duration;
use turnway_core::machine::Machine;
use turnway_core::time::{Millis, Mono, Now};

/// Not zero: a machine must not take the start of its node for its own start.
const MONO_START: Duration = Duration::from_secs(1000);
const STORE_START_MS: u64 = 1_000_000;

/// One step of a script: a wait, then an input.
#[derive(Clone, Debug)]
pub struct Step<I> {
    /// Time since the previous step.
    pub after: Duration,
    /// Input of the step; `None` only lets time pass.
    pub input: Option<I>,
}

/// Wake-up behaviour of the driver in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    /// Wakes the machine at each deadline.
    Punctual,
    /// Wakes the machine at each deadline and at other moments as well.
    Restless,
    /// Wakes the machine only with an input, however late.
    Late,
}

/// Runs a machine through a script, asserts the laws, and returns all outputs.
///
/// `bound` limits the outputs of one `handle_*` call; `show` formats an output for comparison, because `Debug` may
/// hide content. Panics at the first violation.
pub fn laws<M>(
    make: impl Fn(Now) -> M,
    script: &[Step<M::Input>],
    bound: usize,
    show: impl Fn(&M::Output) -> String,
) -> Vec<String>
where
    M: Machine,
    M::Input: Clone,
{
    let run = |driver| Run::new(&make, bound, &show, driver).live(script);
    let outputs = run(Driver::Punctual);
    assert_eq!(outputs, run(Driver::Punctual), "replay: the same inputs and times, other outputs");
    assert_eq!(outputs, run(Driver::Restless), "a spurious wake-up was not free");
    run(Driver::Late);
    outputs
}

/// One run of one machine.
struct Run<'a, M, S> {
    machine: M,
    now: Now,
    bound: usize,
    show: &'a S,
    driver: Driver,
    outputs: Vec<String>,
}

impl<'a, M: Machine, S: Fn(&M::Output) -> String> Run<'a, M, S>
where
    M::Input: Clone,
{
    fn new(make: &impl Fn(Now) -> M, bound: usize, show: &'a S, driver: Driver) -> Self {
        let now = Now { mono: Mono(MONO_START), store: Millis(STORE_START_MS) };
        let mut run = Self { machine: make(now), now, bound, show, driver, outputs: Vec::new() };
        run.drain("new");
        run
    }

    fn live(mut self, script: &[Step<M::Input>]) -> Vec<String> {
        for step in script {
            self.pass(step.after);
            if let Some(input) = step.input.clone() {
                self.silence();
                self.machine.handle_input(self.now, input);
                self.drain("handle_input");
            }
            if self.driver == Driver::Restless {
                self.poke();
            }
        }
        self.outputs
    }

    /// Lets time pass, in one step or from deadline to deadline.
    fn pass(&mut self, wait: Duration) {
        let end = self.now.mono + wait;
        while self.driver != Driver::Late {
            let next = self.machine.poll_timeout().map(|deadline| deadline.at).filter(|at| *at <= end);
            let Some(at) = next else { break };
            if self.driver == Driver::Restless {
                // A machine that is due since before its start, is due at once.
                let between = (self.now.mono.0 + at.0) / 2;
                self.set(between.max(self.now.mono.0));
                self.poke();
            }
            self.set(at.0.max(self.now.mono.0));
            self.wake();
        }
        self.set(end.0);
        if self.driver == Driver::Late {
            self.wake();
        }
    }

    /// Progress: after a wake-up nothing is due, so the next deadline is later.
    fn wake(&mut self) {
        self.silence();
        self.machine.handle_timeout(self.now);
        self.drain("handle_timeout");
        if let Some(next) = self.machine.poll_timeout() {
            assert!(next.at > self.now.mono, "progress: {} is due again at once", next.label);
        }
    }

    /// A spurious wake-up: it causes no output, and moves no deadline.
    fn poke(&mut self) {
        let before = self.machine.poll_timeout();
        if before.is_some_and(|deadline| deadline.at <= self.now.mono) {
            return;
        }
        let count = self.outputs.len();
        self.machine.handle_timeout(self.now);
        self.drain("a spurious handle_timeout");
        assert_eq!(self.outputs.len(), count, "a spurious wake-up had a consequence");
        assert_eq!(self.machine.poll_timeout(), before, "a spurious wake-up moved a deadline");
    }

    /// Silence: no input, no output.
    fn silence(&mut self) {
        let output = self.machine.poll_output().map(|output| (self.show)(&output));
        assert_eq!(output, None, "silence: an output without an input");
    }

    /// Drain: outputs end within the bound, and then there are none.
    fn drain(&mut self, after: &str) {
        let mut count = 0;
        while let Some(output) = self.machine.poll_output() {
            let at = self.now.mono.0.as_millis();
            self.outputs.push(format!("{at} {}", (self.show)(&output)));
            count += 1;
            assert!(count <= self.bound, "drain: more than {} outputs after {after}", self.bound);
        }
        self.silence();
    }

    /// Sets both clocks relative to their start, so that more wake-ups cause no more rounding.
    fn set(&mut self, mono: Duration) {
        let store = Millis(STORE_START_MS).after(mono.saturating_sub(MONO_START));
        self.now = Now { mono: Mono(mono), store };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use turnway_core::time::Deadline;

    /// Violation of a law by the test machine.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        Endless,
        Stuck,
        Restless,
        Chatty,
        Forgetful,
    }

    thread_local! {
        static LIVES: Cell<u32> = const { Cell::new(0) };
    }

    /// A machine that outputs once a second, and answers each input.
    struct Clockwork {
        fault: Fault,
        life: u32,
        beat_at: Mono,
        queue: u32,
        polls: u32,
    }

    impl Clockwork {
        fn new(now: Now, fault: Fault) -> Self {
            LIVES.set(LIVES.get() + 1);
            Self { fault, life: LIVES.get(), beat_at: now.mono + Duration::from_secs(1), queue: 0, polls: 0 }
        }
    }

    impl Machine for Clockwork {
        type Input = ();
        type Output = u32;
        fn handle_input(&mut self, _: Now, (): ()) {
            self.queue += if self.fault == Fault::Endless { 1_000 } else { 1 };
        }
        fn handle_timeout(&mut self, now: Now) {
            if self.beat_at <= now.mono || self.fault == Fault::Restless {
                self.queue += 1;
                let pause = if self.fault == Fault::Stuck { 0 } else { 1 };
                self.beat_at = now.mono + Duration::from_secs(pause);
            }
        }
        fn poll_output(&mut self) -> Option<u32> {
            self.polls += 1;
            if self.fault == Fault::Chatty && self.polls.is_multiple_of(7) {
                self.queue += 1;
            }
            self.queue = self.queue.checked_sub(1)?;
            Some(if self.fault == Fault::Forgetful { self.life } else { 0 })
        }
        fn poll_timeout(&self) -> Option<Deadline> {
            Some(Deadline { at: self.beat_at, label: "beat" })
        }
    }

    fn judge(fault: Fault) -> Vec<String> {
        let step = |ms, input| Step { after: Duration::from_millis(ms), input };
        let script = [step(300, Some(())), step(4_000, None), step(1, Some(())), step(2_500, Some(()))];
        laws(|now| Clockwork::new(now, fault), &script, 10, u32::to_string)
    }

    #[test]
    fn machine_that_keeps_the_laws_passes() {
        assert_eq!(judge(Fault::None).len(), 3 + 6);
    }

    #[test]
    #[should_panic(expected = "drain:")]
    fn endless_output_is_detected() {
        judge(Fault::Endless);
    }

    #[test]
    #[should_panic(expected = "progress:")]
    fn stuck_deadline_is_detected() {
        judge(Fault::Stuck);
    }

    #[test]
    #[should_panic(expected = "spurious wake-up had")]
    fn costly_spurious_wake_up_is_detected() {
        judge(Fault::Restless);
    }

    #[test]
    #[should_panic(expected = "silence:")]
    fn output_without_input_is_detected() {
        judge(Fault::Chatty);
    }

    #[test]
    #[should_panic(expected = "replay:")]
    fn nondeterministic_replay_is_detected() {
        judge(Fault::Forgetful);
    }
}
