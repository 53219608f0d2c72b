//! The Turnway gateway: sockets, clocks, tasks and disks around the switchboard, a state machine that does no IO. Makes
//! no decisions about sessions. The layers of its modules are listed in ARCHITECTURE.md.
pub mod admin;
pub mod agent;
pub mod app;
pub mod auth;
pub mod blobs;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod driver;
pub mod file_token;
pub mod http;
pub mod keys;
pub mod links;
pub mod listen;
pub mod metrics;
pub mod models;
pub mod node;
pub mod outbound;
pub mod phase;
pub mod rates;
pub mod redis;
pub mod response;
pub mod run_token;
pub mod shared_secret;
pub mod signal;
pub mod socket;
pub mod store;
pub mod supervise;
pub mod system_trust;
pub mod tls;
pub mod tools;
pub mod trace;

pub use node::Node;
