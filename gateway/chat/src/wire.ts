// The messages of `turnway.v1` that the page uses (docs/messages.md, "Gateway → client"), written by hand and checked
// at run time: `parse` returns a value only if each field has its type. Unknown fields and types are ignored, as the
// protocol requires.

/** A value of a JSON document. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type JsonObject = { [name: string]: Json };

/** The end of a turn. */
export type Status = "completed" | "failed" | "cancelled";

/** A request of an agent that another agent takes over. */
export interface Handover {
  handoverId: string;
  from: string;
  to: string;
  reason: string;
  summary: string;
  /** Unix milliseconds; the handover is rejected without a decision by then. */
  deadline: number;
}

/** The state of a session at one position of its log. */
export interface Snapshot {
  state: string;
  activeAgent: string | null;
  agents: string[];
  handover: Handover | null;
  seq: number;
}

/** A refusal, or the reason why a turn failed. */
export interface Failure {
  code: string;
  message: string;
  retryable: boolean;
  retryAfterMs: number | null;
}

/** A file of a session, as the node lists it. */
export interface StoredBlob {
  sha256: string;
  bytes: number;
  mediaType: string;
}

/** The position of a message in the log; only the last message of a fact has it. */
interface Placed {
  sessionId: string;
  seq: number | null;
  epoch: number | null;
}

export type ServerMessage =
  | { type: "welcome"; heartbeatMs: number }
  | { type: "go_away"; jitterMs: number }
  | { type: "pong" }
  | { type: "turn_accepted"; requestId: string | null; sessionId: string; messageId: string; runId: string }
  | { type: "subscribed"; sessionId: string; seq: number; epoch: number; snapshot: Snapshot; reset: string | null }
  | ({ type: "session_opened"; requestId: string | null; snapshot: Snapshot | null } & Placed)
  | ({ type: "session_closed" } & Placed)
  | { type: "members"; sessionId: string; agents: string[]; activeAgent: string | null }
  | { type: "handover"; sessionId: string; handoverId: string; state: string }
  | ({ type: "handover_prompt"; handover: Handover } & Placed)
  | ({ type: "message"; runId: string; messageId: string; content: Json; agentId: string | null } & Placed)
  | ({ type: "run_started"; runId: string; agentId: string; attempt: number } & Placed)
  | { type: "delta"; sessionId: string; runId: string; attempt: number; offset: number; text: string; kind: string }
  | ({ type: "state"; runId: string; scope: string; state: string } & Placed)
  | ({ type: "tool_event"; runId: string; name: string; data: JsonObject } & Placed)
  | ({ type: "event"; name: string; runId: string | null; fields: JsonObject } & Placed)
  | ({ type: "error"; requestId: string | null; runId: string | null; terminal: boolean; failure: Failure } & Omit<
      Placed,
      "sessionId"
    > & { sessionId: string | null })
  | ({
      type: "done";
      runId: string;
      status: Status;
      stopReason: string;
      attempt: number;
      textBytes: number;
      hostRunId: string | null;
    } & Placed);

/** Thrown inside `parse` for a field of the wrong type. */
class Malformed extends Error {}

/** Returns the message in a frame, or null if the page does not use it. */
export function parse(frame: string): ServerMessage | null {
  return checked(frame, message);
}

/** Returns the ids of the agents in the answer of `GET /v1/agents`. */
export function agentIds(value: unknown): string[] {
  if (!isObject(value) || !Array.isArray(value["agents"])) return [];
  return value["agents"].flatMap((agent) =>
    isObject(agent) && typeof agent["agent_id"] === "string" ? [agent["agent_id"]] : [],
  );
}

/** Returns the file in the answer of `POST /v1/sessions/ID/blobs`; null if the answer is not one. */
export function storedBlob(body: string): StoredBlob | null {
  return checked(body, blob);
}

/** Returns the files in the answer of `GET /v1/sessions/ID/blobs`. */
export function storedBlobs(body: string): StoredBlob[] {
  return checked(body, (of) => objects(of, "blobs").map(blob)) ?? [];
}

/** Returns the failure in a problem document; null if the body is not one. */
export function problem(body: string): Failure | null {
  return checked(body, (of) => ({
    code: text(of, "code"),
    message: optionalText(of, "detail") ?? "",
    retryable: of["retryable"] === true,
    retryAfterMs: optionalNumber(of, "retry_after_ms"),
  }));
}

function blob(of: JsonObject): StoredBlob {
  return { sha256: text(of, "sha256"), bytes: number(of, "bytes"), mediaType: text(of, "media_type") };
}

/** Reads a JSON document; null if it is none, or has a field of the wrong type. */
function checked<T>(body: string, read: (of: JsonObject) => T): T | null {
  try {
    const value: unknown = JSON.parse(body);
    return isObject(value) ? read(value) : null;
  } catch (error) {
    if (error instanceof Malformed || error instanceof SyntaxError) return null;
    throw error;
  }
}

