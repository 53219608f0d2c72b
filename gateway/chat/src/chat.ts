// The page's state and its actions: conversations, the shown session, inputs on their way, and the connection. The
// components read it and call its methods; it knows nothing about the DOM.
import { contentOf } from "./blob";
import { BlobCache } from "./blob_cache";
import { byteLength } from "./bytes";
import { Connection, type ConnectionState } from "./connection";
import { HttpError, deleteBlob } from "./http";
import { SessionView, type Effect, type Turn } from "./session";
import * as storage from "./storage";
import type { Conversation, PendingInput } from "./storage";
import { FILES_MAX, Uploads, sendObstacle, type Attachment } from "./uploads";
import { agentIds, type Failure, type Json, type ServerMessage } from "./wire";

/** Sessions whose messages a tab keeps; another one is read from its log again. */
const VIEWS_MAX = 8;
/**
 * Bytes of a message's content as JSON. The node closes the connection at a message over 64 KiB, names included, and the
 * input would be sent again on the next connection.
 */
export const MESSAGE_BYTES_MAX = 48 * 1024;
/** Times that a refused input is sent again by itself; after that the reader decides. */
const RETRIES_MAX = 5;
/** The first wait before a refused input is sent again, if the node names none. */
const RETRY_MS = 500;
/** Requests without an answer that are remembered: far more than a person makes within the time of an answer. */
const REQUESTS_MAX = 128;
/** Characters of a title. */
export const TITLE_MAX = 64;
const NEW_TITLE = "New conversation";

/** The reason why a pending input was not accepted. */
export interface Refusal {
  failure: Failure;
  /** The input is sent again then (milliseconds of `Date.now`); null: the reader decides. */
  retryAt: number | null;
  tries: number;
}

/** A request without an answer. */
type Request =
  | { kind: "invoke"; sessionId: string; messageId: string }
  | { kind: "enter"; sessionId: string }
  | { kind: "other"; sessionId: string };

export class Chat {
  conversations: Conversation[] = [];
  currentId = "";
  state: ConnectionState = { name: "connecting" };
  /** Agents of the node, if it tells them without a key. */
  nodeAgents: string[] = [];
  /** The text for screen readers; it changes once for each finished answer. */
  announcement = "";
  /** A request that failed, in words. */
  notice: Failure | null = null;
  hasKey: boolean;
  readonly blobs = new BlobCache();
  private readonly uploads: Uploads;
  private readonly views = new Map<string, SessionView>();
  private readonly refusals = new Map<string, Refusal>();
  private readonly requests = new Map<string, Request>();
  /** Subscribed sessions of this connection. Messages of other sessions have gaps and are not shown. */
  private readonly live = new Set<string>();
  private readonly connection: Connection;
  private enterTries = 0;
  private hasResynced = false;

  constructor(
    url: string,
    private readonly changed: () => void,
  ) {
    const key = storage.key();
    this.hasKey = key !== null;
    this.uploads = new Uploads({
      isReady: (sessionId) => this.isConnected() && this.isOpened(sessionId),
      onChange: changed,
      onStored: (sessionId, blob, name) => {
        this.blobs.add(sessionId, blob);
        if (sessionId === this.currentId) this.announcement = `${name} is uploaded.`;
      },
    });
    this.connection = new Connection(url, key, {
      onState: (state) => this.onState(state),
      onMessage: (message) => this.onMessage(message),
    });
  }

  /** Shows the tab's conversation, and connects. */
  start(): void {
    this.conversations = storage.conversations();
    storage.onOtherTab(() => this.onOtherTab());
    const last = storage.current();
    const shown = this.conversations.find(({ id }) => id === last) ?? this.conversations[0];
    if (shown === undefined) this.create();
    else this.select(shown.id);
    this.connection.open();
  }

  /** Returns the shown session. */
  view(): SessionView {
    return this.viewOf(this.currentId);
  }

