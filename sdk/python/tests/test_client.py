"""The client against real nodes: resume at the byte, repeated inputs, several addresses, and errors."""

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, Node, Script, started, wait_until
from proxy import Proxy, Verdict

from turnway.client import (
    AccessDenied,
    Accepted,
    Client,
    ConnectionLost,
    Delta,
    Done,
    GatewayError,
    HistoryLost,
    Restarted,
    Session,
    Started,
    Turn,
)
from turnway.retry import Backoff
from turnway.turn import EVENTS_MAX, Notice, RunText

COUNT = "count to 30 every 20ms"


class LastingAgent(Script):
    """An agent in a process of its own, which continues an answer for the next owner."""

    def __init__(self, pace_ms: int = 5) -> None:
        super().__init__()
        self.pace_ms = pace_ms
        self.flag = ""

    async def run(self) -> None:
        await self.start(sys.executable, str(ROOT / "tests" / "python" / "agent_lasting.py"), str(self.pace_ms))
        port = (await self.line(r"^listening (\d+)"))[1]
        self.flag = f"lasting=http://127.0.0.1:{port},on_owner_loss=resume"


def answer_of(text: str) -> str:
    """Returns the answer of the lasting agent."""
    wide = "aß語𝄞 " * 20
    return wide + text + wide


def client_of(urls: Any, user: str = "ann") -> Client:
    return Client(urls, user_id=user, backoff=Backoff(first=0.05, longest=0.3))


async def read_bytes(turn: Turn, count: int) -> bytes:
    """Reads events until as many bytes of the answer have arrived, and returns all that have."""
    found = b""
    async for event in turn:
        if isinstance(event, Delta):
            assert event.offset == len(found), "no gap and no repeat"
            found += event.text.encode()
        if len(found) >= count:
            break
    return found


