// The message field: a draft and its files, which survive the page, the way of an input into a running answer, and the
// stop button.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { MESSAGE_BYTES_MAX, type Chat } from "../chat";
import * as storage from "../storage";
import { sendObstacle } from "../uploads";
import { AttachButton, Attachments, filesOf } from "./attachments";

export function Composer({ chat }: { chat: Chat }): VNode {
  const id = chat.currentId;
  const [text, setText] = useState(storage.draft(id));
  const [strategy, setStrategy] = useState("steer");
  const view = chat.view();
  const running = view.running();
  useEffect(() => document.getElementById("message")?.focus(), []);
  const write = (value: string) => {
    setText(value);
    storage.keepDraft(id, value);
  };
  const send = () => {
    if (chat.send(text, running === null ? "steer" : strategy)) setText("");
  };
  const onKey = (event: KeyboardEvent) => {
    // Enter also ends the composition of a character.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const onPaste = (event: ClipboardEvent) => {
    const files = filesOf(event.clipboardData);
    if (files.length === 0) return;
    // Programs copy a text together with a picture of it: then the text is meant.
    if (event.clipboardData?.types.includes("text/plain") === true) return;
    event.preventDefault();
    chat.addFiles(files);
  };
  const isObstructed = sendObstacle(chat.files()) !== null;
  const isShut = view.state === "closed" || view.state === "missing";
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <Attachments chat={chat} />
      <label class="unseen" for="message">Message</label>
      <textarea
        id="message"
        rows={2}
        maxLength={MESSAGE_BYTES_MAX}
        placeholder="Write a message"
        aria-describedby="message-help"
        value={text}
        onInput={(event) => write(event.currentTarget.value)}
        onKeyDown={onKey}
        onPaste={onPaste}
      />
      <div class="buttons">
        <span id="message-help" class="hint">Enter sends, Shift+Enter starts a line.</span>
        <AttachButton chat={chat} />
        {running !== null && <StrategyChoice value={strategy} choose={setStrategy} />}
        {running !== null && (
          <button
            type="button"
            id="stop"
            disabled={!chat.isConnected() || running.phase === "cancelling"}
            onClick={() => chat.cancel(running)}
          >
            Stop
          </button>
        )}
        <button
          type="submit"
          id="send"
          class="primary"
          disabled={isShut || isObstructed}
          aria-describedby={isObstructed ? "send-obstacle" : undefined}
        >
          Send
        </button>
      </div>
    </form>
  );
}

/** Chooses what a message does while an answer is written. */
function StrategyChoice({ value, choose }: { value: string; choose: (strategy: string) => void }): VNode {
  return (
    <label class="strategy">
      <span class="unseen">A message now goes</span>
      <select id="strategy" value={value} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="steer">into this answer</option>
        <option value="enqueue">after this answer</option>
        <option value="interrupt">in place of this answer</option>
      </select>
    </label>
  );
}
