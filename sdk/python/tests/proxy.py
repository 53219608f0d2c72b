"""A WebSocket proxy between a client and a real node, which loses or repeats chosen messages."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

Verdict = Literal["pass", "cut before", "cut after", "twice", "lose"]
Judge = Callable[[str, dict[str, Any]], Verdict]


class Proxy:
    """A proxy to one node. `judge` is asked about each message, with `up` (to the node) or `down`."""

    def __init__(self, target: str, judge: Judge) -> None:
        self.target = target
        self.judge = judge
        self.connections = 0
        # A blocked proxy accepts no connection.
        self.is_blocked = False
        self.verdicts: list[Verdict] = []
        self.open: set[ServerConnection] = set()

    async def __aenter__(self) -> "Proxy":
        self.server = await serve(
            self.handle, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol("turnway.v1")], close_timeout=1
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        await self.server.wait_closed()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Cuts every connection."""
        for socket in self.open:
            socket.transport.abort()

    async def handle(self, client: ServerConnection) -> None:
        if self.is_blocked:
            client.transport.abort()
            return
        self.connections += 1
        self.open.add(client)
        try:
            with suppress(OSError, websockets.WebSocketException):
                protocols = [websockets.Subprotocol("turnway.v1")]
                address = f"{self.target}/v1/connect"
                async with connect(address, subprotocols=protocols, max_size=None, proxy=None) as node:
                    ways = [self.copy(client, node, "up"), self.copy(node, client, "down")]
                    tasks = [asyncio.create_task(way) for way in ways]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
        finally:
            self.open.discard(client)
            client.transport.abort()

    async def copy(self, source: Any, target: Any, way: str) -> None:
        with suppress(websockets.ConnectionClosed):
            async for text in source:
                verdict = self.judge(way, json.loads(text))
                if verdict != "pass":
                    self.verdicts.append(verdict)
                if verdict not in ("cut before", "lose"):
                    await target.send(text)
                if verdict == "twice":
                    await target.send(text)
                if verdict.startswith("cut"):
                    return