  /** Returns the shown session's inputs that are not accepted yet, without those that its log has already. */
  pending(): PendingInput[] {
    const known = new Set(this.view().turns.map((turn) => turn.messageId));
    return storage.outbox(this.currentId).filter((input) => !known.has(input.messageId));
  }

  refusal(messageId: string): Refusal | null {
    return this.refusals.get(messageId) ?? null;
  }

  isConnected(): boolean {
    return this.state.name === "connected";
  }

  // === conversations ===

  /** Shows an unused conversation: an empty one that exists, or a new one. */
  create(): void {
    const unused = this.conversations.find(
      ({ id, title }) => title === NEW_TITLE && this.views.get(id)?.turns.length === 0 && storage.outbox(id).length === 0,
    );
    if (unused !== undefined) return this.select(unused.id);
    const id = randomId();
    this.changeList((all) => [{ id, title: NEW_TITLE, isOpened: false }, ...all]);
    this.select(id);
  }

  select(id: string): void {
    if (id !== this.currentId && this.live.delete(this.currentId)) {
      this.connection.send({ type: "unsubscribe", session_id: this.currentId });
    }
    this.currentId = id;
    this.notice = null;
    this.announcement = "";
    storage.keepCurrent(id);
    if (this.isConnected()) this.enter(id);
    this.changed();
  }

  rename(id: string, title: string): void {
    const kept = title.trim().slice(0, TITLE_MAX) || NEW_TITLE;
    this.changeList((all) => all.map((entry) => (entry.id === id ? { ...entry, title: kept } : entry)));
    this.changed();
  }

  /** Removes a conversation from the list; the session stays at the node. */
  remove(id: string): void {
    this.changeList((all) => all.filter((entry) => entry.id !== id));
    this.uploads.forget(id);
    storage.forget(id);
    this.views.delete(id);
    if (id === this.currentId) this.showFirst();
    this.changed();
  }

  // === requests ===

  /** Sends the draft with its files. */
  send(text: string, strategy: string): boolean {
    const files = this.files();
    if ((text.trim() === "" && files.length === 0) || sendObstacle(files) !== null) return false;
    if (!this.ask(contentOf(text, this.uploads.stored(this.currentId)), strategy)) return false;
    this.name(text.trim().split("\n")[0] || (files[0]?.name ?? ""));
    storage.keepDraft(this.currentId, "");
    this.uploads.forget(this.currentId);
    this.changed();
    return true;
  }

  /** Sends an input; it stays in the outbox until the node has accepted it. */
  ask(content: Json, strategy: string): boolean {
    if (byteLength(JSON.stringify(content)) > MESSAGE_BYTES_MAX) {
      return this.refuse("too_large", `A message has at most ${MESSAGE_BYTES_MAX / 1024} KiB.`);
    }
    if (storage.outbox(this.currentId).length >= storage.OUTBOX_MAX) {
      return this.refuse("too_many_pending", `${storage.OUTBOX_MAX} messages wait already.`);
    }
    const input = { messageId: randomId(), content, strategy };
    storage.addToOutbox(this.currentId, input);
    this.notice = null;
    if (typeof content === "string") this.name(content.trim().split("\n")[0] ?? "");
    this.invoke(this.currentId, input);
    this.changed();
    return true;
  }

  // === files ===

  /** Returns the files of the shown session's draft. */
  files(): readonly Attachment[] {
    return this.uploads.of(this.currentId);
  }

  /** Adds files to the draft, and uploads them. */
  addFiles(files: readonly File[]): void {
    if (!this.uploads.add(this.currentId, files)) {
      this.refuse("too_large", `A message has at most ${FILES_MAX} files; the others were not added.`);
    }
  }

  /** Removes a file from the draft, and from the session if no message uses it. */
  removeFile(id: number): void {
    const sessionId = this.currentId;
    const sha256 = this.uploads.remove(sessionId, id);
    if (sha256 !== null && this.isUnused(sessionId, sha256)) void this.deleteFile(sessionId, sha256);
    this.changed();
  }

