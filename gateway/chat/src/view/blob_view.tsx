// Files of the session within a text: pictures as thumbnails that open in large, other files as downloads. A picture is
// read once it is in view.
import type { ComponentChild, VNode } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { blobPath, blobRef, inUnits, isPicture, type BlobRef } from "../blob";
import { httpInWords } from "../codes";
import { HttpError, type HttpFailure } from "../http";
import type { StoredBlob } from "../wire";
import { FilesContext } from "./files_context";

type BlobState =
  | { name: "unread" }
  | { name: "loading" }
  | { name: "picture"; stored: StoredBlob; url: string }
  /** The bytes of the picture were given up for others. */
  | { name: "dropped" }
  | { name: "file"; stored: StoredBlob }
  | { name: "gone" }
  | { name: "failed"; failure: HttpFailure };

interface BlobViewProps {
  blob: BlobRef;
  /** The alternative text of a picture, or the name of a file. */
  label: string;
  /** False: a picture, too, is offered as a file. */
  asPicture: boolean;
}

/** The target of a link in a text if it is a file of the session, else `fallback`. */
export function BlobLink({ target, label, asPicture, fallback }: {
  target: string;
  label: string;
  asPicture: boolean;
  fallback: ComponentChild;
}): ComponentChild {
  const { sessionId } = useContext(FilesContext);
  const blob = blobRef(target);
  if (blob?.sessionId !== sessionId) return fallback;
  return <BlobView key={target} blob={blob} label={label} asPicture={asPicture} />;
}

/** A file of the session. */
export function BlobView({ blob, label, asPicture }: BlobViewProps): VNode {
  const { cache } = useContext(FilesContext);
  const [state, setState] = useState<BlobState>({ name: "unread" });
  const root = useRef<HTMLSpanElement>(null);
  const shown = useRef({ isInView: false, state });
  shown.current.state = state;
  const path = blobPath(blob);

  const read = async (): Promise<BlobState> => {
    const stored = (await cache?.find(blob)) ?? null;
    if (stored === null || cache === null) return { name: "gone" };
    if (!asPicture || !isPicture(stored.mediaType)) return { name: "file", stored };
    return { name: "picture", stored, url: await cache.picture(blob, stored.mediaType) };
  };
  const load = () => {
    setState({ name: "loading" });
    read().catch((error) => failed(error)).then((next) => {
      if (next.name === "gone") cache?.setGone(blob);
      if (root.current !== null) setState(next);
    });
  };

  useEffect(() => {
    const look = () => {
      const { isInView, state } = shown.current;
      if (isInView && (state.name === "unread" || state.name === "dropped")) load();
    };
    const observer = new IntersectionObserver((entries) => {
      shown.current.isInView = entries.at(-1)?.isIntersecting ?? false;
      look();
    });
    if (root.current !== null) observer.observe(root.current);
    const unlisten = cache?.listen((event) => {
      const { name } = shown.current.state;
      const isDropped = event.name === "dropped" && blobPath(event.blob) === path;
      if (isDropped && name === "picture") setState({ name: "dropped" });
      if (event.name === "connected" && (name === "failed" || name === "gone")) load();
    });
    return () => {
      observer.disconnect();
      unlisten?.();
    };
  }, [path]);

  return (
    <span class="blob" ref={root} data-blob={blob.sha256} data-state={state.name}>
      <Shown
        blob={blob}
        label={label}
        state={state}
        load={load}
        showFile={(stored) => setState({ name: "file", stored })}
      />
    </span>
  );
}

interface ShownProps {
  blob: BlobRef;
  label: string;
  state: BlobState;
  load: () => void;
  showFile: (stored: StoredBlob) => void;
}

function Shown({ blob, label, state, load, showFile }: ShownProps): VNode {
  const { openPicture } = useContext(FilesContext);
  const name = label === "" ? "Picture" : label;
  switch (state.name) {
    case "unread":
    case "loading":
      return <span class="hint">{name}…</span>;
    case "picture": {
      const { stored, url } = state;
      const open = () => openPicture({ blob, mediaType: stored.mediaType, label: name });
      return (
        <button type="button" class="picture" title="Show in large" aria-haspopup="dialog" onClick={open}>
          {/* Bytes that are no picture, whatever their type says, are still a file. */}
          <img src={url} alt={name} onError={() => showFile(stored)} />
        </button>
      );
    }
    case "dropped":
      return <button type="button" onClick={load}>Show {name}</button>;
    case "file":
      return <FileButton blob={blob} name={name} bytes={state.stored.bytes} />;
    case "gone":
      return <span class="hint">[{name} is no longer stored at the gateway.]</span>;
    case "failed":
      return (
        <span class="hint">
          [{name}: {httpInWords(state.failure.status, state.failure.code)}]
          <button type="button" class="quiet" onClick={load}>Load again</button>
        </span>
      );
  }
}

/** Saves a file when pressed. */
export function FileButton({ blob, name, bytes }: { blob: BlobRef; name: string; bytes: number }): VNode {
  const { cache } = useContext(FilesContext);
  const [isBusy, setBusy] = useState(false);
  const [failure, setFailure] = useState<HttpFailure | null>(null);
  const save = async () => {
    setBusy(true);
    setFailure(null);
    try {
      await cache?.download(blob, name);
    } catch (error) {
      if (!(error instanceof HttpError)) throw error;
      setFailure(error.failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <span class="file">
      <button
        type="button"
        class="download"
        disabled={isBusy}
        aria-label={`Download ${name}, ${inUnits(bytes)}`}
        onClick={save}
      >
        {name} <span class="hint">{inUnits(bytes)}</span>
      </button>
      {failure !== null && <span class="hint" role="alert"> {httpInWords(failure.status, failure.code)}</span>}
    </span>
  );
}

function failed(error: unknown): BlobState {
  if (!(error instanceof HttpError)) throw error;
  const { failure } = error;
  return failure.status === 404 ? { name: "gone" } : { name: "failed", failure };
}
