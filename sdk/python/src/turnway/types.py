"""Types of all messages of `turnway.v1`, for type checkers: at run time each message is a plain dict.

Written from docs/turnway.v1.schema.json by `python sdk/python/generate_types.py`. Do not edit.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

# A value that the protocol passes on unchanged.
Json: TypeAlias = Any

# An event or an action, named by its agent.
AgentEventId: TypeAlias = str
# An agent.
AgentId: TypeAlias = str
# A binding within its account: its generation and the id of its conversation.
BindingId: TypeAlias = str
# A text, or OpenAI content parts. Not empty: at least one part is more than an empty text.
Content: TypeAlias = "str | list[ContentItem1 | ContentItem2]"
# A delivery to a conversation.
DeliveryId: TypeAlias = str
# The generation of the owner node that wrote a fact.
Epoch: TypeAlias = int
# The code of a refusal; a closed set.
ErrorCode: TypeAlias = Literal[
    "poison_turn", "agent_timeout", "session_closed", "busy", "unauthorized", "forbidden", "not_found",
    "invalid_message", "too_large", "rate_limited", "over_share", "quota_exceeded", "too_many_pending",
    "idempotency_conflict", "not_applied", "no_destination", "adapter_unavailable", "placement_unsupported",
    "agent_not_in_session", "agent_unavailable", "ROUTE_TIMEOUT", "CANCEL_TIMEOUT", "client_offline", "tool_timeout",
    "approval_timeout", "approval_rejected", "blocked", "agent_error", "llm_error", "owner_lost", "store_unavailable",
    "store_damaged", "draining", "fleet_upgrading", "internal_error", "ADD_AGENT_FAILED", "REMOVE_AGENT_FAILED",
    "SESSION_OPEN_FAILED", "SESSION_CLOSE_FAILED", "runner_id_in_use", "bot_id_in_use"
]
# A fact, a handover or a change of members: a UUID.
EventId: TypeAlias = str
# A message, named by the client; the unit of de-duplication.
MessageId: TypeAlias = str
# The name of a text in the metadata of a binding.
MetadataName: TypeAlias = str
# An action or its process: `ID`, or `TENANT~SESSION.ID` in another tenant than `default`.
QualifiedActionId: TypeAlias = str
# A fact: `ID`, or `TENANT~SESSION.ID` in another tenant than `default`.
QualifiedEventId: TypeAlias = str
# A run: `RUN`, or `TENANT~RUN` in another tenant than `default`.
QualifiedRunId: TypeAlias = str
# A session: `SESSION`, or `TENANT~SESSION` in another tenant than `default`.
QualifiedSessionId: TypeAlias = str
# A request, named by the requester; the answer repeats it.
RequestId: TypeAlias = str
# A run, which begins with its session's id.
RunId: TypeAlias = str
# A tool runner; the same after a reconnection.
RunnerId: TypeAlias = str
# A position in a session's log.
Seq: TypeAlias = int
# A session, unique within its tenant.
SessionId: TypeAlias = str
# The reason that a run has ended.
StopReason: TypeAlias = Literal["end_turn", "max_tokens", "refusal", "cancelled", "error", "timeout", "steered"]
# A property of a tool runner's machine.
SystemName: TypeAlias = str
# A tenant.
TenantId: TypeAlias = str
# Unix time in milliseconds.
Timestamp: TypeAlias = int
# A tool.
ToolName: TypeAlias = str
# A pattern for types of facts: dotted names, `*` for one segment, `>` for the rest.
TypePattern: TypeAlias = str
# A user within a tenant.
UserId: TypeAlias = str


class Binding(TypedDict):
    """A binding of a conversation to a session."""

    binding_id: BindingId
    # Unix milliseconds, by the store's clock.
    bound_at: int
    conversation: Conversation
    # The time of the end, if it has ended.
    ended_at: NotRequired[int]
    # It ends then at the latest; absent: never.
    expires_at: NotRequired[int]
    # The version of the conversation's binding; never repeats.
    generation: int
    # It ends after so long without a routed message; absent: never.
    idle_timeout_ms: NotRequired[int]
    # The last routed message, a minute late at most.
    last_activity_at: int
    # It ends so long after the bind; absent: never.
    max_age_ms: NotRequired[int]
    # Texts of whoever bound it.
    metadata: NotRequired[dict[str, str]]
    # The conversation also gets the answers of clients' turns.
    mirror: NotRequired[bool]
    # The reason of the end, if it has ended.
    reason: NotRequired[Literal["manual", "idle_expired", "max_age_expired", "conversation_archived",
        "conversation_deleted", "session_closed", "rebound", "stale_session"]]
    session_id: SessionId
    status: Literal["active", "ended"]
    # The role of the session.
    target_kind: Literal["session", "subagent", "acp"]


class ContentItem1(TypedDict):
    """The object `ContentItem1`."""

    text: str
    type: Literal["text"]


class ContentItem2(TypedDict):
    """The object `ContentItem2`."""

    type: str


class Conversation(TypedDict):
    """A conversation of one account on one channel."""

    # The gateway's account there.
    account_id: str
    # The platform.
    channel: str
    # As the platform names it: at most 256 bytes.
    conversation_id: str
    # The conversation that contains it, if any.
    parent_conversation_id: NotRequired[str]


class EventMark(TypedDict):
    """The recorded position of an attempt whose agent's events have ids."""

    event_id: AgentEventId
    # The end of that event's text.
    text_bytes: int


class Fact(TypedDict):
    """A fact as in `GET …/events`: a CloudEvents 1.0 shape."""

    # The fact that this one follows from.
    causation_id: NotRequired[QualifiedEventId]
    # The turn that the fact belongs to, or the fact's own id.
    correlation_id: str
    data: NotRequired[Json]
    epoch: Epoch
    id: QualifiedEventId
    run_id: NotRequired[QualifiedRunId]
    seq: Seq
    session_id: QualifiedSessionId
    # The originator: `user:ID`, `agent:ID` or `turnway`.
    source: str
    # The version of CloudEvents.
    specversion: Literal["1.0"]
    # The time of the decision.
    time: str
    # W3C trace context.
    traceparent: NotRequired[str]
    type: str


class FactAgentAction(TypedDict):
    """The data of `agent.action`. An agent requests an action."""

    action_id: QualifiedActionId
    agent_id: AgentId
    # With `tool_call`.
    args: NotRequired[Json]
    attempt: int
    deadline_ms: NotRequired[Timestamp]
    mark: NotRequired[EventMark]
    # The agent's own name for the action.
    name: NotRequired[AgentEventId]
    # With `say`.
    text: NotRequired[str]
    # With `tool_call`.
    tool: NotRequired[ToolName]
    type: Literal["say", "tool_call"]


class FactAgentAddFailed(TypedDict):
    """The data of `agent.add_failed`. The agent could not be added."""

    agent_id: AgentId
    code: ErrorCode
    message: str
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    tx_id: EventId


class FactAgentAddedMember(TypedDict):
    """The object `FactAgentAddedMember`."""

    last_seq: Seq
    since_ms: Timestamp
    # Turns that the agent has ended.
    turns: int


class FactAgentAdded(TypedDict):
    """The data of `agent.added`. The agent has become a member."""

    agent_id: AgentId
    member: FactAgentAddedMember
    # In the user's words.
    reason: NotRequired[str]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    # The agent was a member before.
    restored: NotRequired[bool]
    tx_id: EventId


class FactAgentAdding(TypedDict):
    """The data of `agent.adding`. An agent is about to become a member."""

    # The agent is active from then on.
    activate: NotRequired[bool]
    agent_id: AgentId
    deadline_ms: Timestamp
    # The handover that the change is part of.
    handover_id: NotRequired[QualifiedActionId]
    # In the user's words.
    reason: NotRequired[str]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    tx_id: EventId
    user: UserId


class FactAgentInvokeDone(TypedDict):
    """The data of `agent.invoke.done`. The agent has finished its answer."""

    agent_id: AgentId
    attempt: int


class FactAgentInvokeStarted(TypedDict):
    """The data of `agent.invoke.started`. The agent has the input."""

    agent_id: AgentId
    attempt: int


class FactAgentRemoveFailed(TypedDict):
    """The data of `agent.remove_failed`. The member could not be removed."""

    agent_id: AgentId
    code: ErrorCode
    message: str
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    tx_id: EventId


class FactAgentRemovedMember(TypedDict):
    """The object `FactAgentRemovedMember`."""

    last_seq: Seq
    since_ms: Timestamp
    # Turns that the agent has ended.
    turns: int


class FactAgentRemoved(TypedDict):
    """The data of `agent.removed`. The member has left."""

    agent_id: AgentId
    member: FactAgentRemovedMember
    # In the user's words.
    reason: NotRequired[str]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    # The agent was a member before.
    restored: NotRequired[bool]
    tx_id: EventId


class FactAgentRemoving(TypedDict):
    """The data of `agent.removing`. A member is about to leave."""

    # The agent is active from then on.
    activate: NotRequired[bool]
    agent_id: AgentId
    deadline_ms: Timestamp
    # The handover that the change is part of.
    handover_id: NotRequired[QualifiedActionId]
    # In the user's words.
    reason: NotRequired[str]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    tx_id: EventId
    user: UserId


class FactAgentSteerAcked(TypedDict):
    """The data of `agent.steer.acked`. The running agent's outcome for an input."""

    agent_id: AgentId
    attempt: int
    host_run_id: QualifiedRunId
    outcome: Literal["accepted", "pending", "refused"]


class FactAgentStreamDelta(TypedDict):
    """The data of `agent.stream.delta`. A recorded part of the answer."""

    attempt: int
    mark: NotRequired[EventMark]
    # Bytes of the attempt's text before the part.
    offset: int
    text: str


# The data of `agent.switched`. Another member is active.
FactAgentSwitched = TypedDict("FactAgentSwitched", {
    "from": "AgentId",
    "reason": "str",
    # The request that caused the fact.
    "request_id": "NotRequired[RequestId]",
    "to": "AgentId",
    # The cause of the switch.
    "trigger": "str",
})


class FactBindingBound(TypedDict):
    """The data of `binding.bound`. A conversation is bound to the session."""

    binding_id: BindingId
    # Unix milliseconds, by the store's clock.
    bound_at: int
    conversation: Conversation
    # The conversation also gets the answers of clients' turns.
    mirror: NotRequired[bool]
    # The role of the session.
    target_kind: Literal["session", "subagent", "acp"]


class FactBindingEnded(TypedDict):
    """The data of `binding.ended`. A conversation is not bound to the session any more."""

    binding_id: BindingId
    conversation: Conversation
    # Unix milliseconds, by the store's clock.
    ended_at: int
    reason: Literal["manual", "idle_expired", "max_age_expired", "conversation_archived", "conversation_deleted",
        "session_closed", "rebound", "stale_session"]


class FactDeliveryAttempted(TypedDict):
    """The data of `delivery.attempted`. A further attempt at a part begins."""

    # From 2.
    attempt: int
    delivery_id: DeliveryId
    # From 1.
    part: int


class FactDeliveryFailed(TypedDict):
    """The data of `delivery.failed`. The delivery has ended, not sent or not whole."""

    delivery_id: DeliveryId
    # From 1.
    part: int
    reason: Literal["permission", "gone", "invalid", "conflict", "too_many_attempts", "too_old", "too_many",
        "misplaced", "rebound", "dropped", "suppressed", "not_supported", "not_bound"]
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class FactDeliveryHeld(TypedDict):
    """The data of `delivery.held`. Nobody knows whether a part was sent; an operator decides."""

    delivery_id: DeliveryId
    # From 1.
    part: int
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class FactDeliveryRedriven(TypedDict):
    """The data of `delivery.redriven`. A held or failed delivery is sent again."""

    delivery_id: DeliveryId
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class FactDeliveryRefused(TypedDict):
    """The data of `delivery.refused`. The completion of a task is sent nowhere: the router chose no place."""

    # The run that has ended.
    about_run: QualifiedRunId
    reason: Literal["requester_match", "only_binding_on_account", "missing_target_session", "no_active_binding",
        "missing_requester", "invalid_requester", "ambiguous", "no_requester_match", "lookup_unavailable"]
    # The conversation that the task came from.
    requester: Conversation


