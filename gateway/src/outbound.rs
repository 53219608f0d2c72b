//! HTTP requests of the node to servers that the operator configured: clients with pooled connections, and how long a
//! server asks to wait. Knows nothing about what is asked. Used by `agent`, `models` and `keys`.
pub mod client;
pub mod retry_after;
mod traffic;
