// The files of drafts: each is uploaded at once, and again after the loss of a node (the same bytes are the same blob).
// Knows nothing about messages; called by `chat.ts`.
import { isPicture, type NamedBlob } from "./blob";
import { backoffMs } from "./connection";
import { NO_ANSWER, blobsUrl, credential, failureOf, type HttpFailure } from "./http";
import * as storage from "./storage";
import { storedBlob, type StoredBlob } from "./wire";

/** Files in one message. */
export const FILES_MAX = 10;
/** The most that `blobs.max` of a node can be; a larger file is not sent for nothing. */
const FILE_BYTES_MAX = 16 * 1024 * 1024;
/** Uploads at a time: browsers open six connections to a node, and pictures are to load beside uploads. */
const UPLOADS_MAX = 3;
/** Times that an upload is sent again by itself; after that the reader decides. */
const RETRIES_MAX = 5;
/** The node gives an upload up after this time. */
const UPLOAD_MS = 600_000;
/** Characters of a name that are kept. */
const NAME_MAX = 255;
/** The media type of a file whose type the browser does not know. */
const UNKNOWN_TYPE = "application/octet-stream";

/** The state of an upload. */
export type UploadState =
  /** Until there is a connection, the session exists, and fewer uploads run. */
  | { name: "waiting" }
  | { name: "sending"; sent: number }
  | { name: "stored"; sha256: string }
  /** The file is sent again at `retryAt` (milliseconds of `Date.now`); null: the reader decides. */
  | { name: "failed"; failure: HttpFailure; retryAt: number | null }
  /** The page was loaded again before the end of the upload: the browser has the file no more. */
  | { name: "lost" };

/** A file of a draft. */
export interface Attachment {
  /** Unique in this page. */
  id: number;
  name: string;
  bytes: number;
  mediaType: string;
  state: UploadState;
}

/** An attachment with what its upload needs. */
interface Upload extends Attachment {
  /** Null after a reload. */
  file: File | null;
  tries: number;
  request: XMLHttpRequest | null;
  timer: ReturnType<typeof setTimeout> | undefined;
}

/** Receives what happens to uploads. */
export interface UploadsHandler {
  /** Returns whether the session takes files now: there is a connection, and the session exists. */
  isReady(sessionId: string): boolean;
  onChange(): void;
  onStored(sessionId: string, blob: StoredBlob, name: string): void;
}

/** The uploads of all drafts of this tab. */
export class Uploads {
  private readonly lists = new Map<string, Upload[]>();
  private lastId = 0;

  constructor(private readonly handler: UploadsHandler) {}

  /** Returns the files of a session's draft. */
  of(sessionId: string): readonly Attachment[] {
    return this.list(sessionId);
  }

  /** Returns the files of a draft that are blobs now. */
  stored(sessionId: string): NamedBlob[] {
    return this.list(sessionId).flatMap(({ name, mediaType, state }) =>
      state.name === "stored" ? [{ sessionId, sha256: state.sha256, name, mediaType }] : [],
    );
  }

  /** Adds files to a draft; returns false if there are too many, and adds the first ones. */
  add(sessionId: string, files: readonly File[]): boolean {
    const list = this.list(sessionId);
    const added = files.slice(0, FILES_MAX - list.length);
    for (const file of added) list.push(this.uploadOf(file));
    this.keep(sessionId);
    this.wake();
    return added.length === files.length;
  }

  /** Removes a file from a draft, and ends its upload; returns the hash of a file that was uploaded. */
  remove(sessionId: string, id: number): string | null {
    const list = this.list(sessionId);
    const at = list.findIndex((upload) => upload.id === id);
    const [removed] = at < 0 ? [] : list.splice(at, 1);
    if (removed === undefined) return null;
    stop(removed);
    this.keep(sessionId);
    this.wake();
    return removed.state.name === "stored" ? removed.state.sha256 : null;
  }

  /** Uploads a refused file again. */
  tryAgain(sessionId: string, id: number): void {
    const upload = this.list(sessionId).find((known) => known.id === id);
    if (upload?.state.name !== "failed") return;
    clearTimeout(upload.timer);
    upload.tries = 0;
    upload.state = { name: "waiting" };
    this.wake();
  }

  /** Forgets the files of a draft; those that are uploaded stay blobs of the session. */
  forget(sessionId: string): void {
    this.list(sessionId).forEach(stop);
    this.lists.delete(sessionId);
    storage.keepDraftFiles(sessionId, []);
    this.wake();
  }

  /** Forgets the files of all drafts. */
  forgetAll(): void {
    for (const sessionId of [...this.lists.keys()]) this.forget(sessionId);
  }

  /** Starts waiting uploads. Called when there is a connection, and when a session exists. */
  wake(): void {
    const uploads = [...this.lists].flatMap(([sessionId, list]) => list.map((upload) => ({ sessionId, upload })));
    let free = UPLOADS_MAX - uploads.filter(({ upload }) => upload.state.name === "sending").length;
    for (const { sessionId, upload } of uploads) {
      if (free <= 0) break;
      if (upload.state.name !== "waiting" || !this.handler.isReady(sessionId)) continue;
      free--;
      this.start(sessionId, upload);
    }
    this.handler.onChange();
  }