function message(of: JsonObject): ServerMessage | null {
  const type = of["type"];
  switch (type) {
    case "welcome":
      return { type, heartbeatMs: number(of, "heartbeat_ms") };
    case "go_away":
      return { type, jitterMs: number(of, "jitter_ms") };
    case "pong":
      return { type };
    case "turn_accepted":
      return {
        type,
        requestId: optionalText(of, "request_id"),
        sessionId: text(of, "session_id"),
        messageId: text(of, "message_id"),
        runId: text(of, "run_id"),
      };
    case "subscribed":
      return {
        type,
        sessionId: text(of, "session_id"),
        seq: number(of, "seq"),
        epoch: number(of, "epoch"),
        snapshot: snapshot(object(of, "snapshot")),
        reset: of["reset"] === true ? (optionalText(of, "reason") ?? "trimmed") : null,
      };
    case "session_opened": {
      const shown = of["snapshot"];
      return {
        type,
        ...placed(of),
        requestId: optionalText(of, "request_id"),
        snapshot: isObject(shown) ? snapshot(shown) : null,
      };
    }
    case "session_closed":
      return { type, ...placed(of) };
    case "members":
      return {
        type,
        sessionId: text(of, "session_id"),
        agents: texts(of, "agents"),
        activeAgent: optionalText(of, "active_agent"),
      };
    case "handover":
      return {
        type,
        sessionId: text(of, "session_id"),
        handoverId: text(of, "handover_id"),
        state: text(of, "state"),
      };
    case "handover_prompt":
      return { type, ...placed(of), handover: handover(of) };
    default:
      return turnMessage(of);
  }
}

/** Returns a message of a turn. */
function turnMessage(of: JsonObject): ServerMessage | null {
  const type = of["type"];
  switch (type) {
    case "message":
      return {
        type,
        ...placed(of),
        runId: text(of, "run_id"),
        messageId: text(of, "message_id"),
        content: of["content"] ?? null,
        agentId: optionalText(of, "agent_id"),
      };
    case "run_started":
      return {
        type,
        ...placed(of),
        runId: text(of, "run_id"),
        agentId: text(of, "agent_id"),
        attempt: number(of, "attempt"),
      };
    case "delta":
      return {
        type,
        sessionId: text(of, "session_id"),
        runId: text(of, "run_id"),
        attempt: number(of, "attempt"),
        offset: number(of, "offset"),
        text: text(of, "text"),
        kind: optionalText(of, "kind") ?? "answer",
      };
    case "state":
      return { type, ...placed(of), runId: text(of, "run_id"), scope: text(of, "scope"), state: text(of, "state") };
    case "tool_event":
      return { type, ...placed(of), runId: text(of, "run_id"), name: text(of, "name"), data: object(of, "data") };
    case "event":
      return { type, ...placed(of), name: text(of, "name"), runId: optionalText(of, "run_id"), fields: of };
    case "error":
      return {
        type,
        sessionId: optionalText(of, "session_id"),
        seq: optionalNumber(of, "seq"),
        epoch: optionalNumber(of, "epoch"),
        requestId: optionalText(of, "request_id"),
        runId: optionalText(of, "run_id"),
        terminal: of["terminal"] === true,
        failure: failure(of),
      };
    case "done":
      return {
        type,
        ...placed(of),
        runId: text(of, "run_id"),
        status: status(of),
        stopReason: text(of, "stop_reason"),
        attempt: number(of, "attempt"),
        textBytes: number(of, "text_bytes"),
        hostRunId: optionalText(of, "host_run_id"),
      };
    default:
      return null;
  }
}

function snapshot(of: JsonObject): Snapshot {
  const pending = of["pending"];
  const open = isObject(pending) ? pending["handover"] : null;
  return {
    state: text(of, "state"),
    activeAgent: optionalText(of, "active_agent"),
    agents: texts(of, "agents"),
    handover: isObject(open) ? handover(open) : null,
    seq: number(of, "seq"),
  };
}

function handover(of: JsonObject): Handover {
  return {
    handoverId: text(of, "handover_id"),
    from: text(of, "from"),
    to: text(of, "to"),
    reason: optionalText(of, "reason") ?? "",
    summary: optionalText(of, "summary") ?? "",
    deadline: number(of, "deadline_ts"),
  };
}

function failure(of: JsonObject): Failure {
  return {
    code: text(of, "code"),
    message: text(of, "message"),
    retryable: of["retryable"] === true,
    retryAfterMs: optionalNumber(of, "retry_after_ms"),
  };
}

function placed(of: JsonObject): Placed {
  return { sessionId: text(of, "session_id"), seq: optionalNumber(of, "seq"), epoch: optionalNumber(of, "epoch") };
}

function status(of: JsonObject): Status {
  const value = of["status"];
  if (value === "completed" || value === "failed" || value === "cancelled") return value;
  throw new Malformed("status");
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function object(of: JsonObject, name: string): JsonObject {
  const value = of[name];
  if (isObject(value)) return value;
  throw new Malformed(name);
}

function objects(of: JsonObject, name: string): JsonObject[] {
  const value = of[name];
  if (Array.isArray(value) && value.every(isObject)) return value;
  throw new Malformed(name);
}

function text(of: JsonObject, name: string): string {
  const value = of[name];
  if (typeof value === "string") return value;
  throw new Malformed(name);
}

function number(of: JsonObject, name: string): number {
  const value = of[name];
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw new Malformed(name);
}

function optionalText(of: JsonObject, name: string): string | null {
  return of[name] === undefined || of[name] === null ? null : text(of, name);
}

function optionalNumber(of: JsonObject, name: string): number | null {
  return of[name] === undefined || of[name] === null ? null : number(of, name);
}

function texts(of: JsonObject, name: string): string[] {
  const value = of[name];
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value;
  throw new Malformed(name);
}
