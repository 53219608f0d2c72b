//! Turnway's shell: sockets, clocks, tasks and disks around a brain that has none.
//!
//! The shell performs and reports; it has no opinions about sessions.
//!
//! # Layout (a room leans only on rooms of the lines below its own)
//! - [`node`]: the program, with the plugins that a binary brings along.
//! - [`app`]: builds a node from its plan, runs it to its end.
//! - [`listen`], [`http`], [`driver`], [`admin`], [`cli`]: sockets, pages, the task that owns the
//!   switchboard, operators, commands.
//! - [`keys`]: the keys of a gateway, in its store and at its door.
//! - [`door`], [`tls`], [`links`], [`store`], [`agent`]: who comes in, and how safely, who is connected, where
//!   facts live, who answers.
//! - [`redis`]: connections to it · [`rates`]: how often clients may ask.
//! - [`config`], [`clock`], [`phase`], [`metrics`], [`trace`], [`signal`], [`answer`]: what everybody needs.
pub mod admin;
pub mod agent;
pub mod answer;
pub mod app;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod door;
pub mod driver;
pub mod http;
pub mod keys;
pub mod links;
pub mod listen;
pub mod metrics;
pub mod node;
pub mod phase;
pub mod rates;
pub mod redis;
pub mod signal;
pub mod socket;
pub mod store;
pub mod supervise;
pub mod tls;
pub mod tools;
pub mod trace;

pub use node::Node;
