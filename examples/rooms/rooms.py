"""A small chat platform over plain HTTP, to try an adapter with and to test it. All data is in memory.

    python rooms.py [PORT]      default 8090; 0 takes a free port; prints `rooms: http://127.0.0.1:PORT`

POST /rooms/ROOM  {"sender", "text", "files"?} -> {"id"}: adds a line that a person writes.
GET /rooms/ROOM?after=ID  -> {"lines": [{"id", "sender", "text", "time", "bot", "reply_to"?, "key"?, "edited"?,
    "reactions"?, "files"?}]}, with the time in Unix milliseconds. With `?plain` or `Accept: text/plain` the answer is
    text, such as `ann: hello`.
GET /updates?after=N&wait=SECONDS  -> {"updates": [{"update", "room", "line"}]}: at most 100 lines of people, of all
    rooms, after update N. If there is none, the answer waits for one, at most 60 s. Lines of the bot are no updates.
POST /send  {"room", "text", "key", "reply_to"?, "files"?} -> {"id"}: adds a line of the bot. If the room has a line
    with the same key, nothing is added, and the answer has the id of that line.
POST /edit  {"room", "target": {"external_id"}, "text"} -> {"id"}: changes the text of a line of the bot.
POST /delete  {"room", "target": {"external_id"}} -> {"id"}: removes a line of the bot, if it is still there.
POST /reaction  {"room", "target": {"message_id"}, "reaction": {"emoji", "remove"}} -> {"id"}: the bot reacts to a line,
    or takes its reaction back.
POST /preview  {"room", "text", "key", "reply_to"?} -> {"id"}: adds a line of the bot with "preview": true, or changes
    the text of the one with this key.
POST /delete_message  {"room", "key"} -> {}: removes the preview with this key, if there is one.
POST /typing  {"room", "state": "on" or "off"} -> {}: the bot is writing in the room, or not.
GET /typing/ROOM  -> {"typing": BOOL}

GET /files/ID  -> the bytes of a file of a line, with its media type.

Files are sent as [{"name", "media_type", "data", "inline"?}], at most 10 of 256 KiB, with the bytes as base64, and shown
in lines as [{"id", "name", "media_type", "bytes", "sha256", "inline"}]. A line with files may have an empty text. `inline`
is true for a picture that is shown within the line.

An error is {"error": CODE}: 400 `invalid`, `too_many` or `too_long` (over 2,000 UTF-16 units), 404 `not_found`, 413
`too_large`.

Control, for tests (docs/adapter-check.md, with POST and GET /rooms/ROOM and GET /typing/ROOM):
GET /journal  -> {"lines": [{"id", "room", "text", "key", "reply_to"?, "files"?}]}: every line of the bot, in order.
GET /reads  -> {"begun": COUNT}: the calls of /updates so far.
POST /wake  -> {}: calls of /updates that wait are answered now.
POST /faults  [FAULT, ...] -> {"faults": COUNT}: replaces the faults that are left. Each call of /send uses the first one
    that fits its room; one without "room" fits every room:
    {"kind": "drop_reply", "room"?}: the line is added, and the connection is closed without an answer
    {"kind": "no_id", "room"?}: the line is added, and the answer is {}
    {"kind": "delay", "seconds": SECONDS, "room"?}: the line is added so much later, and then answered
    {"kind": "refuse", "status": 429 or 503, "retry_after"?: SECONDS, "room"?}: nothing is added
    {"kind": "status", "status": 403 or 404, "room"?}: nothing is added
"""

import base64
import hashlib
import json
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TEXT_MAX = 2000
FILES_MAX = 10
FILE_BYTES_MAX = 256 * 1024
# All files are in memory: as much as some hundred of the largest.
FILES_BYTES_MAX = 64 * 1024 * 1024
# The files of a line as base64, and room for its text.
BODY_BYTES_MAX = FILES_MAX * FILE_BYTES_MAX * 4 // 3 + 64 * 1024
DELAY_SECONDS_MAX = 60
FAULT_STATUSES = {"drop_reply": {None}, "no_id": {None}, "delay": {None}, "refuse": {429, 503}, "status": {403, 404}}


class Refusal(Exception):
    """A request that is answered with an error: the status, the code, and the seconds for `Retry-After` or None."""


