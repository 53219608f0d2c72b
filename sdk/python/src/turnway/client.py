"""A client that continues answers at the byte after a lost connection, and never opens a turn twice.

`Client` connects and reconnects; a `Turn` (turn.py) is what an application reads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import OrderedDict
from types import TracebackType
from typing import Any

from turnway.connection import Connection, Message, endpoints, error_of
from turnway.link import Link
from turnway.retry import (
    AccessDenied,
    Backoff,
    ConnectionLost,
    GatewayError,
    HistoryLost,
    TurnwayError,
)
from turnway.running import end
from turnway.turn import (
    Accepted,
    Action,
    Delta,
    Done,
    Event,
    Notice,
    Restarted,
    Started,
    Strategy,
    Turn,
)
from turnway.types import Content

__all__ = [
    "AccessDenied",
    "Accepted",
    "Action",
    "Client",
    "ConnectionLost",
    "Delta",
    "Done",
    "Event",
    "GatewayError",
    "HistoryLost",
    "Notice",
    "Restarted",
    "Session",
    "Started",
    "Turn",
    "TurnwayError",
]

log = logging.getLogger("turnway.client")

# The gateway allows 64 subscriptions on a connection; some are left for one that is just being given up.
SESSIONS_MAX = 60
# The gateway lets 20 inputs of a session wait, and decides itself on those beyond; this bounds the memory.
TURNS_MAX = 64
# An input that is refused for now is repeated for this long; then the refusal is the application's.
REFUSAL_SECONDS = 120.0
# Requests for text that is missing at the end of a run, before the end is told without it.
TEXT_REQUESTS_MAX = 5
# The id of every request to subscribe: their answers need no other name than their session's.
SUBSCRIBE = "subscribe"
# The time within which the first connection must be made.
CONNECT_SECONDS = 30.0


def abort_after_failure(sender: asyncio.Task[None], connection: Connection) -> None:
    """Cuts a connection that nothing is sent on any more, so that the failure does not go unnoticed."""
    if not sender.cancelled():
        connection.abort()


class Session:
    """A session of the gateway at this client: its open turns and its position in the session's log."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.session_id = session_id
        # The last fact that has arrived. Without it a repeated input subscribes from its own first fact.
        self.seq: int | None = None
        self.epoch: int | None = None
        # By message id, in the order of the inputs.
        self.turns: OrderedDict[str, Turn] = OrderedDict()
        # The input that waits for its acceptance: one at a time, so that a refused one is never overtaken.
        self.asked: str | None = None
        self.retry_at = 0.0
        self.backoff = Backoff(first=0.5, longest=15.0)
        self._client = client

    def turn(
        self,
        content: Content,
        *,
        agent: str | None = None,
        strategy: Strategy | None = None,
        message_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Turn:
        """Sends an input, and returns the turn to read the answer from.

        An application that keeps `message_id` may call this again after its own restart: the same message of the same
        user is the same turn, and is answered from its beginning.
        """
        if len(self.turns) >= TURNS_MAX:
            raise GatewayError("too_many_pending", f"{TURNS_MAX} turns of the session are open", retryable=True)
        if not content:
            raise ValueError("the content of a turn must not be empty")
        message_id = message_id or uuid.uuid4().hex
        if message_id in self.turns:
            raise ValueError(f"the message {message_id!r} has an open turn already")
        body: Message = {"type": "agent_invoke", "session_id": self.session_id, "request_id": message_id}
        body["message"] = {"role": "user", "content": content, "message_id": message_id}
        for name, value in (("agent_id", agent), ("strategy", strategy), ("metadata", metadata)):
            if value is not None:
                body[name] = value
        turn = Turn(self.session_id, body, message_id, self._client.wake, self.turn)
        self._client.check_open()
        self._client.hold(self)
        self.turns[message_id] = turn
        self._client.wake()
        return turn

    def subscription(self) -> Message:
        """Returns the request that continues the session where it was."""
        runs = {
            turn.run_id: {"attempt": turn.text_so_far.attempt, "offset": len(turn.text_so_far.data)}
            for turn in self.turns.values()
            if turn.run_id is not None and turn.text_so_far.attempt
        }
        found: Message = {"type": "subscribe", "request_id": SUBSCRIBE, "session_id": self.session_id}
        found |= {"after_seq": self.seq, "runs": runs}
        return found if self.epoch is None else {**found, "after_epoch": self.epoch}

    def turn_of_run(self, run_id: str | None) -> Turn | None:
        """Returns the open turn with a run."""
        return next((turn for turn in self.turns.values() if run_id is not None and turn.run_id == run_id), None)


class Client:
    """A client of one user. Use it as `async with Client(...) as client`.

    `urls` are nodes of one gateway: after a lost connection the next one is tried. In development `user_id` names the
    user; otherwise `api_key` does.
    """

    def __init__(
        self,
        urls: str | list[str],
        *,
        api_key: str | None = None,
        user_id: str | None = None,
        backoff: Backoff | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._urls = endpoints(urls)
        self._hello: Message = {"type": "hello"}
        if api_key is not None:
            self._hello["api_key"] = api_key
        if user_id is not None:
            self._hello["user_id"] = user_id
        self._backoff = backoff or Backoff()
        self._connect_seconds = connect_seconds
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._work = asyncio.Event()
        self._connected = asyncio.Event()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Client:
        self._task = asyncio.create_task(self._stay_connected())
        waiter = asyncio.create_task(self._connected.wait())
        await asyncio.wait([self._task, waiter], timeout=self._connect_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._connected.is_set():
            is_late = not self._task.done()
            await end([waiter, self._task])
            error = ConnectionLost(f"no connection to {', '.join(self._urls)} within {self._connect_seconds} s")
            raise error if is_late or self._failure is None else self._failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            await end([self._task])
        self._fail(ConnectionLost("the client is closed; a turn goes on at the gateway"))

    def session(self, session_id: str | None = None) -> Session:
        """Returns a session of this user; a new one without an id."""
        session_id = session_id or f"s-{uuid.uuid4().hex}"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", session_id):
            raise ValueError(f"the session id {session_id!r} must have 1 to 64 characters of A-Z a-z 0-9 _ -")
        return self._sessions.get(session_id) or Session(self, session_id)

    async def request(self, message: Message) -> Message:
        """Sends any other request, and returns its answer.

        Raises `GatewayError` for an error, and `ConnectionLost` if nobody knows whether the request was performed.
        """
        self.check_open()
        if self._link is None:
            raise ConnectionLost("the client is not connected now")
        return await self._link.request(message)

    # For Session and Turn.

    def check_open(self) -> None:
        """Raises the error that has ended the client."""
        if self._failure is not None:
            raise self._failure
        if self._task is None:
            raise TurnwayError("the client is not connected: use `async with Client(...) as client`")

    def wake(self) -> None:
        """Lets the client look for something to send."""
        self._work.set()

    def hold(self, session: Session) -> None:
        """Remembers a session with an open turn, and gives up one without, if there are too many."""
        if session.session_id not in self._sessions and len(self._sessions) >= SESSIONS_MAX:
            idle = next((other for other in self._sessions.values() if not other.turns), None)
            if idle is None:
                raise GatewayError("over_share", f"{SESSIONS_MAX} sessions have open turns", retryable=True)
            del self._sessions[idle.session_id]
            idle.seq = idle.epoch = None
            if self._link is not None:
                message = {"type": "unsubscribe", "session_id": idle.session_id}
                task = asyncio.ensure_future(self._link.connection.send(message))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._sessions[session.session_id] = session

    # The connection.

    async def _stay_connected(self) -> None:
        number = 0
        try:
            while True:
                least = 0.0
                self._backoff.start()
                try:
                    await self._serve_connection(self._urls[number % len(self._urls)])
                except ConnectionLost as error:
                    log.info("no connection to the gateway: %s", error)
                    least = error.least_wait
                number += 1
                await asyncio.sleep(self._backoff.next_wait(least))
        except TurnwayError as error:
            self._fail(error)

    async def _serve_connection(self, url: str) -> None:
        connection = await Connection.open(url, self._hello)
        link = Link(connection)
        sender: asyncio.Task[None] | None = None
        try:
            await self._resume(connection)
            self._link = link
            self._connected.set()
            sender = asyncio.create_task(self._send(connection))
            sender.add_done_callback(lambda task: abort_after_failure(task, connection))
            async for message in connection.messages():
                if not link.answer(message):
                    await self._handle(connection, message)
        finally:
            self._link = None
            link.end()
            await end([sender] if sender is not None else [])
            await connection.close()

    async def _resume(self, connection: Connection) -> None:
        """Continues the sessions with open turns; forgets the position of the others, which nobody follows now."""
        for session in self._sessions.values():
            session.asked = None
            if not session.turns:
                session.seq = session.epoch = None
            elif session.seq is not None:
                await connection.send(session.subscription())
            else:
                # Nothing of the session has arrived: repeated in order, the inputs subscribe to it.
                for turn in session.turns.values():
                    if turn.run_id is not None:
                        await connection.send(turn.body)
            for turn in session.turns.values():
                turn.cancel_sent = False

    async def _send(self, connection: Connection) -> None:
        """Sends inputs and cancels as they come, and repeats refused inputs after a wait."""
        while True:
            self._work.clear()
            wait: float | None = None
            for session in list(self._sessions.values()):
                wait = await self._send_next(connection, session, wait)
            try:
                async with asyncio.timeout(wait):
                    await self._work.wait()
            except TimeoutError:
                pass

    async def _send_next(self, connection: Connection, session: Session, wait: float | None) -> float | None:
        for turn in list(session.turns.values()):
            if turn.is_cancelled and turn.run_id is not None and not turn.cancel_sent:
                turn.cancel_sent = True
                await connection.send({"type": "cancel_run", "run_id": turn.run_id})
        first = next((turn for turn in session.turns.values() if turn.run_id is None), None)
        if first is None or session.asked is not None:
            return wait
        left = session.retry_at - time.monotonic()
        if left > 0:
            return left if wait is None else min(wait, left)
        session.asked = first.message_id
        try:
            await connection.send(first.body)
        except GatewayError as error:
            self._end_turn(session, first, error)
        return wait

    # What arrives.

    async def _handle(self, connection: Connection, message: Message) -> None:
        session = self._sessions.get(message.get("session_id", ""))
        kind = message["type"]
        if kind == "error" and session is None:
            session = next((one for one in self._sessions.values() if message.get("request_id") in one.turns), None)
        if session is None:
            return
        if kind == "subscribed":
            self._handle_subscribed(session, message)
            return
        seq = message.get("seq")
        if seq is not None and session.seq is not None and seq <= session.seq:
            return
        if kind == "turn_accepted":
            self._handle_accepted(session, message)
        elif kind == "error":
            self._handle_error(session, message)
        elif not self._handle_progress(session, message):
            await connection.send(session.subscription())
            return
        if seq is not None:
            session.seq, session.epoch = seq, message.get("epoch", session.epoch)

    def _handle_accepted(self, session: Session, message: Message) -> None:
        turn = session.turns.get(message.get("request_id", ""))
        if turn is not None:
            turn.accept(message["run_id"], message["duplicate"])
            self._settle_input(session, turn)

    def _settle_input(self, session: Session, turn: Turn) -> None:
        """Lets the next input of the session go."""
        if session.asked == turn.message_id:
            session.asked = None
            session.backoff.reset()
        self.wake()

    def _handle_error(self, session: Session, message: Message) -> None:
        turn = session.turn_of_run(message.get("run_id"))
        if turn is not None and message.get("terminal"):
            turn.note_failure(message)
            return
        error = error_of(message)
        if message.get("request_id") == SUBSCRIBE:
            self._handle_refused_subscription(session, error)
            return
        turn = session.turns.get(message.get("request_id", ""))
        if turn is None or turn.run_id is not None:
            return
        now = time.monotonic()
        turn.refused_since = turn.refused_since or now
        if error.retryable and error.code != "busy" and now - turn.refused_since < REFUSAL_SECONDS:
            session.asked = None
            session.retry_at = now + session.backoff.next_wait(error.retry_after or 0.0)
            self.wake()
            return
        self._end_turn(session, turn, error)

    def _end_turn(self, session: Session, turn: Turn, error: BaseException | None = None) -> None:
        if error is not None:
            turn.fail(error)
        session.turns.pop(turn.message_id, None)
        self._settle_input(session, turn)

    def _handle_subscribed(self, session: Session, message: Message) -> None:
        """Handles the answer to a subscription; after `reset` the session's position and texts are void."""
        if not message.get("reset"):
            return
        open_runs = {run["run_id"] for run in message["snapshot"]["runs"]}
        session.seq = session.epoch = None
        for turn in list(session.turns.values()):
            if message.get("reason") == "regressed":
                # The store has lost facts, perhaps this input: sent again, it is the same turn if it is still there.
                turn.void()
            elif turn.run_id is not None and turn.run_id not in open_runs:
                lost = HistoryLost(f"the end of the turn {turn.run_id} is no longer in the session's log")
                self._end_turn(session, turn, lost)
        session.asked = None
        self.wake()

    def _handle_refused_subscription(self, session: Session, error: GatewayError) -> None:
        if error.retryable:
            raise ConnectionLost(f"the session {session.session_id} cannot be continued now: {error}")
        # The session does not exist any more: the inputs open it again.
        session.seq = session.epoch = None
        session.asked = None
        for turn in session.turns.values():
            turn.void()
        self.wake()

    def _handle_progress(self, session: Session, message: Message) -> bool:
        """Hands a message to its turn. Returns False if text is missing that must be asked for."""
        kind = message["type"]
        if kind == "message":
            turn = session.turns.get(message.get("message_id", ""))
            if turn is not None and message.get("request_id") == turn.message_id and "run_id" in message:
                # The turn's facts may come before the answer to a repeated input.
                turn.accept(message["run_id"], False)
                self._settle_input(session, turn)
            return True
        turn = session.turn_of_run(message.get("run_id"))
        if turn is None:
            return True
        if kind == "delta":
            return turn.take_delta(message) or not self._may_ask(turn)
        if kind == "done":
            if turn.misses_text(message) and self._may_ask(turn):
                return False
            turn.end(message)
            self._end_turn(session, turn)
            return True
        if kind == "run_started" or message.get("name") == "RUN_RESTARTED":
            turn.begin(message["attempt"])
        if kind == "run_started":
            turn.add(Started(message["agent_id"], message["attempt"]))
        elif kind == "tool_event":
            turn.add(Action(message["name"], message.get("data")))
        elif kind in ("event", "state"):
            turn.add(Notice(str(message.get("name", kind)), message))
        return True

    def _may_ask(self, turn: Turn) -> bool:
        turn.text_requests += 1
        return turn.text_requests <= TEXT_REQUESTS_MAX

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        for session in self._sessions.values():
            for turn in session.turns.values():
                turn.fail(error)
            session.turns.clear()
