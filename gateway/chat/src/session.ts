// One session as the page shows it: the messages of its subscription, applied in order. No IO; called by `chat.ts`.
import { byteLength, firstBytes, withoutBytes } from "./bytes";
import type { Failure, Handover, Json, ServerMessage, Snapshot, Status } from "./wire";

/** Turns that a tab keeps for one session: beyond them the page gets slow. Older turns stay in the log. */
const TURNS_MAX = 300;
/** Characters of a reasoning or of an action's arguments that are kept; agents may send megabytes of both. */
const DETAIL_MAX = 16_384;

/** An action that a tool runner performs for an agent. */
export interface Action {
  id: string;
  tool: string;
  args: string;
  state: "running" | "done" | "failed";
  result: string;
}

/** One input of a user with its answer. */
export interface Turn {
  runId: string;
  messageId: string;
  content: Json;
  agentId: string | null;
  /** "waiting" has a position; "steered" was passed to the run `host`. */
  phase: "waiting" | "running" | "steered" | "cancelling" | "ended";
  position: number | null;
  steering: "pending" | "accepted" | "refused" | null;
  attempt: number;
  text: string;
  /** UTF-8 bytes of `text`. */
  bytes: number;
  reasoning: string;
  /** UTF-8 bytes of the reasoning received so far. */
  reasoningBytes: number;
  agentState: string | null;
  actions: Action[];
  notice: string | null;
  failure: Failure | null;
  status: Status | null;
  stopReason: string | null;
  endedAt: number;
  /** Grows with each change, so that an unchanged turn is not rendered again. */
  version: number;
}

/** Changes that the caller has to react to. */
export interface Effect {
  /** The text that the page is to announce to screen readers. */
  announce?: string;
  /** A delta is missing: subscribe again from the present position. */
  gap?: true;
  /** The store has lost acknowledged data: subscribe from the beginning, and resend these inputs. */
  regressed?: { messageId: string; content: Json }[];
}

/** The state of one session. */
export class SessionView {
  turns: Turn[] = [];
  agents: string[] = [];
  activeAgent: string | null = null;
  handover: Handover | null = null;
  /** "unknown" until the first snapshot. */
  state: "unknown" | "open" | "closed" | "missing" = "unknown";
  /** The last position received; 0 requests the whole log. */
  seq = 0;
  epoch = 0;
  /** Facts up to this position are history: they are not announced, and the snapshot knows their effect. */
  private historySeq = 0;
  /** The oldest messages are not shown. */
  isCut = false;

  constructor(readonly id: string) {}

  /** Returns the turn that an agent works on. */
  running(): Turn | null {
    return this.turns.findLast((turn) => turn.phase === "running" || turn.phase === "cancelling") ?? null;
  }

  /** Returns the position of each open run's text, as `subscribe` has it. */
  runPositions(): { [runId: string]: { attempt: number; offset: number } } {
    const open = this.turns.filter((turn) => turn.phase !== "ended" && turn.bytes > 0);
    // `subscribe` takes at most 64 runs; an answer of a run that is left out starts at 0 again.
    return Object.fromEntries(
      open.slice(-64).map((turn) => [turn.runId, { attempt: turn.attempt, offset: turn.bytes }]),
    );
  }

  /** Returns whether all turns of the session are here. */
  isWhole(): boolean {
    return this.state !== "unknown" && !this.isCut && this.seq >= this.historySeq;
  }

  /** Applies a message of this session. */
  apply(message: ServerMessage): Effect {
    const seq = "seq" in message && message.type !== "subscribed" ? message.seq : null;
    // A second subscription repeats what came between the two.
    if (seq !== null && seq <= this.seq) return {};
    const effect = this.change(message);
    if (seq !== null && "epoch" in message) {
      this.seq = seq;
      this.epoch = message.epoch ?? this.epoch;
    }
    return effect;
  }

  private change(message: ServerMessage): Effect {
    switch (message.type) {
      case "subscribed":
        return this.subscribed(message.snapshot, message.seq, message.reset);
      case "session_opened":
        if (message.snapshot !== null) this.adopt(message.snapshot);
        else if (this.isNew(message.seq)) this.state = "open";
        return {};
      case "session_closed":
        if (message.seq === null || this.isNew(message.seq)) this.state = "closed";
        return {};
      case "members":
        this.agents = message.agents;
        this.activeAgent = message.activeAgent;
        return {};
      case "handover":
        if (message.state !== "pending") this.endHandover(message.handoverId);
        return {};
      case "handover_prompt":
        if (!this.isNew(message.seq)) return {};
        this.handover = message.handover;
        return { announce: `${message.handover.from} asks that ${message.handover.to} takes over.` };
      case "message":
        this.addTurn(message.runId, message.messageId, message.content, message.agentId);
        return {};
      case "event":
        return this.event(message);
      case "error":
        return message.runId !== null && message.terminal ? this.failed(message.runId, message.failure) : {};
      case "run_started":
      case "delta":
      case "state":
      case "tool_event":
      case "done": {
        const turn = this.turn(message.runId);
        return turn === null ? {} : this.changeTurn(turn, message);
      }
      case "welcome":
      case "go_away":
      case "pong":
      case "turn_accepted":
        return {};
    }
  }

