// An error code in plain words, with what the node says about it.
import type { VNode } from "preact";
import { inWords } from "../codes";
import type { Failure } from "../wire";

export function FailureText({ failure }: { failure: Failure }): VNode {
  return (
    <p>
      <strong>{inWords(failure.code)}</strong> {failure.message} <code>{failure.code}</code>
    </p>
  );
}