  tryFileAgain(id: number): void {
    this.uploads.tryAgain(this.currentId, id);
  }

  /** Returns whether the tab knows the whole session, and nothing in it uses a file. */
  private isUnused(sessionId: string, sha256: string): boolean {
    const view = this.viewOf(sessionId);
    if (!this.live.has(sessionId) || !view.isWhole()) return false;
    if (this.uploads.stored(sessionId).some((file) => file.sha256 === sha256)) return false;
    const names = (content: Json) => JSON.stringify(content).includes(sha256);
    if (storage.outbox(sessionId).some((input) => names(input.content))) return false;
    return !view.turns.some((turn) => names(turn.content) || turn.text.includes(sha256));
  }

  private async deleteFile(sessionId: string, sha256: string): Promise<void> {
    try {
      await deleteBlob({ sessionId, sha256 });
      this.blobs.setGone({ sessionId, sha256 });
    } catch (error) {
      // The file stays until its session is deleted; the reader has removed it from the draft, and can do no more.
      if (!(error instanceof HttpError)) throw error;
    }
  }

  // === requests about inputs ===

  /** Sends a refused input again. */
  sendAgain(input: PendingInput): void {
    this.refusals.delete(input.messageId);
    this.invoke(this.currentId, input);
    this.changed();
  }

  /** Removes a refused input. */
  withdraw(input: PendingInput): void {
    storage.removeFromOutbox(this.currentId, input.messageId);
    this.refusals.delete(input.messageId);
    this.changed();
  }

  cancel(turn: Turn): void {
    this.request({ type: "cancel_run", run_id: turn.runId });
  }

  decide(handoverId: string, decision: "confirm" | "reject"): void {
    this.request({ type: "handover_decision", session_id: this.currentId, handover_id: handoverId, decision });
  }

  /** Makes an agent the one that answers; an agent that is no member is invited. */
  useAgent(agentId: string): void {
    const session_id = this.currentId;
    if (this.view().agents.includes(agentId)) this.request({ type: "switch_agent", session_id, agent_id: agentId });
    else this.request({ type: "invite_agent", session_id, agent_id: agentId, active: true });
  }

  /** Opens a closed session again. */
  reopen(): void {
    this.request({ type: "session_open", session_id: this.currentId });
  }

  useKey(key: string): void {
    storage.keepKey(key);
    this.hasKey = true;
    this.connection.useKey(key);
  }

  /** Forgets the key and everything else that this browser has stored for the page. */
  signOut(): void {
    this.uploads.forgetAll();
    this.blobs.clear();
    storage.clear();
    this.views.clear();
    this.refusals.clear();
    this.conversations = [];
    this.hasKey = false;
    this.currentId = "";
    this.state = { name: "connecting" };
    this.create();
    this.connection.useKey(null);
  }

  connectNow(): void {
    this.connection.open();
  }

  dismissNotice(): void {
    this.notice = null;
    this.changed();
  }

  /** Names a new conversation after its first message. */
  private name(title: string): void {
    const shown = this.conversations.find(({ id }) => id === this.currentId);
    if (shown?.title === NEW_TITLE) this.rename(this.currentId, title);
  }

  private refuse(code: string, message: string): false {
    this.notice = { code, message, retryable: false, retryAfterMs: null };
    this.changed();
    return false;
  }

  private request(message: { [name: string]: unknown }): void {
    const id = randomId();
    this.remember(id, { kind: "other", sessionId: this.currentId });
    this.connection.send({ ...message, request_id: id });
  }

  private remember(requestId: string, request: Request): void {
    this.requests.set(requestId, request);
    // The map keeps the order of insertion.
    for (const oldest of this.requests.keys()) {
      if (this.requests.size <= REQUESTS_MAX) break;
      this.requests.delete(oldest);
    }
  }

