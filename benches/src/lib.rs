//! `turnway-bench`: a load generator for Turnway nodes, and the programs that its figures are compared with.
//! One thread holds every connection, so that on a machine with few cores the generator uses as little CPU as
//! possible; its own CPU time is reported.
pub mod cli;
pub mod connection;
pub mod due_queue;
pub mod error;
pub mod mode;
pub mod output;
pub mod process;
pub mod progress;
pub mod quic_endpoints;
pub mod record;
pub mod report;
pub mod run;
pub mod schedule;
pub mod target;
pub mod wire;
