"""A gateway for the tests of adapters: in this process, on a real WebSocket, with faults that a test chooses.

It speaks the adapter's part of `turnway.v1` and stores nothing. It is no model of the gateway's decisions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve

from turnway.connection import SUBPROTOCOL, Message

# A test that waits longer than this has found a fault, or waits for something that never comes.
WAIT_SECONDS = 10.0
NODE_ID = "0" * 32
DEADLINE_SECONDS = 3600.0
OUTCOMES = ("sent", "not_sent", "unknown", "rejected")
ERROR_CLASSES = ("transient", "rate_limit", "auth", "permission", "gone", "invalid", "conflict")


def now_ms() -> int:
    """Returns the time in Unix milliseconds."""
    return int(time.time() * 1000)


@dataclass(frozen=True)
class Answer:
    """The way in which one inbound event is answered. Without a fault it is accepted at once."""

    # The event does not arrive: it is not recorded, and there is no answer.
    lose: bool = False
    # The event is recorded, and the answer is lost.
    drop: bool = False
    # The answer comes twice.
    duplicate: bool = False
    # Seconds before the answer. Later answers overtake it.
    delay: float = 0.0
    # The answer waits for `FakeGateway.release`.
    hold: bool = False
    # The connection is cut, after the answer if there is one.
    disconnect: bool = False
    # An `error` with this code instead of the acceptance.
    error: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


@dataclass(frozen=True)
class Order:
    """An order that was given to the adapter."""

    message: Message
    received: list[Message]
    changed: asyncio.Condition

    async def reports(self, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Message]:
        """Returns the reports about the order once there are as many."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(lambda: len(self.received) >= count)
        return list(self.received)

    async def report(self, seconds: float = WAIT_SECONDS) -> Message:
        """Returns the first report about the order."""
        return (await self.reports(1, seconds))[0]


@dataclass
class Peer:
    """A connected adapter."""

    socket: ServerConnection
    hello: Message
    state: str = "standby"

    async def send(self, message: Message) -> None:
        """Sends a message to the adapter; one whose connection is gone gets nothing."""
        try:
            await self.socket.send(json.dumps({"ts": now_ms(), **message}))
        except websockets.ConnectionClosed:
            pass


@dataclass
class Recorded:
    """The messages that adapters have sent, in order of arrival."""

    inbound: list[Message] = field(default_factory=list)
    capabilities: list[Message] = field(default_factory=list)
    reports: list[Message] = field(default_factory=list)
    hellos: list[Message] = field(default_factory=list)
    # Messages that the protocol does not allow, with the reason. A test should find none.
    violations: list[str] = field(default_factory=list)


