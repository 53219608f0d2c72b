"""Files of deliveries, read from a server of the test."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from turnway.files import Attachment, File
from turnway.orders import Delivery
from turnway.retry import NotSent

CONTENT = b"\x89PNG" * 100_000
PATH = "/v1/sessions/s1/blobs/" + hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves one file to whoever has its token."""

    def do_GET(self) -> None:
        status = 200 if self.path.startswith("/v1/sessions/s1/blobs/") else 404
        if self.headers["authorization"] != "Bearer twfile_a":
            status = 401
        if self.path.endswith("moved"):
            self.send_response(307)
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            return
        self.send_response(status)
        self.send_header("content-type", "image/png")
        body = CONTENT if status == 200 else b"{}"
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path.endswith("cut") else body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"ws://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def attachment(url: str, gateway: str, token: str = "twfile_a", sha256: str | None = None) -> Attachment:
    file = {"name": "a cat", "sha256": sha256 or PATH.rsplit("/", 1)[1], "url": url, "inline": True}
    message: Any = {"type": "deliver", "text": "", "attachments": [file], "file_token": token}
    return Delivery(message, gateway).attachments[0]


async def test_file_is_read_with_its_token(gateway: str) -> None:
    found = attachment(PATH, gateway)
    assert (found.name, found.inline) == ("a cat", True)
    assert await found.read() == File(CONTENT, "image/png")


async def test_deleted_file_is_none(gateway: str) -> None:
    assert await attachment("/other", gateway).read() is None


async def test_refused_token_means_not_sent(gateway: str) -> None:
    with pytest.raises(NotSent, match="401"):
        await attachment(PATH, gateway, token="b").read()


@pytest.mark.parametrize(("ending", "sha256"), [("cut", None), ("other", "0" * 64)])
async def test_file_that_is_not_whole_is_refused(gateway: str, ending: str, sha256: str | None) -> None:
    with pytest.raises(NotSent):
        await attachment("/v1/sessions/s1/blobs/" + ending, gateway, sha256=sha256).read()


async def test_token_follows_no_redirect(gateway: str) -> None:
    with pytest.raises(NotSent, match="307"):
        await attachment("/v1/sessions/s1/blobs/moved", gateway).read()


async def test_lost_gateway_means_not_sent() -> None:
    with pytest.raises(NotSent):
        await attachment(PATH, "ws://127.0.0.1:1").read()


def test_token_is_not_shown() -> None:
    assert "twfile" not in repr(attachment(PATH, "ws://127.0.0.1:1"))


def test_part_without_files_has_none() -> None:
    message: Any = {"type": "deliver", "text": "hello"}
    assert Delivery(message).attachments == []
