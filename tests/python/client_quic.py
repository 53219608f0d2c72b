"""A client of `turnway.v1` by QUIC, written from docs/protocol.md §1.8 with aioquic; and by WebSocket in between.

    python client_quic.py PORT WSS_PORT CA AGENT      one line for each thing that holds, exit 0 if all do

AGENT must be tests/python/agent_plain.py at a pace that leaves time to disconnect in mid-answer.
"""

import asyncio
import json
import ssl
import sys
import time
import uuid
from contextlib import AsyncExitStack

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio.client import connect as connect_quic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from websockets.asyncio.client import connect as connect_websocket

from agent_plain import answer

WAIT = 30


class Frames:
    """Length and JSON."""

    def __init__(self) -> None:
        self.bytes = b""

    def take(self, data: bytes) -> list[dict]:
        self.bytes += data
        whole = []
        while len(self.bytes) >= 4:
            length = int.from_bytes(self.bytes[:4], "big")
            if len(self.bytes) < 4 + length:
                break
            whole.append(json.loads(self.bytes[4:4 + length]))
            self.bytes = self.bytes[4 + length:]
        return whole


class Protocol(QuicConnectionProtocol):
    """Puts the streams into one order: text waits for the messages before it."""

    control = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.messages: asyncio.Queue = asyncio.Queue()
        self.frames: dict[int, Frames] = {}
        self.taken = 0
        self.heads: dict[int, dict] = {}
        self.waiting: dict[int, list[dict]] = {}
        self.ended: set[int] = set()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.messages.put_nowait({"type": "(closed)", "code": event.error_code, "reason": event.reason_phrase})
        if isinstance(event, StreamDataReceived):
            self.stream_received(event.stream_id, event.data, event.end_stream)

    def stream_received(self, stream_id: int, data: bytes, is_end: bool) -> None:
        frames = self.frames.setdefault(stream_id, Frames())
        for message in frames.take(data):
            if stream_id == self.control:
                assert message["type"] != "delta", message
                self.taken += 1
                self.messages.put_nowait(message)
            elif stream_id not in self.heads:
                assert stream_id % 4 == 3 and message["type"] == "stream", (stream_id, message)
                self.heads[stream_id] = message
                self.waiting[stream_id] = []
            else:
                head = self.heads[stream_id]
                assert message["type"] == "delta", message
                assert all(message[k] == head[k] for k in ("session_id", "run_id", "attempt")), (head, message)
                self.waiting[stream_id].append(message)
        if is_end:
            assert frames.bytes == b"", "a stream ends within a message"
            self.ended.add(stream_id)
        for stream, waiting in self.waiting.items():
            if self.heads[stream]["after"] <= self.taken:
                for message in waiting:
                    self.messages.put_nowait(message)
                waiting.clear()


class Quic:
    """One connection by QUIC."""

    name = "QUIC"

    def __init__(self, stack: AsyncExitStack, protocol: Protocol) -> None:
        self.stack, self.protocol = stack, protocol
        stream = protocol._quic.get_next_available_stream_id()
        assert stream == 0, stream

    @classmethod
    async def open(cls, port: int, ca: str) -> "Quic":
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["turnway/1"], server_name="localhost")
        configuration.load_verify_locations(cafile=ca)
        stack = AsyncExitStack()
        protocol = await stack.enter_async_context(
            connect_quic("127.0.0.1", port, configuration=configuration, create_protocol=Protocol))
        return cls(stack, protocol)

    async def send(self, message: dict) -> None:
        text = json.dumps(message).encode()
        self.protocol._quic.send_stream_data(0, len(text).to_bytes(4, "big") + text)
        self.protocol.transmit()

    async def next(self) -> dict:
        return await asyncio.wait_for(self.protocol.messages.get(), WAIT)

    async def leave(self) -> None:
        await self.stack.aclose()


class WebSocket:
    """One connection by WebSocket."""

    name = "WebSocket"

    def __init__(self, socket: object) -> None:
        self.socket = socket

    @classmethod
    async def open(cls, port: int, ca: str) -> "WebSocket":
        trust = ssl.create_default_context(cafile=ca)
        return cls(await connect_websocket(f"wss://localhost:{port}/v1/connect", subprotocols=["turnway.v1"], ssl=trust))

    async def send(self, message: dict) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> dict:
        return json.loads(await asyncio.wait_for(self.socket.recv(), WAIT))

    async def leave(self) -> None:
        await self.socket.close()


