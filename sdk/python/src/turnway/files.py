"""Files of deliveries: an adapter reads what an answer refers to, with the token that comes with the part."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from turnway.connection import endpoints
from turnway.orders import Delivery
from turnway.retry import ConnectionLost, GatewayError
from turnway.types import ToAdapterDeliverAttachmentsItem

# The gateway ends a transfer that pauses for longer.
PAUSE_SECONDS_MAX = 30.0
# A file is held in memory, so a gateway that sends more than it promises is not believed.
FILE_BYTES_MAX = 16 * 1024 * 1024
CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found"}


@dataclass(frozen=True)
class File:
    """The bytes of a file, and the media type that its uploader has named."""

    content: bytes
    media_type: str


async def read_file(
    delivery: Delivery, attachment: ToAdapterDeliverAttachmentsItem, *, url: str | None = None
) -> File:
    """Reads a file of a delivery from the gateway: `url`, or else `TURNWAY_URL`.

    Raises `GatewayError` with the code `not_found` if the file was deleted, and `ConnectionLost` if the gateway cannot be
    reached or the bytes are not those of the delivery.
    """
    base = endpoints(url or os.environ["TURNWAY_URL"])[0]
    return await asyncio.to_thread(_read, base, attachment, delivery.file_token)


def _read(base: str, attachment: ToAdapterDeliverAttachmentsItem, token: str) -> File:
    # No redirect is followed, so the token goes to the gateway and nowhere else.
    gateway = urlsplit(base)
    connect = HTTPSConnection if gateway.scheme == "wss" else HTTPConnection
    connection = connect(gateway.netloc, timeout=PAUSE_SECONDS_MAX)
    try:
        connection.request("GET", attachment["url"], headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        content = answer.read(FILE_BYTES_MAX + 1)
        media_type = answer.headers.get("content-type", "application/octet-stream")
    except (OSError, HTTPException) as error:
        raise ConnectionLost(f"the file could not be read: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        code = CODES.get(answer.status, "store_unavailable")
        raise GatewayError(code, f"the gateway answered {answer.status}", retryable=answer.status >= 429)
    if hashlib.sha256(content).hexdigest() != attachment["sha256"]:
        raise ConnectionLost("the file did not arrive whole")
    return File(content, media_type)
