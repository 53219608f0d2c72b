"""What the gateway orders from an adapter, as the author sees it, and what the author returns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from turnway.connection import Message
from turnway.files import Attachment, attachment_of
from turnway.types import ToAdapterCreateConversation, ToAdapterDeliver, ToAdapterDeliverButtonsItem

ID_BYTES_MAX = 256


def checked_id(value: str | int, name: str) -> str:
    """Returns an id of the platform as text, or raises `ValueError` if the protocol does not allow it."""
    text = str(value)
    if not text or not text.isprintable() or len(text.encode("utf-8", "surrogatepass")) > ID_BYTES_MAX:
        raise ValueError(f"{name} is {text[:80]!r}: it must have 1 to {ID_BYTES_MAX} bytes of printable text")
    return text


class Sent:
    """A part that the platform has accepted: its id, and the conversation that the platform's answer names.

    Give the conversation of the platform's answer and not that of the order, if the answer has one: a difference
    proves that the part went to a wrong place, and the gateway then stops the account.
    """

    def __init__(self, external_id: str | int, conversation_id: str | int) -> None:
        self.external_id = checked_id(external_id, "external_id")
        self.conversation_id = checked_id(conversation_id, "conversation_id")


@dataclass(frozen=True)
class Delivery:
    """A part of a message to send to a conversation. `preview` gets it, too, for an answer that is being written."""

    message: ToAdapterDeliver
    # The address of the node that has ordered the part, where its files are read.
    gateway: str = ""

    @property
    def conversation_id(self) -> str:
        """Returns the platform's id of the conversation to send to."""
        return self.message["conversation"]["conversation_id"]

    @property
    def parent_conversation_id(self) -> str | None:
        """Returns the conversation that contains the one to send to, if the platform has such."""
        return self.message["conversation"].get("parent_conversation_id")

    @property
    def kind(self) -> str:
        """Returns `final`, `task_completion`, `notice`, `farewell` or `preview`."""
        return self.message["kind"]

    @property
    def text(self) -> str:
        """Returns the text in Markdown, within the declared limit."""
        return self.message["text"]

    @property
    def key(self) -> str:
        """Returns the key, which is the same for each attempt at the part."""
        return self.message["key"]

    @property
    def reply_to(self) -> str | None:
        """Returns the id of the message that the part answers."""
        return self.message.get("reply_to")

    @property
    def buttons(self) -> list[ToAdapterDeliverButtonsItem]:
        """Returns the buttons below the part."""
        return self.message.get("buttons", [])

    @property
    def attachments(self) -> list[Attachment]:
        """Returns the files to send with the text, in their order. Their token is not for the platform."""
        token = self.message.get("file_token", "")
        return [attachment_of(item, self.gateway, token) for item in self.message.get("attachments", [])]

    @property
    def part(self) -> int:
        """Returns the number of the part, from 1."""
        return self.message["part"]

    @property
    def parts(self) -> int:
        """Returns the number of parts of the delivery."""
        return self.message["parts"]

    @property
    def attempt(self) -> int:
        """Returns the number of the attempt. From 2 on the platform may have the part already."""
        return self.message["attempt"]

    @property
    def seconds_left(self) -> float:
        """Returns the seconds until the deadline, by this machine's clock."""
        return self.message["deadline_ts"] / 1000 - time.time()


@dataclass(frozen=True)
class Change(Delivery):
    """A change of one message: an edit, a deletion or a reaction."""

    @property
    def target_id(self) -> str:
        """Returns the id of the message to change: one of the bot, or of a person for a reaction."""
        target = self.message.get("target", {})
        return target.get("external_id") or target.get("message_id") or ""

    @property
    def emoji(self) -> str:
        """Returns the reaction: an emoji, or the platform's name of one."""
        reaction = self.message.get("reaction")
        return reaction["emoji"] if reaction else ""

    @property
    def is_removal(self) -> bool:
        """Returns whether the reaction is taken back."""
        reaction = self.message.get("reaction")
        return reaction["remove"] if reaction else False


@dataclass(frozen=True)
class NewConversation:
    """A conversation to make within another one, such as a thread in a channel."""

    message: ToAdapterCreateConversation

    @property
    def parent_conversation_id(self) -> str:
        """Returns the conversation that is to contain the new one."""
        return self.message["parent"]["conversation_id"]

    @property
    def name(self) -> str:
        """Returns the name: one line, at most 100 characters."""
        return self.message["name"]

    @property
    def key(self) -> str:
        """Returns the key, which is the same for each attempt."""
        return self.message["key"]

    @property
    def reply_to(self) -> str | None:
        """Returns the message that the conversation begins with, if the platform can do that."""
        return self.message.get("reply_to")


def delivery_of(message: Message, gateway: str) -> Delivery | Change:
    """Returns the order in a `deliver` message of the node with this address."""
    order = cast(ToAdapterDeliver, message)
    is_change = order["kind"] in ("edit", "delete", "reaction")
    return Change(order, gateway) if is_change else Delivery(order, gateway)
