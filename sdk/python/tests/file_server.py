"""The gateway's HTTP for files, in a thread of the test: uploads are stored by their hash, or refused as a test chooses."""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "twfile_a"


class FileServer(ThreadingHTTPServer):
    """A server with its files and with the answers that are planned."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, tuple[str, bytes]] = {}
        # (status, code, seconds for Retry-After) of the next uploads; status 0 is an answer that is lost.
        self.refusals: deque[tuple[int, str, str | None]] = deque()
        self.uploads: list[str] = []

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: FileServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["authorization"] == f"Bearer {TOKEN}" and "?" not in self.path
        self.server.uploads.append(self.path.split("/")[3])
        status, code, wait = self.server.refusals.popleft() if self.server.refusals else (201, "", None)
        if status == 0:
            return
        answer: dict[str, Any] = {"code": code, "status": status}
        if status == 201:
            path = f"{self.path}/{hashlib.sha256(content).hexdigest()}"
            self.server.files[path] = (self.headers["content-type"], content)
            answer = {"url": path}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if wait is not None:
            self.send_header("retry-after", wait)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Runs a server during a test."""
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
