"""A turn of a client: its events, and its text put together from pieces. Used by client.py.

Nothing here sends or receives: client.py hands in what has arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from turnway.connection import Message, error_of
from turnway.retry import GatewayError, TurnwayError
from turnway.types import Content

# Events of a turn that the application has not taken. Pieces of text in a row are one event, so that this bounds an
# answer that nobody reads; beyond it the oldest notices and states are left out, which the end does not depend on.
EVENTS_MAX = 1024
# The gateway's own limit for an answer is 4 MiB.
TEXT_BYTES_MAX = 8 * 1024 * 1024

Strategy: TypeAlias = Literal["steer", "enqueue", "interrupt", "rollback", "reject"]


@dataclass(frozen=True)
class Accepted:
    """The input is durable: the turn ends exactly once, whatever crashes."""

    run_id: str
    duplicate: bool


@dataclass(frozen=True)
class Started:
    """An agent begins to answer."""

    agent_id: str
    attempt: int


@dataclass(frozen=True)
class Delta:
    """A further piece of the text: new, in order, once. Provisional until `Done`."""

    text: str
    # Bytes of UTF-8 of the attempt's text before the piece.
    offset: int
    attempt: int
    kind: Literal["answer", "reasoning"] = "answer"


@dataclass(frozen=True)
class Restarted:
    """Another attempt begins: the text of the turn so far is void."""

    # 0 if the gateway has lost the turn, and the input is sent once more.
    attempt: int


@dataclass(frozen=True)
class Action:
    """A tool has started (`tool.invoke`) or ended (`tool.result`) for the agent."""

    name: str
    data: Any


@dataclass(frozen=True)
class Notice:
    """Any other message about the turn, such as `TURN_ADMITTED` or a state of the agent."""

    name: str
    message: Message


@dataclass(frozen=True)
class Done:
    """The end of the turn."""

    status: Literal["completed", "failed", "cancelled"]
    stop_reason: str
    # The whole answer, cut at `text_bytes`.
    text: str
    text_bytes: int
    attempt: int
    # False only if the gateway could not deliver the rest of the text any more.
    is_complete: bool
    usage: Any = None
    # The reason of a failed turn.
    error: GatewayError | None = None
    # The run that a steered input became part of.
    host_run_id: str | None = None


Event: TypeAlias = Accepted | Started | Delta | Restarted | Action | Notice | Done


def is_notice(event: Event) -> bool:
    """Returns whether an event only informs."""
    return isinstance(event, Notice)


def is_no_answer(event: Event) -> bool:
    """Returns whether an event has nothing of the answer's text and is not its end."""
    return not isinstance(event, Done) and not (isinstance(event, Delta) and event.kind == "answer")


class RunText:
    """The text of a run's present attempt, as bytes of UTF-8."""

    def __init__(self) -> None:
        self.attempt = 0
        self.data = bytearray()
        self.reasoning_bytes = 0

    def begin(self, attempt: int) -> bool:
        """Begins a later attempt with an empty text. Returns whether that voids text."""
        if attempt <= self.attempt:
            return False
        voids = self.attempt > 0
        self.attempt = attempt
        self.data = bytearray()
        self.reasoning_bytes = 0
        return voids

    def add(self, offset: int, text: str) -> tuple[int, str] | None:
        """Adds a piece; returns the offset and text of what is new, or None if text before the piece is missing."""
        have = len(self.data)
        piece = text.encode("utf-8", "replace")
        if offset > have:
            return None
        new = piece[have - offset :]
        if len(self.data) + len(new) > TEXT_BYTES_MAX:
            raise TurnwayError(f"an answer of more than {TEXT_BYTES_MAX} bytes")
        self.data += new
        return have, new.decode("utf-8", "replace")

    def add_reasoning(self, offset: int, text: str) -> tuple[int, str]:
        """Returns what is new of a piece of reasoning, which is not kept and cannot be resumed."""
        piece = text.encode("utf-8", "replace")
        start = max(offset, self.reasoning_bytes)
        new = piece[start - offset :]
        self.reasoning_bytes = max(self.reasoning_bytes, offset + len(piece))
        return start, new.decode("utf-8", "replace")


