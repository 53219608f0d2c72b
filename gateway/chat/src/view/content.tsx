// The content of an input: its text, its files, and a note for each part of another kind.
import type { VNode } from "preact";
import { useContext } from "preact/hooks";
import { blobPart } from "../blob";
import type { Json } from "../wire";
import { BlobView } from "./blob_view";
import { FilesContext } from "./files_context";

export function Content({ content }: { content: Json }): VNode {
  if (!Array.isArray(content)) return <p class="plain">{typeof content === "string" ? content : ""}</p>;
  return <div>{content.map((part, n) => <Part key={n} part={part} place={n + 1} />)}</div>;
}

function Part({ part, place }: { part: Json; place: number }): VNode {
  const { sessionId } = useContext(FilesContext);
  const fields = typeof part === "object" && part !== null && !Array.isArray(part) ? part : {};
  const file = blobPart(fields, sessionId);
  if (file !== null) {
    const label = file.isPicture ? `Picture ${place}` : file.name;
    return <p><BlobView blob={file.blob} label={label} asPicture={file.isPicture} /></p>;
  }
  if (typeof fields["text"] === "string") return <p class="plain">{fields["text"]}</p>;
  const type = typeof fields["type"] === "string" ? fields["type"] : "unknown";
  return <p class="hint">[A part of the type {type} is not shown here.]</p>;
}
