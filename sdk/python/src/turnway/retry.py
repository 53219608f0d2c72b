"""Errors of the gateway and of platforms, and the waits between attempts. Used by the adapter and by the client.

Nothing here opens a connection.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

# The class of an error of a platform. The gateway repeats a part after the first three, and gives it up otherwise.
ErrorClass: TypeAlias = Literal["transient", "rate_limit", "auth", "permission", "gone", "invalid", "conflict"]

# Close codes after which another attempt would end in the same way (docs/protocol.md, close codes).
FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 4400, 4401, 4403, 4409, 4413})
# The gateway limits the rate of connections: an early attempt only extends the limit.
RATE_LIMIT_CLOSE_CODE = 4429
RATE_LIMIT_WAIT_SECONDS = 5.0

STATUS_CLASSES: dict[int, ErrorClass] = {
    401: "auth",
    403: "permission",
    404: "gone",
    408: "transient",
    409: "conflict",
    410: "gone",
    425: "transient",
    429: "rate_limit",
}


class TurnwayError(Exception):
    """An error of this package. Every other error class here is derived from it."""


class ConnectionLost(TurnwayError):
    """A connection to the gateway that failed or ended, and that may be opened again."""

    def __init__(self, reason: str, close_code: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.close_code = close_code
        # Seconds to wait before another connection, if the gateway has named a time.
        self.retry_after = retry_after

    @property
    def least_wait(self) -> float:
        """Returns the seconds to wait at least before another connection."""
        least = RATE_LIMIT_WAIT_SECONDS if self.close_code == RATE_LIMIT_CLOSE_CODE else 0.0
        return max(least, self.retry_after or 0.0)


class AccessDenied(TurnwayError):
    """A connection that the gateway refuses for good, for example with close code 4401 or 4403."""

    def __init__(self, reason: str, close_code: int) -> None:
        super().__init__(f"{reason} (close code {close_code})")
        self.close_code = close_code


class GatewayError(TurnwayError):
    """A request or a turn that the gateway has answered with `error`."""

    def __init__(
        self, code: str, message: str = "", *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable
        # Seconds to wait before another attempt, if the gateway names a time.
        self.retry_after = retry_after


class HistoryLost(TurnwayError):
    """A turn whose end can no longer be received, because the session's log does not reach back to it."""


class NotSent(TurnwayError):
    """A part that has certainly not reached the platform, for example because no connection could be opened."""

    def __init__(self, proof: str) -> None:
        if not proof:
            raise ValueError("NotSent needs a proof: say why the platform cannot have the message")
        super().__init__(proof)
        self.proof = proof


class Rejected(TurnwayError):
    """A part that the platform has refused. `code` decides whether the gateway repeats the part."""

    def __init__(self, code: ErrorClass, retry_after: float | None = None) -> None:
        if code not in get_args(ErrorClass):
            raise ValueError(f"{code!r} is no error class: use one of {', '.join(get_args(ErrorClass))}")
        if retry_after is not None and not 0 <= retry_after < float("inf"):
            raise ValueError(f"retry_after is {retry_after} s: it must be 0 or more, and finite")
        super().__init__(code)
        self.code: ErrorClass = code
        self.retry_after = retry_after

    @classmethod
    def by_status(cls, status: int, retry_after: str | None = None) -> Rejected:
        """Returns the error for an HTTP status, with the value of the header `Retry-After` if it is in seconds."""
        fallback: ErrorClass = "transient" if status >= 500 else "invalid"
        return cls(STATUS_CLASSES.get(status, fallback), parse_retry_after(retry_after))


def parse_retry_after(value: str | None) -> float | None:
    """Returns the seconds of a `Retry-After` header; None without one, or if the header is a date."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


@dataclass
class Backoff:
    """The waits between attempts: doubled by each failure, each random between half and the whole.

    The first wait lets a node that restarts come up. The longest wait bounds the time that a user waits for an
    adapter after an outage of the gateway; a fleet of adapters does not come back at one moment because of the jitter.
    """

    first: float = 0.25
    longest: float = 15.0
    # Lifetime in seconds from which a connection counts as good: the gateway may close a new connection at once.
    stable_after: float = 10.0
    failures: int = 0
    _started: float = 0.0

    def start(self) -> None:
        """Records the time at which an attempt begins."""
        self._started = time.monotonic()

    def next_wait(self, at_least: float = 0.0) -> float:
        """Returns the seconds to wait after a failure."""
        if self._started and time.monotonic() - self._started >= self.stable_after:
            self.failures = 0
        # The exponent is bounded, so that a long outage does not overflow.
        whole = min(self.longest, self.first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return at_least + random.uniform(whole / 2, whole)

    def reset(self) -> None:
        """Forgets the failures."""
        self.failures = 0
