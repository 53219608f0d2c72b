"""The adapter of examples/rooms with the SDK, between a real node and the platform rooms.py."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from adapter_sdk import Rooms as RoomsAdapter
from processes import ROOT, Node, Rooms, Script, running, started, wait_until
from proxy import Proxy, Verdict

from turnway.adapter import AccessDenied, Inbound, OffsetFile
from turnway.retry import Backoff

EXAMPLE = ROOT / "examples" / "rooms" / "adapter_sdk.py"


class Example(Script):
    """The example as a program of its own."""

    def __init__(self, node: Node, rooms: Rooms, state: Path) -> None:
        super().__init__()
        self.node, self.rooms, self.state = node, rooms, state

    async def run(self) -> None:
        command = [sys.executable, str(EXAMPLE), "--turnway", self.node.url, "--rooms", self.rooms.url]
        await self.start(*command, "--state", str(self.state))


def in_process(rooms: Rooms, url: str, state: Path) -> Any:
    adapter = RoomsAdapter("main", rooms.url)
    backoff = Backoff(first=0.05, longest=0.2)
    return running(adapter.run(url, offset_file=state, instance_id="tests", backoff=backoff))


def test_example_has_fewer_than_100_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100


@pytest.mark.slow
async def test_example_answers_through_faults_restarts_and_kills(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    adapter = Example(node, rooms, tmp_path / "offset")
    async with started(node, rooms, adapter):
        faults = [{"kind": "drop_reply"}, {"kind": "refuse", "status": 503}, {"kind": "drop_reply"}]
        await rooms.ask("/faults", faults)
        for number in range(3):
            await rooms.say(f"room-{number}", f"line {number}")
        await rooms.answers(3)
        await node.kill()
        await rooms.say("room-0", "while the gateway is away")
        await node.run()
        assert "while the gateway is away" in (await rooms.answers(4))[3]["text"]
        await adapter.kill()
        await rooms.say("room-1", "while the adapter is away")
        await adapter.run()
        lines = await rooms.answers(5)
        assert "while the adapter is away" in lines[4]["text"]
        assert sorted(line["room"] for line in lines) == ["room-0", "room-0", "room-1", "room-1", "room-2"]
        assert await adapter.end() == 0, "SIGTERM ends the adapter in order"


async def test_lost_and_repeated_answers_lead_to_one_turn_each(tmp_path: Path) -> None:
    left: dict[str, list[Verdict]] = {"inbound_accepted": ["cut before", "twice"], "inbound": ["cut after", "twice"]}
    left |= {"deliver": ["twice", "cut before"], "delivered": ["cut before", "twice"]}

    def judge(way: str, message: dict[str, Any]) -> Verdict:
        verdicts = left.get(message["type"])
        return verdicts.pop(0) if verdicts else "pass"

    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms), Proxy(node.url, judge) as proxy:
        async with in_process(rooms, proxy.url, tmp_path / "offset"):
            for number in range(5):
                await rooms.say(f"room-{number % 2}", f"line {number}")
            lines = await rooms.answers(5)
            last = str(max(update["update"] for update in (await rooms.ask("/updates?after=0"))["updates"]))
            await wait_until(lambda: OffsetFile(tmp_path / "offset").read() == last, name="the offset")
            assert sorted(line["text"] for line in lines) == [f"line {number}" for number in range(5)]
            assert not any(left.values()), "each fault has happened"
            assert await rooms.journal() == lines


@pytest.mark.slow
async def test_many_lines_are_answered_once_through_cuts_and_kills(tmp_path: Path) -> None:
    choices = random.Random(7)
    rooms_count, lines_count = 8, 96
    left = ("inbound", "inbound_accepted", "deliver", "delivered")
    kinds: list[Verdict] = ["cut before", "cut after", "twice"]

    def fault(way: str, message: dict[str, Any]) -> Verdict:
        is_hit = message["type"] in left and choices.random() < 0.06
        return choices.choice(kinds) if is_hit else "pass"

    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms), Proxy(node.url, fault) as proxy:
        async with in_process(rooms, proxy.url, tmp_path / "offset"):
            drops = [{"kind": "drop_reply"} if n % 7 == 0 else {"kind": "refuse", "status": 503} for n in range(14)]
            await rooms.ask("/faults", drops)
            for number in range(lines_count):
                await rooms.say(f"room-{number % rooms_count}", f"line {number}")
                if number in (30, 60):
                    await node.kill()
                    await node.run()
            lines = await rooms.answers(lines_count)
    assert sorted(line["text"] for line in lines) == sorted(f"line {number}" for number in range(lines_count))
    for room in range(rooms_count):
        texts = [line["text"] for line in lines if line["room"] == f"room-{room}"]
        assert texts == [f"line {number}" for number in range(room, lines_count, rooms_count)]
    assert len(proxy.verdicts) > 5 and proxy.connections > 3, "there were faults"


async def test_node_restart_keeps_the_order_of_a_conversation(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms), in_process(rooms, node.url, tmp_path / "offset"):
        await rooms.say("lobby", "line 0")
        await rooms.answers(1)
        await node.kill()
        for number in range(1, 9):
            await rooms.say("lobby", f"line {number}")
        await node.run()
        lines = await rooms.answers(9)
        assert [line["text"] for line in lines] == [f"line {number}" for number in range(9)]


async def test_repeated_message_is_reported_as_a_duplicate(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms):
        adapter = RoomsAdapter("main", rooms.url)
        async with running(adapter.run(node.url, offset_file=tmp_path / "offset")):
            event = Inbound(conversation_id="lobby", message_id="m1", sender_id="ann", content="hello")
            first, second = await adapter.forward(event), await adapter.forward(event)
            assert (first.duplicate, second.duplicate) == (False, True) and first.run_id == second.run_id


@pytest.mark.slow
async def test_long_answer_arrives_in_parts(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms), in_process(rooms, node.url, tmp_path / "offset"):
        text = "\n\n".join(f"paragraph {number} " + "word " * 60 for number in range(6))
        await rooms.say("lobby", text[:1990])
        await rooms.say("lobby", "end")
        lines = await rooms.answers(2)
        assert "".join(line["text"] for line in lines[:-1]).split() == text[:1990].split()


async def test_second_adapter_takes_over_when_the_first_is_gone(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms):
        first, second = RoomsAdapter("main", rooms.url), RoomsAdapter("main", rooms.url)
        async with running(second.run(node.url, offset_file=tmp_path / "two", instance_id="two")):
            async with running(first.run(node.url, offset_file=tmp_path / "one", instance_id="one")):
                await wait_until(lambda: first.is_active or second.is_active)
                await rooms.say("lobby", "first line")
                await rooms.answers(1)
                assert first.is_active != second.is_active
            await wait_until(lambda: second.is_active)
            await rooms.say("lobby", "second line")
            lines = await rooms.answers(2)
            assert [line["text"] for line in lines] == ["first line", "second line"]


async def test_second_account_with_the_same_bot_is_refused(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo"), Rooms()
    async with started(node, rooms):
        first, second = RoomsAdapter("main", rooms.url), RoomsAdapter("other", rooms.url)
        first.platform_bot_id = second.platform_bot_id = "bot-1"
        async with running(first.run(node.url, offset_file=tmp_path / "one")):
            await wait_until(lambda: first.is_active)
            with pytest.raises(AccessDenied, match="bot_id_in_use") as found:
                await second.run(node.url, offset_file=tmp_path / "two")
            assert found.value.close_code == 4409


async def test_missing_key_is_final(tmp_path: Path) -> None:
    pepper = tmp_path / "pepper"
    pepper.write_text("0123456789abcdef" * 4)
    pepper.chmod(0o600)
    node, rooms = Node(tmp_path / "data", "--auth", "keys", "--auth-pepper", str(pepper)), Rooms()
    async with started(node, rooms):
        with pytest.raises(AccessDenied) as found:
            await RoomsAdapter("main", rooms.url).run(node.url, offset_file=tmp_path / "offset")
        assert found.value.close_code == 4401


@pytest.mark.slow
async def test_preview_is_shown_and_replaced_by_the_answer(tmp_path: Path) -> None:
    node, rooms = Node(tmp_path / "data", "--demo", "--default-agent", "counter"), Rooms()

    async def bot_lines() -> list[dict[str, Any]]:
        return [line for line in (await rooms.ask("/rooms/lobby"))["lines"] if line["bot"]]

    async with started(node, rooms), in_process(rooms, node.url, tmp_path / "offset"):
        await rooms.say("lobby", "count to 16 every 250ms")

        async def shows_preview() -> bool:
            lines = await bot_lines()
            return len(lines) == 1 and bool(lines[0].get("preview"))

        await wait_until(shows_preview, name="a preview")
        assert (await rooms.ask("/typing/lobby"))["typing"]
        await rooms.answers(1)

        async def shows_only_the_answer() -> bool:
            lines = await bot_lines()
            typing = (await rooms.ask("/typing/lobby"))["typing"]
            return len(lines) == 1 and not lines[0].get("preview") and not typing

        await wait_until(shows_only_the_answer, name="only the answer")
