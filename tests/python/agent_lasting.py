"""An agent that outlives its connection: Python's standard library and nothing else.

A run goes on when its listener is gone; `GET /runs/RUN/events` says what follows the event that
`Last-Event-ID` names, and `POST /cancel` is what stops it. It keeps every event until it is stopped itself.

    python agent_lasting.py [PACE_MS]    prints `listening PORT`, and `asked RUN ATTEMPT EPOCH LAST` for each
                                         request about a run
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agent_plain import answer


class Run:
    """One attempt at one run: its events, named 1, 2, 3, …, for whoever listens."""

    pace = 0.002

    def __init__(self, attempt: str, epoch: int, text: str) -> None:
        self.attempt, self.epoch = attempt, epoch
        self.events: list[bytes] = []
        self.over = self.stopped = False
        self.news = threading.Condition()
        threading.Thread(target=self.think, args=[answer(text)], daemon=True).start()

    def think(self, pieces: list[str]) -> None:
        self.say("state", {"state": "thinking"})
        for piece in pieces:
            self.say("delta", {"text": piece})
            time.sleep(self.pace)
            if self.stopped:
                break
        else:
            self.say("done", {"usage": {"tokens": len(pieces)}})
        with self.news:
            self.over = True
            self.news.notify_all()

    def say(self, name: str, data: dict) -> None:
        with self.news:
            number = len(self.events) + 1
            self.events.append(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())
            self.news.notify_all()

    def after(self, known: int):
        """What follows the first so many events, as it comes."""
        while True:
            with self.news:
                self.news.wait_for(lambda: len(self.events) > known or self.over)
                new = self.events[known:]
            if not new:
                return
            yield b"".join(new)
            known += len(new)


class Agent(BaseHTTPRequestHandler):
    runs: dict[str, Run] = {}

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.head(200)
        run = self.runs.get(self.path.removeprefix("/runs/").removesuffix("/events"))
        if run is None or run.attempt != self.headers["x-run-attempt"]:
            return self.head(404)
        if int(self.headers["x-owner-epoch"]) < run.epoch:
            return self.head(409)  # Somebody else has taken over since.
        run.epoch = int(self.headers["x-owner-epoch"])
        self.stream(run, int(self.headers.get("last-event-id", 0)))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        run_id, epoch = body["run_id"], int(self.headers["x-owner-epoch"])
        if self.path == "/cancel":
            if run_id in self.runs:
                self.runs[run_id].stopped = True
            return self.head(202)
        text = body["input_message"]["content"]
        run = self.runs[run_id] = Run(self.headers["x-run-attempt"], epoch, text)
        self.stream(run, 0)

    def stream(self, run: Run, known: int) -> None:
        print("asked", self.headers["x-run-id"], run.attempt, run.epoch, known, flush=True)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.flush()
        try:
            for events in run.after(known):
                self.wfile.write(events)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass  # Nobody listens any more; somebody may ask for the rest.

    def head(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


if __name__ == "__main__":
    Run.pace = float(sys.argv[1] if len(sys.argv) > 1 else 2) / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.daemon_threads = True
    print("listening", server.server_port, flush=True)
    server.serve_forever()
