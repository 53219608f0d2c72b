"""Files of inbound events: uploads, what is left out, and what is made again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from file_server import TOKEN, FileServer, file_server

from turnway.connection import Message
from turnway.files import InboundFile
from turnway.inbound import Inbound
from turnway.retry import ConnectionLost, GatewayError, Rejected
from turnway.uploads import FAILURES_MAX, FILES_MAX, Uploads

PICTURE = InboundFile("a cat.png", "image/png", b"\x89PNG" * 50_000)
TEXT = InboundFile("notes\n of Ann.txt", "text/plain", b"hello")
PLACE: Any = {"channel": "rooms", "account_id": "main", "conversation_id": "lobby"}


class StubLink:
    """The gateway's WebSocket: answers `prepare_files` with the session that a test has chosen."""

    def __init__(self, server: FileServer) -> None:
        self.connection = SimpleNamespace(url=server.url)
        self.session = "s1"
        self.error: GatewayError | None = None
        self.asked = 0

    async def request(self, message: Message) -> Message:
        assert message == {"type": "prepare_files", "conversation": PLACE}
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"type": "files_prepared", "session_id": self.session, "file_token": TOKEN, "expires_ts": 1}


def uploads(*files: InboundFile, content: Any = "look") -> Uploads:
    event = Inbound(conversation_id="lobby", message_id="m1", sender_id="ann", content=content, files=files)
    return Uploads(event, asyncio.Semaphore(1))


async def attempt(work: Uploads, link: StubLink) -> Any:
    stub: Any = link
    return await work.content(stub, PLACE)


async def until_taken(work: Uploads, link: StubLink) -> Any:
    """Repeats an attempt as `Adapter.forward` does, without its waits."""
    while True:
        try:
            return await attempt(work, link)
        except (ConnectionLost, GatewayError) as error:
            assert isinstance(error, ConnectionLost) or error.retryable


async def test_files_are_uploaded_and_named_in_order() -> None:
    with file_server() as server:
        text, file, picture = await attempt(uploads(TEXT, PICTURE), StubLink(server))
        assert text == {"type": "text", "text": "look"}
        assert file["file"]["filename"] == "notes of Ann.txt"
        assert server.files[file["file"]["url"]] == ("text/plain", b"hello")
        assert server.files[picture["image_url"]["url"]] == ("image/png", PICTURE.content)


async def test_content_parts_stay_before_the_files() -> None:
    part = {"type": "text", "text": "as a part"}
    with file_server() as server:
        content = await attempt(uploads(TEXT, content=[part]), StubLink(server))
        assert content[0] == part and content[1]["type"] == "file"
        alone = await attempt(uploads(TEXT, content=None), StubLink(server))
        assert [part["type"] for part in alone] == ["file"]


async def test_reader_is_called_for_each_attempt() -> None:
    calls = []

    async def read() -> bytes:
        calls.append(1)
        return b"read"

    with file_server() as server:
        server.refusals.append((503, "store_unavailable", "2"))
        work, link = uploads(InboundFile("a.txt", "text/plain", read)), StubLink(server)
        with pytest.raises(GatewayError) as failed:
            await attempt(work, link)
        assert failed.value.retryable and failed.value.retry_after == 2.0
        await attempt(work, link)
        assert len(calls) == 2 and len(server.uploads) == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(413, "too_large"), (415, "invalid_message"), (429, "quota_exceeded"), (403, "forbidden"), (411, "invalid_message")],
)
async def test_refused_file_is_left_out_and_named(status: int, code: str) -> None:
    with file_server() as server:
        server.refusals.append((status, code, None))
        text, picture = await attempt(uploads(TEXT, PICTURE), StubLink(server))
        assert text["text"] == f"look\n[file notes of Ann.txt was not taken: {code}]"
        assert picture["type"] == "image_url"


async def test_message_without_any_taken_file_is_a_text() -> None:
    with file_server() as server:
        server.refusals.append((415, "invalid_message", None))
        assert await attempt(uploads(TEXT), StubLink(server)) == (
            "look\n[file notes of Ann.txt was not taken: invalid_message]"
        )