class FactDeliveryRequestedBinding(TypedDict):
    """What the new conversation is bound with."""

    # It ends then at the latest; absent: never.
    expires_at: NotRequired[int]
    # It ends after so long without a routed message; absent: never.
    idle_timeout_ms: NotRequired[int]
    # It ends so long after the bind; absent: never.
    max_age_ms: NotRequired[int]
    metadata: NotRequired[dict[str, str]]
    # The conversation also gets the answers of turns that clients begin.
    mirror: NotRequired[bool]
    target_kind: Literal["session", "subagent", "acp"]


class FactDeliveryRequestedButtonsButtonsItem(TypedDict):
    """The object `FactDeliveryRequestedButtonsButtonsItem`."""

    id: str
    # One line, at most 80 characters.
    label: str
    # Absent: the platform's usual look.
    style: NotRequired[Literal["primary", "secondary", "success", "danger"]]


class FactDeliveryRequestedButtons(TypedDict):
    """Below the last part."""

    buttons: list[FactDeliveryRequestedButtonsButtonsItem]
    # Every press is an input, and not only the first one.
    reusable: NotRequired[bool]


class FactDeliveryRequestedChangeReaction(TypedDict):
    """The object `FactDeliveryRequestedChangeReaction`."""

    # One word, at most 64 bytes: an emoji, or the platform's name of one.
    emoji: str
    # The reaction is taken back.
    remove: bool


class FactDeliveryRequestedChange(TypedDict):
    """The kinds `edit`, `delete` and `reaction`."""

    reaction: NotRequired[FactDeliveryRequestedChangeReaction]
    # The platform's ids of the messages, one for each part.
    targets: list[MessageId]


class FactDeliveryRequestedRoute(TypedDict):
    """The router's answer, if the router chose the place."""

    # The version of the binding; nothing is sent once it has changed.
    generation: NotRequired[int]
    mode: Literal["bound", "fallback", "refused"]
    reason: Literal["requester_match", "only_binding_on_account", "missing_target_session", "no_active_binding",
        "missing_requester", "invalid_requester", "ambiguous", "no_requester_match", "lookup_unavailable"]


class FactDeliveryRequestedTextLimit(TypedDict):
    """The longest message there."""

    max: int
    unit: Literal["chars", "utf16", "bytes"]


class FactDeliveryRequested(TypedDict):
    """The data of `delivery.requested`. A message is to be sent to a conversation."""

    # The run whose end caused it, or that gave the task.
    about_run: NotRequired[QualifiedRunId]
    # What the new conversation is bound with.
    binding: NotRequired[FactDeliveryRequestedBinding]
    # Below the last part.
    buttons: NotRequired[FactDeliveryRequestedButtons]
    # The kinds `edit`, `delete` and `reaction`.
    change: NotRequired[FactDeliveryRequestedChange]
    # The place; no later step changes it.
    conversation: Conversation
    delivery_id: DeliveryId
    # The version of the binding that mirrors; nothing is sent once it has changed.
    generation: NotRequired[int]
    kind: Literal["final", "task_completion", "notice", "farewell", "conversation", "edit", "delete", "reaction"]
    # The messages, as they are sent; empty for `delete` and `reaction`.
    parts: list[str]
    # The platform's message that it answers.
    reply_to: NotRequired[MessageId]
    # The router's answer, if the router chose the place.
    route: NotRequired[FactDeliveryRequestedRoute]
    # The longest message there.
    text_limit: NotRequired[FactDeliveryRequestedTextLimit]


class FactDeliverySent(TypedDict):
    """The data of `delivery.sent`. The platform has a part."""

    delivery_id: DeliveryId
    # The platform's id of the message.
    external_id: MessageId
    # From 1.
    part: int
    # With the last part the delivery has ended.
    parts: int
    # As in `delivery.held`; absent: not changed.
    undelivered: NotRequired[int]


# The data of `handover.confirmed`. The handover is confirmed.
FactHandoverConfirmed = TypedDict("FactHandoverConfirmed", {
    "from": "AgentId",
    "handover_id": "QualifiedActionId",
    # The request that caused the fact.
    "request_id": "NotRequired[RequestId]",
    "to": "AgentId",
})


# The data of `handover.rejected`. The handover is rejected.
FactHandoverRejected = TypedDict("FactHandoverRejected", {
    "from": "AgentId",
    "handover_id": "QualifiedActionId",
    # The request that caused the fact.
    "request_id": "NotRequired[RequestId]",
    "to": "AgentId",
    "why": "Literal['refused', 'expired', 'unavailable', 'agent_left', 'session_closed']",
})


# The data of `handover.requested`. An agent requests a handover.
FactHandoverRequested = TypedDict("FactHandoverRequested", {
    "deadline_ms": "Timestamp",
    "from": "AgentId",
    "handover_id": "QualifiedActionId",
    "mark": "NotRequired[EventMark]",
    "reason": "str",
    "summary": "str",
    "to": "AgentId",
})


class FactLlmCallEndedUsage(TypedDict):
    """The tokens that the upstream reported; a count that is not known is absent."""

    # The part of the input that came from a cache.
    cached_input_tokens: NotRequired[int]
    # All tokens of the input.
    input_tokens: NotRequired[int]
    # All tokens of the output.
    output_tokens: NotRequired[int]
    # The part of the output that is reasoning.
    reasoning_tokens: NotRequired[int]


class FactLlmCallEnded(TypedDict):
    """The data of `llm.call.ended`. A call of a model has ended. The run may have ended before."""

    # The agent of the run.
    agent_id: NotRequired[AgentId]
    # The number of requests to upstreams.
    attempts: int
    call_id: QualifiedEventId
    # The price, in millionths of the operator's currency; absent if a count or a price is not known.
    cost: NotRequired[int]
    # Milliseconds to the first byte of the answer.
    first_byte_ms: NotRequired[int]
    # Milliseconds to the first token of the answer.
    first_token_ms: NotRequired[int]
    # Milliseconds from the beginning to the end.
    latency_ms: int
    # The name by which the caller asked for the model.
    model: str
    # `lost`: the node that made the call did not report its end.
    outcome: Literal["complete", "truncated", "error", "refused", "cancelled", "failed", "timeout", "lost"]
    # The HTTP status of the upstream's answer.
    status: NotRequired[int]
    # The id of the upstream that was asked last.
    upstream: NotRequired[str]
    # The tokens that the upstream reported; a count that is not known is absent.
    usage: FactLlmCallEndedUsage


class FactLlmCallStarted(TypedDict):
    """The data of `llm.call.started`. A call of a model begins."""

    # The agent of the run.
    agent_id: NotRequired[AgentId]
    call_id: QualifiedEventId
    # The time at which the call counts as lost if no end was reported.
    deadline_ms: Timestamp
    # The path of the call's format, such as `chat/completions`.
    format: str
    # The name by which the caller asked for the model.
    model: str


class FactProcessCanceled(TypedDict):
    """The data of `process.canceled`. The process was cancelled."""

    # The exit status is unknown.
    abnormal_exit: NotRequired[bool]
    action_id: QualifiedActionId
    # Data from the runner.
    data: NotRequired[Json]
    # The operating system's process id.
    pid: NotRequired[int]
    process_id: QualifiedActionId


class FactProcessExited(TypedDict):
    """The data of `process.exited`. The process has ended by itself."""

    # The exit status is unknown.
    abnormal_exit: NotRequired[bool]
    action_id: QualifiedActionId
    # Data from the runner.
    data: NotRequired[Json]
    # The operating system's process id.
    pid: NotRequired[int]
    process_id: QualifiedActionId


class FactProcessProgress(TypedDict):
    """The data of `process.progress`. The action is in progress."""

    # The exit status is unknown.
    abnormal_exit: NotRequired[bool]
    action_id: QualifiedActionId
    # Data from the runner.
    data: NotRequired[Json]
    # The operating system's process id.
    pid: NotRequired[int]
    process_id: QualifiedActionId


class FactProcessSpawned(TypedDict):
    """The data of `process.spawned`. A process was started."""

    # The exit status is unknown.
    abnormal_exit: NotRequired[bool]
    action_id: QualifiedActionId
    # Data from the runner.
    data: NotRequired[Json]
    # The operating system's process id.
    pid: NotRequired[int]
    process_id: QualifiedActionId


class FactRunCancelled(TypedDict):
    """The data of `run.cancelled`. The turn is cancelled."""

    attempt: int
    # The agent did not acknowledge in time.
    forced: bool
    reason: str
    text_bytes: int


class FactRunCancelling(TypedDict):
    """The data of `run.cancelling`. The agent was told to stop."""

    deadline_ms: Timestamp
    reason: str
    # The request that caused the fact.
    request_id: NotRequired[RequestId]


class FactRunDone(TypedDict):
    """The data of `run.done`. The turn is completed."""

    attempt: int
    # The run that has taken the input.
    host_run_id: NotRequired[QualifiedRunId]
    stop_reason: StopReason
    text_bytes: int
    # SHA-256 of the text, in hexadecimal.
    text_sha256: str
    # Usage as counted by the agent.
    usage: NotRequired[Json]


class FactRunFailed(TypedDict):
    """The data of `run.failed`. The turn has failed."""

    # The start of the agent's error; to operators only.
    agent_body: NotRequired[str]
    # The agent's own code, or the plugin that refused the turn.
    agent_code: NotRequired[str]
    attempt: int
    code: ErrorCode
    # For a person.
    message: str
    retry_after_ms: NotRequired[int]
    text_bytes: int


class FactRunRestarted(TypedDict):
    """The data of `run.restarted`. Another attempt begins."""

    agent_id: AgentId
    attempt: int
    reason: str
    # Another owner may resume the attempt.
    resumable: NotRequired[bool]


class FactRunResumed(TypedDict):
    """The data of `run.resumed`. The same attempt continues under another owner."""

    agent_id: AgentId
    attempt: int
    reason: str


class FactRunStarted(TypedDict):
    """The data of `run.started`. The first attempt begins."""

    agent_id: AgentId
    attempt: int
    deadline_ms: Timestamp
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    # Another owner may resume the attempt.
    resumable: NotRequired[bool]


class FactRunState(TypedDict):
    """The data of `run.state`. An intermediate state."""

    detail: NotRequired[Json]
    mark: NotRequired[EventMark]
    scope: Literal["run", "agent"]
    state: str


class FactRunSuspended(TypedDict):
    """The data of `run.suspended`. A draining node has released the attempt."""

    attempt: int
    reason: str


class FactSessionClosed(TypedDict):
    """The data of `session.closed`. The session is closed."""

    # The request that caused the fact.
    request_id: NotRequired[RequestId]


class FactSessionClosing(TypedDict):
    """The data of `session.closing`. The session closes."""

    # The request that caused the fact.
    request_id: NotRequired[RequestId]


class FactSessionLabelled(TypedDict):
    """The data of `session.labelled`. A user has set or removed the session's label."""

    # Lists of sessions show the label; empty: none.
    label: str
    # The request that caused the fact.
    request_id: NotRequired[RequestId]


class FactSessionNotice(TypedDict):
    """The data of `session.notice`. An announcement that changes nothing."""

    name: str
    # The request that caused the fact.
    request_id: NotRequired[RequestId]


class FactSessionOpened(TypedDict):
    """The data of `session.opened`. The session is open."""

    active_agent: AgentId
    agents: list[AgentId]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    # The user that owns the session.
    user: UserId


class FactSystemEvent(TypedDict):
    """The data of `system.event`. An event of a tool runner's machine."""

    action_id: QualifiedActionId
    # Data from the runner.
    data: NotRequired[Json]
    # The runner's name for the event.
    name: SystemName
    runner_id: RunnerId


class FactToolInvoke(TypedDict):
    """The data of `tool.invoke`. A tool runner has started the action."""

    action_id: QualifiedActionId
    args: Json
    runner_id: RunnerId
    tool: ToolName


class FactToolResult(TypedDict):
    """The data of `tool.result`. The action has ended."""

    action_id: QualifiedActionId
    error: NotRequired[ToolError]
    # The agent's own name for the action.
    name: NotRequired[AgentEventId]
    ok: bool
    result: NotRequired[Json]
    tool: ToolName


