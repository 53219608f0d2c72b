"""What an adapter brings: events of a platform, what the gateway said about them, and the offset that is kept.

An offset can be saved only with a `Settled`, which only `Adapter.forward` makes: so no offset is saved before the
gateway has accepted the event.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnway.connection import Message
from turnway.files import InboundFile
from turnway.retry import GatewayError
from turnway.types import Content, Conversation, FromAdapterInboundDecision

EventName = Literal["message", "edit", "delete", "reaction", "decision", "conversation_closed", "moved"]

# Whoever holds this object has the gateway's answer in hand.
_PROOF = object()


@dataclass(frozen=True, kw_only=True)
class Inbound:
    """One event in a conversation of the account: a message of a person, or what happened to one."""

    conversation_id: str
    # The platform's id of the message. The gateway accepts it once for each conversation.
    message_id: str
    sender_id: str
    # A text or content parts. Required for the event `message` without files.
    content: Content | None = None
    # The files of a message or of an edit, in their order. The first 10 are brought.
    files: Sequence[InboundFile] = ()
    sender_name: str | None = None
    is_bot: bool | None = None
    parent_conversation_id: str | None = None
    event: EventName = "message"
    # Of the event `edit`: the platform's id of this edit.
    edit_id: str | None = None
    # Of the event `decision`: the button that was pressed.
    decision: FromAdapterInboundDecision | None = None
    # Of the event `moved`: the new id of the conversation.
    moved_to: str | None = None
    # Unix milliseconds, by the platform's clock.
    platform_time: int | None = None

    def __post_init__(self) -> None:
        for field in ("conversation_id", "message_id", "sender_id"):
            if not getattr(self, field):
                raise ValueError(f"the inbound event has an empty {field}")
        required = {"message": "content", "decision": "decision", "moved": "moved_to"}.get(self.event)
        if self.files and self.event not in ("message", "edit"):
            raise ValueError(f"an inbound event {self.event!r} has no files")
        if required is not None and not getattr(self, required) and not self.files:
            raise ValueError(f"an inbound event {self.event!r} needs {required}")

    def as_message(self, conversation: Conversation, content: Content | None) -> Message:
        """Returns the event as the message `inbound`, with a content that names its files."""
        sender = {"id": self.sender_id, "name": self.sender_name, "is_bot": self.is_bot}
        message = {"message_id": self.message_id, "content": content, "edit_id": self.edit_id}
        found: dict[str, Any] = {
            "type": "inbound",
            "event": self.event,
            "conversation": conversation,
            "sender": {key: value for key, value in sender.items() if value is not None},
            "message": {key: value for key, value in message.items() if value is not None},
            "decision": self.decision,
            "moved_to": self.moved_to,
            "platform_time": self.platform_time,
        }
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class Update:
    """A step in the platform's stream of events: the offset after it, and the event, if it is of interest."""

    offset: str | int
    inbound: Inbound | None = None


class Settled:
    """The gateway's final answer to an event: durably accepted, or refused for good."""

    def __init__(self, proof: object, answer: Message, refusal: GatewayError | None, offset: str | int | None) -> None:
        if proof is not _PROOF:
            raise TypeError("only Adapter.forward makes a Settled, after the gateway has answered")
        # `run`, `recorded` or `ignored`; `refused` after an error that is not retryable.
        self.disposition: str = "refused" if refusal else answer.get("disposition", "ignored")
        self.reason: str | None = refusal.code if refusal else answer.get("reason")
        self.session_id: str | None = answer.get("session_id")
        self.run_id: str | None = answer.get("run_id")
        self.duplicate: bool = bool(answer.get("duplicate", False))
        self.refusal = refusal
        self.offset = offset

    def __repr__(self) -> str:
        return f"Settled({self.disposition}, reason={self.reason}, offset={self.offset})"


def settle(answer: Message, refusal: GatewayError | None, offset: str | int | None) -> Settled:
    """Returns the answer of the gateway as a `Settled`. For adapter.py, which has the answer."""
    return Settled(_PROOF, answer, refusal, offset)


class OffsetFile:
    """A file with the offset of the last settled event. It is replaced at once, so a crash leaves the old or the new.

    One process at a time may use the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # A write that was given up with its task may still run when the next one begins.
        self._lock = threading.Lock()

    def read(self) -> str | None:
        """Returns the saved offset, or None if there is no file yet."""
        try:
            text = self.path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        if not text:
            raise ValueError(f"{self.path} is empty: write the offset to continue from into it, or delete it")
        return text

    def advance(self, settled: Settled) -> None:
        """Saves the offset of a settled event. The offset is on disk when this returns."""
        if settled.offset is None:
            raise ValueError("the settled event has no offset: give Adapter.forward an Update with one")
        text = str(settled.offset).strip()
        if not text or "\n" in text:
            raise ValueError(f"{settled.offset!r} is no offset: it must be one line, and not empty")
        with self._lock:
            self._replace(text + "\n")

    def _replace(self, text: str) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        # The name, too, must survive a loss of power.
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
