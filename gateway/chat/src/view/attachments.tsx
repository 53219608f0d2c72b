// The files of a draft, above the message field: how far each upload is, and what can be done about it.
import type { VNode } from "preact";
import { inUnits } from "../blob";
import type { Chat } from "../chat";
import { httpInWords } from "../codes";
import { isPictureFile, sendObstacle, type Attachment } from "../uploads";
import { focusComposer } from "./app";
import { BlobView } from "./blob_view";
import { Countdown } from "./countdown";

export function Attachments({ chat }: { chat: Chat }): VNode | null {
  const files = chat.files();
  if (files.length === 0) return null;
  const obstacle = sendObstacle(files);
  return (
    <div class="attachments">
      <ul aria-label="Files of the message">
        {files.map((file) => <AttachmentItem key={file.id} chat={chat} file={file} />)}
      </ul>
      {obstacle !== null && <p id="send-obstacle" class="hint">{obstacle}</p>}
    </div>
  );
}

function AttachmentItem({ chat, file }: { chat: Chat; file: Attachment }): VNode {
  const { id, name, bytes, state } = file;
  const remove = () => {
    chat.removeFile(id);
    focusComposer();
  };
  return (
    <li data-upload={state.name}>
      <div>
        {state.name === "stored" && isPictureFile(file) && (
          <BlobView blob={{ sessionId: chat.currentId, sha256: state.sha256 }} label={name} asPicture />
        )}{" "}
        <span class="name">{name}</span> <span class="hint">{inUnits(bytes)}</span>
        <Progress chat={chat} file={file} />
      </div>
      <button type="button" class="quiet small" aria-label={`Remove ${name}`} title="Remove" onClick={remove}>
        ✕
      </button>
    </li>
  );
}

function Progress({ chat, file: { id, name, bytes, state } }: { chat: Chat; file: Attachment }): VNode | null {
  switch (state.name) {
    case "stored":
      return null;
    case "waiting":
      return (
        <p class="hint">
          {chat.isConnected() ? "Waits to be uploaded." : "Is uploaded when the connection is back."}
        </p>
      );
    case "sending":
      return (
        <p class="hint">
          <progress max={bytes} value={state.sent} aria-label={`Upload of ${name}`} /> {inUnits(state.sent)} uploaded
        </p>
      );
    case "lost":
      return <p class="failure">Lost: the page was closed before the end of the upload. Attach the file again.</p>;
    case "failed": {
      const { failure, retryAt } = state;
      return (
        <div class="failure">
          <p role="alert">
            <strong>{httpInWords(failure.status, failure.code)}</strong> {failure.message} <code>{failure.code}</code>
          </p>
          {retryAt !== null && (
            <p class="hint">It is sent again by itself. <Countdown key={retryAt} until={retryAt} before="In" /></p>
          )}
          {retryAt === null && failure.status !== 413 && (
            <button type="button" onClick={() => chat.tryFileAgain(id)}>Try again</button>
          )}
        </div>
      );
    }
  }
}

/** The button that chooses files. */
export function AttachButton({ chat }: { chat: Chat }): VNode {
  const choose = (input: HTMLInputElement) => {
    chat.addFiles([...(input.files ?? [])]);
    // The same file can be chosen again.
    input.value = "";
    focusComposer();
  };
  return (
    <>
      <input id="files" type="file" multiple hidden onChange={(event) => choose(event.currentTarget)} />
      <button type="button" id="attach" onClick={() => document.getElementById("files")?.click()}>Attach files</button>
    </>
  );
}

/** Returns the files that were pasted or dropped. */
export function filesOf(data: DataTransfer | null): File[] {
  return [...(data?.files ?? [])];
}
