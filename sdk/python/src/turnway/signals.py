"""Typing and previews: in order within a conversation, never repeated, and dropped rather than queued without bound.

Used by adapter.py. The gateway expects no answer to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from turnway.connection import Message

log = logging.getLogger("turnway.adapter")

# A conversation has one typing state and one preview with its removal in each turn; a queue of so many means that the
# platform does not answer, and old signals are worth nothing then.
WAITING_MAX = 16
# As many conversations as a node remembers of a connection.
CONVERSATIONS_MAX = 1024
SIGNAL_SECONDS = 30.0

Perform = Callable[[Message], Awaitable[None]]


def slot_of(message: Message) -> str:
    """Returns the name under which a later signal takes the place of a waiting one."""
    if message["type"] == "typing":
        return "typing"
    return f"{'delete' if message['type'] == 'delete_message' else 'preview'} {message['key']}"


class Signals:
    """The signals of an account. Each conversation has a lane; one signal of a lane is performed at a time."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._waiting: dict[str, OrderedDict[str, Message]] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}

    def add(self, message: Message) -> None:
        """Queues a signal. A newer preview replaces a waiting one, and a removal drops it."""
        lane = message["conversation"]["conversation_id"]
        if lane not in self._waiting and len(self._waiting) >= CONVERSATIONS_MAX:
            log.warning("signals of more than %d conversations wait: one is dropped", CONVERSATIONS_MAX)
            return
        waiting = self._waiting.setdefault(lane, OrderedDict())
        if message["type"] == "delete_message":
            waiting.pop(f"preview {message['key']}", None)
        waiting[slot_of(message)] = message
        if len(waiting) > WAITING_MAX:
            waiting.popitem(last=False)
        if lane not in self._lanes:
            self._lanes[lane] = asyncio.create_task(self._work(lane, waiting))

    def cancel(self) -> None:
        """Drops everything that waits."""
        for task in self._lanes.values():
            task.cancel()

    async def _work(self, lane: str, waiting: OrderedDict[str, Message]) -> None:
        try:
            while waiting:
                _, message = waiting.popitem(last=False)
                try:
                    async with asyncio.timeout(SIGNAL_SECONDS):
                        await self._perform(message)
                except Exception as error:
                    log.info("%s was not shown: %r", message["type"], error)
        finally:
            del self._waiting[lane]
            del self._lanes[lane]
