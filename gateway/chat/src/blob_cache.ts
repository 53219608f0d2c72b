// Reads the files of sessions for the components that show them: which files there are, pictures as object URLs within
// a bound, and downloads. Called by `view/blob_view.tsx`; `chat.ts` tells it of the connection.
import { blobPath, essence, type BlobRef } from "./blob";
import { HttpError, NO_ANSWER, readBlobs, readBytes } from "./http";
import type { StoredBlob } from "./wire";

/** Pictures whose bytes are held, and their bytes; beyond either the one used longest ago is given up. */
const PICTURES_MAX = 64;
const PICTURE_BYTES_MAX = 64 * 1024 * 1024;
/** Sessions whose files are known: as many as `chat.ts` keeps turns of. */
const SESSIONS_MAX = 8;
/** Files that are read at a time: uploads and other requests need connections, too. */
const READS_MAX = 3;
/** Time for the browser to open an object URL that it is to save. */
const SAVE_MS = 10_000;

/** Told to the components. */
export type BlobEvent =
  /** The object URL of this picture is no longer valid. */
  | { name: "dropped"; blob: BlobRef }
  /** There is a new connection: what failed may work now. */
  | { name: "connected" };

interface HeldPicture {
  blob: BlobRef;
  url: string;
  bytes: number;
}

/** The files of sessions that this tab shows. */
export class BlobCache {
  /** Files by hash; null for one that the session does not have. The map keeps the order of use. */
  private readonly sessions = new Map<string, Map<string, StoredBlob | null>>();
  private readonly lists = new Map<string, Promise<void>>();
  /** Held pictures by path, in the order of use. */
  private readonly pictures = new Map<string, HeldPicture>();
  private readonly reads = new Map<string, Promise<string>>();
  private readonly listeners = new Set<(event: BlobEvent) => void>();
  /** Reads that wait, at most one of each file that is in view. */
  private readonly queue: (() => void)[] = [];
  private reading = 0;
  private life = new AbortController();

  /** Calls back at each event; returns the function that ends this. */
  listen(listener: (event: BlobEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Returns what the node knows of a file; null if the session does not have it. */
  async find(blob: BlobRef): Promise<StoredBlob | null> {
    const known = this.known(blob);
    if (known !== undefined) return known;
    const running = this.lists.get(blob.sessionId);
    if (running !== undefined) {
      // This list may be older than the file.
      await running;
      const listed = this.known(blob);
      if (listed !== undefined) return listed;
    }
    await this.readList(blob.sessionId);
    const listed = this.known(blob) ?? null;
    this.files(blob.sessionId).set(blob.sha256, listed);
    return listed;
  }

  /** Notes a file that was uploaded. */
  add(sessionId: string, blob: StoredBlob): void {
    this.files(sessionId).set(blob.sha256, blob);
  }

  /** Notes that a session does not have a file any more. */
  setGone({ sessionId, sha256 }: BlobRef): void {
    this.files(sessionId).set(sha256, null);
  }

  /** Returns an object URL of a picture, valid until the event `dropped`. */
  async picture(blob: BlobRef, mediaType: string): Promise<string> {
    const path = blobPath(blob);
    const held = this.pictures.get(path);
    if (held !== undefined) {
      this.pictures.delete(path);
      this.pictures.set(path, held);
      return held.url;
    }
    const running = this.reads.get(path);
    if (running !== undefined) return running;
    const read = this.readPicture(blob, mediaType).finally(() => this.reads.delete(path));
    this.reads.set(path, read);
    return read;
  }

  /** Saves a file under a name. The browser gets it without its type, so that it is never a page of this origin. */
  async download(blob: BlobRef, name: string): Promise<void> {
    const bytes = await this.read(blob);
    const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    const anchor = document.createElement("a");
    anchor.href = url;
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(url), SAVE_MS);
  }

  /** Lets failed reads be repeated, and asks again for files that were missing. */
  connected(): void {
    for (const files of this.sessions.values()) {
      for (const [sha256, blob] of files) if (blob === null) files.delete(sha256);
    }
    this.tell({ name: "connected" });
  }

  /** Ends the requests of a lost connection, which may have no end of their own. */
  lose(): void {
    this.life.abort();
    this.life = new AbortController();
  }

  /** Forgets everything. */
  clear(): void {
    this.lose();
    this.sessions.clear();
    for (const path of [...this.pictures.keys()]) this.drop(path);
  }

  private known({ sessionId, sha256 }: BlobRef): StoredBlob | null | undefined {
    return this.files(sessionId).get(sha256);
  }

  private files(sessionId: string): Map<string, StoredBlob | null> {
    const files = this.sessions.get(sessionId) ?? new Map<string, StoredBlob | null>();
    this.sessions.delete(sessionId);
    this.sessions.set(sessionId, files);
    for (const oldest of this.sessions.keys()) {
      if (this.sessions.size <= SESSIONS_MAX) break;
      this.sessions.delete(oldest);
    }
    return files;
  }

  private readList(sessionId: string): Promise<void> {
    const running = this.lists.get(sessionId);
    if (running !== undefined) return running;
    const { signal } = this.life;
    const list = readBlobs(sessionId, signal)
      .then((blobs) => blobs.forEach((blob) => this.add(sessionId, blob)))
      .finally(() => this.lists.delete(sessionId));
    this.lists.set(sessionId, list);
    return list;
  }

  private async readPicture(blob: BlobRef, mediaType: string): Promise<string> {
    const { signal } = this.life;
    const bytes = await this.read(blob);
    // A sign-out in the meantime has forgotten the pictures.
    if (signal.aborted) throw new HttpError(NO_ANSWER);
    const url = URL.createObjectURL(new Blob([bytes], { type: essence(mediaType) }));
    this.pictures.set(blobPath(blob), { blob, url, bytes: bytes.byteLength });
    this.dropSurplus();
    return url;
  }

  private dropSurplus(): void {
    let bytes = [...this.pictures.values()].reduce((sum, picture) => sum + picture.bytes, 0);
    for (const [path, picture] of this.pictures) {
      if (this.pictures.size <= PICTURES_MAX && bytes <= PICTURE_BYTES_MAX) break;
      bytes -= picture.bytes;
      this.drop(path);
    }
  }

  private drop(path: string): void {
    const picture = this.pictures.get(path);
    if (picture === undefined) return;
    this.pictures.delete(path);
    URL.revokeObjectURL(picture.url);
    this.tell({ name: "dropped", blob: picture.blob });
  }

  /** Reads a file as soon as few others are read. */
  private async read(blob: BlobRef): Promise<ArrayBuffer> {
    if (this.reading < READS_MAX) this.reading++;
    else await new Promise<void>((start) => this.queue.push(start));
    try {
      return await readBytes(blob, this.life.signal);
    } finally {
      // The next read takes this one's place.
      const next = this.queue.shift();
      if (next === undefined) this.reading--;
      else next();
    }
  }

  private tell(event: BlobEvent): void {
    for (const listener of [...this.listeners]) listener(event);
  }
}