class Rooms:
    """The state of the platform. Every access holds the lock of `changed`, which also wakes the readers of updates."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        # Ids and update numbers begin at the current time. So a restart uses none of them again, and every new update
        # is after the offset that an adapter has saved.
        self.first_update = self.last_id = int(time.time() * 1000)
        self.lines: dict[str, list[dict]] = {}
        self.updates: list[dict] = []
        self.faults: list[dict] = []
        self.journal: list[dict] = []
        self.files: dict[int, tuple[str, bytes]] = {}  # media types and bytes
        self.files_bytes = 0
        self.typing: set[str] = set()  # the rooms where the bot is writing
        self.reads = 0  # calls of `updates_after`
        self.wakes = 0  # calls of `wake`

    def add_line(self, room: str, **fields: object) -> dict:
        self.last_id += 1
        line = {"id": self.last_id, "time": int(time.time() * 1000), **fields}
        self.lines.setdefault(room, []).append(line)
        return line

    def add_files(self, files: list[dict]) -> dict:
        """Keeps files; returns what a line shows of them."""
        if self.files_bytes + sum(len(file["data"]) for file in files) > FILES_BYTES_MAX:
            raise Refusal(413, "too_large", None)
        shown = []
        for file in files:
            data = file.pop("data")
            self.last_id += 1
            self.files[self.last_id] = (file["media_type"], data)
            self.files_bytes += len(data)
            shown.append({"id": self.last_id, **file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        return {"files": shown} if shown else {}

    def post(self, room: str, body: dict) -> dict:
        files = take_files(body.get("files", []))
        sender, text = take_name(body["sender"]), take_text(body["text"], has_files=bool(files))
        line = self.add_line(room, sender=sender, text=text, bot=False, **self.add_files(files))
        self.updates.append({"update": self.first_update + len(self.updates) + 1, "room": room, "line": line})
        self.changed.notify_all()
        return {"id": line["id"]}

    def send(self, body: dict) -> dict | None:
        """Adds a line of the bot. Returns None if a fault drops the answer."""
        fault = next((fault for fault in self.faults if fault.get("room") in (None, body["room"])), {"kind": "none"})
        if fault in self.faults:
            self.faults.remove(fault)
        if fault.get("status") is not None:
            raise Refusal(fault["status"], "fault", fault.get("retry_after"))
        if fault["kind"] == "delay":
            self.changed.wait_for(lambda: False, timeout=min(float(fault["seconds"]), DELAY_SECONDS_MAX))
        files, room, key = take_files(body.get("files", [])), take_name(body["room"]), take_name(body["key"])
        text = take_text(body["text"], has_files=bool(files))
        line = next((line for line in self.lines.get(room, []) if line.get("key") == key), None)
        if line is None:
            more = {"reply_to": body["reply_to"]} if body.get("reply_to") is not None else {}
            more |= self.add_files(files)
            line = self.add_line(room, sender="bot", text=text, bot=True, key=key, **more)
            self.journal.append({"id": line["id"], "room": room, "text": text, "key": key, **more})
        return {"drop_reply": None, "no_id": {}}.get(fault["kind"], {"id": line["id"]})

    def find_line(self, room: str, target: str, is_bot: bool) -> dict:
        lines = self.lines.get(room, [])
        line = next((line for line in lines if str(line["id"]) == target and (line["bot"] or not is_bot)), None)
        if line is None:
            raise Refusal(404, "not_found", None)
        return line

    def edit(self, body: dict) -> dict:
        line = self.find_line(body["room"], body["target"]["external_id"], is_bot=True)
        line |= {"text": take_text(body["text"]), "edited": True}
        return {"id": line["id"]}

    def delete(self, body: dict) -> dict:
        target = body["target"]["external_id"]
        lines = self.lines.get(body["room"], [])
        # A line that is not there any more is deleted: a repeated request has the same answer.
        self.lines[body["room"]] = [line for line in lines if str(line["id"]) != target or not line["bot"]]
        return {"id": target}

    def react(self, body: dict) -> dict:
        line = self.find_line(body["room"], body["target"]["message_id"], is_bot=False)
        emoji, others = take_name(body["reaction"]["emoji"]), line.pop("reactions", [])
        reactions = [other for other in others if other != emoji] + ([] if body["reaction"]["remove"] else [emoji])
        line |= {"reactions": reactions} if reactions else {}
        return {"id": line["id"]}

    def preview(self, body: dict) -> dict:
        room, key, text = take_name(body["room"]), take_name(body["key"]), take_text(body["text"])
        line = next((line for line in self.lines.get(room, []) if line.get("key") == key), None)
        if line is None:
            reply_to = {"reply_to": body["reply_to"]} if body.get("reply_to") is not None else {}
            line = self.add_line(room, sender="bot", text=text, bot=True, key=key, preview=True, **reply_to)
        if line.get("preview"):
            line["text"] = text
        return {"id": line["id"]}

    def delete_message(self, body: dict) -> dict:
        room, key = take_name(body["room"]), take_name(body["key"])
        lines = self.lines.get(room, [])
        self.lines[room] = [line for line in lines if line.get("key") != key or not line.get("preview")]
        return {}

    def set_typing(self, body: dict) -> dict:
        room = take_name(body["room"])
        self.typing.add(room) if body["state"] == "on" else self.typing.discard(room)
        return {}

    def updates_after(self, after: int, wait: float) -> list[dict]:
        start, wakes = max(0, after - self.first_update), self.wakes
        self.reads += 1
        self.changed.wait_for(lambda: len(self.updates) > start or self.wakes > wakes, timeout=min(wait, 60))
        return self.updates[start : start + 100]

    def wake(self) -> dict:
        self.wakes += 1
        self.changed.notify_all()
        return {}


def take_name(value: str) -> str:
    if not value.isprintable() or not 0 < len(value) <= 200:
        raise Refusal(400, "invalid", None)
    return value


def take_text(value: str, has_files: bool = False) -> str:
    units = len(value.encode("utf-16-le", "surrogatepass")) // 2
    if not (0 if has_files else 1) <= units <= TEXT_MAX:
        raise Refusal(400, "too_long" if units else "invalid", None)
    return value


def take_files(values: list[dict]) -> list[dict]:
    if len(values) > FILES_MAX:
        raise Refusal(400, "too_many", None)
    files = []
    for value in values:
        data, media_type = base64.b64decode(value["data"], validate=True), take_name(value["media_type"])
        if len(data) > FILE_BYTES_MAX:
            raise Refusal(413, "too_large", None)
        if not media_type.isascii():
            raise Refusal(400, "invalid", None)
        inline = bool(value.get("inline", False))
        files.append({"name": take_name(value["name"]), "media_type": media_type, "inline": inline, "data": data})
    return files


def plain(line: dict) -> str:
    return " ".join([line["text"], *(f"[file {file['name']}]" for file in line.get("files", []))]).strip()


class Handler(BaseHTTPRequestHandler):
    rooms = Rooms()

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the client has gone
            self.write(*self.answer())

    do_POST = do_GET

    def answer(self) -> tuple:
        """Returns the arguments of `write`."""
        try:
            length = int(self.headers.get("Content-Length", 0))
            if length > BODY_BYTES_MAX:
                return 413, {"error": "too_large"}
            body = json.loads(self.rfile.read(length)) if length else None
            url = urlsplit(self.path)
            query = dict(parse_qs(url.query, keep_blank_values=True))
            with self.rooms.changed:
                return 200, self.route([unquote(part) for part in url.path.split("/")[1:]], query, body)
        except Refusal as refusal:
            status, code, retry_after = refusal.args
            return status, {"error": code}, retry_after
        except (ValueError, LookupError, TypeError, AttributeError):  # not JSON, or JSON of another shape
            return 400, {"error": "invalid"}

    def route(self, path: list[str], query: dict[str, list[str]], body: object) -> dict | str | tuple | None:
        after, wait = int(query.get("after", ["0"])[0]), float(query.get("wait", ["0"])[0])
        match self.command, *path:
            case "POST", "rooms", room:
                return self.rooms.post(take_name(room), body)
            case "GET", "rooms", room:
                lines = [line for line in self.rooms.lines.get(room, []) if line["id"] > after]
                if "plain" in query or self.headers.get("Accept") == "text/plain":
                    return "".join(f"{line['sender']}: {plain(line)}\n" for line in lines)
                return {"lines": lines}
            case "GET", "files", number if number.isdecimal() and int(number) in self.rooms.files:
                return self.rooms.files[int(number)]
            case "GET", "updates":
                return {"updates": self.rooms.updates_after(after, wait)}
            case "POST", "send":
                return self.rooms.send(body)
            case "POST", "edit":
                return self.rooms.edit(body)
            case "POST", "delete":
                return self.rooms.delete(body)
            case "POST", "reaction":
                return self.rooms.react(body)
            case "POST", "preview":
                return self.rooms.preview(body)
            case "POST", "delete_message":
                return self.rooms.delete_message(body)
            case "POST", "typing":
                return self.rooms.set_typing(body)
            case "GET", "typing", room:
                return {"typing": room in self.rooms.typing}
            case "GET", "journal":
                return {"lines": list(self.rooms.journal)}
            case "GET", "reads":
                return {"begun": self.rooms.reads}
            case "POST", "wake":
                return self.rooms.wake()
            case "POST", "faults":
                if not all(fault.get("status") in FAULT_STATUSES[fault["kind"]] for fault in body):
                    raise Refusal(400, "invalid", None)
                self.rooms.faults = list(body)
                return {"faults": len(body)}
        raise Refusal(404, "not_found", None)

    def write(self, status: int, answer: object, retry_after: float | None = None) -> None:
        match answer:
            case None:
                return  # the server closes the connection after each request
            case str():
                media_type, data = "text/plain; charset=utf-8", answer.encode(errors="replace")
            case (media_type, data):
                pass
            case _:
                media_type, data = "application/json", json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass  # a long poll would add a line every few seconds


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 128  # an adapter may open dozens of connections at once
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Handler)
    print(f"rooms: http://127.0.0.1:{server.server_port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
