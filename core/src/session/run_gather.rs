//! Gathering: messages that one person writes in a conversation in quick succession become one turn (LN-TP9, BD-M8). Each
//! message is accepted by itself; the turn of the first starts once the person is quiet, and takes the others along. The
//! times are those of the messages' facts, and the turn's messages are facts, so the next owner decides alike.
use crate::id::RunId;
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::planted::{Planted, planted};
use crate::protocol::delivery::InputOrigin;
use crate::protocol::entry::{Fact, InputFact};
use crate::protocol::input::{Content, Input, Message};
use crate::session::attempt::Attempt;
use crate::session::context::{GatherRole, OpenInput, SessionContext};
use crate::session::plan::{Plan, RecordContext};
use crate::session::run_permit::next_turn;
use crate::session::state::Run;
use crate::time::{Deadline, Millis, Mono};
use std::time::Duration;

/// The waiting messages that the first waiting turn takes along.
struct Gathering<'a> {
    /// The turns of these messages, in their order.
    followers: Vec<&'a RunId>,
    end: GatheringEnd,
}

/// The state of the wait for further messages.
enum GatheringEnd {
    /// No later message could join.
    Over,
    /// The next message may join until this time of the store's clock.
    Quiet(Millis),
    /// The next turn is in the log, and its input was not read from the inbox yet.
    Unknown,
}

/// Returns the time at which the first waiting turn starts, because further messages of its person may follow; `None`: at
/// once.
pub(super) fn starts_at(context: &SessionContext, run_id: &RunId) -> Option<Mono> {
    let (first, window) = debounced(context, run_id)?;
    let longest = longest_wait(window);
    // The store's clock may go back, and an input that is in the log may be lost: neither holds a turn up for longer.
    let latest = Some(first.taken_at + longest).filter(|latest| *latest > context.now.mono)?;
    match gathering(context, run_id)?.end {
        GatheringEnd::Over => None,
        GatheringEnd::Quiet(at) => {
            // An owner that has just taken the session over reads further messages of its person after the first one.
            let read_by = first.taken_at + window.min(limits::GATHERED_READ_WITHIN);
            let at = context.now.mono_at(at, longest).min(latest).max(read_by);
            (at > context.now.mono).then_some(at)
        }
        GatheringEnd::Unknown => Some(latest),
    }
}

/// Returns the time at which a turn that waits for further messages starts.
pub(super) fn poll_timeout(context: &SessionContext, attempt: &Attempt) -> Option<Deadline> {
    if context.state.running.is_some() || context.state.deliveries.origins.is_empty() {
        return None;
    }
    let run_id = next_turn(context, attempt)?;
    starts_at(context, &run_id).map(|at| Deadline { at, label: "debounce" })
}

/// Returns the turns whose messages are part of the next turn, or will be when it starts; in their order, without the
/// next turn itself.
pub(super) fn gathered_inputs(context: &SessionContext, run_id: &RunId) -> Vec<RunId> {
    let mut gathered = taken_along(context, run_id);
    if context.state.running.is_none()
        && let Some(gathering) = gathering(context, run_id)
    {
        gathered.extend(gathering.followers.into_iter().cloned());
    }
    gathered
}

/// Records that the first waiting turn, which starts now, takes messages along.
pub(super) fn record_gathered(context: &SessionContext, run_id: &RunId, plan: &mut Plan) {
    let Some(gathering) = gathering(context, run_id) else { return };
    for follower in gathering.followers {
        let fact = Fact::Input(InputFact::Gathered { host_run_id: run_id.clone() });
        plan.record(context, fact, RecordContext::run(follower));
    }
}

