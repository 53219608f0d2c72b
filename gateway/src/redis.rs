//! Connections to Redis: each [`RedisConnection`] is one connection with one purpose, reconnected whenever it is lost;
//! [`connect`] finds the primary and logs in; [`server_error`] classifies errors. Nothing is queued while a connection
//! is down: a command fails at once. Used by `store::redis` and `bus::redis`.
pub mod connect;
mod connection;
pub mod server_error;

pub use connection::{PushHandler, RedisCommandError, RedisConnection, RedisConnectionOptions};
