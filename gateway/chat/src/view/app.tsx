// The page's frame: header, sidebar, conversation, and the dialogs above them.
import type { VNode } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Chat } from "../chat";
import { inWords } from "../codes";
import type { Conversation } from "../storage";
import { filesOf } from "./attachments";
import { Composer } from "./composer";
import { ConnectionStatus } from "./connection_status";
import { DeleteDialog, InviteDialog, KeyDialog, PictureDialog, RenameDialog } from "./dialogs";
import { FilesContext, type OpenPicture } from "./files_context";
import { Log } from "./log";
import { Prompts } from "./prompts";
import { Sidebar } from "./sidebar";

/** The dialog that is open. */
export type OpenDialog =
  | { name: "rename"; conversation: Conversation }
  | { name: "delete"; conversation: Conversation }
  | { name: "invite" }
  | { name: "picture"; picture: OpenPicture };

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
  const files = useMemo(() => {
    const openPicture = (picture: OpenPicture) => openDialog({ name: "picture", picture });
    return { sessionId: chat.currentId, cache: chat.blobs, openPicture };
  }, [chat.currentId]);
  return (
    <FilesContext.Provider value={files}>
      <div class="page" data-connection={chat.state.name} onDragOver={onDragOver} onDrop={(event) => onDrop(chat, event)}>
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
        {dialog?.name === "picture" && <PictureDialog key={chat.currentId} picture={dialog.picture} close={close} />}
        {chat.state.name === "keyRequired" && <KeyDialog chat={chat} wasRefused={chat.state.wasRefused} />}
      </div>
    </FilesContext.Provider>
  );
}

/** Lets files be dropped anywhere: beside the message field the browser would leave the page and open them. */
function onDragOver(event: DragEvent): void {
  if (event.dataTransfer?.types.includes("Files") !== true) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "copy";
}

function onDrop(chat: Chat, event: DragEvent): void {
  const files = filesOf(event.dataTransfer);
  if (files.length === 0) return;
  event.preventDefault();
  chat.addFiles(files);
  focusComposer();
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
