//! The commands of the session machine: each asks one family for a decision. A decision gives commands to leave the
//! rest to another family, or to the state after its facts.
use crate::id::{AgentId, DeliveryId, EventId, InboxPosition, MessageId, RequestId, RunId};
use crate::protocol::action::ActionRequest;
use crate::protocol::agent::{EventMark, Resume};
use crate::protocol::binding::{BindingEnd, BindingId};
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::DeliveryRequested;
use crate::protocol::handover::HandoverRequest;
use crate::protocol::input::ControlEntry;
use crate::protocol::json::Json;
use crate::protocol::steer::SteerOutcome;
use crate::session::ending::Ending;
use crate::session::input_state::SteeredInput;
use crate::session::task_decide::TaskRefusal;
use std::sync::Arc;

/// A control entry with its position in the control lane.
pub(super) type PlacedControl = (InboxPosition, Arc<ControlEntry>);

/// A command to the family of the session itself and its control lane.
#[derive(Debug)]
pub(super) enum SessionCommand {
    /// Handle the entries that wait in the control lane.
    RunControls,
}

/// A command to the family of members.
#[derive(Debug)]
pub(super) enum MemberCommand {
    /// Handle a control entry about members.
    Take(PlacedControl),
    /// Continue the change of one agent.
    SettleChange(AgentId),
    /// Send the task of a change, once no turn of the agent runs.
    SendTask(AgentId),
}

/// A command to the family of handovers.
#[derive(Debug)]
pub(super) enum HandoverCommand {
    /// Handle an agent's request, which ends at this mark of its attempt.
    Request { run_id: RunId, request: Box<HandoverRequest>, mark: Option<EventMark> },
    /// Handle a person's decision.
    Take(PlacedControl),
    /// Continue or end the open handover.
    Settle,
    /// Confirm the open handover.
    Confirm(Option<RequestId>),
    /// Make the agent of a confirmed handover active.
    Activate,
}

/// A command to the family of actions.
#[derive(Debug)]
pub(super) enum ActionCommand {
    /// Handle an agent's request, which ends at this mark of its attempt.
    Request { run_id: RunId, attempt: u32, request: Box<ActionRequest>, mark: Option<EventMark> },
    /// End an action that is one too many.
    Refuse(EventId),
    /// End an action that the gateway does not carry out, for a reason.
    RefuseCall { action_id: EventId, refusal: TaskRefusal },
    /// End an action that the gateway has carried out.
    Finish { action_id: EventId, result: Json },
    /// Begin the task for which the platform has made a conversation.
    StartTask { delivery_id: DeliveryId, place: ConversationRef },
    /// Continue or end one open action.
    SettleAction(EventId),
}

/// A command to the family of bindings.
#[derive(Debug)]
pub(super) enum BindingFactCommand {
    /// Handle a control entry about a binding.
    Take(PlacedControl),
}

/// A command to the family of deliveries.
#[derive(Debug)]
pub(super) enum DeliveryFactCommand {
    /// Handle a control entry about a delivery.
    Take(PlacedControl),
    /// Request the delivery of a turn that has ended.
    Request(RunId),
    /// Request the change of a message that an action asks for.
    Change { action_id: EventId, requested: Box<DeliveryRequested> },
    /// Request the conversation of a task.
    RequestConversation(EventId),
    /// Send the next part of a delivery.
    Send(DeliveryId),
    /// Bind the conversation that a delivery has made.
    Bind(DeliveryId),
    /// End a delivery that nobody wants any more.
    Drop(DeliveryId),
    /// Request the last word to the conversation of a binding that ends.
    Farewell(Box<BindingEnd>),
    /// Request the deliveries of a client's turn to the conversations that mirror it.
    Mirror(RunId),
    /// End the deliveries that were routed by a binding, which has ended.
    EndRouted(BindingId),
}

/// A command to the family of calls of models.
#[derive(Debug)]
pub(super) enum ModelCommand {
    /// Handle a node's report about a call.
    Take(PlacedControl),
    /// End a call whose end was not reported in time.
    Lose(EventId),
}

/// A command to the family of inputs.
#[derive(Debug)]
pub(super) enum InputCommand {
    /// Admit an input whose message is recorded.
    Admit(RunId),
    /// Give waiting inputs whose agent has left to another agent.
    Reassign,
    /// Handle an agent's answer to an input that was handed to its run.
    AckSteer { host: RunId, message_id: MessageId, outcome: SteerOutcome },
    /// Continue one input that was handed to a run.
    SettleSteer(RunId, SteeredInput),
}

/// A command to the family of runs.
#[derive(Debug)]
pub(super) enum RunCommand {
    /// End a turn.
    End(RunId, Ending),
    /// Record the end of a turn whose text is recorded.
    RecordEnd(RunId, Ending),
    /// Stop the attempt of a turn whose end is recorded.
    Close(ClosedTurn),
    /// Cancel a turn in any phase.
    Cancel { run_id: RunId, reason: &'static str, by: Option<PlacedControl> },
    /// Stop a turn of a closing session.
    Stop(RunId),
    /// Send the order for the attempt that was just recorded.
    Order { run_id: RunId, resume: Option<Resume> },
    /// Continue a turn whose agent has lost its connection, once its text is recorded.
    ContinueLost(RunId),
    /// Leave the attempt to the next owner, once that is recorded.
    Leave,
}

/// A turn whose end is recorded.
#[derive(Debug)]
pub(super) struct ClosedTurn {
    pub(super) run_id: RunId,
    /// The last attempt; 0 if none began.
    pub(super) attempt: u32,
    /// True if the agent finished its answer.
    pub(super) is_completed: bool,
    /// True if the turn was the running one.
    pub(super) was_running: bool,
    /// The agent, if it may not know that the turn is over.
    pub(super) stop: Option<AgentId>,
}