  private subscribed(snapshot: Snapshot, seq: number, reset: string | null): Effect {
    if (reset === "regressed") {
      const lost = this.turns.filter((turn) => turn.phase !== "ended" && turn.content !== null);
      const regressed = lost.map(({ messageId, content }) => ({ messageId, content }));
      this.turns = [];
      this.seq = 0;
      this.epoch = 0;
      this.adopt(snapshot);
      return { regressed };
    }
    if (reset !== null) this.isCut = true;
    this.historySeq = seq;
    this.adopt(snapshot);
    return {};
  }

  private adopt(snapshot: Snapshot): void {
    this.state = snapshot.state === "open" ? "open" : "closed";
    this.agents = snapshot.agents;
    this.activeAgent = snapshot.activeAgent;
    this.handover = snapshot.handover;
  }

  private isNew(seq: number | null): boolean {
    return seq !== null && seq > this.historySeq;
  }

  private turn(runId: string): Turn | null {
    return this.turns.findLast((turn) => turn.runId === runId) ?? null;
  }

  private addTurn(runId: string, messageId: string, content: Json, agentId: string | null): void {
    if (this.turn(runId) !== null) return;
    this.turns.push({
      runId,
      messageId,
      content,
      agentId,
      phase: "waiting",
      position: null,
      steering: null,
      attempt: 0,
      text: "",
      bytes: 0,
      reasoning: "",
      reasoningBytes: 0,
      agentState: null,
      actions: [],
      notice: null,
      failure: null,
      status: null,
      stopReason: null,
      endedAt: 0,
      version: 0,
    });
    if (this.turns.length > TURNS_MAX && this.turns[0]?.phase === "ended") {
      this.turns.shift();
      this.isCut = true;
    }
  }

  private failed(runId: string, failure: Failure): Effect {
    const turn = this.turn(runId);
    if (turn !== null) {
      turn.failure = failure;
      turn.version++;
    }
    return {};
  }

  private event(message: ServerMessage & { type: "event" }): Effect {
    const turn = message.runId === null ? null : this.turn(message.runId);
    if (turn !== null) {
      turn.version++;
      turnEvent(turn, message.name, message.fields);
    }
    if (!this.isNew(message.seq)) return {};
    return this.sessionEvent(message.name, message.fields);
  }

  private sessionEvent(name: string, fields: { [name: string]: Json }): Effect {
    const agentId = fields["agent_id"];
    switch (name) {
      case "ACTIVE_AGENT_CHANGED":
        if (typeof fields["to"] === "string") this.activeAgent = fields["to"];
        return {};
      case "AGENT_ADDED":
        if (typeof agentId === "string" && !this.agents.includes(agentId)) this.agents = [...this.agents, agentId];
        return {};
      case "AGENT_REMOVED":
        this.agents = this.agents.filter((id) => id !== agentId);
        return {};
      case "HANDOVER_CONFIRMED":
      case "HANDOVER_REJECTED":
        if (typeof fields["handover_id"] === "string") this.endHandover(fields["handover_id"]);
        return {};
      case "SESSION_CLOSING":
        this.state = "closed";
        return {};
      default:
        return {};
    }
  }

  private endHandover(handoverId: string): void {
    if (this.handover?.handoverId === handoverId) this.handover = null;
  }

  private changeTurn(
    turn: Turn,
    message: ServerMessage & { type: "run_started" | "delta" | "state" | "tool_event" | "done" },
  ): Effect {
    turn.version++;
    switch (message.type) {
      case "run_started":
        turn.agentId = message.agentId;
        turn.phase = "running";
        startAttempt(turn, message.attempt);
        return {};
      case "delta":
        return addText(turn, message);
      case "state":
        if (message.scope === "agent") turn.agentState = message.state;
        else if (message.state === "CANCELLING") turn.phase = "cancelling";
        return {};
      case "tool_event":
        actionEvent(turn, message.name, message.data);
        return {};
      case "done":
        return this.ended(turn, message);
    }
  }

