"""Waits and error classes."""

import pytest

from turnway.retry import Backoff, ConnectionLost, NotSent, Rejected


def test_waits_double_with_jitter_up_to_the_longest() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for whole in (1, 2, 4, 8, 8, 8):
        assert whole / 2 <= backoff.next_wait() <= whole
    assert 5 + 4 <= backoff.next_wait(at_least=5) <= 5 + 8


def test_long_outage_does_not_overflow() -> None:
    assert Backoff(failures=10_000).next_wait() <= 15


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid"), (401, "auth"), (403, "permission"), (404, "gone"), (409, "conflict"), (410, "gone"),
     (429, "rate_limit"), (418, "invalid"), (500, "transient"), (503, "transient"), (408, "transient")],
)  # fmt: skip
def test_status_decides_the_class(status: int, code: str) -> None:
    assert Rejected.by_status(status).code == code


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("2", 2.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("nan", None),
     ("inf", None)],
)  # fmt: skip
def test_retry_after_is_read_in_seconds(header: str | None, seconds: float | None) -> None:
    assert Rejected.by_status(429, header).retry_after == seconds


def test_bad_error_is_refused() -> None:
    with pytest.raises(ValueError, match="no error class"):
        Rejected("oops")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a proof"):
        NotSent("")


def test_lost_connection_has_a_least_wait() -> None:
    assert ConnectionLost("gone").least_wait == 0
    assert ConnectionLost("too many", 4429).least_wait == 5
    assert ConnectionLost("too many", 4429, 9.5).least_wait == 9.5
