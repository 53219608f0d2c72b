"""Adapters: an account of a chat platform on one side, the gateway on the other.

An author derives from `Adapter`, or gives functions to `function_adapter`. This module connects, stays connected, and
reports what is known about each part; docs/protocol.md §1.10 has the rules.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from turnway.capabilities import Capabilities, Limit
from turnway.connection import Connection, Message, endpoints
from turnway.deliveries import Deliveries, Outcome
from turnway.files import Attachment, File, InboundFile
from turnway.forwarding import Window
from turnway.inbound import Inbound, OffsetFile, Settled, Update, settle
from turnway.link import Link
from turnway.orders import Change, Delivery, NewConversation, Sent, checked_id, delivery_of
from turnway.retry import (
    AccessDenied,
    Backoff,
    ConnectionLost,
    GatewayError,
    NotSent,
    Rejected,
)
from turnway.running import end, run_until_signal, until
from turnway.signals import Signals
from turnway.types import Conversation, ToAdapterCreateConversation
from turnway.uploads import FILES_AT_A_TIME, Uploads

__all__ = [
    "AccessDenied",
    "Adapter",
    "Attachment",
    "Capabilities",
    "Change",
    "Delivery",
    "File",
    "Functions",
    "Inbound",
    "InboundFile",
    "Limit",
    "NewConversation",
    "NotSent",
    "OffsetFile",
    "Rejected",
    "Sent",
    "Settled",
    "Update",
    "function_adapter",
]

log = logging.getLogger("turnway.adapter")

# Half of what the gateway gives an adapter at a time: most platforms limit the rate long before.
DELIVERIES_MAX = 32
# A conversation's own capabilities are declared again after a reconnect; a node remembers as many.
CONVERSATIONS_MAX = 1024
# Deliveries that run when the adapter is stopped have this long to end. What has not ended is unknown to the gateway.
STOP_SECONDS = 10.0
# A stream of updates that ends is begun again after this time, so that an empty one does not keep a core busy.
PAUSE_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0

# The method that a capability needs. `delete_preview` belongs to `preview`.
METHODS = {
    "create_conversation": ("create_conversation",),
    "delete": ("delete",),
    "edit": ("edit",),
    "preview": ("preview", "delete_preview"),
    "reaction": ("react",),
    "typing": ("typing",),
}


class Adapter:
    """An adapter of one account. Derive from it, set `channel` and `capabilities`, and write `deliver`.

    A method that a declared capability needs must be there; `start` raises `ValueError` otherwise.
    """

    # The platform: lower-case letters, digits, `_`, `.` and `-`.
    channel: ClassVar[str] = ""
    # With a level above 0 for `key` the platform shows a message with the same key once.
    capabilities: Capabilities = Capabilities()
    # The platform's id of the bot's login, if it is known: one account at a time acts as it.
    platform_bot_id: str | None = None

    def __init__(self, account: str = "main", *, deliveries_at_a_time: int = DELIVERIES_MAX) -> None:
        self.account = account
        self._deliveries_at_a_time = deliveries_at_a_time
        self._link: Link | None = None
        self._active = asyncio.Event()
        self._inactive = asyncio.Event()
        self._inactive.set()
        self._conversation_capabilities: OrderedDict[str, tuple[Conversation, Capabilities]] = OrderedDict()
        self._deliveries: Deliveries | None = None
        self._uploading = asyncio.Semaphore(FILES_AT_A_TIME)
        self._signals = Signals(self._perform_signal)

    # What an author writes.

    async def deliver(self, delivery: Delivery) -> Sent:
        """Sends a part to `delivery.conversation_id`, and returns what the platform has answered.

        Raise `NotSent` if the platform cannot have the part, and `Rejected` if it has refused it. Any other error means
        that nobody knows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method deliver")

    async def edit(self, change: Change) -> None:
        """Gives the bot's message `change.target_id` the text `change.text`. Errors as in `deliver`."""
        raise NotImplementedError

    async def delete(self, change: Change) -> None:
        """Deletes the bot's message `change.target_id`. One that is gone already is no error."""
        raise NotImplementedError

    async def react(self, change: Change) -> None:
        """Reacts to `change.target_id` with `change.emoji`, or takes the reaction back."""
        raise NotImplementedError

    async def create_conversation(self, order: NewConversation) -> str:
        """Makes a conversation within another one, and returns its id. Errors as in `deliver`."""
        raise NotImplementedError

    async def typing(self, conversation_id: str, is_on: bool) -> None:
        """Shows that an answer is being written, or not any more. An error is logged."""
        raise NotImplementedError

    async def preview(self, preview: Delivery) -> None:
        """Posts the answer so far, or changes the preview that was posted for `preview.key`. An error is logged."""
        raise NotImplementedError

    async def delete_preview(self, conversation_id: str, key: str) -> None:
        """Removes the preview that was posted for `key`, if there is one. An error is logged."""
        raise NotImplementedError

    def updates(self, after: str | None) -> AsyncIterator[Update]:
        """Yields what happened on the platform after an offset; with None, from wherever a first start begins.

        Write it as `async def` with `yield`. It runs only while this adapter is active, and begins again after the
        saved offset whenever that has changed. The offset of an update is saved after the gateway's answer to it and to
        all updates before it.
        """
        raise NotImplementedError

    # What an author calls.

    def serve(
        self,
        urls: str | list[str],
        *,
        api_key: str | None = None,
        offset_file: str | os.PathLike[str] | None = None,
        instance_id: str | None = None,
    ) -> None:
        """Runs the adapter until SIGTERM or Ctrl-C, as `run` does."""
        run_until_signal(self.run(urls, api_key=api_key, offset_file=offset_file, instance_id=instance_id))

    async def run(
        self,
        urls: str | list[str],
        *,
        api_key: str | None = None,
        offset_file: str | os.PathLike[str] | None = None,
        instance_id: str | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Serves the account until the task is cancelled. Raises `AccessDenied` if the gateway refuses the account.

        `instance_id` names this adapter's place: after a restart under the same name it is active at once. The default
        is the account and the name of this machine. `offset_file` is needed by an adapter with `updates`.
        """
        hello = self._hello(api_key, instance_id or f"{self.account}@{socket.gethostname()}")
        reads = type(self).updates is not Adapter.updates
        if reads and offset_file is None:
            raise ValueError("an adapter with `updates` needs offset_file: the file that the offset is saved in")
        self._deliveries = Deliveries(self._deliveries_at_a_time)
        tasks = [asyncio.create_task(self._stay_connected(endpoints(urls), hello, backoff or Backoff()))]
        if reads and offset_file is not None:
            tasks.append(asyncio.create_task(self._read_updates(OffsetFile(offset_file))))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except asyncio.CancelledError:
            await self._deliveries.stop(STOP_SECONDS)
            raise
        finally:
            await end(tasks)
            self._deliveries.cancel()
            self._signals.cancel()

    @property
    def is_active(self) -> bool:
        """Returns whether this adapter, and no other, serves the account now."""
        return self._active.is_set()

    async def wait_active(self) -> None:
        """Returns once this adapter serves the account."""
        await self._active.wait()

    async def forward(self, event: Inbound | Update) -> Settled:
        """Brings an event to the gateway. Returns only after it was durably accepted, or refused for good.

        Until then it is sent again, through lost connections, restarts of the gateway and the loss of the lease,
        without a limit: an event that is given up is lost. Cancel the call to give it up.
        """
        update = event if isinstance(event, Update) else None
        inbound = update.inbound if update else cast(Inbound, event)
        offset = update.offset if update else None
        if inbound is None:
            return settle({"disposition": "ignored"}, None, offset)
        place = self._conversation(inbound.conversation_id, inbound.parent_conversation_id)
        uploads = Uploads(inbound, self._uploading) if inbound.files else None
        backoff = Backoff(first=0.5, longest=RETRY_SECONDS_MAX)
        while True:
            await self._active.wait()
            try:
                link = self._current_link()
                # Again for each attempt: a conversation that is bound to another session needs its files there.
                content = await uploads.content(link, place) if uploads else inbound.content
                answer = await link.request(inbound.as_message(place, content))
            except ConnectionLost as error:
                log.info("inbound is sent again: %s", error)
                await asyncio.sleep(backoff.next_wait())
            except GatewayError as error:
                if not error.retryable:
                    log.warning("an inbound event was refused: %s", error)
                    return settle({}, error, offset)
                log.info("inbound is sent again: %s", error)
                await asyncio.sleep(backoff.next_wait(error.retry_after or 0.0))
            else:
                return settle(answer, None, offset)

    async def declare(self, capabilities: Capabilities, conversation_id: str | None = None) -> None:
        """Declares other capabilities from now on, for the account or for one conversation.

        Without a connection the next one declares them. No capabilities for a conversation mean those of the account.
        """
        self._check_methods(capabilities)
        message: Message = {"type": "capabilities", "capabilities": capabilities.as_message()}
        if conversation_id is None:
            self.capabilities = capabilities
        else:
            place = self._conversation(conversation_id)
            message["conversation"] = place
            self._conversation_capabilities[conversation_id] = (place, capabilities)
            self._conversation_capabilities.move_to_end(conversation_id)
            if not list(capabilities):
                del self._conversation_capabilities[conversation_id]
            while len(self._conversation_capabilities) > CONVERSATIONS_MAX:
                self._conversation_capabilities.popitem(last=False)
        if self._link is not None:
            try:
                await self._link.request(message)
            except ConnectionLost:
                log.info("the next connection declares the capabilities")

    async def request(self, message: Message) -> Message:
        """Sends another request of an adapter, such as `bind` or `resolve`, and returns its answer.

        Raises `GatewayError` for an error, and `ConnectionLost` if nobody knows whether the request was performed.
        """
        return await self._current_link().request(message)

    # The connection.

    def _hello(self, api_key: str | None, instance_id: str) -> Message:
        if not re.fullmatch(r"[a-z0-9_.-]{1,64}", self.channel):
            raise ValueError(f"the channel {self.channel!r} must have 1 to 64 characters of a-z 0-9 _ . -")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.account):
            raise ValueError(f"the account {self.account!r} must have 1 to 64 characters of A-Z a-z 0-9 _ . -")
        self._check_methods(self.capabilities)
        hello: Message = {
            "type": "hello",
            "role": "adapter",
            "channel": self.channel,
            "account_id": self.account,
            "instance_id": checked_id(instance_id, "instance_id"),
        }
        if api_key is not None:
            hello["api_key"] = api_key
        if self.platform_bot_id is not None:
            hello["platform_bot_id"] = checked_id(self.platform_bot_id, "platform_bot_id")
        return hello

    def _check_methods(self, capabilities: Capabilities) -> None:
        for name, methods in METHODS.items():
            for method in methods:
                if capabilities.level(name) > 0 and getattr(type(self), method) is getattr(Adapter, method):
                    raise ValueError(f"the capability {name} is declared, but {type(self).__name__} has no {method}")
        if type(self).deliver is Adapter.deliver:
            raise ValueError(f"{type(self).__name__} has no method deliver")

    async def _stay_connected(self, urls: list[str], hello: Message, backoff: Backoff) -> None:
        turn = 0
        while True:
            least = 0.0
            backoff.start()
            try:
                await self._serve_connection(urls[turn % len(urls)], hello)
            except ConnectionLost as error:
                log.info("no connection to the gateway: %s", error)
                least = error.least_wait
            turn += 1
            await asyncio.sleep(backoff.next_wait(least))

    async def _serve_connection(self, url: str, hello: Message) -> None:
        declared = self.capabilities
        connection = await Connection.open(url, {**hello, "capabilities": declared.as_message()})
        link = Link(connection)
        self._link = link
        declaring = asyncio.create_task(self._declare_again(link, declared))
        declaring.add_done_callback(lambda _: self._set_active(link.is_open and link.has_lease))
        try:
            async for message in connection.messages():
                self._handle(link, message)
        finally:
            self._link = None
            link.end()
            self._set_active(False)
            await end([declaring])
            await connection.close()

    async def _declare_again(self, link: Link, declared: Capabilities) -> None:
        """Declares what `hello` could not: capabilities of conversations, and a change since `hello` was written."""
        messages: list[Message] = []
        if self.capabilities != declared:
            messages.append({"capabilities": self.capabilities.as_message()})
        for place, capabilities in self._conversation_capabilities.values():
            messages.append({"conversation": place, "capabilities": capabilities.as_message()})
        for message in messages:
            message["type"] = "capabilities"
            try:
                await link.request(message)
            except GatewayError as error:
                log.warning("capabilities were refused: %s", error)
        link.is_declared = True

    def _handle(self, link: Link, message: Message) -> None:
        kind = message["type"]
        if kind == "adapter_state":
            log.info("state: %s%s", message["state"], ", paused" if message.get("paused") else "")
            link.has_lease = message["state"] == "active"
            # A message keeps the limits that were declared when it was brought, so those are declared first.
            self._set_active(link.has_lease and link.is_declared)
        elif kind in ("typing", "delete_message") or (kind == "deliver" and message["kind"] == "preview"):
            self._signals.add(message)
        elif kind in ("deliver", "create_conversation"):
            self._take_order(link, message)
        elif not link.answer(message) and kind == "error":
            log.warning("error %s: %s", message.get("code"), message.get("message"))

    def _set_active(self, is_active: bool) -> None:
        if is_active:
            self._inactive.clear()
            self._active.set()
        else:
            self._active.clear()
            self._inactive.set()

    def _current_link(self) -> Link:
        if self._link is None:
            raise ConnectionLost("the adapter is not connected")
        return self._link

    # Orders.

    def _take_order(self, link: Link, message: Message) -> None:
        is_delivery = message["type"] == "deliver"

        async def report(outcome: Outcome) -> None:
            answer: Message = {"delivery_id": message["delivery_id"], **outcome}
            if is_delivery:
                answer |= {"type": "delivered", "part": message["part"]}
            else:
                answer["type"] = "conversation_created"
                if answer.pop("proof", None) is not None:
                    answer["outcome"] = "not_created"
            # A receipt counts on every connection; any other outcome only where the order came from.
            is_receipt = outcome["outcome"] in ("sent", "created")
            target = link if link.is_open else self._link if is_receipt else None
            if target is not None:
                try:
                    await target.connection.send(answer)
                except ConnectionLost:
                    log.info("the outcome of delivery %s was not reported", message["delivery_id"])

        async def perform() -> Outcome:
            return await (self._deliver(message, link.connection.url) if is_delivery else self._create(message))

        assert self._deliveries is not None
        self._deliveries.take(message, perform, report)

    async def _deliver(self, message: Message, gateway: str) -> Outcome:
        order = delivery_of(message, gateway)
        if isinstance(order, Change):
            method = {"edit": self.edit, "delete": self.delete, "reaction": self.react}[order.kind]
            await method(order)
            return {"outcome": "sent", "external_id": order.target_id, "place": message["conversation"]}
        sent = await self.deliver(order)
        place = message["conversation"]
        if sent.conversation_id != order.conversation_id:
            log.error("a part for %s went to %s", order.conversation_id, sent.conversation_id)
            place = self._conversation(sent.conversation_id)
        return {"outcome": "sent", "external_id": sent.external_id, "place": place}

    async def _create(self, message: Message) -> Outcome:
        order = NewConversation(cast(ToAdapterCreateConversation, message))
        conversation_id = await self.create_conversation(order)
        place = self._conversation(checked_id(conversation_id, "the new conversation"), order.parent_conversation_id)
        return {"outcome": "created", "conversation": place}

    async def _perform_signal(self, message: Message) -> None:
        conversation_id = message["conversation"]["conversation_id"]
        if message["type"] == "typing":
            await self.typing(conversation_id, message["state"] == "on")
        elif message["type"] == "delete_message":
            await self.delete_preview(conversation_id, message["key"])
        else:
            # The gateway orders a preview without files.
            await self.preview(delivery_of(message, ""))

    def _conversation(self, conversation_id: str, parent: str | None = None) -> Conversation:
        place: Conversation = {
            "channel": self.channel,
            "account_id": self.account,
            "conversation_id": checked_id(conversation_id, "conversation_id"),
        }
        if parent is not None and parent != conversation_id:
            place["parent_conversation_id"] = parent
        return place

    # Updates.

    async def _read_updates(self, file: OffsetFile) -> None:
        backoff = Backoff(first=PAUSE_SECONDS, longest=RETRY_SECONDS_MAX)
        while True:
            await self._active.wait()
            backoff.start()
            try:
                await until(self._inactive, self._forward_updates(file))
            except Exception:
                log.exception("reading from the platform failed, and begins again after the saved offset")
                await asyncio.sleep(backoff.next_wait())

    async def _forward_updates(self, file: OffsetFile) -> None:
        async def save(settled: Settled) -> None:
            await asyncio.to_thread(file.advance, settled)

        window = Window(self.forward, save)
        async with asyncio.TaskGroup() as tasks, aclosing(cast(Any, self.updates(file.read()))) as updates:
            async for update in updates:
                await window.add(update, tasks)
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(frozen=True)
class Functions:
    """The functions of a `function_adapter`, under the names of the methods that they stand for."""

    deliver: Callable[[Delivery], Awaitable[Sent]]
    edit: Callable[[Change], Awaitable[None]] | None = None
    delete: Callable[[Change], Awaitable[None]] | None = None
    react: Callable[[Change], Awaitable[None]] | None = None
    create_conversation: Callable[[NewConversation], Awaitable[str]] | None = None
    typing: Callable[[str, bool], Awaitable[None]] | None = None
    preview: Callable[[Delivery], Awaitable[None]] | None = None
    delete_preview: Callable[[str, str], Awaitable[None]] | None = None
    updates: Callable[[str | None], AsyncIterator[Update]] | None = None


def function_adapter(
    channel: str,
    functions: Functions,
    *,
    account: str = "main",
    capabilities: Capabilities | None = None,
    platform_bot_id: str | None = None,
) -> Adapter:
    """Returns an adapter made of functions, for a platform that needs no class."""
    methods = {name: staticmethod(function) for name, function in vars(functions).items() if function is not None}
    adapter_class = type(f"{channel}_adapter", (Adapter,), {"channel": channel, **methods})
    adapter: Adapter = adapter_class(account)
    adapter.capabilities = capabilities or Capabilities()
    adapter.platform_bot_id = platform_bot_id
    return adapter
