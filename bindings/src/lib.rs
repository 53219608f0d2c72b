//! Conversations: routes of messages by their bindings to sessions. Does no IO; the store keeps the bindings, and the
//! node asks the router.
pub mod router;
pub mod upkeep;
