//! Conversations: routes of messages by their bindings to sessions. Does no IO; the store keeps the bindings, and the
//! node hosts the service and the upkeep.
pub mod router;
pub mod service;
pub mod upkeep;