async def test_turn_has_its_events_in_order(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        events = [event async for event in client.session().turn("hello there", agent="echo")]
        kinds = [type(event) for event in events if not isinstance(event, Notice)]
        assert kinds == [Accepted, Started, Delta, Done]
        done = events[-1]
        assert isinstance(done, Done) and done.text == "hello there" and done.is_complete
        assert (done.status, done.stop_reason, done.text_bytes) == ("completed", "end_turn", 11)


async def test_answer_continues_at_the_byte_when_the_node_is_killed(tmp_path: Path) -> None:
    agent = LastingAgent()
    async with started(agent):
        node = Node(tmp_path / "data", "--agent", agent.flag)
        async with started(node), client_of(node.url) as client:
            turn = client.session().turn("grüß dich " * 30, agent="lasting")
            before = await read_bytes(turn, 400)
            await node.kill()
            await node.run()
            after = b""
            async for event in turn:
                assert not isinstance(event, Restarted), "it is the same attempt"
                if isinstance(event, Delta):
                    assert event.offset == len(before) + len(after), "it continues at the byte"
                    after += event.text.encode()
            assert turn.done is not None and turn.done.attempt == 1
            assert (before + after).decode() == turn.done.text == answer_of("grüß dich " * 30)


async def test_answer_begins_anew_when_its_agent_dies_with_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn(COUNT, agent="counter")
        await read_bytes(turn, 5)
        await node.kill()
        await node.run()
        seen: list[Any] = [event async for event in turn]
        restart = next(event for event in seen if isinstance(event, Restarted))
        rest = seen[seen.index(restart) :]
        assert "".join(event.text for event in rest if isinstance(event, Delta)) == rest[-1].text
        assert rest[-1].attempt == 2 and rest[-1].text.split()[-1].strip(".,") == "30"


@pytest.mark.slow
async def test_client_cut_in_mid_answer_resumes_at_another_address(tmp_path: Path) -> None:
    agent = LastingAgent()
    subscriptions: list[dict[str, Any]] = []

    def judge(_: str, message: dict[str, Any]) -> Verdict:
        if message["type"] == "subscribe":
            subscriptions.append(message)
        return "pass"

    async with started(agent):
        node = Node(tmp_path / "data", "--agent", agent.flag)
        async with started(node), Proxy(node.url, judge) as one, Proxy(node.url, judge) as two:
            async with client_of([one.url, two.url]) as client:
                turn = client.session().turn("x" * 300, agent="lasting")
                found = b""
                for step in range(1, 6):
                    found += await read_rest(turn, found, step * 80)
                    one.cut()
                    two.cut()
                    await wait_until(lambda count=step: len(subscriptions) == count, name="the resume")
                    assert subscriptions[-1]["runs"][turn.run_id]["offset"] >= len(found), "it asks for the rest only"
                done = await turn.result()
                assert done.text == answer_of("x" * 300) and done.text.encode().startswith(found)
                assert one.connections + two.connections >= 6 and min(one.connections, two.connections) >= 2


async def read_rest(turn: Turn, found: bytes, count: int) -> bytes:
    new = b""
    while len(found) + len(new) < count:
        event = await anext(turn)
        if isinstance(event, Delta):
            assert event.offset == len(found) + len(new)
            new += event.text.encode()
    return new


@pytest.mark.parametrize("kind", ["agent_invoke", "turn_accepted"])
async def test_lost_answer_to_an_input_leads_to_one_turn(tmp_path: Path, kind: str) -> None:
    await cut_once(tmp_path, "cut after" if kind == "agent_invoke" else "cut before", kind)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut before", "cut after"])
@pytest.mark.parametrize("kind", ["agent_invoke", "turn_accepted", "message", "run_started", "done"])
async def test_cut_at_any_message_leads_to_one_turn(tmp_path: Path, fault: Verdict, kind: str) -> None:
    await cut_once(tmp_path, fault, kind)


async def cut_once(tmp_path: Path, fault: Verdict, kind: str) -> None:
    """Cuts the connection once at a message, during two turns."""
    left: list[Verdict] = [fault]

    def judge(way: str, message: dict[str, Any]) -> Verdict:
        return left.pop() if message["type"] == kind and left else "pass"

    node = Node(tmp_path / "data", "--demo")
    async with started(node), Proxy(node.url, judge) as proxy, client_of(proxy.url) as client:
        session = client.session()
        first, second = session.turn("one", agent="echo"), session.turn("two", agent="echo", strategy="enqueue")
        assert [await first.text(), await second.text()] == ["one", "two"]
        assert not left and proxy.connections == 2
        assert await all_runs(node, session) == [first.run_id, second.run_id], "each input has opened one turn"


async def all_runs(node: Node, session: Session) -> list[str]:
    """Returns the runs that have answered in a session, as the node's log has them."""
    address = f"http://{node.address}/v1/sessions/{session.session_id}/messages"
    request = urllib.request.Request(address, headers={"x-user-id": "ann"})

    def ask() -> Any:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)["messages"]

    return [message["run_id"] for message in await asyncio.to_thread(ask) if message["role"] == "assistant"]


@pytest.mark.parametrize(("agent", "text"), [("echo", "hello"), ("counter", "count to 6 every 50ms")])
async def test_lost_piece_of_text_is_asked_for(tmp_path: Path, agent: str, text: str) -> None:
    left: list[Verdict] = ["lose"]

    def judge(_: str, message: dict[str, Any]) -> Verdict:
        return left.pop() if message["type"] == "delta" and left else "pass"

    node = Node(tmp_path / "data", "--demo")
    async with started(node), Proxy(node.url, judge) as proxy, client_of(proxy.url) as client:
        turn = client.session().turn(text, agent=agent)
        found = await read_bytes(turn, 10_000)
        assert turn.done is not None and turn.done.is_complete and found.decode() == turn.done.text
        assert proxy.connections == 1 and not left


