"""An adapter that connects @NAME@ to Turnway.

It speaks to the example platform `rooms` until you change the methods of `Platform`. README.md has the first steps.
"""

import asyncio
import base64
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from turnway.adapter import Adapter, Capabilities, Delivery, Inbound, Limit, NotSent, Rejected, Sent, Update
from turnway.files import InboundFile


class Platform(Adapter):
    """The adapter of one account."""

    channel = "@NAME@"
    # Declare what your platform can do. `key`: a message that is sent again with the same key appears once.
    capabilities = Capabilities(text=Limit(2000), key=2, attachments=2)

    def __init__(self, account: str, address: str) -> None:
        super().__init__(account)
        self.address = address

    async def updates(self, after: str | None) -> AsyncIterator[Update]:
        """Yields what people write, after the saved offset. The SDK saves an offset once the gateway has accepted it."""
        offset = int(after or 0)
        while True:
            for update in (await self.ask(f"/updates?after={offset}&wait=5"))["updates"]:
                offset, line = update["update"], update["line"]
                inbound = Inbound(
                    conversation_id=update["room"],
                    message_id=str(line["id"]),
                    sender_id=line["sender"],
                    content=line["text"],
                    files=[self.file_of(file) for file in line.get("files", [])],
                    platform_time=line["time"],
                )
                yield Update(offset, inbound)

    def file_of(self, file: dict[str, Any]) -> InboundFile:
        """Returns a file that a person has attached. The SDK reads it when the gateway is ready to take it."""
        return InboundFile(file["name"], file["media_type"], lambda: self.ask(f"/files/{file['id']}"))

    async def deliver(self, delivery: Delivery) -> Sent:
        """Sends a message. Any error but `NotSent` and `Rejected` means that the platform may have it."""
        files = []
        for item in delivery.attachments:
            # Read before the platform gets anything: an error is then reported as not sent. None: it was deleted.
            if file := await item.read():
                data = base64.b64encode(file.content).decode()
                files.append({"name": item.name, "media_type": file.media_type, "inline": item.inline, "data": data})
        body = {"text": delivery.text, "key": delivery.key, "reply_to": delivery.reply_to, "files": files}
        answer = await self.ask("/send", {"room": delivery.conversation_id, **body})
        # If your platform's answer names the conversation, return that one: it proves the place.
        return Sent(answer["id"], delivery.conversation_id)

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self.ask_now, path, body)

    def ask_now(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.read() if path.startswith("/files/") else json.load(response)
        except urllib.error.HTTPError as error:
            raise Rejected.by_status(error.code, error.headers.get("Retry-After")) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise NotSent(str(error)) from error
            raise


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    adapter = Platform("main", os.environ.get("PLATFORM_URL", "http://127.0.0.1:8090"))
    gateway = os.environ.get("TURNWAY_URL", "ws://127.0.0.1:8080")
    adapter.serve(gateway, api_key=os.environ.get("TURNWAY_API_KEY"), offset_file="@NAME@-main.offset")
