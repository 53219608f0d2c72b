"""An adapter without an SDK, to copy: it connects the example platform rooms.py to Turnway.

    [TURNWAY_API_KEY=KEY] python adapter.py [--turnway URL] [--rooms URL] [--account NAME] [--state FILE]
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import websockets

NO_ANSWER = {"type": "error", "retryable": True}
ERROR_CLASSES = {400: "invalid", 401: "auth", 403: "permission", 404: "gone", 409: "conflict", 429: "rate_limit"}


class Adapter:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.active = asyncio.Event()  # set while this adapter, and no other, serves the account
        self.request_id = ""  # of the inbound message that waits for its answer
        self.answers: asyncio.Queue[dict] = asyncio.Queue()
        self.senders = ThreadPoolExecutor(32)  # the most messages that are being sent at a time
        self.signals = ThreadPoolExecutor(1)  # typing and previews: in order, and never repeated

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self.tasks:
            self.tasks.create_task(self.stay_connected())
            self.tasks.create_task(self.forward_updates())

    async def stay_connected(self) -> None:
        delay = 0.2
        while True:
            started = time.monotonic()
            try:
                await self.serve_connection()
            except (OSError, websockets.WebSocketException) as error:
                logging.info("no connection to the gateway: %s", error)
                if isinstance(error, websockets.ConnectionClosed) and error.rcvd and error.rcvd.code in (4401, 4403):
                    os._exit(1)  # the key does not allow this; an ordinary exit would wait for the long poll
            self.active.clear()
            self.answers.put_nowait(NO_ANSWER)
            # Only a connection that lasted ends the backoff: the gateway may close a new connection at once.
            delay = 0.4 if time.monotonic() - started > 30 else min(2 * delay, 10)
            await asyncio.sleep(random.uniform(0.2, delay))

    async def serve_connection(self) -> None:
        hello = {"type": "hello", "role": "adapter", "channel": "rooms", "account_id": self.options.account}
        # The id stays the same after a restart, so that the new connection replaces the old one at once.
        hello["instance_id"] = f"{self.options.account}@{socket.gethostname()}"
        hello["capabilities"] = dict.fromkeys(["text", "key", "typing", "preview", "edit", "delete", "reaction"], 2)
        hello |= {"api_key": os.environ["TURNWAY_API_KEY"]} if os.environ.get("TURNWAY_API_KEY") else {}
        async with websockets.connect(self.options.turnway, subprotocols=["turnway.v1"]) as self.gateway:
            await self.gateway.send(json.dumps(hello))
            while (message := json.loads(await self.gateway.recv()))["type"] != "go_away":
                if message["type"] in ("typing", "delete_message") or message.get("kind") == "preview":
                    self.signals.submit(self.ask, f"/{message.get('kind') or message['type']}", message)
                elif message["type"] == "deliver":
                    self.tasks.create_task(self.deliver(self.gateway, message))
                elif message["type"] == "adapter_state":
                    logging.info("state: %s", message["state"])
                    self.active.set() if message["state"] == "active" else self.active.clear()
                elif message["type"] == "error":
                    logging.info("error %s: %s", message.get("code"), message.get("message"))
                if message.get("request_id") == self.request_id:
                    self.answers.put_nowait(message)

    async def forward_updates(self) -> None:
        file = Path(self.options.state or f"rooms-{self.options.account}.offset")
        offset = int(file.read_text()) if file.exists() else 0
        while True:
            await self.active.wait()
            try:
                updates = (await asyncio.to_thread(self.ask, f"/updates?after={offset}&wait=5"))["updates"]
            except Exception as error:
                logging.info("no updates from the platform: %r", error)
                await asyncio.sleep(1)
                continue
            for update in updates:
                await self.forward(update)
                # Not earlier: a line that the gateway has not accepted must come again, also after a crash.
                offset = update["update"]
                Path(f"{file}.new").write_text(str(offset))
                Path(f"{file}.new").replace(file)

    async def forward(self, update: dict) -> None:  # until the gateway has accepted the line, or refused it for good
        room, line, self.request_id = update["room"], update["line"], f"u{update['update']}"
        event = {"type": "inbound", "request_id": self.request_id, "platform_time": line["time"]}
        event["conversation"] = {"channel": "rooms", "account_id": self.options.account, "conversation_id": room}
        event |= {"sender": {"id": line["sender"]}, "message": {"message_id": str(line["id"]), "content": line["text"]}}
        while True:
            await self.active.wait()
            self.answers, answer = asyncio.Queue(), NO_ANSWER
            with suppress(TimeoutError, websockets.ConnectionClosed):
                await self.gateway.send(json.dumps(event))
                answer = await asyncio.wait_for(self.answers.get(), timeout=30)
            if answer["type"] == "inbound_accepted" or not answer.get("retryable"):
                return logging.info("%s: line %s of room %s", answer["type"], line["id"], room)
            await asyncio.sleep(answer.get("retry_after_ms", 1000) / 1000)

    async def deliver(self, gateway: websockets.ClientConnection, order: dict) -> None:
        outcome = await asyncio.get_running_loop().run_in_executor(self.senders, self.send, order)
        logging.info("%s: delivery %s, part %s", outcome["outcome"], order["delivery_id"], order["part"])
        report = {"type": "delivered", "delivery_id": order["delivery_id"], "part": order["part"], **outcome}
        with suppress(websockets.ConnectionClosed):  # the gateway then orders the part again, with the same key
            await gateway.send(json.dumps(report))

    def send(self, part: dict) -> dict:
        try:
            if part["deadline_ts"] < time.time() * 1000:
                return {"outcome": "not_sent", "proof": "the deadline has passed"}
            path = f"/{part['kind']}" if "target" in part else "/send"
            return {"outcome": "sent", "external_id": str(self.ask(path, part)["id"]), "place": part["conversation"]}
        except urllib.error.HTTPError as error:
            code = ERROR_CLASSES.get(error.code, "transient" if error.code >= 500 else "invalid")
            seconds = error.headers.get("Retry-After", "")
            wait = {"retry_after_ms": int(float(seconds) * 1000)} if seconds.replace(".", "", 1).isdecimal() else {}
            return {"outcome": "rejected", "code": code, **wait}
        except Exception as error:
            is_refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            # After any other error the platform may have the line.
            return {"outcome": "not_sent", "proof": str(error)} if is_refused else {"outcome": "unknown"}

    def ask(self, path: str, message: dict | None = None) -> dict:
        data = message and json.dumps({"room": message["conversation"]["conversation_id"], **message}).encode()
        request = urllib.request.Request(self.options.rooms + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once; a killed adapter loses nothing
    parser = argparse.ArgumentParser()
    parser.add_argument("--turnway", default=os.environ.get("TURNWAY_URL", "ws://127.0.0.1:8080/v1/connect"))
    parser.add_argument("--rooms", default=os.environ.get("ROOMS_URL", "http://127.0.0.1:8090"))
    parser.add_argument("--account", default="main")
    parser.add_argument("--state")
    asyncio.run(Adapter(parser.parse_args()).run())
