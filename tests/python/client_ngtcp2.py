"""A client of `turnway.v1` by ngtcp2 and GnuTLS (tests/c/quic_pipe.c), and by WebSocket in between.

    python client_ngtcp2.py PIPE PORT WSS_PORT CA AGENT      one line for each thing that holds, exit 0 if all do

AGENT must be tests/python/agent_plain.py at a pace that leaves time to disconnect in mid-answer.
"""

import asyncio
import json
import sys
import uuid
from asyncio.subprocess import PIPE, Process

from agent_plain import answer
from client_quic import WAIT, Client, WebSocket


class Ngtcp2:
    """One connection, whose streams are put into one order: text waits for the messages before it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready: list[dict] = []
        self.heads: dict[str, dict] = {}
        self.waiting: dict[str, list[dict]] = {}
        self.ended: set[str] = set()
        self.taken = 0

    @classmethod
    async def open(cls, pipe: str, port: int, ca: str) -> "Ngtcp2":
        process = await asyncio.create_subprocess_exec(pipe, str(port), ca, stdin=PIPE, stdout=PIPE, limit=1 << 20)
        return cls(process)

    async def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def next(self) -> dict:
        while not self.ready:
            line = await asyncio.wait_for(self.process.stdout.readline(), WAIT)
            assert line, "the pipe has ended"
            self.take(*line.decode().rstrip("\n").split(" ", 1))
        return self.ready.pop(0)

    def take(self, stream: str, rest: str) -> None:
        if stream == "closed":
            self.ready.append({"type": "(closed)", "code": int(rest)})
        elif rest == "end":
            self.ended.add(stream)
        elif stream == "0":
            message = json.loads(rest)
            assert message["type"] != "delta", message
            self.taken += 1
            self.ready.append(message)
        elif stream not in self.heads:
            self.heads[stream] = json.loads(rest)
            assert int(stream) % 4 == 3 and self.heads[stream]["type"] == "stream", (stream, rest)
            self.waiting[stream] = []
        else:
            self.waiting[stream].append(json.loads(rest))
        for stream, waiting in self.waiting.items():
            if self.heads[stream]["after"] <= self.taken:
                self.ready += waiting
                waiting.clear()

    async def leave(self) -> None:
        self.process.stdin.close()
        assert await asyncio.wait_for(self.process.wait(), WAIT) == 0


async def a_turn(pipe: str, quic: int, ca: str, agent: str) -> None:
    client = Client(f"turn-{uuid.uuid4().hex[:8]}")
    road = await Ngtcp2.open(pipe, quic, ca)
    await client.hello(road)
    await client.ask(agent, "grüß dich 語")
    await client.until_done()
    expected = "".join(answer("grüß dich 語")).encode()
    assert client.text == expected and client.done["text_bytes"] == len(expected), client.text
    assert len(road.heads) == 1, road.heads
    await road.leave()


async def an_answer_on_both_roads(pipe: str, quic: int, wss: int, ca: str, agent: str) -> None:
    roads = [lambda: Ngtcp2.open(pipe, quic, ca), lambda: WebSocket.open(wss, ca)]
    said = "über 語 𝄞 und zurück. " * 20
    expected = "".join(answer(said)).encode()
    client = Client(f"roads-{uuid.uuid4().hex[:8]}")
    await client.hello(await roads[0]())
    await client.ask(agent, said)
    for part in range(1, 5):
        while len(client.text) < len(expected) * part // 6:
            assert (await client.next())["type"] != "done", "the answer ended before the disconnect"
        await client.road.leave()
        await client.hello(await roads[part % 2]())
    await client.until_done()
    assert client.done["status"] == "completed" and client.text == expected, "the answer is not byte-equal"
    await client.road.leave()


async def what_is_no_hello(pipe: str, quic: int, ca: str) -> None:
    road = await Ngtcp2.open(pipe, quic, ca)
    await road.send({"type": "ping"})
    refused, closed = await road.next(), await road.next()
    assert refused["type"] == "error" and refused["code"] == "unauthorized", refused
    assert closed == {"type": "(closed)", "code": 4401}, closed


async def main() -> None:
    pipe, quic, wss, ca, agent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    await a_turn(pipe, quic, ca, agent)
    print("holds: a turn has its text on a stream of its own")
    await an_answer_on_both_roads(pipe, quic, wss, ca, agent)
    print("holds: an answer begun by QUIC goes on by WebSocket, and back")
    await what_is_no_hello(pipe, quic, ca)
    print("holds: what is no hello is told and closed")


if __name__ == "__main__":
    asyncio.run(main())
