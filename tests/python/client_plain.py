"""The smallest client: says hello, asks one thing, shows the answer.

It knows six messages and no more: hello, agent_invoke, run_started, delta, done, error. It waits for no
answer to its hello, asks for no resume, and passes over every message it does not know.

    python client_plain.py URL AGENT TEXT      the answer on stdout, exit 0 once it is done
"""

import json
import sys
import time

from websockets.sync.client import connect


def main(url: str, agent: str, text: str) -> int:
    def now() -> int:
        return int(time.time() * 1000)

    with connect(url) as socket:
        socket.send(json.dumps({
            "type": "hello", "ts": now(), "user_id": "u1", "api_key": "...", "client_meta": {"app": "web"},
        }))
        socket.send(json.dumps({
            "type": "agent_invoke", "ts": now(), "request_id": "r1", "session_id": "plain-1",
            "agent_id": agent, "message": {"role": "user", "content": text},
        }))
        run_id = None
        while True:
            message = json.loads(socket.recv(timeout=30))
            kind = message.get("type")
            if kind == "run_started" and message.get("request_id") == "r1":
                assert message["session_id"] == "plain-1" and message["agent_id"] == agent, message
                run_id = message["run_id"]
            elif kind == "delta" and message.get("run_id") == run_id:
                sys.stdout.write(message["text"])
            elif kind == "error":
                print(f"error {message['code']}: {message['message']}", file=sys.stderr)
                return 1
            elif kind == "done" and message.get("run_id") == run_id:
                return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
