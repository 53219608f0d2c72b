"""Files of messages: what an answer refers to, read with the token that comes with the part, and what people attach."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from turnway.retry import ConnectionLost, NotSent
from turnway.transfers import transfer
from turnway.types import ToAdapterDeliverAttachmentsItem


@dataclass(frozen=True)
class File:
    """The bytes of a file, and the media type that its uploader has named."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class Attachment:
    """A file to send with a part."""

    name: str
    # The hash of the bytes in hexadecimal digits.
    sha256: str
    # True for a picture that is to be shown within the message.
    inline: bool
    # The path at the gateway.
    url: str
    _gateway: str = field(repr=False)
    _token: str = field(repr=False)

    async def read(self) -> File | None:
        """Returns the file, or None if it was deleted: the message is then sent without it.

        Raises `NotSent` if the file could not be read, so read every file before the platform gets anything.
        """
        try:
            answer = await transfer(self._gateway, self._token, self.url)
        except ConnectionLost as error:
            raise NotSent(str(error)) from error
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise NotSent(f"the gateway answered {answer.status} to the request for a file")
        if hashlib.sha256(answer.body).hexdigest() != self.sha256:
            raise NotSent("a file did not arrive whole")
        return File(answer.body, answer.media_type)


def attachment_of(item: ToAdapterDeliverAttachmentsItem, gateway: str, token: str) -> Attachment:
    """Returns an attachment of an order, which is read at the node with this address."""
    return Attachment(item["name"], item["sha256"], item["inline"], item["url"], gateway, token)


@dataclass(frozen=True)
class InboundFile:
    """A file that a person has attached to a message."""

    name: str
    media_type: str
    # The bytes, or a function that reads them from the platform: called for each attempt at an upload.
    content: bytes | Callable[[], Awaitable[bytes]]

    def __post_init__(self) -> None:
        if not self.media_type.isascii() or not self.media_type.isprintable() or "/" not in self.media_type:
            raise ValueError(f"the file {self.name!r} has the media type {self.media_type!r}: write TYPE/SUBTYPE")
