// Decisions that the session asks of its user, between the conversation and the message field. Each kind of prompt is a
// component of its own in this list: today handovers, and the states of a session
// or a connection that keep the user from writing.
import type { VNode } from "preact";
import type { Chat } from "../chat";
import type { Handover } from "../wire";
import { focusComposer } from "./app";
import { useSecondsUntil } from "./countdown";

export function Prompts({ chat }: { chat: Chat }): VNode | null {
  const { handover, state } = chat.view();
  return (
    <div class="prompts">
      {chat.state.name === "lost" && chat.state.isUnreachable && (
        <div class="prompt" role="group" aria-label="No connection">
          <p>
            The page has not reached the gateway yet. Either the node does not run, or it does not accept this page's
            address: then an operator adds <code>{location.origin}</code> to <code>listen.origins</code>.
          </p>
        </div>
      )}
      {handover !== null && <HandoverPrompt chat={chat} handover={handover} />}
      {state === "closed" && (
        <div class="prompt" role="group" aria-label="Closed conversation">
          <p>This conversation is closed.</p>
          <button type="button" disabled={!chat.isConnected()} onClick={() => chat.reopen()}>Open it again</button>
        </div>
      )}
      {state === "missing" && (
        <div class="prompt" role="group" aria-label="Unknown conversation">
          <p>The gateway does not know this conversation, or it belongs to another user.</p>
          <button type="button" onClick={() => chat.remove(chat.currentId)}>Delete it from the list</button>
        </div>
      )}
    </div>
  );
}

function HandoverPrompt({ chat, handover }: { chat: Chat; handover: Handover }): VNode {
  const { handoverId, from, to, reason, summary, deadline } = handover;
  const left = useSecondsUntil(deadline);
  const decide = (decision: "confirm" | "reject") => {
    chat.decide(handoverId, decision);
    focusComposer();
  };
  return (
    <div class="prompt" role="group" aria-labelledby="handover-title" data-handover={handoverId}>
      <h2 id="handover-title">{from} asks that {to} takes over</h2>
      {reason !== "" && <p class="plain">{reason}</p>}
      {summary !== "" && (
        <details class="detail">
          <summary>What {to} is told</summary>
          <p class="plain">{summary}</p>
        </details>
      )}
      <p class="hint">Without a decision {from} stays, {left > 90 ? `in ${Math.round(left / 60)} min` : `in ${left} s`}.</p>
      <div class="buttons">
        <button type="button" class="primary" disabled={!chat.isConnected()} onClick={() => decide("confirm")}>
          Let {to} take over
        </button>
        <button type="button" disabled={!chat.isConnected()} onClick={() => decide("reject")}>Stay with {from}</button>
      </div>
    </div>
  );
}
