"""An adapter with the SDK, to copy: it connects the example platform rooms.py to Turnway.

    [TURNWAY_API_KEY=KEY] python adapter_sdk.py [--turnway URL] [--rooms URL] [--account NAME] [--state FILE]
"""

import argparse
import asyncio
import base64
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from turnway.adapter import Adapter, Capabilities, Change, Delivery, Inbound, NotSent, Rejected, Sent, Update
from turnway.files import InboundFile


class Rooms(Adapter):
    """The adapter of one account of rooms.py."""

    channel = "rooms"
    # rooms.py adds a line with the same key once, so a part may be sent again: `key`.
    capabilities = Capabilities(text=2, key=2, typing=2, preview=2, edit=2, delete=2, reaction=2, attachments=2)

    def __init__(self, account: str, rooms: str) -> None:
        super().__init__(account)
        self.rooms = rooms

    async def updates(self, after: str | None) -> AsyncIterator[Update]:
        offset = int(after or 0)
        while True:
            for item in (await self.ask(f"/updates?after={offset}&wait=5"))["updates"]:
                offset, line = item["update"], item["line"]
                files = [self.file_of(file) for file in line.get("files", [])]
                ids: Any = {"conversation_id": item["room"], "message_id": str(line["id"]), "sender_id": line["sender"]}
                yield Update(offset, Inbound(**ids, content=line["text"], files=files, platform_time=line["time"]))

    def file_of(self, file: dict[str, Any]) -> InboundFile:
        return InboundFile(file["name"], file["media_type"], lambda: self.ask(f"/files/{file['id']}"))

    async def deliver(self, delivery: Delivery) -> Sent:
        files = []
        for item in delivery.attachments:
            if file := await item.read():  # None: the file was deleted
                data = base64.b64encode(file.content).decode()
                files.append({"name": item.name, "media_type": file.media_type, "inline": item.inline, "data": data})
        body = {"text": delivery.text, "key": delivery.key, "reply_to": delivery.reply_to, "files": files}
        answer = await self.ask("/send", {"room": delivery.conversation_id, **body})
        return Sent(answer["id"], delivery.conversation_id)  # rooms.py does not say where the line is

    async def edit(self, change: Change) -> None:
        await self.ask("/edit", {"room": change.conversation_id, **change.message})

    async def delete(self, change: Change) -> None:
        await self.ask("/delete", {"room": change.conversation_id, **change.message})

    async def react(self, change: Change) -> None:
        await self.ask("/reaction", {"room": change.conversation_id, **change.message})

    async def preview(self, preview: Delivery) -> None:
        await self.ask("/preview", {"room": preview.conversation_id, **preview.message})

    async def delete_preview(self, conversation_id: str, key: str) -> None:
        await self.ask("/delete_message", {"room": conversation_id, "key": key})

    async def typing(self, conversation_id: str, is_on: bool) -> None:
        await self.ask("/typing", {"room": conversation_id, "state": "on" if is_on else "off"})

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self.ask_now, path, body)

    def ask_now(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.rooms + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.read() if path.startswith("/files/") else json.load(response)
        except urllib.error.HTTPError as error:
            raise Rejected.by_status(error.code, error.headers.get("Retry-After")) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise NotSent(str(error)) from error
            raise  # the platform may have the line


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--turnway", default=os.environ.get("TURNWAY_URL", "ws://127.0.0.1:8080"))
    parser.add_argument("--rooms", default=os.environ.get("ROOMS_URL", "http://127.0.0.1:8090"))
    parser.add_argument("--account", default="main")
    parser.add_argument("--state")
    options = parser.parse_args()
    state = options.state or f"rooms-{options.account}.offset"
    key = os.environ.get("TURNWAY_API_KEY")
    Rooms(options.account, options.rooms).serve(options.turnway, api_key=key, offset_file=state)