class Turn:
    """One input and its answer: an async iterator of events, whose last one is `Done`.

    Raises `GatewayError` if the input is refused. A failed turn is no exception but a `Done` with `error`.
    """

    def __init__(
        self, session_id: str, body: Message, message_id: str, wake: Callable[[], None], steer: Callable[..., Turn]
    ) -> None:
        self.session_id = session_id
        # The same for every repetition, so that the gateway runs the input once.
        self.message_id = message_id
        self.run_id: str | None = None
        self.is_cancelled = False
        # Of client.py: the present connection has carried the cancel.
        self.cancel_sent = False
        self.body = body
        self.text_so_far = RunText()
        self.error: GatewayError | None = None
        self.done: Done | None = None
        # Of client.py: requests for missing text, and the time at which the first refusal came.
        self.text_requests = 0
        self.refused_since: float | None = None
        self._failure: BaseException | None = None
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._wake = wake
        self._steer = steer

    # For the application.

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._failure is not None:
                raise self._failure
            if self.done is not None:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    async def result(self) -> Done:
        """Reads all events and returns the last one."""
        async for _ in self:
            pass
        assert self.done is not None
        return self.done

    async def text(self) -> str:
        """Returns the whole answer. Raises `GatewayError` if the turn has failed."""
        done = await self.result()
        if done.status == "failed":
            raise done.error or GatewayError("internal_error", "the turn has failed without a reason")
        return done.text

    def cancel(self) -> None:
        """Cancels the turn. Its events end with a `Done` whose status is `cancelled`, if it has not ended before."""
        self.is_cancelled = True
        self._wake()

    def steer(self, content: Content) -> Turn:
        """Says something to the running agent. What the agent does not take becomes the next turn."""
        return self._steer(content, strategy="steer")

    # For client.py.

    @property
    def is_open(self) -> bool:
        """Returns whether the end of the turn has not arrived."""
        return self.done is None and self._failure is None

    def add(self, event: Event) -> None:
        """Appends an event for the application."""
        self._events.append(event)
        self._join(len(self._events) - 1)
        if len(self._events) > EVENTS_MAX:
            self._leave_out()
        self._arrived.set()

    def _join(self, index: int) -> None:
        """Makes one event of two pieces of text in a row, the second of which is at the index."""
        if not 0 < index < len(self._events):
            return
        first, second = self._events[index - 1], self._events[index]
        if isinstance(first, Delta) and isinstance(second, Delta):
            if (first.attempt, first.kind) == (second.attempt, second.kind):
                self._events[index - 1] = Delta(first.text + second.text, first.offset, first.attempt, first.kind)
                del self._events[index]

    def _leave_out(self) -> None:
        """Drops the oldest event that the answer does not depend on."""
        for is_dropped in (is_notice, is_no_answer):
            for index, event in enumerate(self._events):
                if is_dropped(event):
                    del self._events[index]
                    self._join(index)
                    return

    def fail(self, error: BaseException) -> None:
        """Ends the turn with an exception, which is raised behind the events that have arrived."""
        if self.is_open:
            self._failure = error
            self._arrived.set()

    def accept(self, run_id: str, duplicate: bool) -> None:
        """Records that the input is durable."""
        if self.run_id is None:
            self.run_id = run_id
            self.add(Accepted(run_id, duplicate))

    def begin(self, attempt: int) -> None:
        """Records that an attempt begins."""
        if self.text_so_far.begin(attempt):
            self.add(Restarted(attempt))

    def void(self) -> None:
        """Records that the gateway has lost the turn: the input is sent once more."""
        self.run_id = None
        if self.text_so_far.attempt:
            self.text_so_far = RunText()
            self.add(Restarted(0))

    def take_delta(self, message: Message) -> bool:
        """Adds a piece of text. Returns False if text before it is missing."""
        attempt, offset = message["attempt"], message["offset"]
        self.begin(attempt)
        if attempt < self.text_so_far.attempt:
            return True
        if message.get("kind") == "reasoning":
            start, new = self.text_so_far.add_reasoning(offset, message["text"])
            if new:
                self.add(Delta(new, start, attempt, "reasoning"))
            return True
        added = self.text_so_far.add(offset, message["text"])
        if added is not None and added[1]:
            self.add(Delta(added[1], added[0], attempt))
        return added is not None

    def misses_text(self, message: Message) -> bool:
        """Returns whether text of the answer that `done` names has not arrived."""
        if message["attempt"] == 0 or message["text_bytes"] == 0:
            return False
        is_other: bool = message["attempt"] != self.text_so_far.attempt
        has_less: bool = message["text_bytes"] > len(self.text_so_far.data)
        return is_other or has_less

    def end(self, message: Message) -> None:
        """Ends the turn with `done`."""
        is_complete = not self.misses_text(message)
        data = self.text_so_far.data if message["attempt"] == self.text_so_far.attempt else bytearray()
        if self.error is None and message["status"] == "failed":
            self.error = GatewayError("internal_error", str(message.get("stop_reason", "")))
        done = Done(
            status=message["status"],
            stop_reason=message["stop_reason"],
            text=bytes(data[: message["text_bytes"]]).decode("utf-8", "replace"),
            text_bytes=message["text_bytes"],
            attempt=message["attempt"],
            is_complete=is_complete,
            usage=message.get("usage"),
            error=self.error if message["status"] == "failed" else None,
            host_run_id=message.get("host_run_id"),
        )
        self.add(done)
        self.done = done
        self._arrived.set()

    def note_failure(self, message: Message) -> None:
        """Keeps the `error` that comes before the end of a failed turn."""
        self.error = error_of(message)