async def test_repeated_messages_are_shown_once(tmp_path: Path) -> None:
    def judge(way: str, message: dict[str, Any]) -> Verdict:
        return "twice" if way == "down" and message["type"] in ("delta", "run_started", "event", "state") else "pass"

    node = Node(tmp_path / "data", "--demo")
    async with started(node):
        async with client_of(node.url) as client:
            plain = [event async for event in client.session().turn("count to 6 every 50ms", agent="counter")]
        async with Proxy(node.url, judge) as proxy, client_of(proxy.url) as client:
            doubled = [event async for event in client.session().turn("count to 6 every 50ms", agent="counter")]
    assert isinstance(plain[-1], Done) and isinstance(doubled[-1], Done)
    assert [type(event) for event in doubled if not isinstance(event, Delta)] == [
        type(event) for event in plain if not isinstance(event, Delta)
    ]
    assert "".join(event.text for event in doubled if isinstance(event, Delta)) == doubled[-1].text == plain[-1].text


@pytest.mark.slow
async def test_input_that_is_refused_for_now_is_repeated(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        session = client.session()
        first = session.turn("count to 10 every 200ms", agent="counter")
        others = [session.turn(f"line {number}", agent="echo", strategy="enqueue") for number in range(24)]
        assert [await turn.text() for turn in others] == [f"line {number}" for number in range(24)]
        assert (await first.result()).status == "completed"
        assert max(turn.refused_since or 0 for turn in others) > 0, "the gateway lets 20 wait"


def test_pieces_of_text_overlap_and_leave_no_gap() -> None:
    text = RunText()
    assert not text.begin(1) and text.add(0, "aé日") == (0, "aé日")
    assert text.add(1, "é日x") == (6, "x") and text.add(0, "aé") == (7, "") and text.add(8, "z") is None
    assert text.begin(2) and text.add(0, "b") == (0, "b") and not text.begin(1)


async def test_message_id_makes_a_repeated_turn_the_same_one(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node):
        async with client_of(node.url) as client:
            first = client.session("s1").turn("hello", agent="echo", message_id="m1")
            assert await first.text() == "hello"
        async with client_of(node.url) as client:
            again = client.session("s1").turn("hello", agent="echo", message_id="m1")
            assert await again.text() == "hello" and again.run_id == first.run_id
            other = client.session("s1").turn("other words", agent="echo", message_id="m1")
            with pytest.raises(GatewayError) as found:
                await other.text()
            assert found.value.code == "idempotency_conflict" and not found.value.retryable


async def test_cancelled_turn_ends_as_cancelled(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn("count to 1000 every 50ms", agent="counter")
        text = await read_bytes(turn, 3)
        turn.cancel()
        done = await turn.result()
        assert done.status == "cancelled" and done.text.encode().startswith(text[: done.text_bytes])


async def test_turn_that_is_cancelled_before_it_is_accepted_ends_too(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn("count to 1000 every 50ms", agent="counter")
        turn.cancel()
        assert (await turn.result()).status == "cancelled"


async def test_steered_input_becomes_part_of_the_turn_or_the_next_one(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn(COUNT, agent="counter")
        await read_bytes(turn, 3)
        steered = turn.steer("and something else")
        ends = [await turn.result(), await steered.result()]
        assert [done.status for done in ends] == ["completed", "completed"]
        assert ends[1].stop_reason == "end_turn" or ends[1].host_run_id == turn.run_id


async def test_refusal_is_raised_with_its_code(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        with pytest.raises(GatewayError) as found:
            await client.session().turn("hello", agent="nobody").text()
        assert found.value.code == "not_found" and not found.value.retryable
        with pytest.raises(GatewayError) as refused:
            await client.request({"type": "session_label", "session_id": "foreign", "label": "x"})
        assert refused.value.code == "not_found"


async def test_failed_turn_has_its_error(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--agent", "gone=http://127.0.0.1:9")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn("hello", agent="gone")
        done = await turn.result()
        assert done.status == "failed" and done.error is not None and done.error.code == "agent_unavailable"


async def test_node_that_is_away_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    client = Client("ws://127.0.0.1:9", user_id="ann", connect_seconds=0.5, backoff=Backoff(first=0.05, longest=0.3))
    with pytest.raises(ConnectionLost, match="127.0.0.1:9"):
        async with client:
            pass


async def test_refused_credential_is_final(tmp_path: Path) -> None:
    pepper = tmp_path / "pepper"
    pepper.write_text("0123456789abcdef" * 4)
    pepper.chmod(0o600)
    node = Node(tmp_path / "data", "--auth", "keys", "--auth-pepper", str(pepper))
    async with started(node):
        with pytest.raises(AccessDenied) as found:
            async with Client(node.url, api_key="twk_wrong"):
                pass
        assert found.value.close_code == 4401


@pytest.mark.slow
async def test_sessions_beyond_the_limit_take_the_place_of_idle_ones(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node), client_of(node.url) as client:
        sessions = [client.session(f"s{number}") for number in range(70)]
        for session in [*sessions, *sessions[:5]]:
            assert await session.turn(session.session_id, agent="echo").text() == session.session_id


async def test_restarted_node_with_an_empty_store_gets_the_input_again(tmp_path: Path) -> None:
    """The session is gone, and the turn that the application waits for runs once more."""
    node = Node(tmp_path / "one", "--demo")
    async with started(node), client_of(node.url) as client:
        turn = client.session().turn(COUNT, agent="counter")
        await read_bytes(turn, 5)
        await node.kill()
        node.directory = tmp_path / "two"
        await node.run()
        done = await turn.result()
        assert done.status == "completed" and done.text.split()[-1].strip(".,") == "30"


async def test_drained_node_hands_the_answer_to_its_next_start(tmp_path: Path) -> None:
    agent = LastingAgent()
    async with started(agent):
        node = Node(tmp_path / "data", "--agent", agent.flag)
        async with started(node), client_of(node.url) as client:
            turn = client.session().turn("y" * 200, agent="lasting")
            await read_bytes(turn, 300)
            await node.end()
            await node.run()
            assert (await turn.result()).text == answer_of("y" * 200)


async def test_turn_whose_end_is_trimmed_raises_history_lost(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo", "--retention", "facts=4")
    async with started(node), Proxy(node.url, lambda *_: "pass") as proxy, client_of(proxy.url) as client:
        turn = client.session("s1").turn("count to 5 every 100ms", agent="counter")
        await read_bytes(turn, 1)
        proxy.is_blocked = True
        proxy.cut()
        async with client_of(node.url) as other:
            for number in range(12):
                await other.session("s1").turn(f"line {number}", agent="echo").result()
        proxy.is_blocked = False
        with pytest.raises(HistoryLost, match="no longer in the session's log"):
            await turn.result()
        assert await client.session("s1").turn("hello", agent="echo").text() == "hello"


async def test_turn_without_a_reader_stays_small() -> None:
    turn = Turn("s", {}, "m", lambda: None, lambda: turn)
    for number in range(3 * EVENTS_MAX):
        turn.add(Notice("state", {}))
        turn.add(Delta("x", number, 1))
    turn.end({"status": "completed", "stop_reason": "end_turn", "attempt": 0, "text_bytes": 0})
    events = [event async for event in turn]
    assert len(events) <= EVENTS_MAX + 1 and isinstance(events[-1], Done)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "x" * 3 * EVENTS_MAX


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://host", "ws://"])
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address of a gateway"):
        Client(url)


async def test_closed_client_ends_its_turns(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--demo")
    async with started(node):
        async with client_of(node.url) as client:
            turn = client.session().turn("count to 1000 every 50ms", agent="counter")
            await read_bytes(turn, 3)
        with pytest.raises(ConnectionLost, match="closed"):
            await asyncio.wait_for(turn.result(), 5)
