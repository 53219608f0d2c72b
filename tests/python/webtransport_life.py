"""How sessions by WebTransport begin and end where somebody else decides: a test drives it and reads what it says.

    python webtransport_life.py PORT CA last KEY        `welcome`, then what the node says until it has hung up
    python webtransport_life.py PORT CA guess N         N bad keys one after the other, then how the next session begins
    python webtransport_life.py PORT CA crowd N KEY     N sessions, then how the next connection ends
    python webtransport_life.py PORT CA stall N TEXT    `welcome`, then an answer of agent `a` to TEXT in each of N sessions, of which
                                                        nothing is read; then what the node says until it has hung up
"""

import asyncio
import sys

from client_quic import WAIT, Client
from client_webtransport import WebTransport

PAGE = ("origin", "http://localhost:3000")


def say(*words: object) -> None:
    print(*words, flush=True)


async def last(port: int, ca: str, key: str) -> None:
    road = await WebTransport.open(port, ca, PAGE)
    await Client("last").hello(road, api_key=key)
    say("welcome")
    kind = ""
    while kind != "(gone)":
        message = await road.next()
        kind = message["type"]
        say(kind, *(message[name] for name in ("code", "reason") if name in message and kind != "error"))


async def guess(port: int, ca: str, count: str) -> None:
    for _ in range(int(count)):
        road = await WebTransport.open(port, ca, PAGE)
        await road.send({"type": "hello", "api_key": "tw_no"})
        refused, closed = await road.next(), await road.next()
        assert refused["code"] == "unauthorized" and closed["code"] == 4401, (refused, closed)
        await road.stack.aclose()
    road = await WebTransport.reach(port, ca)
    road.request(port, PAGE)
    said, gone = await road.answer(), await road.answer()
    say(said[":status"], int(gone["code"]))


async def crowd(port: int, ca: str, count: str, key: str) -> None:
    inside = [await WebTransport.open(port, ca) for _ in range(int(count))]
    for road in inside:
        await Client("crowd").hello(road, api_key=key)
    outside = await WebTransport.reach(port, ca)
    gone = await outside.answer()
    say(gone["type"], int(gone["code"]))


async def stall(port: int, ca: str, count: str, text: str) -> None:
    road = await WebTransport.open(port, ca, window=64 * 1024)
    # Streams are granted what they are granted at first, and never more: nobody reads them.
    road.protocol._quic._write_stream_limits = lambda **_: None
    await Client("stall").hello(road)
    say("welcome")
    for n in range(int(count)):
        await road.send({"type": "agent_invoke", "session_id": f"s{n}", "agent_id": "a",
                         "message": {"role": "user", "content": text}})
    kind = ""
    while kind != "(gone)":
        # Longer than a node waits for somebody who takes nothing.
        message = await asyncio.wait_for(road.protocol.messages.get(), 2 * WAIT)
        kind = message["type"]
        if kind.startswith("("):
            say(kind, *(message[name] for name in ("code", "reason") if name in message))


async def main() -> None:
    port, ca, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    await {"last": last, "guess": guess, "crowd": crowd, "stall": stall}[what](port, ca, *sys.argv[4:])


if __name__ == "__main__":
    asyncio.run(main())
