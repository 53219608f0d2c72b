"""The present connection of an adapter or a client, with its requests that wait for an answer.

A request whose connection is lost fails with `ConnectionLost`; whoever sent it decides whether to send it again.
"""

from __future__ import annotations

import asyncio
import itertools

from turnway.connection import Connection, Message, error_of
from turnway.retry import ConnectionLost

# The gateway has answered by then, or has lost the request.
ANSWER_SECONDS = 30.0
# Requests that wait for an answer; the gateway takes 64 of one connection.
REQUESTS_MAX = 64

_numbers = itertools.count(1)


class Link:
    """A connection on which requests are matched with their answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = True
        # Of an adapter: the account is served by this connection, and its conversations' capabilities are declared.
        self.has_lease = False
        self.is_declared = False
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._room = asyncio.Semaphore(REQUESTS_MAX)

    async def request(self, message: Message, seconds: float = ANSWER_SECONDS) -> Message:
        """Sends a request and returns its answer. Raises `GatewayError` if the answer is an error."""
        async with self._room:
            if not self.is_open:
                raise ConnectionLost("the connection is lost")
            request_id = f"q{next(_numbers)}"
            future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            self._waiting[request_id] = future
            try:
                async with asyncio.timeout(seconds):
                    await self.connection.send({**message, "request_id": request_id})
                    answer = await future
            except TimeoutError as error:
                raise ConnectionLost(f"no answer to {message['type']} within {seconds} s") from error
            finally:
                self._waiting.pop(request_id, None)
        if answer["type"] == "error":
            raise error_of(answer)
        return answer

    def answer(self, message: Message) -> bool:
        """Hands a message to the request that waits for it. Returns whether there is one."""
        future = self._waiting.get(message.get("request_id", ""))
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    def end(self) -> None:
        """Fails every request that waits: the connection is lost."""
        self.is_open = False
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost("the connection is lost"))
