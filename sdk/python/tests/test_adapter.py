"""The adapter against the fake gateway: outcomes, repeated orders, the lease, and the offset."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from processes import running, wait_until

from turnway.adapter import (
    AccessDenied,
    Adapter,
    Capabilities,
    Change,
    Delivery,
    Functions,
    Inbound,
    Limit,
    NewConversation,
    NotSent,
    OffsetFile,
    Rejected,
    Sent,
    Settled,
    Update,
    function_adapter,
)
from turnway.files import InboundFile
from turnway.retry import Backoff
from turnway.testing import Answer, FakeGateway

FAST = Backoff(first=0.01, longest=0.05)


def line(number: int, room: str = "lobby") -> Inbound:
    return Inbound(conversation_id=room, message_id=f"m{number}", sender_id="ann", content=f"line {number}")


class Plain(Adapter):
    """An adapter whose platform is a list, and whose errors a test chooses."""

    channel = "plain"
    capabilities = Capabilities(text=Limit(2000, "chars"), key=2)

    def __init__(self) -> None:
        super().__init__("main", deliveries_at_a_time=2)
        self.sent: list[Delivery] = []
        self.errors: list[BaseException] = []
        self.place: str | None = None
        self.gate: asyncio.Event | None = None
        self.running = 0
        self.most = 0

    async def deliver(self, delivery: Delivery) -> Sent:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            self.sent.append(delivery)
            if self.errors:
                raise self.errors.pop(0)
            return Sent(len(self.sent), self.place or delivery.conversation_id)
        finally:
            self.running -= 1


class Reader(Plain):
    """An adapter that reads a fixed stream of updates."""

    def __init__(self, stream: list[Update]) -> None:
        super().__init__()
        self.stream = stream
        self.starts: list[str | None] = []
        self.read = 0

    async def updates(self, after: str | None) -> AsyncIterator[Update]:
        self.starts.append(after)
        for update in self.stream:
            if int(update.offset) > int(after or 0):
                self.read = int(update.offset)
                yield update
        await asyncio.Event().wait()


def run(adapter: Adapter, gateway: FakeGateway, **options: Any) -> Any:
    return running(adapter.run(gateway.url, backoff=FAST, **options))


async def test_hello_has_account_capabilities_and_a_stable_instance() -> None:
    async with FakeGateway() as gateway, run(Plain(), gateway, api_key="twk_x"):
        first = (await gateway.adapter()).hello
        await gateway.disconnect()
        second = (await gateway.adapter(2)).hello
        assert first == second
        assert first["instance_id"].startswith("main@") and first["api_key"] == "twk_x"
        assert first["capabilities"] == {"text": {"level": 2, "max": 2000, "unit": "chars"}, "key": 2}


async def test_part_is_sent_with_id_and_place() -> None:
    async with FakeGateway() as gateway, run(Plain(), gateway):
        report = await (await gateway.deliver("hello")).report()
        assert report == {
            "type": "delivered", "delivery_id": "d1", "part": 1, "outcome": "sent", "external_id": "1",
            "place": {"channel": "plain", "account_id": "main", "conversation_id": "lobby"},
        }  # fmt: skip
        assert gateway.recorded.violations == []


async def test_other_place_of_the_platform_is_reported() -> None:
    adapter = Plain()
    adapter.place = "elsewhere"
    async with FakeGateway() as gateway, run(adapter, gateway):
        assert (await (await gateway.deliver("hello")).report())["place"]["conversation_id"] == "elsewhere"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotSent("no route"), {"outcome": "not_sent", "proof": "no route"}),
        (Rejected("gone"), {"outcome": "rejected", "code": "gone"}),
        (Rejected.by_status(429, "1.5"), {"outcome": "rejected", "code": "rate_limit", "retry_after_ms": 1500}),
        (Rejected.by_status(503), {"outcome": "rejected", "code": "transient"}),
        (TimeoutError(), {"outcome": "unknown"}),
        (ConnectionRefusedError(), {"outcome": "unknown"}),
        (KeyError("id"), {"outcome": "unknown"}),
    ],
)
async def test_error_of_the_platform_becomes_the_outcome(error: BaseException, expected: dict[str, Any]) -> None:
    adapter = Plain()
    adapter.errors = [error]
    async with FakeGateway() as gateway, run(adapter, gateway):
        report = await (await gateway.deliver("hello")).report()
        assert {key: report[key] for key in report if key not in ("type", "delivery_id", "part")} == expected


async def test_part_after_its_deadline_is_not_sent() -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        report = await (await gateway.deliver("late", deadline_ts=int(time.time() * 1000) - 1)).report()
        assert report["outcome"] == "not_sent" and adapter.sent == []


async def test_repeated_order_is_one_message_with_the_same_answer() -> None:
    adapter = Plain()
    adapter.gate = asyncio.Event()
    async with FakeGateway() as gateway, run(adapter, gateway):
        order = await gateway.deliver("hello", times=3)
        await wait_until(lambda: adapter.running == 1)
        adapter.gate.set()
        reports = await order.reports(3)
        again = await gateway.deliver("hello", delivery_id="d1", key="k1", attempt=7)
        assert [report["external_id"] for report in await again.reports(4)] == ["1"] * 4
        assert len(adapter.sent) == 1 and reports[0] == reports[2]


async def test_next_attempt_after_a_refusal_is_performed() -> None:
    adapter = Plain()
    adapter.errors = [Rejected("transient"), RuntimeError("who knows")]
    async with FakeGateway() as gateway, run(adapter, gateway):
        await (await gateway.deliver("hello", times=2)).reports(2)
        assert len(adapter.sent) == 1, "the same attempt twice is one attempt"
        for attempt in (2, 3):
            order = await gateway.deliver("hello", delivery_id="d1", key="k1", attempt=attempt)
            reports = await order.reports(attempt + 1)
        assert [report["outcome"] for report in reports] == ["rejected", "rejected", "unknown", "sent"]


async def test_deliveries_at_a_time_are_limited() -> None:
    adapter = Plain()
    adapter.gate = asyncio.Event()
    async with FakeGateway() as gateway, run(adapter, gateway):
        orders = [await gateway.deliver(f"part {n}", room) for n, room in enumerate("abcde")]
        await wait_until(lambda: adapter.running == 2)
        adapter.gate.set()
        for order in orders:
            assert (await order.report())["outcome"] == "sent"
        assert adapter.most == 2


async def test_receipt_after_a_lost_connection_is_still_reported() -> None:
    adapter = Plain()
    adapter.gate = asyncio.Event()
    async with FakeGateway() as gateway, run(adapter, gateway):
        order = await gateway.deliver("hello")
        await wait_until(lambda: adapter.running == 1)
        await gateway.disconnect()
        await gateway.adapter(2)
        adapter.gate.set()
        assert (await order.report())["outcome"] == "sent"


async def test_stopped_adapter_ends_open_deliveries_and_refuses_new_ones() -> None:
    adapter = Plain()
    adapter.gate = asyncio.Event()
    async with FakeGateway() as gateway, run(adapter, gateway) as task:
        first = await gateway.deliver("hello")
        await wait_until(lambda: adapter.running == 1)
        task.cancel()
        second = await gateway.deliver("too late")
        assert (await second.report())["outcome"] == "not_sent"
        adapter.gate.set()
        assert (await first.report())["outcome"] == "sent"
        await asyncio.wait([task])


async def test_message_is_brought_where_its_files_are_not_taken() -> None:
    adapter = Plain()
    file = InboundFile("a.txt", "text/plain", b"a")
    event = Inbound(conversation_id="lobby", message_id="m1", sender_id="ann", content="look", files=[file])
    async with FakeGateway() as gateway, run(adapter, gateway):
        settled = await adapter.forward(event)
        assert settled.disposition == "run"
        content = gateway.recorded.inbound[0]["message"]["content"]
        assert content == "look\n[file a.txt was not taken: not_supported]"
        assert gateway.recorded.violations == []


class Everything(Plain):
    """An adapter with every capability, which records its calls."""

    capabilities = Capabilities(edit=2, delete=1, reaction=1, typing=1, preview=2, create_conversation=2)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []

    async def edit(self, change: Change) -> None:
        self.calls.append(("edit", change.target_id, change.text))

    async def delete(self, change: Change) -> None:
        self.calls.append(("delete", change.target_id))

    async def react(self, change: Change) -> None:
        self.calls.append(("react", change.target_id, change.emoji, str(change.is_removal)))

    async def typing(self, conversation_id: str, is_on: bool) -> None:
        self.calls.append(("typing", conversation_id, str(is_on)))

    async def preview(self, preview: Delivery) -> None:
        self.calls.append(("preview", preview.key, preview.text))

    async def delete_preview(self, conversation_id: str, key: str) -> None:
        self.calls.append(("delete_preview", conversation_id, key))

    async def create_conversation(self, order: NewConversation) -> str:
        self.calls.append(("create", order.parent_conversation_id, order.name))
        return "thread-1"


async def test_changes_signals_and_conversations_reach_their_methods() -> None:
    adapter = Everything()
    async with FakeGateway() as gateway, run(adapter, gateway):
        place = await gateway.place("lobby")
        edit = await gateway.deliver("new", kind="edit", target={"external_id": "7"})
        assert (await edit.report())["external_id"] == "7"
        await (await gateway.deliver("", kind="delete", target={"external_id": "8"})).report()
        reaction = {"emoji": "ok", "remove": False}
        react = await gateway.deliver("", kind="reaction", target={"message_id": "m1"}, reaction=reaction)
        assert (await react.report())["external_id"] == "m1"
        made = await (await gateway.create_conversation("a task")).report()
        assert made["conversation"] == {**place, "conversation_id": "thread-1", "parent_conversation_id": "lobby"}
        await gateway.send({"type": "typing", "conversation": place, "state": "on"})
        await wait_until(lambda: len(adapter.calls) == 5)
        assert adapter.calls == [
            ("edit", "7", "new"), ("delete", "8"), ("react", "m1", "ok", "False"), ("create", "lobby", "a task"),
            ("typing", "lobby", "True"),
        ]  # fmt: skip
        assert gateway.recorded.violations == []


async def test_removal_of_a_preview_never_comes_before_it() -> None:
    adapter = Everything()
    async with FakeGateway() as gateway, run(adapter, gateway):
        place = await gateway.place("lobby")
        for text in ("a", "ab", "abc"):
            await gateway.deliver(text, kind="preview", key="p")
        await gateway.send({"type": "delete_message", "conversation": place, "key": "p"})
        await wait_until(lambda: ("delete_preview", "lobby", "p") in adapter.calls)
        assert adapter.calls[-1] == ("delete_preview", "lobby", "p")
        assert gateway.recorded.reports == [], "previews are not reported"


async def test_preview_that_waits_is_replaced_and_then_dropped() -> None:
    adapter = Everything()
    gate = asyncio.Event()
    shown = adapter.preview

    async def preview(preview: Delivery) -> None:
        await shown(preview)
        await gate.wait()

    adapter.preview = preview  # type: ignore[method-assign]
    async with FakeGateway() as gateway, run(adapter, gateway):
        place = await gateway.place("lobby")
        await gateway.deliver("a", kind="preview", key="p")
        await wait_until(lambda: adapter.calls)
        for text in ("ab", "abc"):
            await gateway.deliver(text, kind="preview", key="p")
        await gateway.send({"type": "delete_message", "conversation": place, "key": "p"})
        await (await gateway.deliver("the answer")).report()
        gate.set()
        await wait_until(lambda: len(adapter.calls) == 2)
        assert adapter.calls == [("preview", "p", "a"), ("delete_preview", "lobby", "p")]


async def test_declared_capability_without_its_method_is_refused() -> None:
    class Hollow(Plain):
        capabilities = Capabilities(edit=2)

    with pytest.raises(ValueError, match="edit is declared, but Hollow has no edit"):
        await Hollow().run("ws://127.0.0.1:1")


@pytest.mark.parametrize("bad", [{"text": Limit(2000, level=3)}, {"key": 5}, {"text": Limit(10)}])
def test_bad_capability_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="capability"):
        Capabilities(**bad)


async def test_capabilities_change_and_are_declared_again() -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        await adapter.wait_active()
        await adapter.declare(Capabilities(text=Limit(4096)))
        await adapter.declare(Capabilities(text=Limit(140)), "sms")
        await gateway.disconnect()
        hello = (await gateway.adapter(2)).hello
        assert hello["capabilities"]["text"]["max"] == 4096
        await gateway.wait_for(lambda: len(gateway.recorded.capabilities) == 3)
        assert [message.get("conversation") for message in gateway.recorded.capabilities] == [
            None, await gateway.place("sms"), await gateway.place("sms"),
        ]  # fmt: skip


@pytest.mark.parametrize("code", [4401, 4403])
async def test_refused_account_ends_the_adapter(code: int) -> None:
    async with FakeGateway() as gateway:
        gateway.refusal = (code, "unauthorized")
        with pytest.raises(AccessDenied) as found:
            await Plain().run(gateway.url, backoff=FAST)
        assert found.value.close_code == code and len(gateway.recorded.hellos) == 1


async def test_go_away_leads_to_a_new_connection() -> None:
    async with FakeGateway() as gateway, run(Plain(), gateway):
        await gateway.go_away()
        await gateway.adapter(2)


async def test_forward_returns_the_answer() -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        settled = await adapter.forward(line(1))
        assert settled.disposition == "run" and not settled.duplicate
        assert gateway.recorded.inbound[0]["message"] == {"message_id": "m1", "content": "line 1"}


@pytest.mark.parametrize(
    "fault",
    [
        Answer(drop=True, disconnect=True),
        Answer(lose=True, disconnect=True),
        Answer(duplicate=True),
        Answer(error="store_unavailable", retryable=True, retry_after_ms=10),
    ],
)
async def test_forward_repeats_until_it_is_accepted(fault: Answer) -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        gateway.script(fault)
        assert (await adapter.forward(line(1))).disposition == "run"
        assert (await adapter.forward(line(2))).disposition == "run"
        assert gateway.recorded.violations == []


async def test_forward_ends_with_a_final_refusal() -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        gateway.script(Answer(error="not_found"))
        settled = await adapter.forward(line(1))
        assert settled.disposition == "refused" and settled.reason == "not_found" and settled.refusal is not None


def test_offset_cannot_be_saved_before_the_answer(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="only Adapter.forward"):
        Settled(object(), {}, None, 7)
    assert OffsetFile(tmp_path / "offset").read() is None


def test_empty_offset_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "offset").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        OffsetFile(tmp_path / "offset").read()


async def test_offset_is_saved_only_behind_answered_updates(tmp_path: Path) -> None:
    adapter = Reader([Update(n, line(n, f"room-{n}")) for n in (1, 2, 3)] + [Update(4)])
    file = OffsetFile(tmp_path / "offset")
    async with FakeGateway() as gateway:
        gateway.script(Answer(), Answer(hold=True), Answer())
        async with run(adapter, gateway, offset_file=file.path):
            await gateway.wait_inbound(3)
            await wait_until(lambda: file.read() == "1")
            await wait_until(lambda: adapter.read == 4)
            assert file.read() == "1", "update 2 has no answer yet"
            gateway.release()
            await wait_until(lambda: file.read() == "4")


async def test_messages_of_a_conversation_wait_for_each_other(tmp_path: Path) -> None:
    adapter = Reader([Update(1, line(1)), Update(2, line(2)), Update(3, line(3, "other"))])
    async with FakeGateway() as gateway, run(adapter, gateway, offset_file=tmp_path / "offset"):
        gateway.script(Answer(hold=True))
        found = await gateway.wait_inbound(2)
        assert [message["message"]["message_id"] for message in found] == ["m1", "m3"]
        gateway.release()
        assert (await gateway.wait_inbound(3))[2]["message"]["message_id"] == "m2"


async def test_lost_lease_stops_reading_until_it_returns(tmp_path: Path) -> None:
    adapter = Reader([Update(n, line(n, f"room-{n}")) for n in (1, 2)])
    async with FakeGateway() as gateway:
        gateway.script(Answer(), Answer(hold=True))
        async with run(adapter, gateway, offset_file=tmp_path / "offset"):
            await gateway.wait_inbound(2)
            await wait_until(lambda: OffsetFile(tmp_path / "offset").read() == "1")
            await gateway.set_state("standby")
            await wait_until(lambda: not adapter.is_active)
            gateway.release()
            await gateway.set_state("active")
            await wait_until(lambda: OffsetFile(tmp_path / "offset").read() == "2")
            assert adapter.starts == [None, "1"], "it has begun again behind the saved offset"
            assert gateway.recorded.violations == []


async def test_answers_in_reverse_order_save_the_right_offset(tmp_path: Path) -> None:
    adapter = Reader([Update(n, line(n, f"room-{n}")) for n in range(1, 9)])
    async with FakeGateway() as gateway, run(adapter, gateway, offset_file=tmp_path / "offset"):
        gateway.script(*[Answer(hold=True)] * 8)
        await gateway.wait_for(lambda: gateway.held == 8)
        gateway.release(reverse=True)
        await wait_until(lambda: OffsetFile(tmp_path / "offset").read() == "8")


async def test_wait_that_fails_tells_what_was_recorded() -> None:
    async with FakeGateway() as gateway, run(Plain(), gateway):
        await gateway.adapter()
        with pytest.raises(TimeoutError, match="inbound 0, .* hellos 1"):
            await gateway.wait_for(lambda: False, seconds=0.1)


async def test_second_connection_stands_by() -> None:
    first, second = Plain(), Plain()
    async with FakeGateway() as gateway, run(first, gateway, instance_id="a"):
        await first.wait_active()
        async with run(second, gateway, instance_id="b"):
            await gateway.adapter(2)
            assert first.is_active and not second.is_active


async def test_adapter_of_functions_delivers() -> None:
    async def deliver(delivery: Delivery) -> Sent:
        return Sent(f"id of {delivery.text}", delivery.conversation_id)

    adapter = function_adapter("plain", Functions(deliver), account="two", capabilities=Capabilities(key=2))
    async with FakeGateway() as gateway, run(adapter, gateway):
        assert (await (await gateway.deliver("x")).report())["external_id"] == "id of x"
        assert (await gateway.adapter()).hello["account_id"] == "two"


async def test_too_large_message_is_refused_without_losing_the_connection() -> None:
    adapter = Plain()
    async with FakeGateway() as gateway, run(adapter, gateway):
        huge = Inbound(conversation_id="lobby", message_id="m", sender_id="ann", content="x" * 70_000)
        assert (await adapter.forward(huge)).reason == "too_large"
        assert len(gateway.recorded.hellos) == 1
