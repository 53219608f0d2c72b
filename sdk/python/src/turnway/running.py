"""Tasks that run together: the first failure ends all of them. Used by adapter.py."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until it ends or the event is set; in the second case `work` is cancelled."""
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await end([task, waiter])


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` in a new event loop. SIGTERM and Ctrl-C cancel it, so that it can end its open work."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await work

    with suppress(asyncio.CancelledError):
        asyncio.run(main())
