// Starts the page: one `Chat`, rendered again after each change.
import { render } from "preact";
import { Chat } from "./chat";
import { App } from "./view/app";

/** Changes within this time are rendered once: answers come in many small pieces. */
const FRAME_MS = 30;

const root = document.getElementById("app");
const connect = new URL("../v1/connect", location.href);
connect.protocol = connect.protocol === "https:" ? "wss:" : "ws:";

let isScheduled = false;
// A timer and not an animation frame: a tab in the background goes on, more slowly.
const chat = new Chat(connect.href, () => {
  if (isScheduled) return;
  isScheduled = true;
  setTimeout(show, FRAME_MS);
});

function show(): void {
  isScheduled = false;
  if (root !== null) render(<App chat={chat} />, root);
}

chat.start();
show();