class FactTurnAdmitted(TypedDict):
    """The data of `turn.admitted`. The owner's decision on the input."""

    agent_id: AgentId
    # The run that the input is handed to.
    host_run_id: NotRequired[QualifiedRunId]
    # The number of inputs before this one.
    position: NotRequired[int]
    # The run whose place the input takes.
    replaces: NotRequired[QualifiedRunId]
    strategy: Literal["run", "queued", "interrupts", "steered"]


class FactTurnGathered(TypedDict):
    """The data of `turn.gathered`. The input becomes part of an earlier one's turn, which starts now."""

    # The turn that the input is part of, and ends with.
    host_run_id: QualifiedRunId


class FactUserMessageOriginDecision(TypedDict):
    """The button that was pressed, if the input is a press."""

    button_id: str
    # The delivery of the message with the button.
    delivery_id: DeliveryId
    # The platform's id of the press.
    press_id: RequestId


class FactUserMessageOriginSender(TypedDict):
    """Who wrote it."""

    # The platform's id.
    id: str
    is_bot: NotRequired[bool]
    name: NotRequired[str]


class FactUserMessageOriginTextLimit(TypedDict):
    """The longest message that the adapter can send there."""

    max: int
    unit: Literal["chars", "utf16", "bytes"]


class FactUserMessageOrigin(TypedDict):
    """The conversation that it came from; the answer goes there."""

    # The level of the capability `buttons` there; absent: 0.
    buttons: NotRequired[int]
    conversation: Conversation
    # The time for which the message waited for further ones of its sender.
    debounce_ms: NotRequired[int]
    # The button that was pressed, if the input is a press.
    decision: NotRequired[FactUserMessageOriginDecision]
    # As the platform names it.
    message_id: MessageId
    # Unix milliseconds, by the platform's clock.
    platform_time: NotRequired[int]
    # Who wrote it.
    sender: FactUserMessageOriginSender
    # The longest message that the adapter can send there.
    text_limit: FactUserMessageOriginTextLimit


class FactUserMessage(TypedDict):
    """The data of `user.message`. A user's message."""

    # The addressed agent.
    agent_id: NotRequired[AgentId]
    # SHA-256 of the earlier messages, in hexadecimal.
    history_sha256: NotRequired[str]
    message: Message
    message_id: MessageId
    # Passed on unchanged.
    metadata: NotRequired[Json]
    # The conversation that it came from; the answer goes there.
    origin: NotRequired[FactUserMessageOrigin]
    # The request that caused the fact.
    request_id: NotRequired[RequestId]
    strategy: Literal["steer", "enqueue", "interrupt", "rollback", "reject"]
    user: UserId


class FromAdapterCapabilitiesCapabilitiesValue(TypedDict):
    """The object `FromAdapterCapabilitiesCapabilitiesValue`."""

    # −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full.
    level: int
    # The limit, such as the length of a text.
    max: NotRequired[int | None]
    # Absent: UTF-16 code units.
    unit: NotRequired[Literal["chars", "utf16", "bytes"] | None]


