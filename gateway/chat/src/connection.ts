// One WebSocket to the node that served the page, opened again after each loss. Knows nothing about sessions; called by
// `chat.ts`, which subscribes again after each `welcome`.
import { parse, type Failure, type ServerMessage } from "./wire";

/** The first wait before another try; doubled up to `BACKOFF_MAX`, each wait random between half and the whole. */
const BACKOFF_MS = 250;
/** A node restarts within seconds, and a person does not wait longer than this. */
const BACKOFF_MAX_MS = 8_000;
/** Time for the handshake; the node itself allows 5 s for `hello`. */
const WELCOME_MS = 10_000;
/** Time for `pong`: a path that is silent for longer is lost. */
const PONG_MS = 10_000;

/** A connection that lasted this long counts as good: the waits begin anew after it, and not after a shorter one. */
const STABLE_MS = 10_000;
/** Tries after which a page that was never connected says what the cause may be. */
const UNREACHABLE_TRIES = 3;

/** Close codes after which the same attempt would fail again (docs/protocol.md, "Close codes"). */
const FINAL_CODES = [1002, 1003, 1007, 4400, 4403, 4409, 4413];
const UNAUTHORIZED = 4401;

/** The state of the connection, for the reader of the page. */
export type ConnectionState =
  | { name: "connecting" }
  | { name: "connected" }
  /**
   * Another try follows at `retryAt` (milliseconds of `Date.now`); `isUnreachable` after several tries of a page that was
   * never connected.
   */
  | { name: "lost"; retryAt: number; isUnreachable: boolean }
  /** The node requires a key; `wasRefused` if it has refused one. */
  | { name: "keyRequired"; wasRefused: boolean }
  | { name: "closed"; code: number; reason: string };

/** Receives what happens on the connection. */
export interface ConnectionHandler {
  onState(state: ConnectionState): void;
  /** Called for each message; `welcome` comes first on each connection. */
  onMessage(message: ServerMessage): void;
}

/** Returns the wait after a number of failed tries. */
export function backoffMs(tries: number): number {
  const whole = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** Math.min(tries, 10));
  return whole * (0.5 + Math.random() / 2);
}

/** A connection that comes back by itself. */
export class Connection {
  private socket: WebSocket | null = null;
  private tries = 0;
  private heartbeatMs = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Runs after `go_away`. */
  private leaving: ReturnType<typeof setTimeout> | undefined;
  /** The refusal of `hello`, until the close that follows it. */
  private refusal: Failure | null = null;
  private isWelcome = false;
  private welcomedAt = Infinity;
  /** The page was connected once, so that the node accepts its origin. */
  private wasConnected = false;

  constructor(
    private readonly url: string,
    private key: string | null,
    private readonly handler: ConnectionHandler,
  ) {
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.retryNow();
    });
  }

  /** Opens the connection, in place of one that exists. */
  open(): void {
    clearTimeout(this.timer);
    this.drop();
    this.handler.onState({ name: "connecting" });
    const socket = new WebSocket(this.url, ["turnway.v1"]);
    this.socket = socket;
    this.isWelcome = false;
    this.refusal = null;
    this.timer = setTimeout(() => this.lose(socket), WELCOME_MS);
    socket.onopen = () => {
      const hello = { type: "hello", client_meta: { app: "turnway-chat" } };
      socket.send(JSON.stringify(this.key === null ? hello : { ...hello, api_key: this.key }));
    };
    socket.onmessage = ({ data }) => this.receive(socket, data);
    socket.onclose = ({ code, reason }) => this.closed(socket, code, reason);
  }

  /** Connects with another key, or without one. */
  useKey(key: string | null): void {
    this.key = key;
    this.tries = 0;
    this.open();
  }

  /** Tries at once, if the connection waits for another try. */
  retryNow(): void {
    if (this.socket === null && this.timer !== undefined) this.open();
  }

  /** Closes the connection and opens another one after the usual wait. */
  restart(): void {
    if (this.socket !== null) this.lose(this.socket);
  }

  /** Sends a message; returns false if there is no connection. */
  send(message: object): boolean {
    if (this.socket === null || !this.isWelcome) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  private receive(socket: WebSocket, data: unknown): void {
    if (socket !== this.socket || typeof data !== "string") return;
    const message = parse(data);
    if (message?.type === "welcome") {
      this.isWelcome = true;
      this.wasConnected = true;
      this.welcomedAt = Date.now();
      this.heartbeatMs = message.heartbeatMs;
      this.handler.onState({ name: "connected" });
    } else if (message?.type === "error" && !this.isWelcome) {
      this.refusal = message.failure;
      return;
    } else if (message?.type === "go_away") {
      // All clients of the node leave at once: each after a delay of its own.
      clearTimeout(this.leaving);
      this.leaving = setTimeout(() => this.open(), Math.random() * message.jitterMs);
    }
    if (this.isWelcome) this.awaitSilence(socket);
    if (message !== null) this.handler.onMessage(message);
  }

  /** Pings after a heartbeat without a message, and loses the connection if nothing comes then. */
  private awaitSilence(socket: WebSocket): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.send({ type: "ping" });
      this.timer = setTimeout(() => this.lose(socket), PONG_MS);
    }, this.heartbeatMs);
  }

  private closed(socket: WebSocket, code: number, reason: string): void {
    if (socket !== this.socket) return;
    this.drop();
    clearTimeout(this.timer);
    this.timer = undefined;
    if (code === UNAUTHORIZED) {
      this.handler.onState({ name: "keyRequired", wasRefused: this.key !== null });
    } else if (FINAL_CODES.includes(code)) {
      this.handler.onState({ name: "closed", code, reason: this.refusal?.message ?? reason });
    } else {
      this.retryLater();
    }
  }

  private lose(socket: WebSocket): void {
    if (socket !== this.socket) return;
    this.drop();
    this.retryLater();
  }

  private retryLater(): void {
    if (Date.now() - this.welcomedAt > STABLE_MS) this.tries = 0;
    this.welcomedAt = Infinity;
    const wait = Math.max(this.refusal?.retryAfterMs ?? 0, backoffMs(this.tries));
    this.tries++;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), wait);
    const isUnreachable = !this.wasConnected && this.tries >= UNREACHABLE_TRIES;
    this.handler.onState({ name: "lost", retryAt: Date.now() + wait, isUnreachable });
  }

  /** Forgets the socket; its later events count no more. */
  private drop(): void {
    const socket = this.socket;
    this.socket = null;
    this.isWelcome = false;
    clearTimeout(this.leaving);
    socket?.close();
  }
}
