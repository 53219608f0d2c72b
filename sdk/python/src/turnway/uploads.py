"""Files that people attach on a platform: on their way into the session that the message goes to. Used by adapter.py.

A file that cannot be taken is left out and named in the text; it stops neither the message nor those after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from turnway.connection import Message
from turnway.files import InboundFile
from turnway.inbound import Inbound
from turnway.link import Link
from turnway.retry import ConnectionLost, GatewayError, Rejected
from turnway.transfers import FILE_BYTES_MAX, Answer, transfer
from turnway.types import Content, Conversation, FromAdapterPrepareFiles, ToAdapterFilesPrepared

# What the gateway takes with one message.
FILES_MAX = 10
# Files of one adapter that are in memory at a time.
FILES_AT_A_TIME = 4
# Failures of one file, whose waits take some 2 min. Then the file is left out, so that its conversation goes on.
FAILURES_MAX = 10
NAME_CHARACTERS_MAX = 200
# Answers after which the upload is made again, with a new token or later: all others are final.
REPEATED = frozenset({401, 404, 408, 409, 429})
CODES = {401: "unauthorized", 404: "not_found", 413: "too_large", 415: "invalid_message"}


class LeftOut(Exception):
    """A file that is not taken. The text is the code of the reason."""


class Uploads:
    """The files of one inbound event. Kept over the attempts at it, so that each file is uploaded once a session."""

    def __init__(self, inbound: Inbound, room: asyncio.Semaphore) -> None:
        self._inbound = inbound
        # Held while a file is in memory; one for all events of an adapter.
        self._room = room
        self._session_id = ""
        # The content part of each file that the session has, and the reason for each that it does not take.
        self._taken: dict[int, Message] = {}
        self._left_out: dict[int, str] = {}
        self._failures: Counter[int] = Counter()

    async def content(self, link: Link, place: Conversation) -> Content:
        """Uploads the files that are missing, and returns the content of the event with all of them.

        Raises `ConnectionLost` or a retryable `GatewayError` if the attempt is to be made again, from its beginning.
        """
        question: FromAdapterPrepareFiles = {"type": "prepare_files", "conversation": place}
        try:
            prepared = cast(ToAdapterFilesPrepared, await link.request(dict(question)))
        except GatewayError as error:
            if error.retryable:
                raise
            return self._content({n: error.code for n in range(len(self._inbound.files))})
        if prepared["session_id"] != self._session_id:
            # The conversation was bound to another session in between, which has none of the files.
            self._session_id = prepared["session_id"]
            self._taken.clear()
            self._left_out = {n: "too_many" for n in range(FILES_MAX, len(self._inbound.files))}
        for n, file in enumerate(self._inbound.files):
            if n not in self._taken and n not in self._left_out:
                await self._take(n, file, link.connection.url, prepared["file_token"])
        return self._content(self._left_out)

    async def _take(self, n: int, file: InboundFile, gateway: str, token: str) -> None:
        try:
            async with self._room:
                self._taken[n] = await self._upload(file, gateway, token)
        except LeftOut as reason:
            self._left_out[n] = str(reason)
        except (ConnectionLost, GatewayError) as error:
            self._failures[n] += 1
            if self._failures[n] < FAILURES_MAX:
                raise
            self._left_out[n] = error.code if isinstance(error, GatewayError) else "connection_lost"

    async def _upload(self, file: InboundFile, gateway: str, token: str) -> Message:
        content = await _read(file)
        if len(content) > FILE_BYTES_MAX:
            raise LeftOut("too_large")
        path = f"/v1/sessions/{self._session_id}/blobs"
        answer = await transfer(gateway, token, path, content, file.media_type)
        url = answer.json().get("url")
        if answer.status in (200, 201) and isinstance(url, str):
            return _part(file, url)
        raise _refusal(answer)

    def _content(self, left_out: dict[int, str]) -> Content:
        content = self._inbound.content or ""
        lines = [f"[file {_name(self._inbound.files[n])} was not taken: {left_out[n]}]" for n in sorted(left_out)]
        parts: list[Any] = []
        if isinstance(content, str):
            text = "\n".join([content, *lines] if content else lines)
        else:
            parts, text = list(content), "\n".join(lines)
        if text:
            parts.append({"type": "text", "text": text})
        parts += [self._taken[n] for n in sorted(self._taken) if n not in left_out]
        return text if parts == [{"type": "text", "text": text}] else parts


async def _read(file: InboundFile) -> bytes:
    if isinstance(file.content, bytes):
        return file.content
    try:
        return await file.content()
    except Rejected as error:
        if error.code in ("transient", "rate_limit", "auth"):
            raise _unread(error.code, error, error.retry_after) from error
        raise LeftOut(error.code) from error
    except Exception as error:
        raise _unread("unreadable", error, None) from error


def _unread(code: str, error: Exception, wait: float | None) -> GatewayError:
    return GatewayError(code, f"the platform did not give a file: {error!r}", retryable=True, retry_after=wait)


def _part(file: InboundFile, url: str) -> Message:
    if file.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"url": url, "filename": _name(file)}}


def _refusal(answer: Answer) -> LeftOut | GatewayError:
    code = str(answer.json().get("code") or CODES.get(answer.status, "store_unavailable"))
    if code == "quota_exceeded" or (answer.status < 500 and answer.status not in REPEATED):
        return LeftOut(code)
    message = f"the gateway answered {answer.status} to the upload of a file"
    return GatewayError(code, message, retryable=True, retry_after=answer.retry_after)


def _name(file: InboundFile) -> str:
    return " ".join(file.name.split())[:NAME_CHARACTERS_MAX] or "file"
