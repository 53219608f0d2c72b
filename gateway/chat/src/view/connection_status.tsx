// The state of the connection in words.
import type { VNode } from "preact";
import type { ConnectionState } from "../connection";
import { Countdown } from "./countdown";

export function ConnectionStatus({ state, connectNow }: { state: ConnectionState; connectNow: () => void }): VNode {
  return (
    <div class={`connection ${state.name}`}>
      <span role="status">{words(state)}</span>
      {state.name === "lost" && <Countdown key={state.retryAt} until={state.retryAt} before="again in" />}
      {(state.name === "lost" || state.name === "closed") && (
        <button type="button" onClick={connectNow}>Try now</button>
      )}
    </div>
  );
}

function words(state: ConnectionState): string {
  switch (state.name) {
    case "connecting":
      return "Connecting…";
    case "connected":
      return "Connected";
    case "lost":
      return "No connection";
    case "keyRequired":
      return "Key required";
    case "closed":
      return `Closed by the node: ${state.reason} (${state.code})`;
  }
}
