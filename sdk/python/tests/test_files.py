"""Files of deliveries, read from a server of the test."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from turnway.files import File, read_file
from turnway.orders import Delivery
from turnway.retry import ConnectionLost, GatewayError

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


def delivery(url: str, token: str = "twfile_a") -> Delivery:
    file = {"name": "a cat", "sha256": PATH.rsplit("/", 1)[1], "url": url, "inline": True}
    message: Any = {"type": "deliver", "text": "", "attachments": [file], "file_token": token}
    return Delivery(message)


async def test_file_is_read_with_its_token(gateway: str) -> None:
    order = delivery(PATH)
    assert await read_file(order, order.attachments[0], url=gateway) == File(CONTENT, "image/png")


async def test_address_comes_from_the_environment(gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWAY_URL", gateway)
    order = delivery(PATH)
    assert (await read_file(order, order.attachments[0])).content == CONTENT


@pytest.mark.parametrize(("url", "token", "code"), [("/other", "twfile_a", "not_found"), (PATH, "b", "unauthorized")])
async def test_refused_file_has_a_code(gateway: str, url: str, token: str, code: str) -> None:
    order = delivery(url, token)
    with pytest.raises(GatewayError) as refused:
        await read_file(order, order.attachments[0], url=gateway)
    assert refused.value.code == code
    assert not refused.value.retryable


@pytest.mark.parametrize("ending", ["cut", "other"])
async def test_file_that_is_not_whole_is_refused(gateway: str, ending: str) -> None:
    order = delivery("/v1/sessions/s1/blobs/" + ending)
    if ending == "other":
        order.attachments[0]["sha256"] = "0" * 64
    with pytest.raises(ConnectionLost):
        await read_file(order, order.attachments[0], url=gateway)


async def test_token_follows_no_redirect(gateway: str) -> None:
    order = delivery("/v1/sessions/s1/blobs/moved")
    with pytest.raises(GatewayError):
        await read_file(order, order.attachments[0], url=gateway)


async def test_lost_gateway_is_told() -> None:
    order = delivery(PATH)
    with pytest.raises(ConnectionLost):
        await read_file(order, order.attachments[0], url="ws://127.0.0.1:1")


def test_part_without_files_has_none() -> None:
    message: Any = {"type": "deliver", "text": "hello"}
    assert Delivery(message).attachments == []
    assert Delivery(message).file_token == ""
