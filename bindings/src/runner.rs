//! Tool runners (protocol.md §1.7): the state machines of a connection ([`line`]) and of the pool that assigns
//! actions to the runners of a node ([`shop`]), with their messages ([`words`]) and the rate limit of process
//! output ([`pace`]).
pub mod line;
pub mod pace;
pub mod shop;
pub mod words;
