"""A client of `turnway.v1` by WebTransport, written from docs/protocol.md §1.9 with aioquic's HTTP/3; and by other roads
in between. Then what is no such client, and what becomes of it.

    python client_webtransport.py PORT WSS_PORT CA AGENT      one line for each thing that holds, exit 0 if all do

AGENT must be tests/python/agent_plain.py at a pace that leaves time to disconnect in mid-answer.
"""

import asyncio
import json
import sys
import uuid
from contextlib import AsyncExitStack

from aioquic.asyncio.client import connect as connect_quic
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3Connection, encode_frame
from aioquic.h3.events import DataReceived, HeadersReceived, WebTransportStreamDataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived

from agent_plain import answer
from client_quic import WAIT, Client, Protocol, Quic, WebSocket

CLOSE_SESSION = 0x2843
NO_ERROR, FRAME_UNEXPECTED, EXCESSIVE_LOAD, MISSING_SETTINGS = 0x100, 0x105, 0x107, 0x10A


class Http3(Protocol):
    """What comes by HTTP/3: answers, streams of a session, and its last words."""

    control = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.http: H3Connection | None = None
        self.headers: asyncio.Queue = asyncio.Queue()
        self.capsules = b""

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            end = {"type": "(gone)", "code": event.error_code, "reason": event.reason_phrase}
            self.headers.put_nowait(end)
            self.messages.put_nowait(end)
        if isinstance(event, StreamDataReceived) and event.stream_id == self.control:
            # Only who opens a stream says what it is; aioquic expects it of the answer as well.
            return self.stream_received(event.stream_id, event.data, event.end_stream)
        for came in self.http.handle_event(event) if self.http else []:
            if isinstance(came, HeadersReceived):
                self.headers.put_nowait({name.decode(): value.decode() for name, value in came.headers})
            elif isinstance(came, WebTransportStreamDataReceived):
                self.stream_received(came.stream_id, came.data, came.stream_ended)
            elif isinstance(came, DataReceived):
                self.capsules += came.data
                self.last_words()

    def last_words(self) -> None:
        if self.capsules:
            read = Buffer(data=self.capsules)
            kind, length = read.pull_uint_var(), read.pull_uint_var()
            assert kind == CLOSE_SESSION, kind
            code, reason = read.pull_uint32(), read.pull_bytes(length - 4).decode()
            assert read.eof(), "something follows the last words"
            self.messages.put_nowait({"type": "(closed)", "code": code, "reason": reason})


class WebTransport:
    """One session by WebTransport."""

    name = "WebTransport"

    def __init__(self, stack: AsyncExitStack, protocol: Http3) -> None:
        self.stack, self.protocol, self.http = stack, protocol, protocol.http

    @classmethod
    async def reach(cls, port: int, ca: str, is_http: bool = True, window: int = 1024 * 1024) -> "WebTransport":
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=["h3"], server_name="localhost", max_datagram_frame_size=1200,
            max_stream_data=window)
        configuration.load_verify_locations(cafile=ca)
        stack = AsyncExitStack()
        protocol = await stack.enter_async_context(
            connect_quic("127.0.0.1", port, configuration=configuration, create_protocol=Http3))
        if is_http:
            protocol.http = H3Connection(protocol._quic, enable_webtransport=True)
        return cls(stack, protocol)

    def request(self, port: int, *more: tuple[str, str], **pseudo: str) -> None:
        said = {"method": "CONNECT", "scheme": "https", "authority": f"localhost:{port}", "path": "/v1/connect",
                "protocol": "webtransport", **pseudo}
        fields = [(f":{name}", value) for name, value in said.items() if value is not None] + list(more)
        self.stream = self.protocol._quic.get_next_available_stream_id()
        self.http.send_headers(self.stream, [(name.encode(), value.encode()) for name, value in fields])
        self.protocol.transmit()

    async def answer(self) -> dict:
        return await asyncio.wait_for(self.protocol.headers.get(), WAIT)

    def begin(self) -> None:
        self.protocol.control = self.http.create_webtransport_stream(self.stream)

    @classmethod
    async def open(cls, port: int, ca: str, *more: tuple[str, str], **how: int) -> "WebTransport":
        road = await cls.reach(port, ca, **how)
        road.request(port, *more)
        road.said = await road.answer()
        assert road.said[":status"] == "200", road.said
        road.begin()
        return road

    async def send(self, message: dict) -> None:
        text = json.dumps(message).encode()
        self.protocol._quic.send_stream_data(self.protocol.control, len(text).to_bytes(4, "big") + text)
        self.protocol.transmit()

    async def next(self) -> dict:
        return await asyncio.wait_for(self.protocol.messages.get(), WAIT)

    async def leave(self) -> None:
        words = (0).to_bytes(4, "big") + b"bye"
        capsule = encode_uint_var(CLOSE_SESSION) + encode_uint_var(len(words)) + words
        self.http.send_data(self.stream, capsule, True)
        self.protocol.transmit()
        gone = await self.next()
        while gone["type"] != "(gone)":
            gone = await self.next()
        assert gone["code"] == NO_ERROR, gone
        await self.stack.aclose()


