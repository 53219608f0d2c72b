//! Tool runners (protocol.md §1.7): the state machines of a connection ([`connection`]) and of the pool that assigns
//! actions to the runners of a node ([`pool`]).
pub mod connection;
pub mod pool;
