"""record.py TURNWAY OUT: records a store of one build, for later builds to read.

TURNWAY is the build's program, OUT the directory to fill: `embedded.tar.gz`, the directory of an embedded store;
`dump.rdb`, the data of a Redis store; `expected.json.gz`, what the build itself answered about both. The store holds facts
of every family, a snapshot, a closed session, a turn whose agent was still answering and an input that waits behind it:
the node is killed, not stopped. Needs `websockets` and `redis-server`.
"""
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from websockets.sync.client import connect

PATIENCE = 30
SESSIONS = ["plain", "members", "confirmed", "rejected", "open-handover", "actions", "failed", "cancelled", "steered",
            "closed", "long", "open"]
# More turns than facts fit before a snapshot.
LONG = 140


class Agent(BaseHTTPRequestHandler):
    """Answers as the text says."""

    protocol_version = "HTTP/1.1"
    asked = threading.Event()

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/steer"):
            return self.answer(200, {"outcome": "accepted"})
        if self.path.endswith("/cancel"):
            return self.answer(200, {})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        content = body["input_message"]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        for step in text.split("; "):
            if not self.step(step):
                return None
        self.event("done", {"usage": {"tokens": 3}, "stop_reason": "end_turn"})
        return None

    def step(self, step):
        word, _, rest = step.partition(" ")
        if word == "say":
            self.event("delta", {"text": rest})
        elif word == "think":
            self.event("delta", {"text": rest, "kind": "reasoning"})
        elif word == "state":
            self.event("state", {"state": rest, "detail": {"n": 1.50}})
        elif word == "handover":
            self.event("handover_request", {"to": rest, "reason": "asked", "summary": "so far"})
        elif word == "act":
            self.event("action", {"tool": rest, "args": {"x": 1}, "action_id": "a1", "timeout_ms": 1000})
        elif word == "mention":
            self.event("action", {"type": "say", "text": rest})
        elif word == "fail":
            self.event("error", {"code": "boom", "message": rest})
            return False
        elif word == "hang":
            self.event("delta", {"text": "half an answer"})
            type(self).asked.set()
            while True:
                self.event("state", {"state": "busy"})
                time.sleep(0.2)
        return True

    def event(self, name, data):
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(text)


class Client:
    """One connection of a user."""

    def __init__(self, at):
        self.opening = connect(f"ws://{at}/v1/connect", max_size=None)
        self.n = 0

    def __enter__(self):
        self.socket = self.opening.__enter__()
        self.socket.send(json.dumps({"type": "hello", "user_id": "ann"}))
        self.until(lambda message: message["type"] == "welcome")
        return self

    def __exit__(self, *failure):
        self.opening.__exit__(*failure)

    def until(self, wanted):
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if wanted(message):
                return message

    def ask(self, kind, **fields):
        self.n += 1
        request = f"{os.getpid()}-{self.n}"
        self.socket.send(json.dumps({"type": kind, "request_id": request, **fields}))
        return self.until(lambda message: message.get("request_id") == request)

    def send(self, session, content, **fields):
        message = {"role": "user", "content": content}
        return self.ask("agent_invoke", session_id=session, message=message, **fields)["run_id"]

    def turn(self, session, content, **fields):
        run = self.send(session, content, **fields)
        return self.until(lambda message: message["type"] in ("done", "error") and message.get("run_id") == run)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(at, path):
    request = urllib.request.Request(f"http://{at}{path}", headers={"x-user-id": "ann"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        return json.load(reply)


def start(program, store, agents):
    at = f"127.0.0.1:{free_port()}"
    args = [program, "serve", "--listen", at, "--admin", f"127.0.0.1:{free_port()}", "--store", store,
            "--quic", "off"]
    for name in ("alice", "bob"):
        args += ["--agent", f"{name}=http://{agents}/{name},on_owner_loss=retry,steer=true"]
    node = subprocess.Popen(args, stdout=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            get(at, "/v1/sessions")
            return node, at
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the node does not answer")


def fill(client):
    both = ["alice", "bob"]
    parts = [{"type": "text", "text": "say parts; think hm; state searching"}]
    client.turn("plain", "say hello")
    client.turn("plain", parts, metadata={"z": 1e3, "a": "é"})
    client.ask("session_open", session_id="members", agents=["alice"])
    client.ask("invite_agent", session_id="members", agent_id="bob", reason="to help", active=True)
    client.turn("members", "say as bob")
    client.ask("switch_agent", session_id="members", agent_id="alice")
    client.ask("remove_agent", session_id="members", agent_id="bob")
    for session, decision in (("confirmed", "confirm"), ("rejected", "reject"), ("open-handover", None)):
        client.ask("session_open", session_id=session, agents=both)
        client.ask("subscribe", session_id=session)
        client.send(session, "say one moment; handover bob")
        prompt = client.until(lambda message: message["type"] == "handover_prompt")
        if decision:
            client.ask("handover_decision", session_id=session, handover_id=prompt["handover_id"], decision=decision)
            client.turn(session, "say after it")
    client.turn("actions", "say first; mention look; act search; say then")
    client.turn("failed", "say hm; fail no more")
    run = client.send("cancelled", "hang")
    assert Agent.asked.wait(PATIENCE)
    Agent.asked.clear()
    client.ask("cancel_run", run_id=run)
    client.until(lambda message: message["type"] == "done" and message["run_id"] == run)
    run = client.send("steered", "hang")
    assert Agent.asked.wait(PATIENCE)
    Agent.asked.clear()
    client.send("steered", "make it blue", strategy="steer")
    time.sleep(0.5)
    client.turn("steered", "say instead", strategy="rollback")
    client.turn("closed", "say bye")
    client.ask("session_close", session_id="closed")
    for n in range(LONG):
        client.turn("long", f"say turn {n}")
    client.send("open", "hang")
    assert Agent.asked.wait(PATIENCE)
    client.send("open", "say behind it", strategy="enqueue")


def expected(at):
    sessions = {session: {"events": events(at, session), "state": get(at, f"/v1/sessions/{session}")}
                for session in SESSIONS}
    return {"sessions": sessions, "list": get(at, "/v1/sessions?limit=50")}


def events(at, session):
    found, after = [], 0
    while after is not None:
        page = get(at, f"/v1/sessions/{session}/events?types=%3E&after_seq={after}")
        found += page["events"]
        after = page["next"]
    return found


def record(program, store, agents):
    node, at = start(program, store, agents)
    try:
        with Client(at) as client:
            fill(client)
        # The last facts of the sessions that end at once.
        time.sleep(2)
        return expected(at)
    finally:
        node.send_signal(signal.SIGKILL)
        node.wait()


def main():
    program, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agents = f"127.0.0.1:{server.server_port}"
    scratch = out / "scratch"
    scratch.mkdir()
    found = {"embedded": record(program, f"embedded:{scratch}/data", agents)}
    with tarfile.open(out / "embedded.tar.gz", "w:gz") as packed:
        packed.add(scratch / "data", "data")
    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", scratch],
        stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        found["redis"] = record(program, f"redis://127.0.0.1:{port}", agents)
        subprocess.run(["redis-cli", "-p", str(port), "SAVE"], check=True, stdout=subprocess.DEVNULL)
        (scratch / "dump.rdb").rename(out / "dump.rdb")
    finally:
        redis.terminate()
        redis.wait()
    with gzip.open(out / "expected.json.gz", "wt", encoding="utf-8") as packed:
        json.dump(found, packed, indent=1, ensure_ascii=False)
    subprocess.run(["rm", "-r", scratch], check=True)


main()
