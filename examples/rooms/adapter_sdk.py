"""An adapter with the SDK, to copy: it connects the example platform rooms.py to Turnway.

    pip install turnway
    [TURNWAY_API_KEY=KEY] python adapter_sdk.py [--turnway URL] [--rooms URL] [--account NAME] [--state FILE]
"""

import argparse
import asyncio
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from turnway.adapter import Adapter, Capabilities, Change, Delivery, Inbound, Limit, NotSent, Rejected, Sent, Update


class Rooms(Adapter):
    """The adapter of one account of rooms.py."""

    channel = "rooms"
    # rooms.py adds a line with the same key once, so a part may be sent again: `key`.
    capabilities = Capabilities(text=Limit(2000), key=2, typing=2, preview=2, edit=2, delete=2, reaction=2)

    def __init__(self, account: str, rooms: str) -> None:
        super().__init__(account)
        self.rooms = rooms

    async def updates(self, after: str | None) -> AsyncIterator[Update]:
        offset = int(after or 0)
        while True:
            for update in (await self.ask(f"/updates?after={offset}&wait=5"))["updates"]:
                offset, line = update["update"], update["line"]
                inbound = Inbound(
                    conversation_id=update["room"],
                    message_id=str(line["id"]),
                    sender_id=line["sender"],
                    content=line["text"],
                    platform_time=line["time"],
                )
                yield Update(offset, inbound)

    async def deliver(self, delivery: Delivery) -> Sent:
        answer = await self.ask("/send", delivery)
        return Sent(answer["id"], delivery.conversation_id)  # rooms.py does not say where the line is

    async def edit(self, change: Change) -> None:
        await self.ask("/edit", change)

    async def delete(self, change: Change) -> None:
        await self.ask("/delete", change)

    async def react(self, change: Change) -> None:
        await self.ask("/reaction", change)

    async def preview(self, preview: Delivery) -> None:
        await self.ask("/preview", preview)

    async def delete_preview(self, conversation_id: str, key: str) -> None:
        await self.ask("/delete_message", {"room": conversation_id, "key": key})

    async def typing(self, conversation_id: str, is_on: bool) -> None:
        await self.ask("/typing", {"room": conversation_id, "state": "on" if is_on else "off"})

    async def ask(self, path: str, body: Delivery | dict[str, Any] | None = None) -> Any:
        if isinstance(body, Delivery):
            body = {"room": body.conversation_id, **body.message}
        return await asyncio.to_thread(self.ask_now, path, body)

    def ask_now(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.rooms + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.load(response)
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
    adapter = Rooms(options.account, options.rooms)
    adapter.serve(options.turnway, api_key=os.environ.get("TURNWAY_API_KEY"), offset_file=state)
