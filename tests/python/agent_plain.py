"""The smallest agent: Python's standard library and nothing else.

`POST /invoke` answers with server-sent events, `GET /health` says that it is there. The answer is the
input, letter by letter, between two lines of letters of every width UTF-8 has.

    python agent_plain.py [PACE_MS]      prints `listening PORT`, serves until it is killed
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WIDE = "aß語𝄞 "


def answer(text: str) -> list[str]:
    """What it says to a text, piece by piece; a test may compute the same."""
    return [*(WIDE * 20), *text, *(WIDE * 20)]


class Agent(BaseHTTPRequestHandler):
    # How fast this agent thinks: seconds between two pieces of its answer.
    pace = 0.002

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/invoke" or self.headers["x-run-id"] != body["run_id"]:
            self.send_response(400)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.event("state", {"state": "thinking", "detail": {"about": body["session_id"]}})
        pieces = answer(body["input_message"]["content"])
        try:
            for piece in pieces:
                self.event("delta", {"text": piece, "run_id": body["run_id"]})
                time.sleep(self.pace)
            self.event("done", {"usage": {"tokens": len(pieces)}})
        except (BrokenPipeError, ConnectionResetError):
            pass  # It is cancelled: nobody listens any more.

    def event(self, name: str, data: dict) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_args: object) -> None:
        pass


if __name__ == "__main__":
    Agent.pace = float(sys.argv[1] if len(sys.argv) > 1 else 2) / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.daemon_threads = True
    print("listening", server.server_port, flush=True)
    server.serve_forever()