class FromAdapterCapabilities(TypedDict):
    """The adapter can do something else."""

    # In place of those declared before.
    capabilities: dict[str, int | FromAdapterCapabilitiesCapabilitiesValue]
    # Of the adapter's account; absent: the whole connection.
    conversation: NotRequired[Conversation | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["capabilities"]


class FromAdapterConversationCreated(TypedDict):
    """What became of a conversation that was to be made."""

    # `rejected`: the class of the error; required.
    code: NotRequired[Literal["transient", "rate_limit", "auth", "permission", "gone", "invalid", "conflict"] | None]
    # `created`: the new conversation; required.
    conversation: NotRequired[Conversation | None]
    # As in `create_conversation`.
    delivery_id: DeliveryId
    outcome: Literal["created", "not_created", "unknown", "rejected"]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # `rejected`: the time that the platform asks for.
    retry_after_ms: NotRequired[int | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["conversation_created"]


class FromAdapterDelivered(TypedDict):
    """What became of a part."""

    # `rejected`: the class of the error; required.
    code: NotRequired[Literal["transient", "rate_limit", "auth", "permission", "gone", "invalid", "conflict"] | None]
    delivery_id: DeliveryId
    # `sent`: the platform's id; without it the outcome is unknown.
    external_id: NotRequired[MessageId | None]
    outcome: Literal["sent", "not_sent", "unknown", "rejected"]
    part: int
    # `sent`: where the platform has put it.
    place: NotRequired[Conversation | None]
    # `not_sent`: for a person.
    proof: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # `rejected`: the time that the platform asks for.
    retry_after_ms: NotRequired[int | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["delivered"]


class FromAdapterHelloCapabilitiesValue(TypedDict):
    """The object `FromAdapterHelloCapabilitiesValue`."""

    # −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full.
    level: int
    # The limit, such as the length of a text.
    max: NotRequired[int | None]
    # Absent: UTF-16 code units.
    unit: NotRequired[Literal["chars", "utf16", "bytes"] | None]


class FromAdapterHello(TypedDict):
    """The first message: the account that the adapter serves."""

    # The gateway's account there.
    account_id: str
    # An API key or a token; counts before `token`.
    api_key: NotRequired[str | None]
    # What it can do, by name: `text`, `key`, `typing`, `preview`, `buttons`, `edit`, `delete`, `reaction`,
    # `attachments`, `create_conversation`.
    capabilities: NotRequired[dict[str, int | FromAdapterHelloCapabilitiesValue] | None]
    # The platform.
    channel: str
    # Any value; not stored.
    client_meta: NotRequired[Json]
    # A name that the next start of the same process has too.
    instance_id: NotRequired[RequestId | None]
    # The platform's id of the login: one account at a time acts as it.
    platform_bot_id: NotRequired[RequestId | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    role: Literal["adapter"]
    # A token of the identity provider, or an API key.
    token: NotRequired[str | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["hello"]
    # The user, not an account (`channel:…`); absent: the credential's user.
    user_id: NotRequired[UserId | None]


class FromAdapterInboundDecision(TypedDict):
    """The object `FromAdapterInboundDecision`."""

    button_id: str
    # Of the message with the button; absent: `message_id` tells it.
    delivery_id: NotRequired[DeliveryId | None]
    # The platform's id of the press.
    press_id: RequestId


class FromAdapterInboundMessage(TypedDict):
    """The object `FromAdapterInboundMessage`."""

    # Required for the event `message`; the new one for `edit`.
    content: NotRequired[Content | None]
    # `edit`: the platform's name of this edit; absent: its content tells it apart.
    edit_id: NotRequired[RequestId | None]
    # The platform's id.
    message_id: MessageId


class FromAdapterInboundSender(TypedDict):
    """Who wrote it; grants nothing."""

    # The platform's id.
    id: str
    is_bot: NotRequired[bool | None]
    name: NotRequired[str | None]


class FromAdapterInbound(TypedDict):
    """Something happened in a conversation."""

    # Of the adapter's account.
    conversation: Conversation
    # The button, for the event `decision`.
    decision: NotRequired[FromAdapterInboundDecision | None]
    # Absent: `message`.
    event: NotRequired[Literal["message", "edit", "delete", "reaction", "decision", "conversation_closed", "moved"] |
        None]
    message: FromAdapterInboundMessage
    # The new id, for the event `moved`.
    moved_to: NotRequired[str | None]
    # Unix milliseconds, by the platform's clock.
    platform_time: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # Who wrote it; grants nothing.
    sender: FromAdapterInboundSender
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["inbound"]


class FromAdapterPing(TypedDict):
    """Requests a `pong`."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["ping"]


class FromAdapterPrepareFiles(TypedDict):
    """Asks for the right to add files to the session of a conversation."""

    # Of the adapter's account.
    conversation: Conversation
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["prepare_files"]


class FromAdapterRefresh(TypedDict):
    """Presents the next token of the same user."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The next token.
    token: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["refresh"]


class FromAgentAction(TypedDict):
    """Requests an action."""

    # The agent's own name for the action.
    action_id: NotRequired[AgentEventId | None]
    # Absent: follows from the other fields.
    action_type: NotRequired[Literal["tool_call", "say"] | None]
    # With `tool_call`.
    args: NotRequired[Json]
    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The event's id; required from an agent with `resume`.
    id: NotRequired[AgentEventId | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # With `say`.
    text: NotRequired[str | None]
    # The time until the action has ended at the latest.
    timeout_ms: NotRequired[int | None]
    # With `tool_call`.
    tool: NotRequired[ToolName | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["action"]


class FromAgentCancelAck(TypedDict):
    """The agent has stopped."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["cancel_ack"]


class FromAgentDelta(TypedDict):
    """A piece of the answer's text."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The event's id; required from an agent with `resume`.
    id: NotRequired[AgentEventId | None]
    # Absent: `text`.
    kind: NotRequired[Literal["text", "reasoning"] | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    text: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["delta"]


class FromAgentDone(TypedDict):
    """The end of the answer."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # A `stop_reason`; any other text counts as `end_turn`.
    stop_reason: NotRequired[str | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["done"]
    # Passed on to clients.
    usage: NotRequired[Json]


class FromAgentError(TypedDict):
    """The end of the answer, with a failure."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The agent's own code; `unknown_run`: it does not know a run to resume.
    code: NotRequired[str | None]
    # For operators.
    message: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["error"]


class FromAgentHandoverRequest(TypedDict):
    """Requests a handover to another agent."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The event's id; required from an agent with `resume`.
    id: NotRequired[AgentEventId | None]
    reason: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # Information for the other agent.
    summary: NotRequired[str | None]
    # The agent that is to take over.
    to: AgentId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["handover_request"]


class FromAgentHelloCapabilities(TypedDict):
    """The object `FromAgentHelloCapabilities`."""

    # Answers `cancel` with `cancel_ack`; absent: yes.
    cancel: NotRequired[bool | None]
    # Can send the events after a given event; absent: no.
    resume: NotRequired[bool | None]
    # Accepts further inputs while it answers; absent: no.
    steer: NotRequired[bool | None]


class FromAgentHello(TypedDict):
    """The first message: the agent's identity."""

    agent_id: AgentId
    # An API key or a token; counts before `token`.
    api_key: NotRequired[str | None]
    capabilities: NotRequired[FromAgentHelloCapabilities | None]
    # Any value; not stored.
    client_meta: NotRequired[Json]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    role: Literal["agent"]
    # A token of the identity provider, or an API key.
    token: NotRequired[str | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["hello"]
    # The user, not an account (`channel:…`); absent: the credential's user.
    user_id: NotRequired[UserId | None]


class FromAgentInputAck(TypedDict):
    """The agent has the input; any other first message implies it."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["input_ack"]


class FromAgentPing(TypedDict):
    """Requests a `pong`."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["ping"]


class FromAgentRefresh(TypedDict):
    """Presents the next token of the same user."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The next token.
    token: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["refresh"]


class FromAgentState(TypedDict):
    """A state of the agent."""

    # A message of another attempt than the running one is ignored.
    attempt: NotRequired[int | None]
    detail: NotRequired[Json]
    # The event's id; required from an agent with `resume`.
    id: NotRequired[AgentEventId | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    run_id: QualifiedRunId
    # The agent's own name of the state.
    state: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["state"]


class FromAgentSteerAck(TypedDict):
    """The outcome of a steered input."""

    attempt: NotRequired[int | None]
    # The input that the agent was handed.
    message_id: MessageId
    # Absent: `refused`.
    outcome: NotRequired[Literal["accepted", "pending", "refused"] | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # Optional if only one run got a message of that id.
    run_id: NotRequired[QualifiedRunId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["steer_ack"]


class FromAgentSubscribe(TypedDict):
    """Requests facts of these types in every run of this connection."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["subscribe"]
    # Replaces the types of an earlier `subscribe`.
    types: list[TypePattern]


class FromClientInterrupt(TypedDict):
    """The same as `cancel_run`."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The run; counts before `session_id`.
    run_id: NotRequired[RunId | None]
    # The session whose run in progress is cancelled.
    session_id: NotRequired[SessionId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["INTERRUPT"]


class FromClientAgentInvokeMessage(TypedDict):
    """The object `FromClientAgentInvokeMessage`."""

    content: Content
    # The unit of de-duplication; absent: the request id.
    message_id: NotRequired[MessageId | None]
    role: NotRequired[Literal["user"] | None]


class FromClientAgentInvokeMetadata(TypedDict):
    """The object `FromClientAgentInvokeMetadata`."""

    # An agent id, with the subtype `MENTION`.
    mentioned_agent_id: NotRequired[Json]
    # `MENTION`: `mentioned_agent_id` addresses an agent.
    subtype: NotRequired[Json]


class FromClientAgentInvoke(TypedDict):
    """One input."""

    # The addressed agent; absent: a mention, else the active agent.
    agent_id: NotRequired[AgentId | None]
    # A mention.
    mentioned_agent_id: NotRequired[AgentId | None]
    message: FromClientAgentInvokeMessage
    # Any object; passed on unchanged.
    metadata: NotRequired[FromClientAgentInvokeMetadata | None]
    # The run of one's own waiting message that this message replaces.
    replaces: NotRequired[RunId | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # Absent: the node generates one.
    session_id: NotRequired[SessionId | None]
    # The effect while a run is open.
    strategy: NotRequired[Literal["steer", "enqueue", "interrupt", "rollback", "reject"] | None]
    # W3C trace context; one that cannot be parsed is ignored.
    traceparent: NotRequired[str | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["agent_invoke"]


class FromClientBind(TypedDict):
    """Binds a conversation to a session. Only operators, and adapters in their account."""

    conversation: Conversation
    # The generation to replace, 0: none; absent: the conversation is free or bound to the same session.
    expected_generation: NotRequired[int | None]
    # Unix milliseconds; 0: never. Absent: the default.
    expires_at: NotRequired[int | None]
    # Time without a routed message; 0: never. Absent: the default.
    idle_timeout_ms: NotRequired[int | None]
    # Time since the bind; 0: never. Absent: the default.
    max_age_ms: NotRequired[int | None]
    # Texts for whoever sees the binding.
    metadata: NotRequired[dict[str, str] | None]
    # The conversation also gets the answers of turns that clients begin in the session.
    mirror: NotRequired[bool | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The role of the session; absent: `session`.
    target_kind: NotRequired[Literal["session", "subagent", "acp"] | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["bind"]


class FromClientBindChild(TypedDict):
    """Has the platform make a conversation, and binds it. Only operators, and adapters in their account."""

    # The same id again is the same conversation; absent: `request_id`, or else an id of its own.
    creation_id: NotRequired[MessageId | None]
    # Unix milliseconds; 0: never. Absent: the default.
    expires_at: NotRequired[int | None]
    # Time without a routed message; 0: never. Absent: the default.
    idle_timeout_ms: NotRequired[int | None]
    # Time since the bind; 0: never. Absent: the default.
    max_age_ms: NotRequired[int | None]
    # Texts for whoever sees the binding.
    metadata: NotRequired[dict[str, str] | None]
    # As in `bind`.
    mirror: NotRequired[bool | None]
    # The conversation that is to contain the new one.
    parent: Conversation
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The role of the session; absent: `session`.
    target_kind: NotRequired[Literal["session", "subagent", "acp"] | None]
    # Its first line names the new conversation: at most 100 characters.
    title: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["bind_child"]


class FromClientCancelRun(TypedDict):
    """Cancels a run."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The run; counts before `session_id`.
    run_id: NotRequired[RunId | None]
    # The session whose run in progress is cancelled.
    session_id: NotRequired[SessionId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["cancel_run"]


class FromClientHandoverDecision(TypedDict):
    """Decides a handover that an agent has requested."""

    decision: Literal["confirm", "reject"]
    handover_id: EventId
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["handover_decision"]


class FromClientHelloResumeItemRunsValue(TypedDict):
    """The object `FromClientHelloResumeItemRunsValue`."""

    attempt: int
    # Received bytes of the attempt's text.
    offset: int


class FromClientHelloResumeItem(TypedDict):
    """The object `FromClientHelloResumeItem`."""

    # The epoch of that fact.
    after_epoch: NotRequired[int | None]
    # The last received fact; absent: only new facts; 0: everything.
    after_seq: NotRequired[int | None]
    request_id: NotRequired[RequestId | None]
    # The received text of each open run.
    runs: NotRequired[dict[str, FromClientHelloResumeItemRunsValue] | None]
    session_id: SessionId
    # Facts to receive beyond those that every connection receives.
    types: NotRequired[list[TypePattern] | None]


class FromClientHello(TypedDict):
    """The first message: the client's identity."""

    # An API key or a token; counts before `token`.
    api_key: NotRequired[str | None]
    # Any value; not stored.
    client_meta: NotRequired[Json]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # Subscriptions, answered right after `welcome`.
    resume: NotRequired[list[FromClientHelloResumeItem] | None]
    # Absent: `user`.
    role: NotRequired[Literal["user"] | None]
    # QUIC and WebTransport: `false` if the client accepts no streams.
    streams: NotRequired[bool | None]
    # A token of the identity provider, or an API key.
    token: NotRequired[str | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["hello"]
    # The user, not an account (`channel:…`); absent: the credential's user.
    user_id: NotRequired[UserId | None]


class FromClientInviteAgentAgentSpec(TypedDict):
    """The object `FromClientInviteAgentAgentSpec`."""

    agent_id: AgentId


class FromClientInviteAgent(TypedDict):
    """An agent becomes a member."""

    # The agent is active from then on.
    active: NotRequired[bool | None]
    # Counts before `agent_spec`.
    agent_id: NotRequired[AgentId | None]
    # An agent id, or an object with one.
    agent_spec: NotRequired[AgentId | FromClientInviteAgentAgentSpec | None]
    # In the user's words.
    reason: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["invite_agent"]


class FromClientListBindings(TypedDict):
    """Lists the active bindings of a session."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["list_bindings"]


class FromClientListDeliveries(TypedDict):
    """Lists the deliveries that are not sent."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["list_deliveries"]


class FromClientListPausedAccounts(TypedDict):
    """Lists the paused accounts of the tenant. Only operators."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["list_paused_accounts"]


class FromClientPauseAccount(TypedDict):
    """Stops what is sent for an account. Only operators."""

    account_id: str
    channel: str
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["pause_account"]


class FromClientPing(TypedDict):
    """Requests a `pong`."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["ping"]


class FromClientRefresh(TypedDict):
    """Presents the next token of the same user."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The next token.
    token: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["refresh"]


class FromClientRemoveAgent(TypedDict):
    """A member leaves; its running turn is cancelled first."""

    agent_id: AgentId
    # In the user's words.
    reason: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["remove_agent"]


class FromClientResolve(TypedDict):
    """Looks up the binding of a conversation, or of several. Only operators, and adapters in their account."""

    conversation: NotRequired[Conversation | None]
    # Several, read at one moment; counts before `conversation`.
    conversations: NotRequired[list[Conversation] | None]
    # The answer also has the rows that were looked at; of one conversation only.
    explain: NotRequired[bool | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["resolve"]


class FromClientResumeAccount(TypedDict):
    """Lets an account send again. Only operators."""

    account_id: str
    channel: str
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["resume_account"]


class FromClientSendMessage(TypedDict):
    """Sends a text to a conversation of the session, without a turn."""

    # Absent: the only one that is bound to the session.
    conversation: NotRequired[Conversation | None]
    # The same id again is the same message; absent: `request_id`.
    message_id: NotRequired[MessageId | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # At most 24 KiB; not blank.
    text: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["send_message"]


class FromClientSessionClose(TypedDict):
    """Cancels the running turn and closes the session."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["session_close"]


class FromClientSessionLabel(TypedDict):
    """Gives the session a label, which lists show."""

    # Empty: none.
    label: str
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["session_label"]


class FromClientSessionOpen(TypedDict):
    """Creates, loads or reopens a session."""

    # The member that answers inputs without an addressed agent.
    active_agent: NotRequired[AgentId | None]
    # The members of a new session.
    agents: NotRequired[list[AgentId] | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # Absent: the node generates one.
    session_id: NotRequired[SessionId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["session_open"]


class FromClientSetBindingExpiryScope(TypedDict):
    """The object `FromClientSetBindingExpiryScope`."""

    account_id: str
    channel: str


class FromClientSetBindingExpiry(TypedDict):
    """Changes when bindings expire. Only operators, and adapters in their account."""

    binding_id: NotRequired[BindingId | None]
    # Unix milliseconds; 0: never. Absent: not changed.
    expires_at: NotRequired[int | None]
    # Time without a routed message; 0: never. Absent: not changed.
    idle_timeout_ms: NotRequired[int | None]
    # Time since the bind; 0: never. Absent: not changed.
    max_age_ms: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The account of `binding_id`.
    scope: NotRequired[FromClientSetBindingExpiryScope | None]
    # All bindings of this session; counts before `binding_id`.
    session_id: NotRequired[SessionId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["set_binding_expiry"]


class FromClientSettleDelivery(TypedDict):
    """Decides on a delivery that is held or has failed."""

    # `retry`: it may appear twice.
    decision: Literal["retry", "drop"]
    delivery_id: DeliveryId
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["settle_delivery"]


class FromClientShowAccount(TypedDict):
    """Shows whether an adapter serves an account. Only operators."""

    account_id: str
    channel: str
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["show_account"]


class FromClientSubscribeRunsValue(TypedDict):
    """The object `FromClientSubscribeRunsValue`."""

    attempt: int
    # Received bytes of the attempt's text.
    offset: int


class FromClientSubscribe(TypedDict):
    """Subscribes to a session, or moves the cursor."""

    # The epoch of that fact.
    after_epoch: NotRequired[int | None]
    # The last received fact; absent: only new facts; 0: everything.
    after_seq: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The received text of each open run.
    runs: NotRequired[dict[str, FromClientSubscribeRunsValue] | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["subscribe"]
    # Facts to receive beyond those that every connection receives.
    types: NotRequired[list[TypePattern] | None]


class FromClientSwitchAgent(TypedDict):
    """Another member answers inputs without an addressed agent."""

    agent_id: AgentId
    # In the user's words.
    reason: NotRequired[str | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["switch_agent"]


class FromClientTouchScope(TypedDict):
    """The object `FromClientTouchScope`."""

    account_id: str
    channel: str


class FromClientTouch(TypedDict):
    """Records that a message was routed by a binding. Only operators, and adapters in their account."""

    binding_id: BindingId
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    scope: FromClientTouchScope
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["touch"]


class FromClientUnbindScope(TypedDict):
    """The object `FromClientUnbindScope`."""

    account_id: str
    channel: str


class FromClientUnbind(TypedDict):
    """Ends a binding, or all of a session. Only operators, and adapters in their account."""

    binding_id: NotRequired[BindingId | None]
    # The conversation gets the farewell of its channel; `manual` only.
    farewell: NotRequired[bool | None]
    # Absent: `manual`.
    reason: NotRequired[Literal["manual", "conversation_archived", "conversation_deleted"] | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The account of `binding_id`.
    scope: NotRequired[FromClientUnbindScope | None]
    # All bindings of this session; counts before `binding_id`.
    session_id: NotRequired[SessionId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["unbind"]


class FromClientUnsubscribe(TypedDict):
    """Ends a subscription."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    session_id: SessionId
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["unsubscribe"]


class FromToolRunnerChunk(TypedDict):
    """A piece of a process's output."""

    action_id: QualifiedActionId
    # At most 16384 bytes before the encoding.
    data: str
    # Absent: `utf8`.
    encoding: NotRequired[Literal["utf8", "base64"] | None]
    # The position of the first byte in the stream.
    offset: int
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    stream: Literal["stdout", "stderr"]
    # Output before it was left out.
    truncated: NotRequired[bool | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["chunk"]


class FromToolRunnerHelloToolsItem(TypedDict):
    """The object `FromToolRunnerHelloToolsItem`."""

    name: ToolName


class FromToolRunnerHello(TypedDict):
    """The first message: the tool runner's identity."""

    # An API key or a token; counts before `token`.
    api_key: NotRequired[str | None]
    # Any value; not stored.
    client_meta: NotRequired[Json]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    role: Literal["tool_runner"]
    runner_id: RunnerId
    # A token of the identity provider, or an API key.
    token: NotRequired[str | None]
    # The offered tools.
    tools: NotRequired[list[ToolName | FromToolRunnerHelloToolsItem] | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["hello"]
    # The user, not an account (`channel:…`); absent: the credential's user.
    user_id: NotRequired[UserId | None]


class FromToolRunnerInvoked(TypedDict):
    """The action has started."""

    action_id: QualifiedActionId
    # The operating system's process id.
    pid: NotRequired[int | None]
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["invoked"]


class FromToolRunnerPing(TypedDict):
    """Requests a `pong`."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["ping"]


class FromToolRunnerProgress(TypedDict):
    """The action is in progress."""

    action_id: QualifiedActionId
    data: Json
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["progress"]


class FromToolRunnerRefresh(TypedDict):
    """Presents the next token of the same user."""

    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The next token.
    token: str
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["refresh"]


class FromToolRunnerResultError(TypedDict):
    """The object `FromToolRunnerResultError`."""

    # `unknown_action`: the runner does not know the action.
    code: NotRequired[str | None]
    # For a person; a long one is cut.
    message: NotRequired[str | None]


class FromToolRunnerResult(TypedDict):
    """The action has ended; only the first result counts."""

    action_id: QualifiedActionId
    error: NotRequired[FromToolRunnerResultError | None]
    ok: bool
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    result: NotRequired[Json]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["result"]


class FromToolRunnerSystem(TypedDict):
    """An event of the runner's machine."""

    # Absent: every session with an action at the runner.
    action_id: NotRequired[QualifiedActionId | None]
    data: NotRequired[Json]
    # The runner's name for the event.
    name: SystemName
    # The answer repeats it.
    request_id: NotRequired[RequestId | None]
    # The time of sending; not used.
    ts: NotRequired[Timestamp | None]
    type: Literal["system"]


class InputContextEndedActionsItem(TypedDict):
    """The object `InputContextEndedActionsItem`."""

    action_id: QualifiedActionId
    error: NotRequired[ToolError]
    # The agent's own name for the action.
    name: NotRequired[AgentEventId]
    ok: bool
    result: NotRequired[Json]
    tool: ToolName


# Present in the first turn after a handover.
InputContextHandover = TypedDict("InputContextHandover", {
    # The agent that handed the session over.
    "from": "AgentId",
    "handover_id": "QualifiedActionId",
    "reason": "str",
    # The turn in which the handover was requested.
    "run_id": "QualifiedRunId",
    # The summary by the previous agent.
    "summary": "str",
    # The end of the previous agent's answer.
    "text": "str",
    # The beginning of the answer was left out.
    "truncated": "NotRequired[bool]",
})


class InputContextOpenActionsItem(TypedDict):
    """The object `InputContextOpenActionsItem`."""

    action_id: QualifiedActionId
    agent_id: AgentId
    # The action has ended by then.
    deadline_ts: Timestamp
    # The agent's own name for the action.
    name: NotRequired[AgentEventId]
    # Present for a process.
    process_id: NotRequired[QualifiedActionId]
    run_id: QualifiedRunId
    state: Literal["requested", "running"]
    tool: ToolName


class InputContextOriginDecision(TypedDict):
    """The button that was pressed, if it is a press."""

    button_id: str
    # The delivery of the message with the button.
    delivery_id: DeliveryId


class InputContextOriginSender(TypedDict):
    """Who wrote it."""

    # The platform's id.
    id: str
    is_bot: NotRequired[bool]
    name: NotRequired[str]


class InputContextOrigin(TypedDict):
    """The message, if it came from a conversation."""

    conversation: Conversation
    # The button that was pressed, if it is a press.
    decision: NotRequired[InputContextOriginDecision]
    # As the platform names it.
    message_id: MessageId
    # Unix milliseconds, by the platform's clock.
    platform_time: NotRequired[int]
    # Who wrote it.
    sender: InputContextOriginSender


class InputContext(TypedDict):
    """The circumstances of an input, for its agent."""

    # Ended actions that the agent may not know of.
    ended_actions: NotRequired[list[InputContextEndedActionsItem]]
    # Present in the first turn after a handover.
    handover: NotRequired[InputContextHandover]
    # Open actions of the whole session.
    open_actions: NotRequired[list[InputContextOpenActionsItem]]
    # The message, if it came from a conversation.
    origin: NotRequired[InputContextOrigin]
    # Text that the node's plugins add to the system prompt.
    system_prompt: NotRequired[str]
    tenant: TenantId
    user_id: UserId


class Message(TypedDict):
    """One message of a conversation."""

    content: Content
    role: Literal["user", "assistant", "system"]


# The handover that waits for a decision.
SnapshotPendingHandover = TypedDict("SnapshotPendingHandover", {
    # The handover is rejected without a decision by then.
    "deadline_ts": "Timestamp",
    # The agent that requests the handover.
    "from": "AgentId",
    "handover_id": "EventId",
    "reason": "str",
    "run_id": "RunId",
    # Information for the other agent.
    "summary": "str",
    # The agent that is to take over.
    "to": "AgentId",
})


class SnapshotPending(TypedDict):
    """Decisions that the session waits for."""

    # Empty in this release.
    approvals: list[Json]
    # The handover that waits for a decision.
    handover: NotRequired[SnapshotPendingHandover]
    # Empty in this release.
    tool_requests: list[Json]


class SnapshotRunsItem(TypedDict):
    """The object `SnapshotRunsItem`."""

    agent_id: AgentId
    # 0 until the run starts.
    attempt: int
    run_id: RunId
    state: Literal["QUEUED", "ROUTING", "RUNNING", "CANCELLING"]
    # Recorded bytes of the run's text.
    text_bytes: int


class Snapshot(TypedDict):
    """A session's present state."""

    active_agent: AgentId | None
    # The members, in order of joining.
    agents: list[AgentId]
    # The epoch of that fact.
    epoch: Epoch
    # Decisions that the session waits for.
    pending: SnapshotPending
    # Turns that have not ended, the running one first.
    runs: list[SnapshotRunsItem]
    # The last fact that the snapshot contains.
    seq: Seq
    session_id: SessionId
    state: Literal["open", "closing", "closed"]


class ToAdapterAdapterStatePaused(TypedDict):
    """Nothing is sent until an operator resumes the account."""

    # The delivery whose part the platform has put elsewhere.
    delivery_id: NotRequired[DeliveryId]
    reason: Literal["misplaced", "operator"]
    since: Timestamp


class ToAdapterAdapterState(TypedDict):
    """The state of an adapter's connection has changed."""

    # The node of the active connection.
    holder_node_id: NotRequired[str]
    # Nothing is sent until an operator resumes the account.
    paused: NotRequired[ToAdapterAdapterStatePaused]
    # The time since which that connection is active.
    since: NotRequired[Timestamp]
    # Only an active connection gets `deliver`.
    state: Literal["active", "standby"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["adapter_state"]


class ToAdapterCapabilitiesSet(TypedDict):
    """Answers `capabilities`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["capabilities_set"]


class ToAdapterCreateConversation(TypedDict):
    """Make a conversation within another one; answered by `conversation_created`."""

    # From 2: the conversation may have been made before.
    attempt: int
    # Not to be made after this time.
    deadline_ts: Timestamp
    # Named in the answer.
    delivery_id: DeliveryId
    # The same for each attempt: at most 25 characters.
    key: str
    # One line, at most 100 characters.
    name: str
    # The conversation that is to contain the new one.
    parent: Conversation
    # The message that it begins with, if the platform can do that.
    reply_to: NotRequired[MessageId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["create_conversation"]


class ToAdapterDeleteMessage(TypedDict):
    """Remove the preview with this key."""

    conversation: Conversation
    # The `key` of a preview, which may be unknown.
    key: str
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["delete_message"]


class ToAdapterDeliverAttachmentsItem(TypedDict):
    """The object `ToAdapterDeliverAttachmentsItem`."""

    # To be shown as a picture, rather than offered as a file.
    inline: bool
    # As the agent has named it; may be empty.
    name: str
    # Of the bytes, in hexadecimal.
    sha256: str
    # Path of the file at each node.
    url: str


class ToAdapterDeliverButtonsItem(TypedDict):
    """The object `ToAdapterDeliverButtonsItem`."""

    id: str
    # One line, at most 80 characters.
    label: str
    # Absent: the platform's usual look.
    style: NotRequired[Literal["primary", "secondary", "success", "danger"]]


class ToAdapterDeliverReaction(TypedDict):
    """`reaction`: which one."""

    # One word, at most 64 bytes: an emoji, or the platform's name of one.
    emoji: str
    # The reaction is taken back.
    remove: bool


class ToAdapterDeliverTarget(TypedDict):
    """The message that an `edit`, `delete` or `reaction` is about."""

    # `edit`, `delete`: a message of the gateway, as `delivered` named it.
    external_id: NotRequired[MessageId]
    # `reaction`: a message that somebody wrote, as `inbound` named it.
    message_id: NotRequired[MessageId]


class ToAdapterDeliver(TypedDict):
    """Send a part; answered by `delivered`."""

    # Files to send with the text; needs the capability `attachments`.
    attachments: NotRequired[list[ToAdapterDeliverAttachmentsItem]]
    # From 2: the part may have been sent before.
    attempt: int
    # Below the last part; needs the capability `buttons`.
    buttons: NotRequired[list[ToAdapterDeliverButtonsItem]]
    # Where to send it, and nowhere else.
    conversation: Conversation
    # Not to be sent after this time.
    deadline_ts: Timestamp
    delivery_id: DeliveryId
    # The bearer token with which the files are read; it ends at `deadline_ts`.
    file_token: NotRequired[str]
    # The same for each attempt at the part: at most 25 characters.
    key: str
    # `preview`: an answer that is still being written.
    kind: Literal["final", "task_completion", "notice", "farewell", "edit", "delete", "reaction", "preview"]
    # From 1.
    part: int
    parts: int
    # `reaction`: which one.
    reaction: NotRequired[ToAdapterDeliverReaction]
    # The message that it answers.
    reply_to: NotRequired[MessageId]
    # The message that an `edit`, `delete` or `reaction` is about.
    target: NotRequired[ToAdapterDeliverTarget]
    # Markdown, within the declared limit; empty for `delete` and `reaction`, and with `attachments` perhaps.
    text: str
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["deliver"]


class ToAdapterError(TypedDict):
    """A refused message or connection."""

    code: ErrorCode
    # For a person.
    message: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time after which to retry.
    retry_after_ms: NotRequired[int]
    # The same request may succeed later.
    retryable: bool
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["error"]


class ToAdapterFilesPrepared(TypedDict):
    """Answers `prepare_files`."""

    # The end of the token.
    expires_ts: Timestamp
    # The bearer token with which files are added to the session.
    file_token: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The session that a message of the conversation goes to now.
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["files_prepared"]


class ToAdapterGoAway(TypedDict):
    """The node drains: reconnect after a random delay."""

    # The longest random delay.
    jitter_ms: int
    reason: Literal["drain"]
    # The time within which to reconnect.
    reconnect_within_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["go_away"]


class ToAdapterInboundAccepted(TypedDict):
    """Answers `inbound`: what follows is durable."""

    disposition: Literal["run", "recorded", "ignored"]
    # The message had been accepted before.
    duplicate: bool
    # `ignored`: the message is too old, or a button of it was pressed before.
    reason: NotRequired[Literal["stale", "decided"]]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    session_id: NotRequired[SessionId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["inbound_accepted"]


class ToAdapterPong(TypedDict):
    """Answers `ping`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["pong"]


class ToAdapterRefreshed(TypedDict):
    """Answers `refresh`: the token is accepted."""

    # The end of the token.
    expires_ts: Timestamp
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["refreshed"]


class ToAdapterTyping(TypedDict):
    """An answer is being written, or not any more."""

    conversation: Conversation
    # `on` is repeated while the answer is being written.
    state: Literal["on", "off"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["typing"]


class ToAdapterWelcomeLimits(TypedDict):
    """The object `ToAdapterWelcomeLimits`."""

    max_json_depth: int
    max_json_values: int
    max_message_bytes: int
    # Requests that wait for an answer.
    max_requests: int
    max_subscriptions: int
    # Inputs of one session beside the running one.
    max_waiting_inputs: int


class ToAdapterWelcome(TypedDict):
    """Accepts a connection."""

    connection_id: str
    # The end of the token, if it has one.
    expires_ts: NotRequired[Timestamp]
    # The time between two pings of the node.
    heartbeat_ms: int
    limits: ToAdapterWelcomeLimits
    node_id: str
    protocol: Literal["turnway.v1"]
    # The time for which history is kept; 0: without limit.
    resume_window_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["welcome"]


class ToAgentCancel(TypedDict):
    """Stop: the run was cancelled, or nothing follows it any more."""

    attempt: int
    run_id: QualifiedRunId
    session_id: QualifiedSessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["cancel"]


class ToAgentError(TypedDict):
    """A refused message or connection."""

    code: ErrorCode
    # For a person.
    message: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time after which to retry.
    retry_after_ms: NotRequired[int]
    # The same request may succeed later.
    retryable: bool
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["error"]


class ToAgentEvent(TypedDict):
    """A fact about an action of this agent, or of a subscribed type."""

    attempt: int
    epoch: Epoch
    event: Fact
    # The type of the fact.
    name: str
    run_id: QualifiedRunId
    seq: Seq
    session_id: QualifiedSessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToAgentGoAway(TypedDict):
    """The node drains: reconnect after a random delay."""

    # The longest random delay.
    jitter_ms: int
    reason: Literal["drain"]
    # The time within which to reconnect.
    reconnect_within_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["go_away"]


class ToAgentInvokeResume(TypedDict):
    """Send the events after this event again."""

    # Absent: send all events.
    last_event_id: NotRequired[AgentEventId]


class ToAgentInvoke(TypedDict):
    """Answer this input."""

    agent_id: AgentId
    attempt: int
    context: InputContext
    epoch: Epoch
    input_message: Message
    # Earlier messages of the conversation.
    messages: NotRequired[list[Json]]
    # Instead of `messages`: URL of a file with them, read with `run_token`.
    messages_url: NotRequired[str]
    # Send the events after this event again.
    resume: NotRequired[ToAgentInvokeResume]
    run_id: QualifiedRunId
    # Credential of the run for HTTP requests, as `Authorization: Bearer`.
    run_token: NotRequired[str]
    session_id: QualifiedSessionId
    # W3C trace context.
    traceparent: NotRequired[str]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["invoke"]


class ToAgentPong(TypedDict):
    """Answers `ping`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["pong"]


class ToAgentRefreshed(TypedDict):
    """Answers `refresh`: the token is accepted."""

    # The end of the token.
    expires_ts: Timestamp
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["refreshed"]


class ToAgentSteer(TypedDict):
    """Take this input into the running answer."""

    attempt: int
    context: InputContext
    message: Message
    message_id: MessageId
    run_id: QualifiedRunId
    session_id: QualifiedSessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The input's own turn.
    turn_id: QualifiedRunId
    type: Literal["steer"]


class ToAgentSubscribed(TypedDict):
    """Answers `subscribe`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["subscribed"]
    types: list[TypePattern]


class ToAgentWelcomeLimits(TypedDict):
    """The object `ToAgentWelcomeLimits`."""

    max_json_depth: int
    max_json_values: int
    max_message_bytes: int
    # Requests that wait for an answer.
    max_requests: int
    max_subscriptions: int
    # Inputs of one session beside the running one.
    max_waiting_inputs: int


class ToAgentWelcome(TypedDict):
    """Accepts a connection."""

    connection_id: str
    # The end of the token, if it has one.
    expires_ts: NotRequired[Timestamp]
    # The time between two pings of the node.
    heartbeat_ms: int
    limits: ToAgentWelcomeLimits
    node_id: str
    protocol: Literal["turnway.v1"]
    # The time for which history is kept; 0: without limit.
    resume_window_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["welcome"]


class ToClientAccountCapabilitiesValue(TypedDict):
    """The object `ToClientAccountCapabilitiesValue`."""

    # −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full.
    level: int
    # The limit, such as the length of a text.
    max: NotRequired[int]
    # Absent: UTF-16 code units.
    unit: NotRequired[Literal["chars", "utf16", "bytes"]]


class ToClientAccountPausedFieldMisplaced(TypedDict):
    """The part that caused it."""

    # Where the part was sent.
    conversation: Conversation
    delivery_id: DeliveryId
    part: int
    # Where the platform has put it.
    place: Conversation
    session_id: SessionId


class ToClientAccountPausedField(TypedDict):
    """Nothing is sent for the account."""

    # The part that caused it.
    misplaced: NotRequired[ToClientAccountPausedFieldMisplaced]
    # `operator`: by `pause_account`.
    reason: Literal["misplaced", "operator"]
    since: Timestamp


class ToClientAccount(TypedDict):
    """Answers `show_account`."""

    account_id: str
    # Absent, though `served`: its node is of an earlier release.
    capabilities: NotRequired[dict[str, ToClientAccountCapabilitiesValue]]
    channel: str
    # The node of that connection.
    holder_node_id: NotRequired[str]
    # Nothing is sent for the account.
    paused: NotRequired[ToClientAccountPausedField]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # A connection of an adapter has the account's lease.
    served: bool
    # The time since which it has the lease.
    since: NotRequired[Timestamp]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["account"]


class ToClientAccountPausedMisplaced(TypedDict):
    """The part that caused it."""

    # Where the part was sent.
    conversation: Conversation
    delivery_id: DeliveryId
    part: int
    # Where the platform has put it.
    place: Conversation
    session_id: SessionId


class ToClientAccountPaused(TypedDict):
    """Answers `pause_account`."""

    account_id: str
    # `false`: it was paused before, as told here.
    changed: bool
    channel: str
    # The part that caused it.
    misplaced: NotRequired[ToClientAccountPausedMisplaced]
    # `operator`: by `pause_account`.
    reason: Literal["misplaced", "operator"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    since: Timestamp
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["account_paused"]


class ToClientAccountResumed(TypedDict):
    """Answers `resume_account`."""

    account_id: str
    # `false`: it was not paused.
    changed: bool
    channel: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["account_resumed"]


class ToClientBindings(TypedDict):
    """Answers `list_bindings`."""

    bindings: list[Binding]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["bindings"]


class ToClientBindingsUpdated(TypedDict):
    """Answers `touch` and `set_binding_expiry`."""

    bindings: list[Binding]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["bindings_updated"]


class ToClientBound(TypedDict):
    """Answers `bind`."""

    binding: Binding
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["bound"]


class ToClientChildRequested(TypedDict):
    """Answers `bind_child`: the conversation is durably requested."""

    creation_id: MessageId
    # As in `list_deliveries`, until the conversation is bound.
    delivery_id: DeliveryId
    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["child_requested"]


class ToClientDeliveriesDeliveriesItem(TypedDict):
    """The object `ToClientDeliveriesDeliveriesItem`."""

    # Recorded attempts at this part, the first one included.
    attempts: int
    # The place.
    conversation: Conversation
    delivery_id: DeliveryId
    kind: Literal["final", "task_completion", "notice", "farewell", "conversation", "edit", "delete", "reaction"]
    # The part that is sent next, from 1.
    part: int
    parts: int
    # The reason of `failed`.
    reason: NotRequired[Literal["permission", "gone", "invalid", "conflict", "too_many_attempts", "too_old", "too_many",
        "misplaced", "rebound", "dropped", "suppressed", "not_supported", "not_bound"]]
    # The platform's message that it answers.
    reply_to: NotRequired[MessageId]
    requested_ts: Timestamp
    # `held`: an operator or the session's user decides.
    state: Literal["pending", "held", "failed"]
    # The text of this part.
    text: str


class ToClientDeliveries(TypedDict):
    """Answers `list_deliveries`, in the order of the requests."""

    deliveries: list[ToClientDeliveriesDeliveriesItem]
    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["deliveries"]


class ToClientDeliverySettled(TypedDict):
    """Answers `settle_delivery`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["delivery_settled"]


class ToClientDelta(TypedDict):
    """A piece of text; provisional until `done`."""

    attempt: int
    # Absent: the answer.
    kind: NotRequired[Literal["reasoning"]]
    # UTF-8 bytes of the attempt's text of this kind before the piece.
    offset: int
    run_id: RunId
    session_id: SessionId
    text: str
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["delta"]


class ToClientDone(TypedDict):
    """The end of a turn; exactly one."""

    # The attempt whose text counts; 0: none.
    attempt: int
    epoch: Epoch
    # The run that has taken the input.
    host_run_id: NotRequired[RunId]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    status: Literal["completed", "failed", "cancelled"]
    stop_reason: StopReason
    # The length of the answer's text, which counts.
    text_bytes: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["done"]
    # Usage as counted by the agent.
    usage: NotRequired[Json]


class ToClientErrorDetail(TypedDict):
    """The object `ToClientErrorDetail`."""

    # The start of the agent's error; to operators only.
    agent_body: NotRequired[str]
    # The error code of the agent or of a plugin.
    agent_code: NotRequired[str]
    # The agent that could not be added or removed.
    agent_id: NotRequired[AgentId]
    # The change of members.
    tx_id: NotRequired[EventId]


class ToClientError(TypedDict):
    """A refused request, a failed turn or a failed change of members."""

    code: ErrorCode
    # With `not_applied`: the binding that the conversation has.
    current: NotRequired[Binding | None]
    detail: NotRequired[ToClientErrorDetail]
    epoch: NotRequired[Epoch]
    # For a person.
    message: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time after which to retry.
    retry_after_ms: NotRequired[int]
    # The same request may succeed later.
    retryable: bool
    run_id: NotRequired[RunId]
    seq: NotRequired[Seq]
    session_id: NotRequired[SessionId]
    # `true`: the reason that a turn failed.
    terminal: NotRequired[bool]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["error"]


class ToClientEvent(TypedDict):
    """A notice, or a fact of a later release."""

    # The data of the fact; to operators only.
    data: NotRequired[Json]
    epoch: Epoch
    # The name of a notice, or the type of a fact of a later release.
    name: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


# Another member is active from now on.
ToClientEventActiveAgentChanged = TypedDict("ToClientEventActiveAgentChanged", {
    "epoch": "Epoch",
    # The previous active agent.
    "from": "AgentId",
    "name": "Literal['ACTIVE_AGENT_CHANGED']",
    "reason": "str",
    # The id of the request.
    "request_id": "NotRequired[RequestId]",
    # The turn that caused the switch.
    "run_id": "NotRequired[RunId]",
    "seq": "Seq",
    "session_id": "SessionId",
    # The new active agent.
    "to": "AgentId",
    # The cause of the switch.
    "trigger": "Literal['switch_agent', 'invite_agent', 'remove_agent', 'mention', 'handover']",
    # The time of sending; of a fact: the time of the decision.
    "ts": "Timestamp",
    "type": "Literal['event']",
})


class ToClientEventAddingAgent(TypedDict):
    """An agent is about to become a member."""

    agent_id: AgentId
    # The change has ended by then.
    deadline_ts: Timestamp
    epoch: Epoch
    name: Literal["ADDING_AGENT"]
    # In the user's words.
    reason: NotRequired[str]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The change of members.
    tx_id: EventId
    type: Literal["event"]


class ToClientEventAgentAdded(TypedDict):
    """The agent has become a member."""

    agent_id: AgentId
    epoch: Epoch
    name: Literal["AGENT_ADDED"]
    # In the user's words.
    reason: NotRequired[str]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The agent was a member before.
    restored: NotRequired[bool]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The change of members.
    tx_id: EventId
    type: Literal["event"]


class ToClientEventAgentRemoved(TypedDict):
    """The member has left."""

    agent_id: AgentId
    epoch: Epoch
    name: Literal["AGENT_REMOVED"]
    # In the user's words.
    reason: NotRequired[str]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The agent was a member before.
    restored: NotRequired[bool]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The change of members.
    tx_id: EventId
    type: Literal["event"]


class ToClientEventAgentRemoving(TypedDict):
    """A member is about to leave."""

    agent_id: AgentId
    # The change has ended by then.
    deadline_ts: Timestamp
    epoch: Epoch
    name: Literal["AGENT_REMOVING"]
    # In the user's words.
    reason: NotRequired[str]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The change of members.
    tx_id: EventId
    type: Literal["event"]


class ToClientEventAgentStarted(TypedDict):
    """The agent has the input."""

    agent_id: AgentId
    attempt: int
    epoch: Epoch
    name: Literal["AGENT_STARTED"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventBindingBound(TypedDict):
    """A conversation is bound to the session."""

    binding_id: BindingId
    # Unix milliseconds, by the store's clock.
    bound_at: int
    conversation: Conversation
    epoch: Epoch
    # The conversation also gets the answers of clients' turns.
    mirror: NotRequired[bool]
    name: Literal["BINDING_BOUND"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The role of the session.
    target_kind: Literal["session", "subagent", "acp"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventBindingEnded(TypedDict):
    """A conversation is not bound to the session any more."""

    binding_id: BindingId
    conversation: Conversation
    # Unix milliseconds, by the store's clock.
    ended_at: int
    epoch: Epoch
    name: Literal["BINDING_ENDED"]
    reason: Literal["manual", "idle_expired", "max_age_expired", "conversation_archived", "conversation_deleted",
        "session_closed", "rebound", "stale_session"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventCanceled(TypedDict):
    """The run is cancelled."""

    name: Literal["CANCELED"]
    # `user`, `interrupt`, `rollback`, `replaced`, `late_edit` or `session_close`.
    reason: str
    run_id: RunId
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventCancelSent(TypedDict):
    """The agent was told to stop."""

    # The run is cancelled by force by then.
    deadline_ts: Timestamp
    epoch: Epoch
    name: Literal["CANCEL_SENT"]
    # `user`, `interrupt`, `rollback` or `session_close`.
    reason: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventDeliveryFailed(TypedDict):
    """The delivery has ended, not sent or not whole."""

    delivery_id: DeliveryId
    epoch: Epoch
    name: Literal["DELIVERY_FAILED"]
    # From 1.
    part: int
    reason: Literal["permission", "gone", "invalid", "conflict", "too_many_attempts", "too_old", "too_many",
        "misplaced", "rebound", "dropped", "suppressed", "not_supported", "not_bound"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class ToClientEventDeliveryHeld(TypedDict):
    """Nobody knows whether a part was sent; an operator decides."""

    delivery_id: DeliveryId
    epoch: Epoch
    name: Literal["DELIVERY_HELD"]
    # From 1.
    part: int
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class ToClientEventDeliveryRedriven(TypedDict):
    """A held or failed delivery is sent again."""

    delivery_id: DeliveryId
    epoch: Epoch
    name: Literal["DELIVERY_REDRIVEN"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]
    # Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.
    undelivered: int


class ToClientEventDeliveryRefused(TypedDict):
    """The completion of a task is sent nowhere: the router chose no place."""

    # The run that has ended.
    about_run: QualifiedRunId
    epoch: Epoch
    name: Literal["DELIVERY_REFUSED"]
    reason: Literal["requester_match", "only_binding_on_account", "missing_target_session", "no_active_binding",
        "missing_requester", "invalid_requester", "ambiguous", "no_requester_match", "lookup_unavailable"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The conversation that the task came from.
    requester: Conversation
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventDeliverySent(TypedDict):
    """The platform has a part."""

    delivery_id: DeliveryId
    epoch: Epoch
    # The platform's id of the message.
    external_id: MessageId
    name: Literal["DELIVERY_SENT"]
    # From 1.
    part: int
    # With the last part the delivery has ended.
    parts: int
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]
    # As in `delivery.held`; absent: not changed.
    undelivered: NotRequired[int]


# The handover is confirmed.
ToClientEventHandoverConfirmed = TypedDict("ToClientEventHandoverConfirmed", {
    "epoch": "Epoch",
    "from": "AgentId",
    "handover_id": "EventId",
    "name": "Literal['HANDOVER_CONFIRMED']",
    # The id of the request.
    "request_id": "NotRequired[RequestId]",
    "run_id": "NotRequired[RunId]",
    "seq": "Seq",
    "session_id": "SessionId",
    "to": "AgentId",
    # The time of sending; of a fact: the time of the decision.
    "ts": "Timestamp",
    "type": "Literal['event']",
})


# The handover is rejected.
ToClientEventHandoverRejected = TypedDict("ToClientEventHandoverRejected", {
    "epoch": "Epoch",
    "from": "AgentId",
    "handover_id": "EventId",
    "name": "Literal['HANDOVER_REJECTED']",
    "reason": "Literal['refused', 'expired', 'unavailable', 'agent_left', 'session_closed']",
    # The id of the request.
    "request_id": "NotRequired[RequestId]",
    "run_id": "NotRequired[RunId]",
    "seq": "Seq",
    "session_id": "SessionId",
    "to": "AgentId",
    # The time of sending; of a fact: the time of the decision.
    "ts": "Timestamp",
    "type": "Literal['event']",
})


class ToClientEventNoActiveSpeaking(TypedDict):
    """There was nothing to cancel."""

    epoch: Epoch
    name: Literal["NO_ACTIVE_SPEAKING"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventRunRestarted(TypedDict):
    """Another attempt starts."""

    agent_id: AgentId
    attempt: int
    epoch: Epoch
    name: Literal["RUN_RESTARTED"]
    # The reason for the change.
    reason: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventRunResumed(TypedDict):
    """The same attempt continues under another node."""

    agent_id: AgentId
    attempt: int
    epoch: Epoch
    name: Literal["RUN_RESUMED"]
    # The reason for the change.
    reason: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventRunSuspended(TypedDict):
    """A draining node has released the attempt."""

    attempt: int
    epoch: Epoch
    name: Literal["RUN_SUSPENDED"]
    # The reason for the change.
    reason: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventSessionClosing(TypedDict):
    """The session closes."""

    epoch: Epoch
    name: Literal["SESSION_CLOSING"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventSessionLabelled(TypedDict):
    """A user has set or removed the session's label."""

    epoch: Epoch
    # Lists of sessions show the label; empty: none.
    label: str
    name: Literal["SESSION_LABELLED"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventSteerAck(TypedDict):
    """The agent's outcome for a steered input."""

    agent_id: AgentId
    attempt: int
    epoch: Epoch
    # The run that the input was handed to.
    host_run_id: RunId
    name: Literal["STEER_ACK"]
    outcome: Literal["accepted", "pending", "refused"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventTurnAdmitted(TypedDict):
    """The owner's decision on an input."""

    agent_id: AgentId
    epoch: Epoch
    # The run that the input is handed to.
    host_run_id: NotRequired[RunId]
    name: Literal["TURN_ADMITTED"]
    # The number of inputs before this one, if it waits.
    position: NotRequired[int]
    # The run whose position the input takes.
    replaces: NotRequired[RunId]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The owner's decision on the input.
    strategy: Literal["run", "queued", "interrupts", "steered"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventAgentAction(TypedDict):
    """An agent requests an action."""

    data: FactAgentAction
    epoch: Epoch
    name: Literal["agent.action"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventAgentInvokeDone(TypedDict):
    """The agent has finished its answer."""

    data: FactAgentInvokeDone
    epoch: Epoch
    name: Literal["agent.invoke.done"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventAgentStreamDelta(TypedDict):
    """A recorded part of the answer."""

    data: FactAgentStreamDelta
    epoch: Epoch
    name: Literal["agent.stream.delta"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventDeliveryAttempted(TypedDict):
    """A further attempt at a part begins."""

    data: FactDeliveryAttempted
    epoch: Epoch
    name: Literal["delivery.attempted"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventDeliveryRequested(TypedDict):
    """A message is to be sent to a conversation."""

    data: FactDeliveryRequested
    epoch: Epoch
    name: Literal["delivery.requested"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventLlmCallEnded(TypedDict):
    """A call of a model has ended. The run may have ended before."""

    data: FactLlmCallEnded
    epoch: Epoch
    name: Literal["llm.call.ended"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventLlmCallStarted(TypedDict):
    """A call of a model begins."""

    data: FactLlmCallStarted
    epoch: Epoch
    name: Literal["llm.call.started"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventProcessCanceled(TypedDict):
    """The process was cancelled."""

    data: FactProcessCanceled
    epoch: Epoch
    name: Literal["process.canceled"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventProcessExited(TypedDict):
    """The process has ended by itself."""

    data: FactProcessExited
    epoch: Epoch
    name: Literal["process.exited"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventProcessOutputData(TypedDict):
    """The object `ToClientEventProcessOutputData`."""

    action_id: EventId
    data: str
    encoding: Literal["utf8", "base64"]
    # The position of the first byte in the stream.
    offset: int
    stream: Literal["stdout", "stderr"]
    # Output before it was left out.
    truncated: NotRequired[bool]


class ToClientEventProcessOutput(TypedDict):
    """A piece of a process's output; on request, and not logged."""

    data: ToClientEventProcessOutputData
    name: Literal["process.output"]
    # The run that started the process.
    run_id: RunId
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventProcessProgress(TypedDict):
    """The action is in progress."""

    data: FactProcessProgress
    epoch: Epoch
    name: Literal["process.progress"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventProcessSpawned(TypedDict):
    """A process was started."""

    data: FactProcessSpawned
    epoch: Epoch
    name: Literal["process.spawned"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventSystemEvent(TypedDict):
    """An event of a tool runner's machine."""

    data: FactSystemEvent
    epoch: Epoch
    name: Literal["system.event"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientEventTurnGathered(TypedDict):
    """The input becomes part of an earlier one's turn, which starts now."""

    data: FactTurnGathered
    epoch: Epoch
    name: Literal["turn.gathered"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["event"]


class ToClientGoAway(TypedDict):
    """The node drains: reconnect after a random delay."""

    # The longest random delay.
    jitter_ms: int
    reason: Literal["drain"]
    # The time within which to reconnect.
    reconnect_within_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["go_away"]


class ToClientHandover(TypedDict):
    """Answers `handover_decision`."""

    handover_id: EventId
    # The reason of `rejected`.
    reason: NotRequired[Literal["refused", "expired", "unavailable", "agent_left", "session_closed"]]
    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    state: Literal["pending", "confirmed", "rejected"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["handover"]


# An agent requests a handover.
ToClientHandoverPrompt = TypedDict("ToClientHandoverPrompt", {
    # The handover is rejected without a decision by then.
    "deadline_ts": "Timestamp",
    "epoch": "Epoch",
    # The agent that requests the handover.
    "from": "AgentId",
    "handover_id": "EventId",
    "reason": "str",
    # The id of the request.
    "request_id": "NotRequired[RequestId]",
    "run_id": "RunId",
    "seq": "Seq",
    "session_id": "SessionId",
    # Information for the other agent.
    "summary": "str",
    # The agent that is to take over.
    "to": "AgentId",
    # The time of sending; of a fact: the time of the decision.
    "ts": "Timestamp",
    "type": "Literal['handover_prompt']",
})


class ToClientMembers(TypedDict):
    """Answers a request about members, once the change is done or undone."""

    active_agent: NotRequired[AgentId]
    # In order of joining.
    agents: list[AgentId]
    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["members"]


class ToClientMessage(TypedDict):
    """A user's message."""

    # The addressed agent.
    agent_id: NotRequired[AgentId]
    # The same as `message.content`.
    content: Content
    epoch: Epoch
    message: Message
    message_id: MessageId
    # The id of the request.
    request_id: NotRequired[RequestId]
    role: Literal["user"]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["message"]
    user_id: UserId


class ToClientMessageAccepted(TypedDict):
    """Answers `send_message`: the delivery is durably requested."""

    delivery_id: DeliveryId
    message_id: MessageId
    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["message_accepted"]


class ToClientPausedAccountsAccountsItemMisplaced(TypedDict):
    """The part that caused it."""

    # Where the part was sent.
    conversation: Conversation
    delivery_id: DeliveryId
    part: int
    # Where the platform has put it.
    place: Conversation
    session_id: SessionId


class ToClientPausedAccountsAccountsItem(TypedDict):
    """The object `ToClientPausedAccountsAccountsItem`."""

    account_id: str
    channel: str
    # The part that caused it.
    misplaced: NotRequired[ToClientPausedAccountsAccountsItemMisplaced]
    # `operator`: by `pause_account`.
    reason: Literal["misplaced", "operator"]
    since: Timestamp


class ToClientPausedAccounts(TypedDict):
    """Answers `list_paused_accounts`."""

    # In the order of their names.
    accounts: list[ToClientPausedAccountsAccountsItem]
    # The list is full: others may be paused.
    more: bool
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["paused_accounts"]


class ToClientPong(TypedDict):
    """Answers `ping`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["pong"]


class ToClientRefreshed(TypedDict):
    """Answers `refresh`: the token is accepted."""

    # The end of the token.
    expires_ts: Timestamp
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["refreshed"]


class ToClientResolutionsResolutionsItem(TypedDict):
    """The object `ToClientResolutionsResolutionsItem`."""

    # `null`: nobody has bound it.
    binding: Binding | None
    # As the request names it.
    conversation: Conversation


class ToClientResolutions(TypedDict):
    """Answers `resolve` with `conversations`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # In the order of the request.
    resolutions: list[ToClientResolutionsResolutionsItem]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["resolutions"]


class ToClientResolvedCandidatesItem(TypedDict):
    """The object `ToClientResolvedCandidatesItem`."""

    # Its active binding.
    binding: NotRequired[Binding]
    conversation: Conversation
    # Its last binding that ended.
    last_ended: NotRequired[Binding]
    # `moved`: the next candidate is its new id; `parent`: never inherited.
    verdict: Literal["bound", "unbound", "moved", "parent"]


class ToClientResolved(TypedDict):
    """Answers `resolve`."""

    # `null`: nobody has bound it.
    binding: Binding | None
    # Only with `explain`.
    candidates: NotRequired[list[ToClientResolvedCandidatesItem]]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["resolved"]


class ToClientRunStarted(TypedDict):
    """The first attempt begins."""

    agent_id: AgentId
    attempt: int
    epoch: Epoch
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["run_started"]


class ToClientSessionClosed(TypedDict):
    """The session is closed."""

    # Absent in an answer.
    epoch: NotRequired[Epoch]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # Absent in an answer.
    seq: NotRequired[Seq]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["session_closed"]


class ToClientSessionLabelled(TypedDict):
    """Answers `session_label`: the label is durable."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["session_labelled"]


class ToClientSessionOpened(TypedDict):
    """The session is open."""

    active_agent: AgentId | None
    # The members, in order of joining.
    agents: list[AgentId]
    # Absent in an answer.
    epoch: NotRequired[Epoch]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # Absent in an answer.
    seq: NotRequired[Seq]
    session_id: SessionId
    # Only in the answer to `session_open`.
    snapshot: NotRequired[Snapshot]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["session_opened"]


class ToClientState(TypedDict):
    """An intermediate state."""

    detail: NotRequired[Json]
    epoch: Epoch
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    # `agent`: the agent chose the state's name.
    scope: Literal["run", "agent"]
    seq: Seq
    session_id: SessionId
    state: str
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["state"]


class ToClientStream(TypedDict):
    """QUIC and WebTransport: the first message of a stream of text."""

    # The number of messages of the control stream before this stream's first.
    after: int
    attempt: int
    run_id: RunId
    session_id: SessionId
    type: Literal["stream"]


class ToClientSubscribed(TypedDict):
    """Answers `subscribe`."""

    epoch: Epoch
    # Facts up to this position are forgotten.
    floor: NotRequired[Seq]
    # The reason of `reset`.
    reason: NotRequired[Literal["trimmed", "regressed"]]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The cursor is invalid.
    reset: NotRequired[bool]
    seq: Seq
    session_id: SessionId
    snapshot: Snapshot
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["subscribed"]


class ToClientToolEventToolInvoke(TypedDict):
    """A tool runner has started the action."""

    data: FactToolInvoke
    epoch: Epoch
    name: Literal["tool.invoke"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["tool_event"]


class ToClientToolEventToolResult(TypedDict):
    """The action has ended."""

    data: FactToolResult
    epoch: Epoch
    name: Literal["tool.result"]
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: NotRequired[RunId]
    seq: Seq
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["tool_event"]


class ToClientTurnAccepted(TypedDict):
    """The input is durable, and its turn will end exactly once."""

    # The message had been accepted before.
    duplicate: bool
    # The level at which the input is durable.
    durability: Literal["mem", "os", "fsync"]
    message_id: MessageId
    # The id of the request.
    request_id: NotRequired[RequestId]
    run_id: RunId
    session_id: SessionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    # The same as `run_id`.
    turn_id: RunId
    type: Literal["turn_accepted"]


class ToClientUnbound(TypedDict):
    """Answers `unbind`: the bindings that have ended."""

    bindings: list[Binding]
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["unbound"]


class ToClientWelcomeLimits(TypedDict):
    """The object `ToClientWelcomeLimits`."""

    max_json_depth: int
    max_json_values: int
    max_message_bytes: int
    # Requests that wait for an answer.
    max_requests: int
    max_subscriptions: int
    # Inputs of one session beside the running one.
    max_waiting_inputs: int


class ToClientWelcome(TypedDict):
    """Accepts a connection."""

    connection_id: str
    # The end of the token, if it has one.
    expires_ts: NotRequired[Timestamp]
    # The time between two pings of the node.
    heartbeat_ms: int
    limits: ToClientWelcomeLimits
    node_id: str
    protocol: Literal["turnway.v1"]
    # The time for which history is kept; 0: without limit.
    resume_window_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["welcome"]


class ToToolRunnerError(TypedDict):
    """A refused message or connection."""

    code: ErrorCode
    # For a person.
    message: str
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time after which to retry.
    retry_after_ms: NotRequired[int]
    # The same request may succeed later.
    retryable: bool
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["error"]


class ToToolRunnerExecute(TypedDict):
    """Execute this action; for a known action: report its state."""

    action_id: QualifiedActionId
    args: Json
    # The action has ended by then.
    deadline_ts: Timestamp
    run_id: QualifiedRunId
    session_id: QualifiedSessionId
    tenant: TenantId
    tool: ToolName
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["execute"]


class ToToolRunnerGoAway(TypedDict):
    """The node drains: reconnect after a random delay."""

    # The longest random delay.
    jitter_ms: int
    reason: Literal["drain"]
    # The time within which to reconnect.
    reconnect_within_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["go_away"]


class ToToolRunnerPong(TypedDict):
    """Answers `ping`."""

    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["pong"]


class ToToolRunnerQuery(TypedDict):
    """Report the action's state."""

    action_id: QualifiedActionId
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["query"]


class ToToolRunnerRefreshed(TypedDict):
    """Answers `refresh`: the token is accepted."""

    # The end of the token.
    expires_ts: Timestamp
    # The id of the request.
    request_id: NotRequired[RequestId]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["refreshed"]


class ToToolRunnerSignal(TypedDict):
    """The action has ended for the gateway: stop it."""

    action_id: QualifiedActionId
    signal: Literal["KILL"]
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["signal"]


class ToToolRunnerWelcomeLimits(TypedDict):
    """The object `ToToolRunnerWelcomeLimits`."""

    max_json_depth: int
    max_json_values: int
    max_message_bytes: int
    # Requests that wait for an answer.
    max_requests: int
    max_subscriptions: int
    # Inputs of one session beside the running one.
    max_waiting_inputs: int


class ToToolRunnerWelcome(TypedDict):
    """Accepts a connection."""

    connection_id: str
    # The end of the token, if it has one.
    expires_ts: NotRequired[Timestamp]
    # The time between two pings of the node.
    heartbeat_ms: int
    limits: ToToolRunnerWelcomeLimits
    node_id: str
    protocol: Literal["turnway.v1"]
    # The time for which history is kept; 0: without limit.
    resume_window_ms: int
    # The time of sending; of a fact: the time of the decision.
    ts: Timestamp
    type: Literal["welcome"]


class ToolError(TypedDict):
    """The reason that an action failed."""

    code: str
    # For a person.
    message: str


FromAdapter: TypeAlias = (
    FromAdapterHello | FromAdapterCapabilities | FromAdapterInbound | FromAdapterPrepareFiles | FromAdapterDelivered
    | FromAdapterConversationCreated | FromAdapterPing | FromAdapterRefresh
)

FromAgent: TypeAlias = (
    FromAgentHello | FromAgentDelta | FromAgentState | FromAgentAction | FromAgentHandoverRequest | FromAgentDone |
    FromAgentError | FromAgentInputAck | FromAgentCancelAck | FromAgentSteerAck | FromAgentSubscribe | FromAgentPing
    | FromAgentRefresh
)

FromClient: TypeAlias = (
    FromClientHello | FromClientSessionOpen | FromClientSessionClose | FromClientSessionLabel | FromClientSubscribe
    | FromClientUnsubscribe | FromClientAgentInvoke | FromClientCancelRun | FromClientInterrupt |
    FromClientSwitchAgent | FromClientInviteAgent | FromClientRemoveAgent | FromClientHandoverDecision |
    FromClientSettleDelivery | FromClientSendMessage | FromClientListDeliveries | FromClientBind |
    FromClientBindChild | FromClientUnbind | FromClientTouch | FromClientSetBindingExpiry | FromClientResolve |
    FromClientListBindings | FromClientPauseAccount | FromClientResumeAccount | FromClientListPausedAccounts |
    FromClientShowAccount | FromClientPing | FromClientRefresh
)

FromToolRunner: TypeAlias = (
    FromToolRunnerHello | FromToolRunnerInvoked | FromToolRunnerProgress | FromToolRunnerResult |
    FromToolRunnerChunk | FromToolRunnerSystem | FromToolRunnerPing | FromToolRunnerRefresh
)

ToAdapter: TypeAlias = (
    ToAdapterTyping | ToAdapterDeleteMessage | ToAdapterInboundAccepted | ToAdapterFilesPrepared |
    ToAdapterCapabilitiesSet | ToAdapterDeliver | ToAdapterCreateConversation | ToAdapterAdapterState |
    ToAdapterError | ToAdapterWelcome | ToAdapterPong | ToAdapterRefreshed | ToAdapterGoAway
)

ToAgent: TypeAlias = (
    ToAgentInvoke | ToAgentCancel | ToAgentSteer | ToAgentEvent | ToAgentSubscribed | ToAgentError | ToAgentWelcome
    | ToAgentPong | ToAgentRefreshed | ToAgentGoAway
)

ToClient: TypeAlias = (
    ToClientWelcome | ToClientPong | ToClientRefreshed | ToClientGoAway | ToClientTurnAccepted | ToClientSubscribed
    | ToClientMembers | ToClientHandover | ToClientMessageAccepted | ToClientDeliverySettled | ToClientDeliveries |
    ToClientSessionLabelled | ToClientBound | ToClientChildRequested | ToClientUnbound | ToClientBindingsUpdated |
    ToClientBindings | ToClientResolved | ToClientResolutions | ToClientAccountPaused | ToClientAccountResumed |
    ToClientPausedAccounts | ToClientAccount | ToClientSessionOpened | ToClientSessionClosed |
    ToClientHandoverPrompt | ToClientMessage | ToClientRunStarted | ToClientState | ToClientDone | ToClientError |
    ToClientDelta | ToClientStream | ToClientEventTurnAdmitted | ToClientEventSteerAck | ToClientEventAgentStarted |
    ToClientEventRunRestarted | ToClientEventRunResumed | ToClientEventRunSuspended | ToClientEventCancelSent |
    ToClientEventCanceled | ToClientEventAddingAgent | ToClientEventAgentAdded | ToClientEventAgentRemoving |
    ToClientEventAgentRemoved | ToClientEventActiveAgentChanged | ToClientEventHandoverConfirmed |
    ToClientEventHandoverRejected | ToClientEventSessionClosing | ToClientEventSessionLabelled |
    ToClientEventBindingBound | ToClientEventBindingEnded | ToClientEventDeliverySent | ToClientEventDeliveryHeld |
    ToClientEventDeliveryFailed | ToClientEventDeliveryRefused | ToClientEventDeliveryRedriven |
    ToClientEventNoActiveSpeaking | ToClientEventAgentAction | ToClientToolEventToolInvoke |
    ToClientToolEventToolResult | ToClientEventProcessSpawned | ToClientEventProcessProgress |
    ToClientEventProcessExited | ToClientEventProcessCanceled | ToClientEventSystemEvent |
    ToClientEventDeliveryRequested | ToClientEventDeliveryAttempted | ToClientEventLlmCallStarted |
    ToClientEventLlmCallEnded | ToClientEventTurnGathered | ToClientEventAgentStreamDelta |
    ToClientEventAgentInvokeDone | ToClientEventProcessOutput | ToClientEvent
)

ToToolRunner: TypeAlias = (
    ToToolRunnerExecute | ToToolRunnerSignal | ToToolRunnerQuery | ToToolRunnerError | ToToolRunnerWelcome |
    ToToolRunnerPong | ToToolRunnerRefreshed | ToToolRunnerGoAway
)
