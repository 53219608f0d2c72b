"""An agent that dials in: no port of its own, one WebSocket that it opens to a node (docs/agents.md).

    python agent_dialin.py URL AGENT_ID [--key KEY] [--name NAME] [--pace MS] [--resume]

It answers with its name, a colon and the input's words, one by one. `flood N` is answered with N KiB as fast as they
are taken, `wait` with nothing until it is cancelled or handed something, `die` ends its process in mid-answer. What
it is handed on the way it says as `[…]`, unless that is `no`. It prints what happens to it, a line each.
"""

import argparse
import asyncio
import json
import os

import websockets


class Agent:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.runs: dict[str, asyncio.Task] = {}
        self.handed: dict[str, asyncio.Queue] = {}

    async def serve(self) -> None:
        async with websockets.connect(self.options.url, subprotocols=["turnway.v1"]) as self.socket:
            capabilities = {"steer": True, "resume": self.options.resume}
            hello = {"type": "hello", "role": "agent", "agent_id": self.options.agent_id, "capabilities": capabilities}
            if self.options.key:
                hello["api_key"] = self.options.key
            await self.socket.send(json.dumps(hello))
            try:
                async for text in self.socket:
                    await self.take(json.loads(text))
            except websockets.ConnectionClosed:
                pass
        print("closed", self.socket.close_code, flush=True)

    async def take(self, message: dict) -> None:
        kind, run_id = message["type"], message.get("run_id")
        if kind == "welcome":
            print("welcome", flush=True)
        elif kind == "invoke":
            print("invoke", run_id, message["attempt"], flush=True)
            self.handed[run_id] = asyncio.Queue()
            self.runs[run_id] = asyncio.create_task(self.answer(message))
        elif kind == "steer":
            await self.steer(message)
        elif kind == "cancel":
            task = self.runs.pop(run_id, None)
            if task:
                task.cancel()
            await self.say("cancel_ack", message)
            print("cancel", run_id, "running" if task else "over", flush=True)
        elif kind in ("error", "go_away"):
            print(kind, message.get("code", message.get("reason")), flush=True)

    async def steer(self, message: dict) -> None:
        run_id, text = message["run_id"], message["message"]["content"]
        taken = text != "no" and run_id in self.runs
        outcome = "accepted" if taken else "refused"
        await self.say("steer_ack", message, message_id=message["message_id"], outcome=outcome)
        print("steer", outcome, flush=True)
        if taken:
            self.handed[run_id].put_nowait(text)

    async def answer(self, order: dict) -> None:
        run_id, text = order["run_id"], order["input_message"]["content"]
        await self.say("input_ack", order)
        await self.say("state", order, state="thinking", detail={"about": order["session_id"]}, id="0")
        count = 0
        for count, piece in enumerate(self.pieces(text), 1):
            # What was recorded of an answer that goes on is not said again.
            if count <= int((order.get("resume") or {}).get("last_event_id", 0)):
                continue
            await self.say("delta", order, text=piece, id=str(count))
            if text.startswith("die") and count == 3 and order["attempt"] == 1 and "resume" not in order:
                os._exit(0)
            await asyncio.sleep(self.options.pace / 1000)
        if text.startswith("wait"):
            handed = await self.handed[run_id].get()
            await self.say("delta", order, text=f"[{handed}]", id=str(count + 1))
        self.runs.pop(run_id, None)
        await self.say("done", order, usage={"tokens": count})

    def pieces(self, text: str) -> list[str]:
        if text.startswith("flood "):
            return ["x" * 1024] * int(text.removeprefix("flood "))
        return [f"{self.options.name}:", *(f"{word} " for word in text.split())]

    async def say(self, kind: str, of: dict, **fields: object) -> None:
        message = {"type": kind, "run_id": of["run_id"], "attempt": of["attempt"], **fields}
        try:
            await self.socket.send(json.dumps(message))
        except websockets.ConnectionClosed:
            pass  # Whoever reads tells; another connection takes over.


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("agent_id")
    parser.add_argument("--key")
    parser.add_argument("--name", default="me")
    parser.add_argument("--pace", type=float, default=1)
    parser.add_argument("--resume", action="store_true")
    asyncio.run(Agent(parser.parse_args()).serve())