  private invoke(sessionId: string, { messageId, content, strategy }: PendingInput): void {
    const message = { role: "user", content, message_id: messageId };
    const sent = this.connection.send({
      type: "agent_invoke",
      request_id: messageId,
      session_id: sessionId,
      message,
      strategy,
    });
    if (sent) this.remember(messageId, { kind: "invoke", sessionId, messageId });
  }

  /** Subscribes to a session from the tab's position, after opening it if it is new. */
  private enter(id: string): void {
    const view = this.viewOf(id);
    const request_id = randomId();
    this.remember(request_id, { kind: "enter", sessionId: id });
    if (!this.isOpened(id)) {
      this.connection.send({ type: "session_open", session_id: id, request_id });
    }
    const cursor = view.seq > 0 ? { after_seq: view.seq, after_epoch: view.epoch } : { after_seq: 0 };
    this.connection.send({ type: "subscribe", session_id: id, request_id, ...cursor, runs: view.runPositions() });
  }

  // === the connection ===

  private onState(state: ConnectionState): void {
    this.state = state;
    this.live.clear();
    this.requests.clear();
    if (state.name === "connected") {
      this.enterTries = 0;
      this.hasResynced = false;
      if (!this.hasKey) void this.readAgents();
      this.enter(this.currentId);
      this.resendAll();
      this.blobs.connected();
      this.uploads.wake();
    }
    if (state.name === "lost") {
      this.uploads.lose();
      this.blobs.lose();
    }
    if (state.name === "keyRequired") {
      storage.keepKey(null);
      this.hasKey = false;
    }
    this.changed();
  }

  /** Resends the inputs without an answer: the node knows them by their ids and accepts each once. */
  private resendAll(): void {
    for (const { id } of this.conversations) {
      for (const input of storage.outbox(id)) {
        const refusal = this.refusals.get(input.messageId);
        if (refusal === undefined || refusal.retryAt !== null) this.invoke(id, input);
      }
    }
  }

  private onMessage(message: ServerMessage): void {
    switch (message.type) {
      case "turn_accepted":
        this.accepted(message.sessionId, message.messageId);
        if (!this.live.has(message.sessionId) && message.sessionId !== this.currentId) {
          // An input of another conversation has subscribed this connection.
          this.connection.send({ type: "unsubscribe", session_id: message.sessionId });
        }
        break;
      case "error":
        this.onError(message);
        break;
      case "subscribed":
        if (message.sessionId === this.currentId) this.live.add(message.sessionId);
        this.confirm(message.sessionId);
        break;
      case "session_opened":
        this.confirm(message.sessionId);
        break;
      case "message":
        this.accepted(message.sessionId, message.messageId);
        break;
      case "welcome":
      case "go_away":
      case "pong":
      case "session_closed":
      case "members":
      case "handover":
      case "handover_prompt":
      case "run_started":
      case "delta":
      case "state":
      case "tool_event":
      case "event":
      case "done":
        break;
    }
    if ("sessionId" in message && message.sessionId !== null && this.live.has(message.sessionId)) {
      this.react(this.viewOf(message.sessionId), this.viewOf(message.sessionId).apply(message));
    }
    this.changed();
  }

  private react(view: SessionView, effect: Effect): void {
    if (effect.announce !== undefined) this.announcement = effect.announce;
    if (effect.gap === true) this.resync(view);
    if (effect.regressed !== undefined) {
      for (const input of effect.regressed) storage.addToOutbox(view.id, { ...input, strategy: "enqueue" });
      this.enter(view.id);
      for (const input of storage.outbox(view.id)) this.invoke(view.id, input);
    }
  }

  /** Reads the session from its log again. The protocol leaves no gap, so a second one is the connection's fault. */
  private resync(view: SessionView): void {
    if (this.hasResynced) return this.connection.restart();
    this.hasResynced = true;
    this.views.delete(view.id);
    this.live.delete(view.id);
    this.enter(view.id);
  }

