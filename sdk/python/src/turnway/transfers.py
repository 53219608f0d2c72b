"""The bytes of files between an adapter and the gateway: one HTTP request each. Used by files.py and uploads.py.

The token goes into a header and to the gateway only: never into a URL, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from turnway.connection import endpoint
from turnway.retry import ConnectionLost, parse_retry_after

# The gateway ends a transfer that pauses for longer.
PAUSE_SECONDS_MAX = 30.0
# A file is held in memory, so a gateway that sends more than it promises is not believed.
FILE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """The answer to one request: its status, its media type, and its body."""

    status: int
    media_type: str
    # Seconds to wait before another attempt, if the gateway names a time.
    retry_after: float | None
    body: bytes

    def json(self) -> dict[str, Any]:
        """Returns the body as a JSON object; an empty one if it is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


async def transfer(
    gateway: str, token: str, path: str, content: bytes | None = None, media_type: str = "application/octet-stream"
) -> Answer:
    """Reads `path` at the node with this address, or uploads `content` there.

    Raises `ConnectionLost` without an answer.
    """
    return await asyncio.to_thread(_transfer, endpoint(gateway), token, path, content, media_type)


def _transfer(gateway: str, token: str, path: str, content: bytes | None, media_type: str) -> Answer:
    url = urlsplit(gateway)
    connect = HTTPSConnection if url.scheme == "wss" else HTTPConnection
    connection = connect(url.netloc, timeout=PAUSE_SECONDS_MAX)
    headers = {"Authorization": f"Bearer {token}"}
    try:
        if content is None:
            connection.request("GET", path, headers=headers)
        else:
            # A gateway that refuses a file may end the connection before its last byte, with the answer underway.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, content, {**headers, "Content-Type": media_type})
        answer = connection.getresponse()
        body = answer.read(FILE_BYTES_MAX + 1)
    except (OSError, HTTPException) as error:
        raise ConnectionLost(f"a file was not transferred: {error}") from error
    finally:
        connection.close()
    named = answer.headers.get("content-type", "application/octet-stream")
    return Answer(answer.status, named, parse_retry_after(answer.headers.get("retry-after")), body)
