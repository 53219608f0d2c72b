//! Tool runners (protocol.md §1.7): the state machines of a connection ([`connection`]) and of the pool that assigns
//! actions to the runners of a node ([`pool`]), with their messages ([`messages`]) and the rate limit of process
//! output ([`output_rate`]).
pub mod connection;
pub mod messages;
pub mod output_rate;
pub mod pool;