async def a_turn(h3: int, ca: str, agent: str, *more: tuple[str, str]) -> None:
    client = Client(f"turn-{uuid.uuid4().hex[:8]}")
    road = await WebTransport.open(h3, ca, *more)
    assert ("wt-protocol" in road.said) == any("protocols" in name for name, _ in more), road.said
    await client.hello(road)
    await client.ask(agent, "grüß dich 語")
    await client.until_done()
    expected = "".join(answer("grüß dich 語")).encode()
    assert client.text == expected and client.done["text_bytes"] == len(expected), client.text
    lanes = [stream for stream in road.protocol.frames if stream % 4 == 3]
    assert len(lanes) == 1 and lanes[0] in road.protocol.ended, (lanes, road.protocol.ended)
    await road.leave()


async def an_answer_on_all_roads(h3: int, wss: int, ca: str, agent: str, first: int) -> None:
    roads = [lambda: WebTransport.open(h3, ca), lambda: WebSocket.open(wss, ca), lambda: Quic.open(h3, ca)]
    said = "über 語 𝄞 und zurück. " * 20
    expected = "".join(answer(said)).encode()
    client = Client(f"roads-{uuid.uuid4().hex[:8]}")
    await client.hello(await roads[first % 3]())
    await client.ask(agent, said)
    for part in range(1, 5):
        while len(client.text) < len(expected) * part // 6:
            assert (await client.next())["type"] != "done", "the answer ended before the disconnect"
        await client.road.leave()
        await client.hello(await roads[(first + part) % 3]())
    await client.until_done()
    assert client.done["status"] == "completed" and client.text == expected, "the answer is not byte-equal"
    await client.road.leave()


async def what_is_no_hello(h3: int, ca: str) -> None:
    road = await WebTransport.open(h3, ca)
    await road.send({"type": "ping"})
    refused, closed, gone = await road.next(), await road.next(), await road.next()
    assert refused["type"] == "error" and refused["code"] == "unauthorized", refused
    assert closed["type"] == "(closed)" and closed["code"] == 4401 and closed["reason"], closed
    assert gone["type"] == "(gone)" and gone["code"] == NO_ERROR, gone
    await road.stack.aclose()


async def what_is_no_session(h3: int, ca: str) -> None:
    for status, more, pseudo in [
        ("404", [], {"path": "/v1/other"}),
        ("405", [], {"method": "GET", "protocol": None}),
        ("501", [], {"protocol": "websocket"}),
        ("400", [], {"scheme": "http"}),
        ("403", [("origin", "https://elsewhere.example")], {}),
        ("403", [("origin", "null")], {}),
        ("403", [], {"authority": "elsewhere.example"}),
        ("403", [("host", "elsewhere.example")], {}),
        ("431", [("x-long", "x" * 17000)], {}),
        ("431", [(f"x-{n}", "1") for n in range(65)], {}),
    ]:
        road = await WebTransport.reach(h3, ca)
        road.request(h3, *more, **pseudo)
        said, gone = await road.answer(), await road.answer()
        assert said.get(":status") == status, (status, said)
        assert gone["type"] == "(gone)" and gone["code"] == NO_ERROR, gone
        await road.stack.aclose()


