// One turn: the user's input, and the answer with its reasoning, actions, state and end.
import { Component, type ComponentChild, type VNode } from "preact";
import { Markdown } from "../markdown";
import type { Action, Turn } from "../session";
import type { Json } from "../wire";
import { Content } from "./content";
import { useSecondsUntil } from "./countdown";
import { FailureText } from "./failure";

interface Props {
  turn: Turn;
  /** The turn's version at the time of rendering: the turn itself changes in place. */
  version: number;
  isConnected: boolean;
  cancel: () => void;
  askAgain: (content: Json) => void;
}

export class TurnArticle extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { turn, version, isConnected } = this.props;
    return next.turn !== turn || next.version !== version || next.isConnected !== isConnected;
  }

  override render(): ComponentChild {
    const { turn } = this.props;
    return (
      <article class="turn" data-run={turn.runId} data-phase={turn.phase}>
        <div class="input">
          <h2 class="unseen">You</h2>
          <Content content={turn.content} />
        </div>
        <InputState {...this.props} />
        {hasAnswer(turn) && <Answer {...this.props} />}
      </article>
    );
  }
}

function hasAnswer(turn: Turn): boolean {
  if (turn.phase === "running" || turn.phase === "cancelling") return true;
  return turn.phase === "ended" && turn.stopReason !== "steered";
}

/** Tells where an input without an answer of its own is. */
function InputState({ turn, isConnected, cancel }: Props): VNode | null {
  if (turn.phase === "waiting") {
    return (
      <p class="hint">
        {turn.position === null ? "Waits for its turn. " : `Waits, at position ${turn.position}. `}
        <button type="button" class="quiet" disabled={!isConnected} onClick={cancel}>Withdraw</button>
      </p>
    );
  }
  if (turn.phase === "ended" && turn.stopReason === "steered") return <p class="hint">Taken into the answer above.</p>;
  if (turn.phase !== "steered") return null;
  switch (turn.steering) {
    case "accepted":
      return <p class="hint">Taken into the answer above.</p>;
    case "refused":
      return <p class="hint">The agent takes nothing into this answer; the message is next.</p>;
    case "pending":
    case null:
      return <p class="hint">Passed to the running answer.</p>;
  }
}

function Answer({ turn, askAgain }: Props): VNode {
  const isOpen = turn.phase !== "ended";
  return (
    <div class="answer" aria-busy={isOpen}>
      <h2>{turn.agentId ?? "Agent"}</h2>
      {turn.notice !== null && <p class="hint">{turn.notice}</p>}
      {turn.reasoning !== "" && (
        <details class="detail">
          <summary>Reasoning</summary>
          <p class="plain">{turn.reasoning}</p>
        </details>
      )}
      {turn.actions.map((action) => <ActionDetail key={action.id} action={action} />)}
      {turn.text !== "" && <Markdown text={turn.text} />}
      {isOpen && <p class="hint working">{progress(turn)}</p>}
      {!isOpen && <Ending turn={turn} askAgain={askAgain} />}
    </div>
  );
}

function progress(turn: Turn): string {
  if (turn.phase === "cancelling") return "Stopping…";
  if (turn.agentState !== null) return `${turn.agentState}…`;
  return turn.text === "" ? "Waiting for the agent…" : "Writing…";
}

function ActionDetail({ action }: { action: Action }): VNode {
  const states = { running: "running", done: "done", failed: "failed" };
  return (
    <details class="detail">
      <summary>Action {action.tool}: {states[action.state]}</summary>
      {action.args !== "" && <pre tabIndex={0} aria-label="Arguments">{action.args}</pre>}
      {action.result !== "" && <pre tabIndex={0} aria-label="Result">{action.result}</pre>}
    </details>
  );
}

/** Tells why an answer ended, unless it is simply complete. */
function Ending({ turn, askAgain }: { turn: Turn; askAgain: (content: Json) => void }): VNode | null {
  if (turn.status === "failed") return <Failed turn={turn} askAgain={askAgain} />;
  if (turn.status === "cancelled") return <p class="hint">Stopped.</p>;
  if (turn.stopReason === "max_tokens") return <p class="hint">The answer has reached the agent's limit of length.</p>;
  if (turn.stopReason === "refusal") return <p class="hint">The agent refused to answer.</p>;
  return turn.text === "" ? <p class="hint">The answer is empty.</p> : null;
}

function Failed({ turn, askAgain }: { turn: Turn; askAgain: (content: Json) => void }): VNode {
  const { failure, content } = turn;
  const wait = useSecondsUntil(turn.endedAt + (failure?.retryAfterMs ?? 0));
  if (failure === null) return <p class="failure">The answer failed.</p>;
  return (
    <div class="failure">
      <FailureText failure={failure} />
      {failure.retryable && content !== null && (
        <button type="button" disabled={wait > 0} onClick={() => askAgain(content)}>
          {wait > 0 ? `Ask again in ${wait} s` : "Ask again"}
        </button>
      )}
    </div>
  );
}
