// The page's frame: header, sidebar, conversation, and the dialogs above them.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Chat } from "../chat";
import { inWords } from "../codes";
import type { Conversation } from "../storage";
import { Composer } from "./composer";
import { ConnectionStatus } from "./connection_status";
import { DeleteDialog, InviteDialog, KeyDialog, RenameDialog } from "./dialogs";
import { Log } from "./log";
import { Prompts } from "./prompts";
import { Sidebar } from "./sidebar";

/** The dialog that is open. */
export type OpenDialog =
  | { name: "rename"; conversation: Conversation }
  | { name: "delete"; conversation: Conversation }
  | { name: "invite" };

/** Moves the focus to the message field. */
export function focusComposer(): void {
  document.getElementById("message")?.focus();
}

export function App({ chat }: { chat: Chat }): VNode {
  const [isListOpen, openList] = useState(false);
  const [dialog, openDialog] = useState<OpenDialog | null>(null);
  const title = chat.conversations.find(({ id }) => id === chat.currentId)?.title ?? "";
  useEffect(() => {
    document.title = `${title} · Turnway`;
  }, [title]);
  const close = () => openDialog(null);
  return (
    <div class="page" data-connection={chat.state.name}>
      <a class="skip" href="#message">Skip to the message field</a>
      <header>
        <button
          type="button"
          id="list-button"
          class="list-button"
          aria-expanded={isListOpen}
          aria-controls="conversations"
          onClick={() => openList(!isListOpen)}
        >
          Chats
        </button>
        <h1>{title}</h1>
        <AgentChoice chat={chat} invite={() => openDialog({ name: "invite" })} />
        <ConnectionStatus state={chat.state} connectNow={() => chat.connectNow()} />
      </header>
      <Sidebar chat={chat} isOpen={isListOpen} close={() => openList(false)} openDialog={openDialog} />
      <main>
        <Log key={chat.currentId} chat={chat} />
        <Prompts chat={chat} />
        <Notice chat={chat} />
        <Composer key={`composer-${chat.currentId}`} chat={chat} />
      </main>
      <div class="unseen" role="status" aria-live="polite">{chat.announcement}</div>
      {dialog?.name === "rename" && <RenameDialog chat={chat} conversation={dialog.conversation} close={close} />}
      {dialog?.name === "delete" && <DeleteDialog chat={chat} conversation={dialog.conversation} close={close} />}
      {dialog?.name === "invite" && <InviteDialog chat={chat} close={close} />}
      {chat.state.name === "keyRequired" && <KeyDialog chat={chat} wasRefused={chat.state.wasRefused} />}
    </div>
  );
}

/** The value of the option that asks for an agent's name. */
const ANOTHER = "";

/** Chooses the agent that answers; an agent that is no member yet is invited. */
function AgentChoice({ chat, invite }: { chat: Chat; invite: () => void }): VNode | null {
  const { agents, activeAgent } = chat.view();
  if (activeAgent === null) return null;
  const others = chat.nodeAgents.filter((id) => !agents.includes(id));
  const choose = (select: HTMLSelectElement) => {
    const chosen = select.value;
    // The answer of the node changes the choice.
    select.value = activeAgent;
    if (chosen === ANOTHER) invite();
    else if (chosen !== activeAgent) chat.useAgent(chosen);
  };
  return (
    <label class="agent">
      <span>Agent</span>
      <select
        value={activeAgent}
        disabled={!chat.isConnected()}
        onChange={(event) => choose(event.currentTarget)}
      >
        {agents.map((id) => <option key={id} value={id}>{id}</option>)}
        {others.length > 0 && (
          <optgroup label="Invite">
            {others.map((id) => <option key={id} value={id}>{id}</option>)}
          </optgroup>
        )}
        {chat.hasKey && <option value={ANOTHER}>Another agent…</option>}
      </select>
    </label>
  );
}

/** Shows a request that failed. */
function Notice({ chat }: { chat: Chat }): VNode | null {
  if (chat.notice === null) return null;
  const { code, message } = chat.notice;
  const dismiss = () => {
    chat.dismissNotice();
    focusComposer();
  };
  return (
    <div class="notice" role="alert">
      <p><strong>{inWords(code)}</strong> {message} <code>{code}</code></p>
      <button type="button" onClick={dismiss}>Close</button>
    </div>
  );
}
