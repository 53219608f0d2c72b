"""A whole client of `turnway.v1`, written from docs/protocol.md alone.

    python client_v1.py URL AGENT      one line for each thing that holds, exit 0 if all do

AGENT must be tests/python/agent_plain.py at a pace that leaves time to disconnect in mid-answer.
"""

import json
import socket
import sys
import time
import uuid
from contextlib import ExitStack

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from agent_plain import answer

WAIT = 30


class Client:
    """One user's connection, and what it has seen: facts by session, text by run."""

    def __init__(self, url: str, user: str) -> None:
        self.url, self.user = url, user
        self.facts: dict[str, list[dict]] = {}
        self.text: dict[str, bytes] = {}
        self.attempt: dict[str, int] = {}
        self.connect()

    def connect(self, resume: list[dict] | None = None) -> dict:
        self.socket = ExitStack().enter_context(connect(self.url, subprotocols=["turnway.v1"]))
        assert self.socket.subprotocol == "turnway.v1", self.socket.subprotocol
        self.send("hello", user_id=self.user, client_meta={"app": "client_v1"}, resume=resume or [])
        welcome = self.next()
        assert welcome["type"] == "welcome" and welcome["protocol"] == "turnway.v1", welcome
        assert welcome["limits"]["max_message_bytes"] >= 1024 and welcome["heartbeat_ms"] > 0, welcome
        return welcome

    def send(self, kind: str, **fields: object) -> None:
        self.socket.send(json.dumps({"type": kind, "ts": int(time.time() * 1000), **fields}))

    def next(self) -> dict:
        """The next message, checked against what must hold for every message, and kept."""
        message = json.loads(self.socket.recv(timeout=WAIT))
        assert isinstance(message["type"], str) and isinstance(message["ts"], int), message
        if message["type"] == "delta" and message.get("kind", "text") == "text":
            self.take_text(message)
        if message.get("name") == "RUN_RESTARTED":
            self.text[message["run_id"]] = b""
        if "seq" in message and "snapshot" not in message:
            seen = self.facts.setdefault(message["session_id"], [])
            assert not seen or message["seq"] > seen[-1]["seq"], ("a fact twice or out of order", message)
            assert message["epoch"] > 0, message
            seen.append(message)
        return message

    def take_text(self, delta: dict) -> None:
        run = delta["run_id"]
        if self.attempt.get(run) != delta["attempt"]:
            self.attempt[run], self.text[run] = delta["attempt"], b""
        have = self.text[run]
        assert delta["offset"] == len(have), ("a gap or a repeat", delta["offset"], len(have))
        self.text[run] = have + delta["text"].encode()

    def until(self, kind: str, **fields: object) -> dict:
        while True:
            message = self.next()
            if message["type"] == kind and all(message.get(k) == v for k, v in fields.items()):
                return message

    def cursor(self, session: str) -> dict:
        last = self.facts[session][-1]
        runs = {r: {"attempt": self.attempt[r], "offset": len(self.text[r])} for r in self.text}
        return {"session_id": session, "after_seq": last["seq"], "after_epoch": last["epoch"], "runs": runs}

    def drop(self) -> None:
        """As a device does that loses its network: no goodbye."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)


def name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def a_turn_runs_to_its_end(client: Client, agent: str) -> None:
    session, request = name("turn"), name("r")
    client.send("agent_invoke", request_id=request, session_id=session, agent_id=agent,
                message={"role": "user", "content": "grüß dich"})
    accepted = client.until("turn_accepted", request_id=request)
    assert accepted["duplicate"] is False and accepted["durability"], accepted
    assert accepted["turn_id"] == accepted["run_id"] and accepted["message_id"] == request, accepted
    assert "seq" not in accepted, accepted
    done = client.until("done", run_id=accepted["run_id"])
    assert done["status"] == "completed" and done["stop_reason"] == "end_turn", done
    text = client.text[accepted["run_id"]]
    assert done["text_bytes"] == len(text) and text.decode() == "".join(answer("grüß dich")), text
    assert done["usage"] == {"tokens": len(answer("grüß dich"))}, done
    shown = [fact.get("name", fact["type"]) for fact in client.facts[session]]
    order = [shown.index(x) for x in ("message", "TURN_ADMITTED", "run_started", "AGENT_STARTED", "state", "done")]
    assert order == sorted(order), shown
    # Said again, it is the same turn; said otherwise, it is refused.
    client.send("agent_invoke", request_id=request, session_id=session, agent_id=agent,
                message={"role": "user", "content": "grüß dich"})
    again = client.until("turn_accepted", request_id=request)
    assert again["duplicate"] is True and again["run_id"] == accepted["run_id"], again
    client.send("agent_invoke", request_id=request, session_id=session, agent_id=agent,
                message={"role": "user", "content": "something else"})
    assert client.until("error", request_id=request)["code"] == "idempotency_conflict"


def an_answer_survives_disconnects(client: Client, agent: str) -> None:
    session, request, said = name("resume"), name("r"), "über 語 𝄞 und zurück. " * 20
    client.send("agent_invoke", request_id=request, session_id=session, agent_id=agent,
                message={"role": "user", "content": said})
    run = client.until("turn_accepted", request_id=request)["run_id"]
    expected = "".join(answer(said)).encode()
    for part in (1, 2, 3):
        while len(client.text.get(run, b"")) < len(expected) * part // 5:
            assert client.next()["type"] != "done", "the answer ended before the disconnect"
        before = len(client.text[run])
        client.drop()
        client.connect(resume=[client.cursor(session)])
        subscribed = client.until("subscribed", session_id=session)
        assert not subscribed.get("reset"), subscribed
        assert any(r["run_id"] == run for r in subscribed["snapshot"]["runs"]), subscribed
        assert len(client.text[run]) >= before
    done = client.until("done", run_id=run)
    assert done["status"] == "completed" and done["text_bytes"] == len(expected), done
    assert client.text[run] == expected, "the answer is not byte-equal"


def a_cancel_ends_it_for_good(client: Client, agent: str) -> None:
    session, request = name("cancel"), name("r")
    client.send("agent_invoke", request_id=request, session_id=session, agent_id=agent,
                message={"role": "user", "content": "on and on " * 200})
    run = client.until("turn_accepted", request_id=request)["run_id"]
    client.until("delta", run_id=run)
    client.send("cancel_run", request_id=name("c"), run_id=run)
    client.until("event", name="CANCEL_SENT", run_id=run)
    done = client.until("done", run_id=run)
    assert done["status"] == "cancelled" and done["stop_reason"] == "cancelled", done
    assert done["text_bytes"] <= len(client.text[run]), done
    # The session goes on, and nothing of the cancelled run is heard again.
    client.send("agent_invoke", request_id=name("r"), session_id=session, agent_id=agent,
                message={"role": "user", "content": "next"})
    while (message := client.next())["type"] != "done":
        assert message["type"] != "delta" or message["run_id"] != run, message
    assert message["status"] == "completed", message


def errors_have_their_codes(client: Client, _agent: str) -> None:
    cases = [
        ("subscribe", {"session_id": name("unknown")}, "not_found"),
        ("cancel_run", {"session_id": name("unknown")}, "not_found"),
        ("session_close", {"session_id": name("unknown")}, "not_found"),
        ("agent_invoke", {"session_id": name("s"), "agent_id": "nobody-here",
                          "message": {"role": "user", "content": "x"}}, "not_found"),
        ("agent_invoke", {"session_id": name("s"), "message": 7}, "invalid_message"),
        ("no_such_type", {}, "invalid_message"),
    ]
    for kind, fields, code in cases:
        request = name("e")
        client.send(kind, request_id=request, **fields)
        error = client.until("error")
        assert error["code"] == code and error["message"] and "retryable" in error, (kind, error)
        assert error.get("request_id", request) == request, error
    client.send("ping")
    client.until("pong")


def nobody_is_served_before_hello(client: Client, _agent: str) -> None:
    with connect(client.url) as stranger:
        stranger.send(json.dumps({"type": "ping", "ts": 0}))
        assert json.loads(stranger.recv(timeout=WAIT))["code"] == "unauthorized"
        try:
            stranger.recv(timeout=WAIT)
            raise AssertionError("the connection stayed open")
        except ConnectionClosed as closed:
            assert closed.rcvd is not None and closed.rcvd.code == 4401, closed


def a_closed_session_says_so(client: Client, agent: str) -> None:
    session = name("close")
    client.send("session_open", request_id="o1", session_id=session, agents=[agent])
    opened = client.until("session_opened", session_id=session)
    snapshot = opened["snapshot"]
    assert snapshot["state"] == "open" and snapshot["active_agent"] == agent, opened
    client.send("session_close", request_id="c1", session_id=session)
    client.until("session_closed", session_id=session)
    client.send("agent_invoke", request_id="late", session_id=session, message={"role": "user", "content": "x"})
    assert client.until("error", request_id="late")["code"] == "session_closed"
    client.send("session_open", request_id="o2", session_id=session)
    client.until("session_opened", session_id=session)


def main(url: str, agent: str) -> int:
    for check in (
        a_turn_runs_to_its_end, an_answer_survives_disconnects, a_cancel_ends_it_for_good,
        errors_have_their_codes, nobody_is_served_before_hello, a_closed_session_says_so,
    ):
        check(Client(url, name("user")), agent)
        print("holds:", check.__name__.replace("_", " "), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