  private ended(turn: Turn, message: ServerMessage & { type: "done" }): Effect {
    const gap = message.attempt === turn.attempt && turn.bytes < message.textBytes;
    if (message.attempt === turn.attempt && turn.bytes > message.textBytes) {
      // Text is provisional until `done`.
      turn.text = firstBytes(turn.text, message.textBytes);
      turn.bytes = message.textBytes;
    }
    if (message.stopReason === "steered") turn.steering = "accepted";
    turn.phase = "ended";
    turn.status = message.status;
    turn.stopReason = message.stopReason;
    turn.agentState = null;
    // A time to retry counts from now; the ends in the history are long ago.
    turn.endedAt = this.isNew(message.seq) ? Date.now() : 0;
    if (gap) return { gap: true };
    return this.isNew(message.seq) && message.stopReason !== "steered" ? { announce: endOf(turn) } : {};
  }
}

/** Describes the end of a turn in a sentence for screen readers. */
function endOf(turn: Turn): string {
  const agent = turn.agentId ?? "The agent";
  switch (turn.status) {
    case "failed":
      return `The answer failed: ${turn.failure?.code ?? "unknown error"}.`;
    case "cancelled":
      return "The answer was cancelled.";
    case "completed":
    case null:
      // Screen readers cannot skip within an announcement, and would spell the targets of links.
      return turn.text.length > 1000
        ? `${agent} has answered at length.`
        : `${agent} answered: ${turn.text.replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")}`;
  }
}

function startAttempt(turn: Turn, attempt: number): void {
  if (attempt <= turn.attempt) return;
  turn.attempt = attempt;
  turn.text = "";
  turn.bytes = 0;
  turn.reasoning = "";
  turn.reasoningBytes = 0;
}

function turnEvent(turn: Turn, name: string, fields: { [name: string]: Json }): void {
  switch (name) {
    case "TURN_ADMITTED": {
      if (turn.phase === "ended") return;
      const strategy = fields["strategy"];
      if (typeof fields["agent_id"] === "string") turn.agentId = fields["agent_id"];
      turn.phase = strategy === "steered" ? "steered" : "waiting";
      turn.steering = strategy === "steered" ? "pending" : null;
      turn.position = typeof fields["position"] === "number" ? fields["position"] : null;
      return;
    }
    case "STEER_ACK": {
      const outcome = fields["outcome"];
      if (outcome === "accepted" || outcome === "pending" || outcome === "refused") turn.steering = outcome;
      return;
    }
    case "RUN_RESTARTED":
      if (typeof fields["attempt"] === "number") startAttempt(turn, fields["attempt"]);
      turn.notice = `${restartCause(fields["reason"])}, so the answer started again.`;
      return;
    case "RUN_RESUMED":
      turn.notice = "The node was lost, and the answer continued where it was.";
      return;
    case "CANCEL_SENT":
      if (turn.phase !== "ended") turn.phase = "cancelling";
      return;
  }
}

function restartCause(reason: Json | undefined): string {
  if (reason === "agent_busy") return "The agent was busy";
  return reason === "agent_lost" ? "The agent was lost" : "The node was lost";
}

/** Adds the part of a delta that the turn does not have yet. */
function addText(turn: Turn, delta: ServerMessage & { type: "delta" }): Effect {
  if (delta.attempt < turn.attempt || turn.phase === "ended") return {};
  startAttempt(turn, delta.attempt);
  if (delta.kind !== "answer") {
    addReasoning(turn, delta.offset, delta.text);
    return {};
  }
  if (delta.offset > turn.bytes) return { gap: true };
  const text = delta.offset < turn.bytes ? withoutBytes(delta.text, turn.bytes - delta.offset) : delta.text;
  turn.text += text;
  turn.bytes += byteLength(text);
  return {};
}

/** Adds reasoning. The protocol does not resume it, so that a part may be missing. */
function addReasoning(turn: Turn, offset: number, text: string): void {
  if (offset > turn.reasoningBytes) turn.reasoning += "\n[…]\n";
  const known = Math.max(0, turn.reasoningBytes - offset);
  turn.reasoning = (turn.reasoning + (known > 0 ? withoutBytes(text, known) : text)).slice(0, DETAIL_MAX);
  turn.reasoningBytes = Math.max(turn.reasoningBytes, offset + byteLength(text));
}

function actionEvent(turn: Turn, name: string, data: { [name: string]: Json }): void {
  const id = data["action_id"];
  const tool = data["tool"];
  if (typeof id !== "string") return;
  const known = turn.actions.find((action) => action.id === id);
  const action: Action = known ?? { id, tool: "", args: "", state: "running", result: "" };
  if (known === undefined) turn.actions.push(action);
  if (typeof tool === "string") action.tool = tool;
  if (name === "tool.invoke") action.args = printed(data["args"]);
  if (name === "tool.result") {
    action.state = data["ok"] === true ? "done" : "failed";
    action.result = printed(data["ok"] === true ? data["result"] : data["error"]);
  }
}

function printed(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  return (typeof value === "string" ? value : JSON.stringify(value, null, 2)).slice(0, DETAIL_MAX);
}
