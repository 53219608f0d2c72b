// Names of a session's files (its blobs, docs/http.md "Files"), and the parts of a message that show them. No IO.
import type { Json } from "./wire";

/** A file of a session. */
export interface BlobRef {
  sessionId: string;
  sha256: string;
}

/** A file as the parts of a message name it. */
export interface NamedBlob extends BlobRef {
  name: string;
  mediaType: string;
}

/** A part of a message that shows a file. */
export interface BlobPart {
  blob: BlobRef;
  isPicture: boolean;
  /** Empty for a picture: its part has no name. */
  name: string;
}

/** Media types that the page renders. SVG is not one of them: it is a document, which may hold scripts. */
const PICTURE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
const PATH = /^\/v1\/sessions\/([A-Za-z0-9_-]{1,64})\/blobs\/([0-9a-f]{64})$/;

/** Returns whether the page shows a file of this media type as a picture. */
export function isPicture(mediaType: string): boolean {
  return PICTURE_TYPES.includes(essence(mediaType));
}

/** Returns a media type without its parameters. */
export function essence(mediaType: string): string {
  return (mediaType.split(";")[0] ?? "").trim().toLowerCase();
}

/** Returns the path of a blob at each node. */
export function blobPath({ sessionId, sha256 }: BlobRef): string {
  return `/v1/sessions/${sessionId}/blobs/${sha256}`;
}

/** Returns the blob that a path, or an address of the page's own origin, leads to; null for every other target. */
export function blobRef(target: string): BlobRef | null {
  const found = PATH.exec(target.startsWith("/") ? target : ownPath(target));
  const [, sessionId, sha256] = found ?? [];
  return sessionId === undefined || sha256 === undefined ? null : { sessionId, sha256 };
}

/** Returns the path of an address of this origin as the node has it: a proxy may put a path in front. */
function ownPath(address: string): string {
  if (!URL.canParse(address)) return "";
  const { origin, pathname, search, hash } = new URL(address);
  if (origin !== location.origin || search !== "" || hash !== "") return "";
  const front = new URL("../", location.href).pathname;
  return pathname.startsWith(front) ? `/${pathname.slice(front.length)}` : pathname;
}

/** Returns the content of a message: its text, or parts if the message has files. */
export function contentOf(text: string, files: NamedBlob[]): Json {
  if (files.length === 0) return text;
  const shown: Json[] = files.map((file) => {
    const url = blobPath(file);
    return isPicture(file.mediaType)
      ? { type: "image_url", image_url: { url } }
      : { type: "file", file: { url, filename: file.name } };
  });
  return text.trim() === "" ? shown : [{ type: "text", text }, ...shown];
}

/** Returns the file that a part of a message shows; null for a part without a file of this session. */
export function blobPart(part: { [name: string]: Json }, sessionId: string): BlobPart | null {
  const type = part["type"];
  if (type !== "image_url" && type !== "file") return null;
  const fields = part[type];
  if (typeof fields !== "object" || fields === null || Array.isArray(fields)) return null;
  const { url, filename } = fields;
  const blob = typeof url === "string" ? blobRef(url) : null;
  if (blob?.sessionId !== sessionId) return null;
  return { blob, isPicture: type === "image_url", name: typeof filename === "string" ? filename : "" };
}

/** Returns a number of bytes for a reader. */
export function inUnits(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const [count, unit] = bytes < 1024 * 1024 ? [bytes / 1024, "KiB"] : [bytes / 1024 / 1024, "MiB"];
  return `${count < 10 ? count.toFixed(1) : Math.round(count)} ${unit}`;
}
