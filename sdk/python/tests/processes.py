"""Real processes of the tests: a node, the platform rooms.py, and other scripts. Each is ended by its own id."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ROOT / "examples" / "rooms" / "rooms.py"
# A debug build of the node starts within some seconds, also on a busy machine.
READY_SECONDS = 30.0
WAIT_SECONDS = 45.0
LOOK_SECONDS = 0.02


def node_binary() -> str:
    """Returns the node's binary; fails the test without one, because a test that is left out proves nothing."""
    binary = os.environ.get("TURNWAY_BIN", "")
    if not os.access(binary, os.X_OK):
        pytest.fail(f"TURNWAY_BIN is {binary!r}: set it to the binary of the node")
    return binary


async def wait_until(condition: Any, seconds: float = WAIT_SECONDS, name: str = "the condition") -> Any:
    """Returns the first true result of `condition`, which may be a coroutine function."""
    result = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                result = await result if asyncio.iscoroutine(result) else result
                if result:
                    return result
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        pytest.fail(f"{name} did not hold within {seconds} s; last: {result!r}")


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Runs a coroutine during a test and cancels it at the end. A failure of it fails the test."""
    task = asyncio.create_task(work)
    try:
        yield task
        if task.done() and not task.cancelled():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


class Script:
    """A running program whose lines on stdout can be awaited."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *command: str, **environment: str) -> None:
        # Nodes refuse unknown variables TURNWAY_….
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TURNWAY_")}
        self.process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=inherited | environment
        )

    async def line(self, pattern: str) -> re.Match[str]:
        """Returns the first line on stdout that matches."""
        assert self.process is not None and self.process.stdout is not None
        seen: list[str] = []
        async with asyncio.timeout(READY_SECONDS):
            while text := (await self.process.stdout.readline()).decode():
                seen.append(text)
                if found := re.search(pattern, text):
                    return found
        pytest.fail(f"the program ended without {pattern!r}: {seen}")

    async def kill(self) -> None:
        """Ends the program as `kill -9` does."""
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Sends a signal, waits for the end, and returns the exit code."""
        if self.process is None:
            return None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.process.wait()


class Node(Script):
    """A node with its own directory. A restart uses the same address, so that clients find it again."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__()
        self.directory = directory
        self.arguments = arguments
        self.address = "127.0.0.1:0"

    async def run(self) -> None:
        command = [node_binary(), "serve", "--listen", self.address, "--quic", "off", "--admin", "127.0.0.1:0"]
        await self.start(*command, "--store", f"embedded:{self.directory}", *self.arguments)
        found = await self.line(r"^turnway ready .*?http=(?:http://)?([0-9.:]+)")
        self.address = found[1]

    @property
    def url(self) -> str:
        return f"ws://{self.address}"


class Rooms(Script):
    """The platform rooms.py."""

    url = ""

    async def run(self) -> None:
        await self.start(sys.executable, str(ROOMS), "0")
        self.url = (await self.line(r"^rooms: (\S+)"))[1]

    async def ask(self, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._ask, path, body)

    def _ask(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    async def say(self, room: str, text: str, sender: str = "ann") -> int:
        return int((await self.ask(f"/rooms/{room}", {"sender": sender, "text": text}))["id"])

    async def journal(self) -> list[dict[str, Any]]:
        return list((await self.ask("/journal"))["lines"])

    async def answers(self, count: int) -> list[dict[str, Any]]:
        """Returns the lines of the bot once there are as many."""

        async def enough() -> list[dict[str, Any]] | None:
            lines = await self.journal()
            return lines if len(lines) >= count else None

        return list(await wait_until(enough, name=f"{count} answers"))


@asynccontextmanager
async def started(*programs: Any) -> AsyncIterator[None]:
    """Runs programs in order, and kills them at the end, the last one first."""
    try:
        for program in programs:
            await program.run()
        yield
    finally:
        for program in reversed(programs):
            await program.kill()
