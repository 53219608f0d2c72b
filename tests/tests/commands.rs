//! The commands for people and programs: output, errors and exit codes.
#[path = "commands/config.rs"]
mod config;
#[path = "commands/form.rs"]
mod form;
#[path = "commands/lists.rs"]
mod lists;
#[path = "commands/nodes.rs"]
mod nodes;
#[path = "commands/replay.rs"]
mod replay;
#[path = "commands/store.rs"]
mod store;
