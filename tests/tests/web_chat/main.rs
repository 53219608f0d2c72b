//! The web chat (`/chat/`) in a real browser, Debian's Chromium, against real nodes.
mod access;
mod attached;
mod chat_page;
mod conversations;
mod files;
mod looks;
mod markdown;
mod pictures;
mod recovery;
mod turns;
