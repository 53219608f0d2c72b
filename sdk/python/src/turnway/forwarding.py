"""A window of updates on their way to the gateway: in order within a conversation, and the offset behind all of them.

The offset that is saved never passes an update without a final answer. Used by adapter.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from turnway.inbound import Settled, Update

# A quarter of the requests that a node takes from one connection at a time; others of the connection find room.
WINDOW_MAX = 16

Forward = Callable[[Update], Awaitable[Settled]]
Save = Callable[[Settled], Awaitable[None]]


class Entry:
    """An update in the window."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.settled: Settled | None = None
        self.is_answered = asyncio.Event()


class Window:
    """The updates without a final answer. `add` waits while the window is full."""

    def __init__(self, forward: Forward, save: Save, limit: int = WINDOW_MAX) -> None:
        if not 1 <= limit <= WINDOW_MAX:
            raise ValueError(f"a window of {limit} updates: the limit must be from 1 to {WINDOW_MAX}")
        self._forward = forward
        self._save = save
        self._room = asyncio.Semaphore(limit)
        self._entries: deque[Entry] = deque()
        # The last entry of each conversation with entries in the window.
        self._last: dict[str, Entry] = {}
        self._saving = asyncio.Lock()

    async def add(self, update: Update, tasks: asyncio.TaskGroup) -> None:
        """Takes the next update of the platform's stream, once there is room for it."""
        await self._room.acquire()
        entry = Entry(update)
        conversation = update.inbound.conversation_id if update.inbound else ""
        previous = self._last.get(conversation) if update.inbound else None
        self._entries.append(entry)
        self._last[conversation] = entry
        tasks.create_task(self._settle(entry, conversation, previous))

    async def _settle(self, entry: Entry, conversation: str, previous: Entry | None) -> None:
        if previous is not None:
            await previous.is_answered.wait()
        entry.settled = await self._forward(entry.update)
        entry.is_answered.set()
        if self._last.get(conversation) is entry:
            del self._last[conversation]
        async with self._saving:
            await self._advance()

    async def _advance(self) -> None:
        """Saves the offset behind the answered updates at the beginning of the window."""
        newest: Settled | None = None
        count = 0
        while self._entries and self._entries[0].settled is not None:
            newest = self._entries.popleft().settled
            count += 1
        if newest is not None:
            await self._save(newest)
        for _ in range(count):
            self._room.release()