async def what_is_no_http(h3: int, ca: str) -> None:
    hello = encode_frame(1, b"\x00\x00\xff")
    for code, streams in [
        (MISSING_SETTINGS, {2: b"\x00" + encode_frame(7, b"\x00")}),
        (FRAME_UNEXPECTED, {2: b"\x00" + encode_frame(4, b"") + encode_frame(4, b"")}),
        (FRAME_UNEXPECTED, {0: encode_frame(0, b"body")}),
        (FRAME_UNEXPECTED, {0: encode_uint_var(0x41) + b"\x00"}),
        (0x106, {2: b"\x00" + encode_frame(4, b"\x40")}),
        (0x109, {2: b"\x00" + encode_frame(4, b"\x02\x01")}),
        (EXCESSIVE_LOAD, {2: b"\x00" + encode_frame(4, b"\x21\x00" * 600)}),
        (0x103, {2: b"\x00" + encode_frame(4, b""), 6: b"\x00"}),
        (0x103, {2: b"\x01"}),
        (0x108, {2: b"\x00" + encode_frame(4, b"") + encode_frame(3, b"\x00")}),
        (0x200, {0: hello}),
        (0x201, {2: b"\x02\x3f\xe1\x1f"}),
    ]:
        road = await WebTransport.reach(h3, ca, is_http=False)
        for stream, data in streams.items():
            road.protocol._quic.send_stream_data(stream, data)
        road.protocol.transmit()
        gone = await road.next()
        assert gone["type"] == "(gone)" and gone["code"] == code, (hex(code), streams, gone)
        await road.stack.aclose()


async def who_is_late(h3: int, ca: str) -> None:
    """Nothing, half a request, and a session without a hello or with half of one."""

    async def cut(road: WebTransport, *told: int) -> None:
        began = asyncio.get_running_loop().time()
        for code in told:
            closed = await road.next()
            assert (closed["type"], closed["code"]) == ("(closed)", code), closed
        gone = await road.next()
        assert gone["type"] == "(gone)" and gone["code"] == NO_ERROR, gone
        assert told or gone["reason"] == "no CONNECT request in time", gone
        assert 3 < asyncio.get_running_loop().time() - began < 10, "in time"
        await road.stack.aclose()

    silent = await WebTransport.reach(h3, ca, is_http=False)
    half = await WebTransport.reach(h3, ca)
    half.protocol._quic.send_stream_data(0, b"\x01\x40")
    no_hello, half_hello = [await WebTransport.open(h3, ca) for _ in range(2)]
    half_hello.protocol._quic.send_stream_data(half_hello.protocol.control, b"\x00\x00\x00\x09{")
    for road in (half, half_hello):
        road.protocol.transmit()
    await asyncio.gather(*(cut(road) for road in (silent, half)), *(cut(road, 4408) for road in (no_hello, half_hello)))


async def what_nobody_wants(h3: int, ca: str, agent: str) -> None:
    road = await WebTransport.open(h3, ca)
    client = Client(f"streams-{uuid.uuid4().hex[:8]}")
    await client.hello(road)
    # A stream of the session that a client may not have, one of a kind that nobody knows, and a datagram.
    for kind in (b"\x40\x54\x00of no use", b"\x21of no use"):
        stream = road.protocol._quic.get_next_available_stream_id(is_unidirectional=True)
        road.protocol._quic.send_stream_data(stream, kind, True)
        road.protocol.transmit()
    road.http.send_datagram(road.stream, b"of no use")
    road.protocol.transmit()
    await client.ask(agent, "still here")
    await client.until_done()
    assert client.text == "".join(answer("still here")).encode(), client.text
    await road.leave()


async def main() -> None:
    h3, wss, ca, agent = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    await a_turn(h3, ca, agent)
    print("holds: a turn has its text on a stream of its own")
    await a_turn(h3, ca, agent, ("origin", "http://localhost:3000"), ("wt-available-protocols", '"other", "turnway.v1"'))
    print("holds: a page of this machine is welcome")
    for first in range(3):
        await an_answer_on_all_roads(h3, wss, ca, agent, first)
        print(f"holds: an answer goes on by WebTransport, WebSocket and QUIC, {first}")
    await what_is_no_hello(h3, ca)
    print("holds: what is no hello is told and closed")
    await what_is_no_session(h3, ca)
    print("holds: what is no session is answered with a status")
    await what_is_no_http(h3, ca)
    print("holds: what is no HTTP/3 is called by its name")
    await who_is_late(h3, ca)
    print("holds: who says nothing, or half of it, is cut in time")
    await what_nobody_wants(h3, ca, agent)
    print("holds: what nobody wants disturbs nothing")


if __name__ == "__main__":
    asyncio.run(main())