  private accepted(sessionId: string, messageId: string): void {
    this.requests.delete(messageId);
    this.refusals.delete(messageId);
    storage.removeFromOutbox(sessionId, messageId);
  }

  private confirm(sessionId: string): void {
    if (this.isOpened(sessionId)) return;
    this.changeList((all) => all.map((entry) => (entry.id === sessionId ? { ...entry, isOpened: true } : entry)));
    this.uploads.wake();
  }

  /** Returns whether the node has confirmed the session, as far as the list tells. */
  private isOpened(sessionId: string): boolean {
    return this.conversations.find(({ id }) => id === sessionId)?.isOpened !== false;
  }

  private onError(message: ServerMessage & { type: "error" }): void {
    const request = message.requestId === null ? undefined : this.requests.get(message.requestId);
    if (message.requestId === null || request === undefined) return;
    this.requests.delete(message.requestId);
    switch (request.kind) {
      case "invoke":
        return this.refused(request.sessionId, request.messageId, message.failure);
      case "enter":
        return this.notEntered(request.sessionId, message.failure);
      case "other":
        this.notice = message.failure;
    }
  }

  private refused(sessionId: string, messageId: string, failure: Failure): void {
    const tries = (this.refusals.get(messageId)?.tries ?? 0) + 1;
    const again = failure.retryable && tries <= RETRIES_MAX;
    const wait = Math.max(failure.retryAfterMs ?? 0, RETRY_MS * 2 ** (tries - 1));
    this.refusals.set(messageId, { failure, tries, retryAt: again ? Date.now() + wait : null });
    if (failure.code === "session_closed" && sessionId === this.currentId) this.view().state = "closed";
    if (!again) return;
    setTimeout(() => {
      const input = storage.outbox(sessionId).find((known) => known.messageId === messageId);
      if (input !== undefined && this.refusals.get(messageId)?.retryAt != null) this.invoke(sessionId, input);
    }, wait);
  }

  private notEntered(sessionId: string, failure: Failure): void {
    if (failure.code === "not_found") {
      this.viewOf(sessionId).state = "missing";
    } else if (failure.retryable && this.enterTries < RETRIES_MAX) {
      this.enterTries++;
      const wait = Math.max(failure.retryAfterMs ?? 0, RETRY_MS * 2 ** this.enterTries);
      setTimeout(() => {
        if (this.isConnected() && sessionId === this.currentId) this.enter(sessionId);
      }, wait);
    } else {
      this.notice = failure;
    }
  }

  /** Asks for the node's agents. The request has no key, so that this works where none is needed. */
  private async readAgents(): Promise<void> {
    try {
      const answer = await fetch("../v1/agents", { credentials: "omit" });
      if (answer.ok) this.nodeAgents = agentIds(await answer.json());
      this.changed();
    } catch (error) {
      // Without the list the members of the session can still be chosen; a lost node is told by the connection.
      if (!(error instanceof TypeError || error instanceof SyntaxError)) throw error;
    }
  }

  // === the list ===

  private onOtherTab(): void {
    this.conversations = storage.conversations();
    if (!this.conversations.some(({ id }) => id === this.currentId)) this.showFirst();
    this.changed();
  }

  private showFirst(): void {
    const first = this.conversations[0];
    if (first === undefined) this.create();
    else this.select(first.id);
  }

  /** Changes the list as it is in the storage: another tab may have changed it. */
  private changeList(change: (all: Conversation[]) => Conversation[]): void {
    storage.keepConversations(change(storage.conversations()));
    this.conversations = storage.conversations();
  }

  private viewOf(id: string): SessionView {
    const known = this.views.get(id) ?? new SessionView(id);
    // The map keeps the order of use.
    this.views.delete(id);
    this.views.set(id, known);
    for (const oldest of this.views.keys()) {
      if (this.views.size <= VIEWS_MAX) break;
      this.views.delete(oldest);
    }
    return known;
  }
}

/** Returns 128 random bits: session ids must not be guessable. */
function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
