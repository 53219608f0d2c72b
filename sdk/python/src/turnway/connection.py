"""One WebSocket connection to a node: its address, its handshake, and its messages as dicts.

It does not reconnect: adapter.py and client.py do. Used by both.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from turnway.retry import FINAL_CLOSE_CODES, AccessDenied, ConnectionLost, GatewayError

Message: TypeAlias = dict[str, Any]

SUBPROTOCOL = "turnway.v1"
DEFAULT_PATH = "/v1/connect"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# The node answers `hello` at once; a longer silence means that another node should be tried.
HANDSHAKE_SECONDS = 10.0
# A node closes a connection with a longer message, so that such a message is refused here with a clear error.
SENT_BYTES_MAX = 64 * 1024
# 4 MiB of text, the most that an agent may say, as one delta with each byte escaped as six, and some room.
RECEIVED_BYTES_MAX = 32 * 1024 * 1024
# A dead node is noticed within two of these times; the node allows far more pings.
PING_SECONDS = 10.0
CLOSE_SECONDS = 1.0


def endpoint(url: str) -> str:
    """Returns the address of the WebSocket for the URL of a gateway, with the default path if the URL has none."""
    parts = urlsplit(url)
    scheme = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a gateway: write ws://HOST:PORT or wss://HOST:PORT")
    return urlunsplit((scheme, parts.netloc, DEFAULT_PATH if parts.path in ("", "/") else parts.path, parts.query, ""))


def endpoints(urls: str | list[str] | tuple[str, ...]) -> list[str]:
    """Returns the addresses for one URL or for several."""
    found = [endpoint(url) for url in ([urls] if isinstance(urls, str) else urls)]
    if not found:
        raise ValueError("no address of a gateway: at least one URL is needed")
    return found


def error_of(message: Mapping[str, Any]) -> GatewayError:
    """Returns an `error` message as an exception."""
    wait = message.get("retry_after_ms")
    return GatewayError(
        str(message.get("code", "internal_error")),
        str(message.get("message", "")),
        retryable=bool(message.get("retryable", False)),
        retry_after=wait / 1000 if isinstance(wait, int | float) else None,
    )


class Connection:
    """An open connection whose `welcome` has arrived."""

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self.url = url
        self.welcome: Message = {}
        self._socket = socket
        # The last `error` without a request: it says why the node closes the connection.
        self._last_error: GatewayError | None = None

    @classmethod
    async def open(cls, url: str, hello: Message, handshake_seconds: float = HANDSHAKE_SECONDS) -> Connection:
        """Connects, sends `hello`, and waits for `welcome`."""
        try:
            socket = await connect(
                url,
                subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
                open_timeout=handshake_seconds,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_size=RECEIVED_BYTES_MAX,
                # A proxy of the environment leads to other machines, not to this one.
                proxy=None if urlsplit(url).hostname in LOOPBACK else True,
            )
        except (OSError, TimeoutError, websockets.WebSocketException) as error:
            raise ConnectionLost(f"no connection to {url}: {error}") from error
        connection = cls(socket, url)
        try:
            await connection.send(hello)
            # A deadline for a silent node, as in the open_timeout above.
            connection.welcome = await connection._receive_welcome(handshake_seconds)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _receive_welcome(self, seconds: float) -> Message:
        try:
            async with asyncio.timeout(seconds):
                while (message := await self.receive())["type"] != "welcome":
                    pass
        except TimeoutError as error:
            raise ConnectionLost(f"{self.url} has not answered `hello` within {seconds} s") from error
        return message

    async def send(self, message: Message) -> None:
        """Sends one message; refuses one that the node would refuse together with the connection."""
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        # An unpaired surrogate has no UTF-8, and the node would read it as U+FFFD.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        size = len(text.encode())
        if size > SENT_BYTES_MAX:
            raise GatewayError("too_large", f"{message['type']} has {size} bytes, at most {SENT_BYTES_MAX}")
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise self._lost(error) from error

    async def receive(self) -> Message:
        """Returns the next message. Raises `AccessDenied` if the gateway has closed the connection for good."""
        try:
            message: Message = json.loads(await self._socket.recv())
        except websockets.ConnectionClosed as error:
            raise self._lost(error) from error
        if message.get("type") == "error" and "request_id" not in message:
            self._last_error = error_of(message)
        return message

    async def messages(self) -> AsyncIterator[Message]:
        """Yields the messages, and ends when the connection should be left after a `go_away`.

        The node ends soon then. Leaving at random times keeps the other nodes from a rush.
        """
        leave_at: float | None = None
        while True:
            try:
                async with asyncio.timeout(None if leave_at is None else leave_at - time.monotonic()):
                    message = await self.receive()
            except TimeoutError:
                return
            if message["type"] == "go_away":
                longest = min(message.get("jitter_ms", 0), message.get("reconnect_within_ms", 0)) / 1000
                leave_at = time.monotonic() + random.uniform(0, longest)
            yield message

    async def close(self) -> None:
        """Closes the connection. Repeating it is harmless."""
        await self._socket.close()

    def abort(self) -> None:
        """Drops the connection without a closing handshake."""
        self._socket.transport.abort()

    def _lost(self, error: websockets.ConnectionClosed) -> ConnectionLost | AccessDenied:
        code = error.rcvd.code if error.rcvd else None
        reason = str(self._last_error or (error.rcvd.reason if error.rcvd else "") or f"connection to {self.url} lost")
        if code is not None and code in FINAL_CLOSE_CODES:
            return AccessDenied(reason, code)
        return ConnectionLost(reason, code, self._last_error.retry_after if self._last_error else None)