  /** Ends the requests of a lost connection, which may have no end of their own. */
  lose(): void {
    for (const upload of [...this.lists.values()].flat()) {
      if (upload.state.name !== "sending") continue;
      stop(upload);
      this.failed(upload, NO_ANSWER);
    }
  }

  private list(sessionId: string): Upload[] {
    const known = this.lists.get(sessionId) ?? storage.draftFiles(sessionId).map((kept) => this.keptUpload(kept));
    this.lists.set(sessionId, known);
    return known;
  }

  private keptUpload({ name, bytes, mediaType, sha256 }: storage.DraftFile): Upload {
    const state: UploadState = sha256 === null ? { name: "lost" } : { name: "stored", sha256 };
    const id = ++this.lastId;
    return { id, name, bytes, mediaType, state, file: null, tries: 0, request: null, timer: undefined };
  }

  private uploadOf(file: File): Upload {
    const mediaType = /^[\w.+-]+\/[\w.+-]+$/.test(file.type) ? file.type : UNKNOWN_TYPE;
    const name = file.name.slice(0, NAME_MAX) || "file";
    const state: UploadState =
      file.size <= FILE_BYTES_MAX ? { name: "waiting" } : { name: "failed", failure: tooLarge(), retryAt: null };
    const id = ++this.lastId;
    return { id, name, bytes: file.size, mediaType, state, file, tries: 0, request: null, timer: undefined };
  }

  private start(sessionId: string, upload: Upload): void {
    const request = new XMLHttpRequest();
    upload.request = request;
    upload.state = { name: "sending", sent: 0 };
    request.open("POST", blobsUrl(sessionId));
    request.timeout = UPLOAD_MS;
    request.setRequestHeader("content-type", upload.mediaType);
    for (const [name, value] of Object.entries(credential())) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded }) => {
      upload.state = { name: "sending", sent: Math.min(loaded, upload.bytes) };
      this.handler.onChange();
    };
    request.onload = () => this.answered(sessionId, upload, request);
    request.onerror = () => this.failed(upload, NO_ANSWER);
    request.ontimeout = () => this.failed(upload, NO_ANSWER);
    request.send(upload.file);
  }

  private answered(sessionId: string, upload: Upload, { status, responseText }: XMLHttpRequest): void {
    const blob = status === 201 ? storedBlob(responseText) : null;
    if (blob === null) return this.failed(upload, failureOf(status, responseText));
    upload.state = { name: "stored", sha256: blob.sha256 };
    // The same bytes may have been uploaded before, with another type.
    upload.mediaType = blob.mediaType;
    upload.file = null;
    upload.request = null;
    this.keep(sessionId);
    this.handler.onStored(sessionId, blob, upload.name);
    this.wake();
  }

  private failed(upload: Upload, failure: HttpFailure): void {
    upload.request = null;
    upload.tries++;
    const again = isTransient(failure) && upload.tries <= RETRIES_MAX;
    const wait = Math.max(failure.retryAfterMs ?? 0, backoffMs(upload.tries - 1));
    upload.state = { name: "failed", failure, retryAt: again ? Date.now() + wait : null };
    if (again) {
      upload.timer = setTimeout(() => {
        upload.state = { name: "waiting" };
        this.wake();
      }, wait);
    }
    this.wake();
  }

  private keep(sessionId: string): void {
    const files = this.list(sessionId).map(({ name, bytes, mediaType, state }) => {
      const sha256 = state.name === "stored" ? state.sha256 : null;
      return { name, bytes, mediaType, sha256 };
    });
    storage.keepDraftFiles(sessionId, files);
  }
}

/** Returns whether an attachment is shown as a picture. */
export function isPictureFile({ mediaType }: Attachment): boolean {
  return isPicture(mediaType);
}

/** Returns the reason why a draft with these files cannot be sent yet; null if it can. */
export function sendObstacle(files: readonly Attachment[]): string | null {
  if (files.some(({ state }) => state.name === "lost" || (state.name === "failed" && state.retryAt === null))) {
    return "Remove the files that are not uploaded, or try them again.";
  }
  return files.some(({ state }) => state.name !== "stored") ? "The message can be sent after the uploads." : null;
}

/** Returns whether a later try may succeed without anybody's doing. A full quota is emptied by hand. */
function isTransient({ status, code, retryable }: HttpFailure): boolean {
  return code !== "quota_exceeded" && (retryable || status === 408);
}

function tooLarge(): HttpFailure {
  const message = `A file has at most ${FILE_BYTES_MAX / 1024 / 1024} MiB.`;
  return { code: "too_large", message, retryable: false, retryAfterMs: null, status: 413 };
}

/** Ends the request and the wait of an upload; nothing of them is told any more. */
function stop(upload: Upload): void {
  clearTimeout(upload.timer);
  const { request } = upload;
  upload.request = null;
  if (request === null) return;
  request.onload = request.onerror = request.ontimeout = null;
  request.upload.onprogress = null;
  request.abort();
}
