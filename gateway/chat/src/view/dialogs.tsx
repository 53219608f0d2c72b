// The modal dialogs. The browser keeps the focus inside while one is open, and returns it afterwards.
import type { ComponentChildren, VNode } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { essence } from "../blob";
import { TITLE_MAX, type Chat } from "../chat";
import { HttpError } from "../http";
import type { Conversation } from "../storage";
import { focusComposer } from "./app";
import { FilesContext, type OpenPicture } from "./files_context";

interface DialogProps {
  title: string;
  action: string;
  /** Absent: the dialog stays until its action. */
  close?: () => void;
  /** Called with the content of the dialog's field. */
  act: (value: string) => void;
  children: ComponentChildren;
}

function Dialog({ title, action, close, act, children }: DialogProps): VNode {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  // Browsers close a dialog at the second Escape, whatever the page says.
  const reopen = () => dialog.current?.showModal();
  const submit = (event: SubmitEvent & { currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const field = event.currentTarget.querySelector("input");
    // Closing returns the focus before the element that had it may vanish.
    if (close !== undefined) dialog.current?.close();
    act(field?.value ?? "");
  };
  return (
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      onClose={close ?? reopen}
    >
      <form onSubmit={submit}>
        <h2 id="dialog-title">{title}</h2>
        {children}
        <div class="buttons">
          {close !== undefined && <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>}
          <button type="submit" class="primary">{action}</button>
        </div>
      </form>
    </dialog>
  );
}

/** Asks for the API key. */
export function KeyDialog({ chat, wasRefused }: { chat: Chat; wasRefused: boolean }): VNode {
  const use = (key: string) => {
    if (key.trim() !== "") chat.useKey(key.trim());
  };
  return (
    <Dialog title="API key" action="Connect" act={use}>
      {wasRefused && <p class="failure" role="alert">The gateway does not accept this key. Check it, or ask for a new one.</p>}
      <p id="key-help">This gateway needs a key. It stays in this tab and is forgotten when the tab is closed.</p>
      <label>
        API key
        <input
          type="password"
          name="key"
          autocomplete="off"
          spellcheck={false}
          required
          autofocus
          aria-describedby="key-help"
          aria-invalid={wasRefused}
        />
      </label>
    </Dialog>
  );
}

interface ConversationProps {
  chat: Chat;
  conversation: Conversation;
  close: () => void;
}

export function RenameDialog({ chat, conversation, close }: ConversationProps): VNode {
  return (
    <Dialog
      title="Rename the conversation"
      action="Rename"
      close={close}
      act={(title) => chat.rename(conversation.id, title)}
    >
      <label>
        Name
        <input type="text" name="title" defaultValue={conversation.title} maxLength={TITLE_MAX} required autofocus />
      </label>
    </Dialog>
  );
}

export function DeleteDialog({ chat, conversation, close }: ConversationProps): VNode {
  const remove = () => {
    chat.remove(conversation.id);
    document.getElementById("new-conversation")?.focus();
  };
  return (
    <Dialog title="Delete from the list?" action="Delete" close={close} act={remove}>
      <p>
        “{conversation.title}” leaves the list of this browser, with its draft. Its log stays at the gateway.
      </p>
    </Dialog>
  );
}

export function InviteDialog({ chat, close }: { chat: Chat; close: () => void }): VNode {
  const invite = (agent: string) => {
    chat.useAgent(agent.trim());
    focusComposer();
  };
  return (
    <Dialog title="Invite an agent" action="Invite" close={close} act={invite}>
      <label>
        Name of the agent
        <input
          type="text"
          name="agent"
          pattern="[A-Za-z0-9_\-]{1,64}"
          title="Letters, digits, _ and -"
          autocomplete="off"
          required
          autofocus
        />
      </label>
    </Dialog>
  );
}

/** Shows a picture as large as the window allows. */
export function PictureDialog({ picture, close }: { picture: OpenPicture; close: () => void }): VNode {
  const { cache } = useContext(FilesContext);
  const { blob, mediaType, label } = picture;
  const dialog = useRef<HTMLDialogElement>(null);
  const [url, setUrl] = useState("");
  const [isFailed, setFailed] = useState(false);
  // A name without an ending opens in no program.
  const fileName = label.includes(".") ? label : `${label}.${essence(mediaType).split("/")[1] ?? ""}`;
  const run = async (action: () => Promise<void>) => {
    try {
      setFailed(false);
      await action();
    } catch (error) {
      if (!(error instanceof HttpError)) throw error;
      setFailed(true);
    }
  };
  useEffect(() => {
    dialog.current?.showModal();
    // The thumbnail's own address may be no longer valid.
    void run(async () => setUrl((await cache?.picture(blob, mediaType)) ?? ""));
  }, []);
  return (
    <dialog class="large" ref={dialog} aria-labelledby="picture-title" onClose={close}>
      <h2 id="picture-title">{label}</h2>
      {url !== "" && <img src={url} alt={label} />}
      {isFailed && <p class="failure" role="alert">The picture could not be read. Try again later.</p>}
      <div class="buttons">
        <button type="button" onClick={() => void run(async () => cache?.download(blob, fileName))}>Download</button>
        <button type="button" class="primary" autofocus onClick={() => dialog.current?.close()}>Close</button>
      </div>
    </dialog>
  );
}
