//! `turnway chat`: with lines from a pipe, and at a terminal.
#[path = "chat/members.rs"]
mod members;
#[path = "chat/pipe.rs"]
mod pipe;
#[path = "chat/terminal.rs"]
mod terminal;