class Client:
    """What one user has seen of one session, by whatever roads."""

    def __init__(self, session: str) -> None:
        self.session, self.facts, self.text = session, [], b""
        self.run: str | None = None
        self.attempt = 0
        self.done: dict | None = None

    async def hello(self, road: Quic | WebSocket, **more: object) -> None:
        self.road = road
        resume = []
        if self.facts:
            last = self.facts[-1]
            runs = {self.run: {"attempt": self.attempt, "offset": len(self.text)}} if self.attempt else {}
            resume = [{"session_id": self.session, "after_seq": last["seq"], "after_epoch": last["epoch"], "runs": runs}]
        await self.send("hello", user_id="ann", resume=resume, **more)
        welcome = await road.next()
        assert welcome["type"] == "welcome" and welcome["protocol"] == "turnway.v1", welcome

    async def send(self, kind: str, **fields: object) -> None:
        await self.road.send({"type": kind, "ts": int(time.time() * 1000), **fields})

    async def next(self) -> dict:
        message = await self.road.next()
        assert message["type"] not in ("(closed)", "error"), message
        if message["type"] == "delta":
            if message["attempt"] != self.attempt:
                self.attempt, self.text = message["attempt"], b""
            assert message["offset"] == len(self.text), ("a gap or a repeat", message["offset"], len(self.text))
            self.text += message["text"].encode()
        if "seq" in message and "snapshot" not in message:
            assert not self.facts or message["seq"] > self.facts[-1]["seq"], ("a fact twice or out of order", message)
            self.facts.append(message)
        if message["type"] == "turn_accepted":
            self.run = message["run_id"]
        if message["type"] == "done":
            self.done = message
        return message

    async def ask(self, agent: str, text: str) -> None:
        await self.send("agent_invoke", request_id=uuid.uuid4().hex, session_id=self.session, agent_id=agent,
                        message={"role": "user", "content": text})
        while self.run is None:
            await self.next()

    async def until_done(self) -> None:
        # It may overtake text that is under way in its stream.
        while self.done is None or len(self.text) < self.done["text_bytes"]:
            await self.next()


async def a_turn(quic: int, ca: str, agent: str, **more: object) -> None:
    client = Client(f"turn-{uuid.uuid4().hex[:8]}")
    road = await Quic.open(quic, ca)
    await client.hello(road, **more)
    await client.ask(agent, "grüß dich 語")
    await client.until_done()
    expected = "".join(answer("grüß dich 語")).encode()
    assert client.text == expected and client.done["text_bytes"] == len(expected), client.text
    lanes = [stream for stream in road.protocol.frames if stream != 0]
    assert len(lanes) == 1 and lanes[0] in road.protocol.ended, (lanes, road.protocol.ended)
    await road.leave()


async def without_streams(quic: int, ca: str, agent: str) -> None:
    road = await Quic.open(quic, ca)
    road.protocol.quic_event_received = plain(road.protocol)
    client = Client(f"plain-{uuid.uuid4().hex[:8]}")
    await client.hello(road, streams=False)
    await client.ask(agent, "all on one")
    await client.until_done()
    assert client.text == "".join(answer("all on one")).encode(), client.text
    await road.leave()


def plain(protocol: Protocol):
    frames = Frames()

    def received(event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            assert event.stream_id == 0, event.stream_id
            for message in frames.take(event.data):
                protocol.messages.put_nowait(message)

    return received


async def an_answer_on_both_roads(quic: int, wss: int, ca: str, agent: str, first: int) -> None:
    roads = [lambda: Quic.open(quic, ca), lambda: WebSocket.open(wss, ca)]
    said = "über 語 𝄞 und zurück. " * 20
    expected = "".join(answer(said)).encode()
    client = Client(f"roads-{uuid.uuid4().hex[:8]}")
    await client.hello(await roads[first % 2]())
    await client.ask(agent, said)
    for part in range(1, 5):
        while len(client.text) < len(expected) * part // 6:
            assert (await client.next())["type"] != "done", "the answer ended before the disconnect"
        await client.road.leave()
        await client.hello(await roads[(first + part) % 2]())
    await client.until_done()
    assert client.done["status"] == "completed" and client.text == expected, "the answer is not byte-equal"
    await client.road.leave()


async def what_is_no_hello(quic: int, ca: str) -> None:
    road = await Quic.open(quic, ca)
    await road.send({"type": "ping"})
    refused, closed = await road.next(), await road.next()
    assert refused["type"] == "error" and refused["code"] == "unauthorized", refused
    assert closed["type"] == "(closed)" and closed["code"] == 4401, closed


async def main() -> None:
    quic, wss, ca, agent = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    await a_turn(quic, ca, agent)
    print("holds: a turn has its text on a stream of its own")
    await without_streams(quic, ca, agent)
    print("holds: without streams all comes on one")
    await an_answer_on_both_roads(quic, wss, ca, agent, 0)
    print("holds: an answer begun by QUIC goes on by WebSocket, and back")
    await an_answer_on_both_roads(quic, wss, ca, agent, 1)
    print("holds: an answer begun by WebSocket goes on by QUIC, and back")
    await what_is_no_hello(quic, ca)
    print("holds: what is no hello is told and closed")


if __name__ == "__main__":
    asyncio.run(main())
