//! `turnway-bench`: a load generator for nodes of Turnway, and what its figures are compared with.
//!
//! One thread holds every connection, so that on a machine of few cores the generator takes no more of them
//! than it must, and says how much it took.
pub mod bell;
pub mod cli;
pub mod connection;
pub mod mode;
pub mod print;
pub mod process;
pub mod progress;
pub mod record;
pub mod report;
pub mod run;
pub mod schedule;
pub mod target;
pub mod trouble;
pub mod udp;
pub mod wire;
