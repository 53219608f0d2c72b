// What components need to show files of the session: handed down by `app.tsx`, used by `blob_view.tsx`.
import { createContext } from "preact";
import type { BlobRef } from "../blob";
import type { BlobCache } from "../blob_cache";

/** A picture that is shown in large. */
export interface OpenPicture {
  blob: BlobRef;
  mediaType: string;
  label: string;
}

export interface FilesContextValue {
  sessionId: string;
  /** Absent outside of the page's frame. */
  cache: BlobCache | null;
  openPicture: (picture: OpenPicture) => void;
}

export const FilesContext = createContext<FilesContextValue>({ sessionId: "", cache: null, openPicture: () => {} });