/// Returns the message for the agent of a turn: that of its input, and those that the turn has taken along. The origin is
/// that of the last one. A message whose turn was cancelled meanwhile is left out.
pub(super) fn prompt(context: &SessionContext, run_id: &RunId, input: &Input) -> (Message, Option<Box<InputOrigin>>) {
    let is_again = context.state.runs.get(run_id).is_some_and(|run| run.attempt > 1);
    let is_forgotten = is_again && mutant::planted(Mutant::GatheredUnasked);
    let gathered = if is_forgotten { Vec::new() } else { taken_along(context, run_id) };
    let inputs = gathered.iter().filter_map(|run_id| context.inputs.get(run_id)).map(|open_input| &*open_input.input);
    let Some(last) = inputs.clone().next_back() else { return (input.message.clone(), input.origin.clone()) };
    let contents = [input].into_iter().chain(inputs).map(|input| &input.message.content);
    (Message { content: Content::joined(contents), role: last.message.role }, last.origin.clone())
}

/// Returns the turns that a turn has taken along, as the log has it, and that have not ended.
fn taken_along(context: &SessionContext, run_id: &RunId) -> Vec<RunId> {
    let gathered = &context.state.deliveries.gathered;
    if gathered.is_empty() {
        return Vec::new();
    }
    let steered = context.state.steered_inputs().into_iter();
    let taken = steered.filter(|(follower, steered)| steered.host == *run_id && gathered.contains(follower));
    taken.map(|(follower, _)| follower).collect()
}

/// Returns the input of a turn that may wait for further messages, with the time for which each message waits.
fn debounced<'a>(context: &'a SessionContext, run_id: &RunId) -> Option<(&'a OpenInput, Duration)> {
    let first = context.inputs.get(run_id).filter(|first| first.gather_role != GatherRole::Apart)?;
    let window = first.input.origin.as_deref()?.debounce_ms?;
    Some((first, Duration::from_millis(window)))
}

/// Returns the messages that the first waiting turn would take along now: the ones directly behind it of the same person
/// in the same conversation, for the same agent.
fn gathering<'a>(context: &'a SessionContext, run_id: &RunId) -> Option<Gathering<'a>> {
    let (first, window) = debounced(context, run_id)?;
    let run = context.state.runs.get(run_id)?;
    // Until a turn starts, its cause is the fact of its message.
    let began_at = run.cause.time();
    let longest = longest_wait(window);
    let quiet_after = |at: Millis| GatheringEnd::Quiet(at.after(window).min(began_at.after(longest)));
    let mut gathering = Gathering { followers: Vec::new(), end: quiet_after(began_at) };
    let mut bytes = first.bytes;
    let mut is_last = first.gather_role == GatherRole::Last;
    for next_id in context.state.waiting.iter().skip(1).filter(|next_id| *next_id != run_id) {
        let (Some(next_run), false) = (context.state.runs.get(next_id), is_last) else { break };
        let Some(next) = context.inputs.get(next_id) else {
            gathering.end = GatheringEnd::Unknown;
            return Some(gathering);
        };
        bytes += next.bytes;
        is_last = bytes > limits::GATHERED_BYTES_MAX || !joins((run, first), (next_run, next));
        if is_last {
            break;
        }
        gathering.followers.push(next_id);
        gathering.end = quiet_after(next_run.cause.time());
        is_last = next.gather_role == GatherRole::Last;
    }
    if is_last {
        gathering.end = GatheringEnd::Over;
    }
    Some(gathering)
}

/// Returns the time after a turn's first message at which the turn starts although its person writes on.
fn longest_wait(window: Duration) -> Duration {
    let windows = if planted(Planted::DebounceUncapped) { 1_000 } else { limits::DEBOUNCE_WINDOWS_MAX };
    window.saturating_mul(windows)
}

fn joins((run, first): (&Run, &OpenInput), (next_run, next): (&Run, &OpenInput)) -> bool {
    let (Some(from), Some(to)) = (first.input.origin.as_deref(), next.input.origin.as_deref()) else { return false };
    let is_alike = run.agent == next_run.agent && run.rank == next_run.rank && first.input.user == next.input.user;
    let is_same_person = from.sender.id == to.sender.id && from.conversation.is_same_place(&to.conversation);
    next.gather_role != GatherRole::Apart && is_alike && is_same_person
}