class FakeGateway:
    """A gateway that a test controls. Use it as `async with FakeGateway() as gateway`."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        # Close code and error code for the next `hello`, such as (4401, "unauthorized").
        self.refusal: tuple[int, str] | None = None
        self._server: Server | None = None
        self._peers: list[Peer] = []
        self._answers: deque[Answer] = deque()
        self._held: list[Callable[[], Any]] = []
        self._orders: dict[tuple[str, int], Order] = {}
        self._changed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._seen: set[tuple[str, str, str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeGateway:
        self._server = await serve(
            self._serve, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], close_timeout=1
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Returns the address for `Adapter.run`."""
        assert self._server is not None, "the gateway is not started: use `async with FakeGateway() as gateway`"
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # What a test controls.

    def script(self, *answers: Answer) -> None:
        """Chooses the answers to the next inbound events. After them, events are accepted at once."""
        self._answers.extend(answers)

    def release(self, *, reverse: bool = False) -> None:
        """Sends the answers that were held, on request in reverse order."""
        for send in reversed(self._held) if reverse else self._held:
            send()
        self._held.clear()

    async def set_state(self, state: str, *, paused: bool = False) -> None:
        """Gives the lease (`active`) to the last adapter or takes it away (`standby`)."""
        peer = await self.adapter()
        peer.state = state
        extra = {"paused": {"reason": "operator", "since": now_ms()}} if paused else {}
        await peer.send({"type": "adapter_state", "state": state, "holder_node_id": NODE_ID, **extra})

    async def go_away(self, jitter_ms: int = 0) -> None:
        """Tells the adapter that the node drains."""
        message = {"type": "go_away", "reason": "drain", "reconnect_within_ms": 5000, "jitter_ms": jitter_ms}
        await (await self.adapter()).send(message)

    async def disconnect(self) -> None:
        """Cuts every connection, without a closing handshake."""
        for peer in self._peers:
            peer.socket.transport.abort()
        await self.wait_for(lambda: not self._peers)

    async def close(self, code: int) -> None:
        """Closes the connection of the adapter with a code."""
        await (await self.adapter()).socket.close(code)

    async def adapter(self, connections: int = 1) -> Peer:
        """Returns the last connected adapter, once as many connections were made in all."""
        await self.wait_for(lambda: bool(self._peers) and len(self.recorded.hellos) >= connections)
        return self._peers[-1]

    async def wait_for(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Returns once a condition about the recorded messages holds."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError as error:
            seen = ", ".join(f"{name} {len(found)}" for name, found in vars(self.recorded).items())
            raise TimeoutError(f"the condition did not hold within {seconds} s; recorded: {seen}") from error

    async def wait_inbound(self, count: int) -> list[Message]:
        """Returns the recorded inbound events once there are as many. Repeated ones count."""
        await self.wait_for(lambda: len(self.recorded.inbound) >= count)
        return list(self.recorded.inbound)

    async def deliver(self, text: str, conversation_id: str = "lobby", *, times: int = 1, **fields: Any) -> Order:
        """Orders a part. `fields` replaces fields of the order; `times` above 1 repeats the order."""
        return await self._order({"type": "deliver", "kind": "final", "text": text, **fields}, conversation_id, times)

    async def create_conversation(self, name: str, parent_id: str = "lobby", *, times: int = 1, **fields: Any) -> Order:
        """Orders a conversation within another one."""
        return await self._order({"type": "create_conversation", "name": name, **fields}, parent_id, times)

    async def send(self, message: Message) -> None:
        """Sends any message to the last adapter, such as `typing`."""
        await (await self.adapter()).send(message)

    async def place(self, conversation_id: str) -> Message:
        """Returns a conversation of the adapter's account."""
        hello = (await self.adapter()).hello
        return {"channel": hello["channel"], "account_id": hello["account_id"], "conversation_id": conversation_id}

    async def _order(self, message: Message, conversation_id: str, times: int) -> Order:
        number = next(self._numbers)
        is_part = message["type"] == "deliver"
        message = {
            "delivery_id": f"d{number}",
            "attempt": 1,
            "key": f"k{number}",
            "deadline_ts": now_ms() + int(DEADLINE_SECONDS * 1000),
            ("conversation" if is_part else "parent"): await self.place(conversation_id),
            **({"part": 1, "parts": 1} if is_part else {}),
            **message,
        }
        key = (message["delivery_id"], message.get("part", 1))
        order = Order(message, self._orders[key].received if key in self._orders else [], self._changed)
        self._orders[key] = order
        for _ in range(times):
            await self.send(message)
        return order

    # The connection of an adapter.

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            hello: Message = json.loads(await socket.recv())
            await self._record(self.recorded.hellos, hello)
            if self.refusal is not None:
                code, error = self.refusal
                await socket.send(json.dumps({"type": "error", "ts": now_ms(), "code": error, "message": "refused"}))
                await socket.close(code)
                return
            peer = await self._welcome(socket, hello)
            try:
                async for text in socket:
                    await self._handle(peer, json.loads(text))
            finally:
                self._peers.remove(peer)
                await self._notify()
        except websockets.ConnectionClosed:
            pass

    async def _welcome(self, socket: ServerConnection, hello: Message) -> Peer:
        for name in ("channel", "account_id", "capabilities"):
            if hello.get("type") != "hello" or hello.get("role") != "adapter" or name not in hello:
                self.recorded.violations.append(f"hello without {name}: {hello}")
        peer = Peer(socket, hello)
        await peer.send({"type": "welcome", "protocol": SUBPROTOCOL, "connection_id": "fake", "node_id": NODE_ID})
        holder = next((other for other in self._peers if other.state == "active"), None)
        if holder is None or holder.hello.get("instance_id") == hello.get("instance_id"):
            peer.state = "active"
            if holder is not None:
                holder.state = "standby"
                await holder.send({"type": "adapter_state", "state": "standby"})
        await peer.send({"type": "adapter_state", "state": peer.state, "holder_node_id": NODE_ID})
        self._peers.append(peer)
        await self._notify()
        return peer

    async def _handle(self, peer: Peer, message: Message) -> None:
        match message.get("type"):
            case "inbound":
                await self._handle_inbound(peer, message)
            case "capabilities":
                await peer.send({"type": "capabilities_set", "request_id": message.get("request_id")})
                await self._record(self.recorded.capabilities, message)
            case "delivered" | "conversation_created":
                await self._handle_report(message)
            case "ping":
                await peer.send({"type": "pong", "request_id": message.get("request_id")})
            case "prepare_files":
                await self._refuse(peer, message, "not_supported", "the fake gateway takes no files")
            case kind:
                self.recorded.violations.append(f"a message of type {kind!r}")
                await self._refuse(peer, message, "invalid_message", "unknown type")

    async def _refuse(self, peer: Peer, message: Message, code: str, reason: str) -> None:
        error = {"type": "error", "code": code, "message": reason, "retryable": False}
        await peer.send({**error, "request_id": message.get("request_id")})

    async def _handle_inbound(self, peer: Peer, message: Message) -> None:
        answer = self._answers.popleft() if self._answers else Answer()
        if peer.state != "active":
            self.recorded.violations.append("inbound while on standby")
        if not answer.lose:
            self._start(self._answer(peer, message, answer))
            await self._record(self.recorded.inbound, message)
        if answer.disconnect and (answer.lose or answer.drop):
            peer.socket.transport.abort()

    async def _answer(self, peer: Peer, message: Message, answer: Answer) -> None:
        reply: Message = {"type": "error", "code": answer.error, "message": "a fault", "retryable": answer.retryable}
        if answer.retry_after_ms is not None:
            reply["retry_after_ms"] = answer.retry_after_ms
        if answer.error is None:
            inner = message["message"]
            name = (message.get("event", "message"), inner["message_id"], inner.get("edit_id", ""))
            seen = (message["conversation"]["conversation_id"], *name)
            reply = {"type": "inbound_accepted", "disposition": "run", "duplicate": seen in self._seen}
            self._seen.add(seen)
        if answer.drop:
            return
        reply["request_id"] = message.get("request_id")
        if answer.hold:
            self._held.append(lambda: self._start(peer.send(reply)))
            await self._notify()
            return
        if answer.delay:
            await asyncio.sleep(answer.delay)
        for _ in range(2 if answer.duplicate else 1):
            await peer.send(reply)
        if answer.disconnect:
            peer.socket.transport.abort()

    @property
    def held(self) -> int:
        """Returns the number of answers that are held."""
        return len(self._held)

    async def _handle_report(self, message: Message) -> None:
        outcome = message.get("outcome")
        allowed = OUTCOMES if message["type"] == "delivered" else ("created", "not_created", "unknown", "rejected")
        if outcome not in allowed:
            self.recorded.violations.append(f"the outcome {outcome!r}")
        if outcome == "rejected" and message.get("code") not in ERROR_CLASSES:
            self.recorded.violations.append(f"rejected with the code {message.get('code')!r}")
        if outcome == "sent" and not (message.get("external_id") and message.get("place")):
            self.recorded.violations.append("sent without external_id or place")
        order = self._orders.get((str(message.get("delivery_id")), message.get("part", 1)))
        if order is None:
            self.recorded.violations.append(f"a report about an unknown part: {message}")
        else:
            order.received.append(message)
        await self._record(self.recorded.reports, message)

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record(self, where: list[Message], message: Message) -> None:
        where.append(message)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
