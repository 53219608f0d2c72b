"""Orders that an adapter is working on: their limit, repeated orders, and the outcome of each. Used by adapter.py.

It decides what the gateway is told about an attempt; it does not know how a platform is called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnway.connection import Message
from turnway.retry import NotSent, Rejected

log = logging.getLogger("turnway.adapter")

# The gateway has at most 64 parts at an adapter. More orders than this come only from a gateway that is broken.
WAITING_MAX = 256
# As many as a node remembers of an account, so that neither asks again what the other still knows.
REMEMBERED_MAX = 4096
# An order that comes twice comes within this time: a session's owner repeats it every 3 s. Later, the same number is a
# new attempt, because an operator's `retry` counts from 1 again.
REPEAT_SECONDS = 5.0
# The gateway calls a part without an answer unknown after 60 s; this is the last moment to say so ourselves.
ATTEMPT_SECONDS = 55.0

Outcome = Message
Report = Callable[[Outcome], Awaitable[None]]
Perform = Callable[[], Awaitable[Outcome]]


@dataclass
class Attempt:
    """The last attempt at a part, and its outcome once there is one."""

    number: int
    task: asyncio.Task[Outcome]
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.task.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[Outcome]) -> None:
        self.ended = time.monotonic()

    def settles(self, number: int) -> bool:
        """Returns whether the outcome answers an order with this number, too."""
        if not self.task.done():
            return True
        if self.task.cancelled():
            return False
        if self.task.result()["outcome"] in ("sent", "created"):
            return True
        return self.number == number and time.monotonic() - self.ended < REPEAT_SECONDS


class Deliveries:
    """The orders of one account. One attempt at a part runs at a time, however often the part is ordered."""

    def __init__(self, limit: int, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        if not 1 <= limit <= WAITING_MAX:
            raise ValueError(f"{limit} deliveries at a time: the limit must be from 1 to {WAITING_MAX}")
        self._slots = asyncio.Semaphore(limit)
        self._attempt_seconds = attempt_seconds
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._reports: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def take(self, order: Message, perform: Perform, report: Report) -> None:
        """Starts an attempt, or joins the one that answers this order as well, and reports the outcome."""
        key = f"{order['type']} {order['key']}"
        attempt = self._attempts.get(key)
        if attempt is None or not attempt.settles(order["attempt"]):
            if self._is_stopping or len(self._reports) >= WAITING_MAX:
                proof = "the adapter is stopping" if self._is_stopping else "too many deliveries wait in the adapter"
                self._add_report(report({"outcome": "not_sent", "proof": proof}))
                return
            attempt = Attempt(order["attempt"], asyncio.create_task(self._attempt(order, perform)))
            self._attempts[key] = attempt
            self._forget_oldest()
        self._attempts.move_to_end(key)
        self._add_report(self._report(attempt.task, report))

    async def stop(self, seconds: float) -> None:
        """Refuses new orders as not sent, and waits until those that run are reported."""
        self._is_stopping = True
        if self._reports:
            await asyncio.wait(self._reports, timeout=seconds)

    def cancel(self) -> None:
        """Ends everything that still runs, without a report: the gateway then regards it as unknown."""
        for attempt in self._attempts.values():
            attempt.task.cancel()
        for report in self._reports:
            report.cancel()

    def _forget_oldest(self) -> None:
        while len(self._attempts) > REMEMBERED_MAX:
            oldest = next((key for key, attempt in self._attempts.items() if attempt.task.done()), None)
            if oldest is None:
                return  # WAITING_MAX bounds those that run
            del self._attempts[oldest]

    def _add_report(self, report: Awaitable[None]) -> None:
        task = asyncio.ensure_future(report)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, attempt: asyncio.Task[Outcome], report: Report) -> None:
        # Several orders may wait for one attempt, so that the end of one of them must not cancel it.
        await report(await asyncio.shield(attempt))

    async def _attempt(self, order: Message, perform: Perform) -> Outcome:
        async with self._slots:
            left = order["deadline_ts"] / 1000 - time.time()
            if left <= 0:
                return {"outcome": "not_sent", "proof": "the deadline has passed"}
            outcome = await self._outcome(perform, min(left, self._attempt_seconds))
        log.info("%s: delivery %s, part %s", outcome["outcome"], order["delivery_id"], order.get("part", 1))
        return outcome

    async def _outcome(self, perform: Perform, seconds: float) -> Outcome:
        """Returns the outcome of one attempt. An error that proves nothing is `unknown`, never `not_sent`."""
        try:
            async with asyncio.timeout(seconds):
                return await perform()
        except NotSent as error:
            return {"outcome": "not_sent", "proof": error.proof}
        except Rejected as error:
            wait = {} if error.retry_after is None else {"retry_after_ms": int(error.retry_after * 1000)}
            return {"outcome": "rejected", "code": error.code, **wait}
        except Exception:
            log.exception("the platform may have the message")
            return {"outcome": "unknown"}
