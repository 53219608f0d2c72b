// An adapter that connects @NAME@ to Turnway: brings what people write, and sends what the gateway orders.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const channel = "@NAME@";
const account = "main";
const gateway = process.env.TURNWAY_URL ?? "ws://127.0.0.1:8080/v1/connect";
const platform = process.env.PLATFORM_URL ?? "http://127.0.0.1:8090";
const offsetFile = `${channel}-${account}.offset`;

type Message = Record<string, any>;
type Event = { offset: number; message: Message };

// The platform: replace these two functions by calls of your own platform.

async function updates(after: string, signal: AbortSignal): Promise<Event[]> {
  const answer = await fetch(`${platform}/updates?after=${after}&wait=5`, { signal });
  const { updates } = (await answer.json()) as { updates: Message[] };
  return updates.map(({ update, room, line }) => ({
    offset: update,
    message: {
      type: "inbound",
      request_id: `u${update}`,
      conversation: { channel, account_id: account, conversation_id: room },
      sender: { id: line.sender },
      message: { message_id: String(line.id), content: line.text },
      platform_time: line.time,
    },
  }));
}

async function send(order: Message): Promise<Message> {
  const { text, key, reply_to, conversation } = order;
  const body = JSON.stringify({ room: conversation.conversation_id, text, key, reply_to });
  let answer: Response;
  try {
    const headers = { "Content-Type": "application/json" };
    answer = await fetch(`${platform}/send`, { method: "POST", headers, body, signal: AbortSignal.timeout(10_000) });
  } catch (error) {
    const isRefused = (error as { cause?: { code?: string } }).cause?.code === "ECONNREFUSED";
    // After any other error the platform may have the message.
    return isRefused ? { outcome: "not_sent", proof: String(error) } : { outcome: "unknown" };
  }
  if (answer.ok) {
    const { id } = (await answer.json().catch(() => ({}))) as { id?: number };
    return id === undefined ? { outcome: "unknown" } : { outcome: "sent", external_id: String(id), place: conversation };
  }
  const seconds = Number(answer.headers.get("Retry-After") ?? NaN);
  const wait = Number.isFinite(seconds) ? { retry_after_ms: seconds * 1000 } : {};
  return { outcome: "rejected", code: errorClass(answer.status), ...wait };
}

// By the status, never by the text of an error.
function errorClass(status: number): string {
  const classes: Record<number, string> = { 401: "auth", 403: "permission", 404: "gone", 409: "conflict", 429: "rate_limit" };
  return classes[status] ?? (status >= 500 ? "transient" : "invalid");
}

// The gateway.

const hello = {
  type: "hello",
  role: "adapter",
  channel,
  account_id: account,
  // The id stays the same after a restart, so that the new connection replaces the old one at once.
  instance_id: `${account}@${hostname()}`,
  api_key: process.env.TURNWAY_API_KEY,
  // Declare what your platform can do. `key`: a message that is sent again with the same key appears once.
  capabilities: { text: { level: 2, max: 2000, unit: "utf16" }, key: 2 },
};

let socket: WebSocket | undefined;
let reading: AbortController | undefined; // set while this adapter, and no other, serves the account
let onAnswer: ((answer: Message) => void) | undefined;

function say(message: Message): void {
  // A report whose connection is gone is not repeated: the gateway orders the part again, with the same key.
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

async function deliver(order: Message): Promise<void> {
  const isLate = order.deadline_ts < Date.now();
  const outcome = isLate ? { outcome: "not_sent", proof: "the deadline has passed" } : await send(order);
  say({ type: "delivered", delivery_id: order.delivery_id, part: order.part, ...outcome });
}

// Sends an event, and returns the gateway's answer, or a retryable error after 30 s.
function ask(message: Message, signal: AbortSignal): Promise<Message> {
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const settle = (act: () => void) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", lose);
      onAnswer = undefined;
      act();
    };
    const lose = () => settle(() => reject(signal.reason));
    const timer = setTimeout(() => settle(() => resolve({ type: "error", retryable: true, retry_after_ms: 0 })), 30_000);
    signal.addEventListener("abort", lose);
    onAnswer = (answer) => {
      if (answer.request_id === message.request_id) settle(() => resolve(answer));
    };
    say(message);
  });
}

// Sends an event until the gateway has accepted it, or refused it for good.
async function forward(message: Message, signal: AbortSignal): Promise<void> {
  while (true) {
    const answer = await ask(message, signal);
    if (answer.type === "inbound_accepted" || !answer.retryable) return;
    await sleep(answer.retry_after_ms ?? 1000, undefined, { signal });
  }
}

async function readUpdates(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      const after = existsSync(offsetFile) ? readFileSync(offsetFile, "utf8") : "0";
      for (const { offset, message } of await updates(after, signal)) {
        await forward(message, signal);
        // Not earlier: a line that the gateway has not accepted must come again, also after a crash.
        writeFileSync(`${offsetFile}.new`, String(offset));
        renameSync(`${offsetFile}.new`, offsetFile);
      }
    } catch (error) {
      if (signal.aborted) return;
      console.error("no updates from the platform:", error);
      await sleep(1000);
    }
  }
}

function handle(message: Message): void {
  switch (message.type) {
    case "adapter_state":
      // Only the active adapter reads from the platform.
      reading?.abort();
      reading = message.state === "active" ? new AbortController() : undefined;
      if (reading) void readUpdates(reading.signal);
      break;
    case "inbound_accepted":
    case "error":
      onAnswer?.(message);
      break;
    case "deliver":
      void deliver(message);
      break;
  }
}

// Connects, and returns once the connection has ended.
function serveConnection(): Promise<void> {
  return new Promise((resolve) => {
    socket = new WebSocket(gateway, "turnway.v1");
    socket.addEventListener("open", () => say(hello));
    socket.addEventListener("message", (event) => handle(JSON.parse(String(event.data))));
    socket.addEventListener("error", () => resolve());
    socket.addEventListener("close", ({ code }) => {
      if (code === 4401 || code === 4403) {
        console.error("the gateway does not accept the key:", code);
        process.exit(1);
      }
      resolve();
    });
  });
}

let wait = 500;
while (true) {
  const started = Date.now();
  await serveConnection();
  reading?.abort();
  // Waits double up to 15 s, at random between half and the whole; a connection of 10 s was a good one.
  if (Date.now() - started > 10_000) wait = 500;
  await sleep(wait * (0.5 + Math.random() / 2));
  wait = Math.min(2 * wait, 15_000);
}
