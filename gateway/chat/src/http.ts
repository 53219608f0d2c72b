// Requests for a session's files over the HTTP API of the node that served the page. The key is sent in a header, never
// in an address. Called by `uploads.ts` and `blob_cache.ts`.
import type { BlobRef } from "./blob";
import * as storage from "./storage";
import { problem, storedBlobs, type Failure, type StoredBlob } from "./wire";

/** A request that the node did not serve. */
export interface HttpFailure extends Failure {
  /** 0 if no answer came. */
  status: number;
}

/** Thrown for a request that failed. */
export class HttpError extends Error {
  constructor(readonly failure: HttpFailure) {
    super(failure.message);
  }
}

/** The failure of a request without an answer: the node or the path to it is lost, or the page has given it up. */
export const NO_ANSWER: HttpFailure = {
  code: "no_answer",
  message: "The connection was lost.",
  retryable: true,
  retryAfterMs: null,
  status: 0,
};

/** Returns the address of a session's files, relative to the page: a proxy may put a path in front. */
export function blobsUrl(sessionId: string): string {
  return `../v1/sessions/${sessionId}/blobs`;
}

/** Returns the headers with the page's credential. */
export function credential(): { [name: string]: string } {
  const key = storage.key();
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

/** Returns the failure in an answer; a proxy answers with no problem document. */
export function failureOf(status: number, body: string): HttpFailure {
  const found = problem(body);
  if (found !== null) return { ...found, status };
  return { code: `http_${status}`, message: "", retryable: status >= 500, retryAfterMs: null, status };
}

/** Reads the list of a session's files. */
export async function readBlobs(sessionId: string, signal: AbortSignal): Promise<StoredBlob[]> {
  const body = await request("GET", blobsUrl(sessionId), signal, (answer) => answer.text());
  return storedBlobs(body);
}

/** Reads the bytes of a file. */
export function readBytes({ sessionId, sha256 }: BlobRef, signal: AbortSignal): Promise<ArrayBuffer> {
  return request("GET", `${blobsUrl(sessionId)}/${sha256}`, signal, (answer) => answer.arrayBuffer());
}

/** Deletes a file. */
export async function deleteBlob({ sessionId, sha256 }: BlobRef): Promise<void> {
  await request("DELETE", `${blobsUrl(sessionId)}/${sha256}`, null, (answer) => answer.text());
}

async function request<T>(
  method: string,
  url: string,
  signal: AbortSignal | null,
  read: (answer: Response) => Promise<T>,
): Promise<T> {
  try {
    // The browser keeps no copy, which would outlive "Sign out".
    const options: RequestInit = { method, headers: credential(), credentials: "omit", cache: "no-store", signal };
    const answer = await fetch(url, options);
    if (!answer.ok) throw new HttpError(failureOf(answer.status, await answer.text()));
    return await read(answer);
  } catch (error) {
    const isLost = error instanceof TypeError || (error instanceof DOMException && error.name === "AbortError");
    throw isLost ? new HttpError(NO_ANSWER) : error;
  }
}
