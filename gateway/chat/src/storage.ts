// What the browser keeps for the page: the list of conversations, drafts and inputs without an answer in localStorage,
// which all tabs read; the key and the tab's own conversation in sessionStorage. Called by `chat.ts`.
import type { Json } from "./wire";

const PREFIX = "turnway.chat.v1.";
const LIST = `${PREFIX}list`;
const KEY = `${PREFIX}key`;
const CURRENT = `${PREFIX}current`;

/** Conversations in the list; the oldest leaves. A list of titles beyond this is not read by anybody. */
const CONVERSATIONS_MAX = 200;
/** Inputs of one session that wait for an answer; the node takes no more than 20 beside the running one. */
export const OUTBOX_MAX = 20;

/** A storage for a browser that forbids its own: it ends with the page. */
class PageStorage {
  private readonly texts = new Map<string, string>();
  getItem(name: string): string | null {
    return this.texts.get(name) ?? null;
  }
  setItem(name: string, text: string): void {
    this.texts.set(name, text);
  }
  removeItem(name: string): void {
    this.texts.delete(name);
  }
  names(): string[] {
    return [...this.texts.keys()];
  }
}

type TextStorage = Storage | PageStorage;
const local = available("localStorage");
const session = available("sessionStorage");

function available(name: "localStorage" | "sessionStorage"): TextStorage {
  try {
    return window[name];
  } catch (error) {
    if (error instanceof DOMException) return new PageStorage();
    throw error;
  }
}

/** One entry of the list. */
export interface Conversation {
  id: string;
  title: string;
  /** The node has confirmed that the session exists. */
  isOpened: boolean;
}

/** An input that the node has not accepted yet. */
export interface PendingInput {
  /** Message id and request id: a resent input is the same input. */
  messageId: string;
  /** A text, or parts if the input has files. */
  content: Json;
  strategy: string;
}

/** A file of a draft. */
export interface DraftFile {
  name: string;
  bytes: number;
  mediaType: string;
  /** Null as long as the file is not uploaded. */
  sha256: string | null;
}

/** Returns the list, the newest first. */
export function conversations(): Conversation[] {
  return list(LIST).flatMap((entry) =>
    isRecord(entry) && typeof entry["id"] === "string" && typeof entry["title"] === "string"
      ? [{ id: entry["id"], title: entry["title"], isOpened: entry["isOpened"] === true }]
      : [],
  );
}

/** Replaces the list. */
export function keepConversations(all: Conversation[]): void {
  for (const dropped of all.slice(CONVERSATIONS_MAX)) forget(dropped.id);
  put(local, LIST, JSON.stringify(all.slice(0, CONVERSATIONS_MAX)));
}

/** Removes the draft and the pending inputs of a session. */
export function forget(id: string): void {
  local.removeItem(`${PREFIX}draft.${id}`);
  local.removeItem(`${PREFIX}files.${id}`);
  local.removeItem(`${PREFIX}outbox.${id}`);
}

export function draft(id: string): string {
  return local.getItem(`${PREFIX}draft.${id}`) ?? "";
}

export function keepDraft(id: string, text: string): void {
  if (text === "") local.removeItem(`${PREFIX}draft.${id}`);
  else put(local, `${PREFIX}draft.${id}`, text);
}

/** Returns the files of a session's draft. */
export function draftFiles(id: string): DraftFile[] {
  return list(`${PREFIX}files.${id}`).flatMap((entry) => {
    if (!isRecord(entry)) return [];
    const { name, bytes, mediaType, sha256 } = entry;
    if (typeof name !== "string" || typeof bytes !== "number" || typeof mediaType !== "string") return [];
    return [{ name, bytes, mediaType, sha256: typeof sha256 === "string" ? sha256 : null }];
  });
}

export function keepDraftFiles(id: string, files: DraftFile[]): void {
  if (files.length === 0) local.removeItem(`${PREFIX}files.${id}`);
  else put(local, `${PREFIX}files.${id}`, JSON.stringify(files));
}

/** Returns the inputs of a session that the node has not accepted yet, in order. */
export function outbox(id: string): PendingInput[] {
  return list(`${PREFIX}outbox.${id}`).flatMap((entry) => {
    if (!isRecord(entry)) return [];
    // Earlier releases stored a text.
    const content = entry["content"] ?? entry["text"];
    const { messageId, strategy } = entry;
    if (typeof messageId !== "string" || typeof strategy !== "string") return [];
    return typeof content === "string" || Array.isArray(content) ? [{ messageId, content, strategy }] : [];
  });
}

export function addToOutbox(id: string, input: PendingInput): void {
  // Read again: another tab may have added one.
  const others = outbox(id).filter((known) => known.messageId !== input.messageId);
  keepOutbox(id, [...others, input]);
}

export function removeFromOutbox(id: string, messageId: string): void {
  const all = outbox(id);
  const left = all.filter((input) => input.messageId !== messageId);
  if (left.length < all.length) keepOutbox(id, left);
}

function keepOutbox(id: string, inputs: PendingInput[]): void {
  if (inputs.length === 0) local.removeItem(`${PREFIX}outbox.${id}`);
  else put(local, `${PREFIX}outbox.${id}`, JSON.stringify(inputs));
}

export function key(): string | null {
  return session.getItem(KEY);
}

export function keepKey(value: string | null): void {
  if (value === null) session.removeItem(KEY);
  else put(session, KEY, value);
}

export function current(): string | null {
  return session.getItem(CURRENT);
}

export function keepCurrent(id: string): void {
  put(session, CURRENT, id);
}

/** Removes everything that the page has stored in this browser. */
export function clear(): void {
  for (const storage of [local, session]) {
    const names = storage instanceof PageStorage ? storage.names() : Object.keys(storage);
    for (const name of names) if (name.startsWith(PREFIX)) storage.removeItem(name);
  }
}

/** Calls back when another tab has changed something. */
export function onOtherTab(changed: () => void): void {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(PREFIX)) changed();
  });
}

function list(name: string): unknown[] {
  try {
    const value: unknown = JSON.parse(local.getItem(name) ?? "[]");
    return Array.isArray(value) ? value : [];
  } catch (error) {
    if (error instanceof SyntaxError) return [];
    throw error;
  }
}

/** Stores a text. A full storage loses only the memory of the browser: what the node has accepted is in its log. */
function put(storage: TextStorage, name: string, text: string): void {
  try {
    storage.setItem(name, text);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
