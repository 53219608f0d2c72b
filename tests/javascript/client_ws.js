// A client on Node's `ws`: one turn, and everything of RFC 6455 that a client in use does.
//
//     node client_ws.js URL AGENT TEXT      the answer on stdout, exit 0 once the connection is closed in order
"use strict";
const assert = require("assert");
const WebSocket = require("ws");

const [url, agent, text] = process.argv.slice(2);
const waiting = [];
const come = [];

function next() {
  return come.length > 0 ? Promise.resolve(come.shift()) : new Promise((resolve) => waiting.push(resolve));
}

function once(socket, name) {
  return new Promise((resolve) => socket.once(name, (...told) => resolve(told)));
}

async function until(fits) {
  for (;;) {
    const message = await next();
    if (fits(message)) return message;
  }
}

async function talk(socket) {
  const say = (message, options) => socket.send(JSON.stringify(message), options);
  say({ type: "hello", user_id: "u1" });
  assert.strictEqual((await next()).type, "welcome");

  socket.ping(Buffer.from([0, 255, 254]));
  const [pong] = await once(socket, "pong");
  assert.deepStrictEqual([...pong], [0, 255, 254]);

  say({ type: "ping", request_id: "large", padding: "x".repeat(60000) });
  assert.strictEqual((await next()).request_id, "large");

  const pieces = JSON.stringify({ type: "ping", request_id: "in pieces: κόσμε 𝄞" });
  const half = Buffer.from(pieces);
  socket.send(half.subarray(0, 45), { fin: false, binary: false });
  socket.ping();
  socket.send(half.subarray(45), { fin: true, binary: false });
  assert.strictEqual((await next()).request_id, "in pieces: κόσμε 𝄞");

  say({ type: "agent_invoke", request_id: "r1", session_id: "ws-1", agent_id: agent, message: { role: "user", content: text } });
  const { run_id } = await until((message) => message.type === "turn_accepted");
  for (;;) {
    const message = await until((message) => message.run_id === run_id);
    if (message.type === "delta") process.stdout.write(message.text);
    if (message.type === "done") return assert.strictEqual(message.status, "completed");
  }
}

async function main() {
  // It offers compression, as it does by itself, and must be told nothing of it.
  const socket = new WebSocket(url, ["other", "turnway.v1"]);
  socket.on("message", (data) => {
    const message = JSON.parse(data.toString());
    if (waiting.length > 0) waiting.shift()(message);
    else come.push(message);
  });
  await once(socket, "open");
  assert.deepStrictEqual([socket.protocol, socket.extensions], ["turnway.v1", ""]);
  await talk(socket);
  socket.close(1000, "bye");
  const [code, reason] = await once(socket, "close");
  assert.deepStrictEqual([code, reason.toString()], [1000, "bye"]);

  const other = new WebSocket(url);
  await once(other, "open");
  other.send(Buffer.from([1, 2, 3]));
  assert.strictEqual((await once(other, "close"))[0], 1003);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