@pytest.mark.parametrize(
    ("status", "code"), [(0, ""), (401, "unauthorized"), (404, "not_found"), (429, "over_share"), (409, "session_closed")]
)
async def test_failed_upload_is_repeated_without_those_before(status: int, code: str) -> None:
    with file_server() as server:
        server.refusals.extend([(201, "", None), (status, code, None)])
        work, link = uploads(TEXT, PICTURE), StubLink(server)
        content = await until_taken(work, link)
        assert [part["type"] for part in content] == ["text", "file", "image_url"]
        assert link.asked == 2 and len(server.uploads) == 3


async def test_upload_that_never_succeeds_is_left_out() -> None:
    with file_server() as server:
        server.refusals.extend([(503, "store_unavailable", None)] * (FAILURES_MAX + 5))
        content = await until_taken(uploads(TEXT), StubLink(server))
        assert content.endswith("was not taken: store_unavailable]")
        assert len(server.uploads) == FAILURES_MAX


async def test_other_session_gets_all_files_again() -> None:
    with file_server() as server:
        work, link = uploads(TEXT, PICTURE), StubLink(server)
        await attempt(work, link)
        await attempt(work, link)
        assert server.uploads == ["s1", "s1"]
        link.session = "s2"
        content = await attempt(work, link)
        assert server.uploads == ["s1", "s1", "s2", "s2"]
        assert all("/s2/" in str(part) for part in content[1:])


async def test_refused_question_leaves_all_files_out() -> None:
    with file_server() as server:
        link = StubLink(server)
        link.error = GatewayError("invalid_message")
        text = await attempt(uploads(TEXT, PICTURE), link)
        assert text.splitlines()[1:] == [
            "[file notes of Ann.txt was not taken: invalid_message]",
            "[file a cat.png was not taken: invalid_message]",
        ]
        link.error = GatewayError("busy", retryable=True)
        with pytest.raises(GatewayError):
            await attempt(uploads(TEXT), link)
        assert server.uploads == []


@pytest.mark.parametrize(
    ("error", "code"), [(Rejected("gone"), "gone"), (Rejected("transient"), "transient"), (OSError("no"), "unreadable")]
)
async def test_file_that_the_platform_does_not_give_is_left_out(error: Exception, code: str) -> None:
    calls = []

    async def read() -> bytes:
        calls.append(1)
        raise error

    with file_server() as server:
        text = await until_taken(uploads(InboundFile("a.txt", "text/plain", read)), StubLink(server))
        assert text == f"look\n[file a.txt was not taken: {code}]"
        assert len(calls) == (1 if code == "gone" else FAILURES_MAX)


async def test_more_files_than_a_message_has_are_left_out() -> None:
    files = [InboundFile(f"{n}.txt", "text/plain", b"%d" % n) for n in range(FILES_MAX + 2)]
    with file_server() as server:
        content = await attempt(uploads(*files), StubLink(server))
        assert len(content) == 1 + FILES_MAX and len(server.files) == FILES_MAX
        assert content[0]["text"].splitlines()[1:] == [
            f"[file {n}.txt was not taken: too_many]" for n in range(FILES_MAX, FILES_MAX + 2)
        ]


async def test_file_over_the_limit_is_not_sent() -> None:
    with file_server() as server:
        large = InboundFile("large.bin", "application/octet-stream", bytes(16 * 1024 * 1024 + 1))
        assert "too_large" in await attempt(uploads(large), StubLink(server))
        assert server.uploads == []


def test_files_belong_to_messages_and_edits() -> None:
    with pytest.raises(ValueError, match="has no files"):
        Inbound(conversation_id="c", message_id="m", sender_id="s", event="delete", files=[TEXT])
    for media_type in ("", "text", "text/pläin", "text/plain\r\nx: y"):
        with pytest.raises(ValueError, match="media type"):
            InboundFile("a", media_type, b"")
    assert Inbound(conversation_id="c", message_id="m", sender_id="s", files=[TEXT]).content is None
