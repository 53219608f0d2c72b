//! A deterministic simulator of a whole cluster with its store, agents and clients: one thread, virtual time, all
//! decisions from a seed. `verdict` runs worlds, `world` holds time and nodes, `check` has one file per guarantee,
//! `cases` directed situations, `mutants` planted bugs, `harness` machines for the machine laws.
pub mod cases;
pub mod clocks;
pub mod faults;
pub mod harness;
pub mod model_calls;
pub mod mutants;
pub mod scenario;
mod steering;
pub mod verdict;
pub mod world;

mod agents;
mod behaviour;
mod bus;
mod buttons;
mod check;
mod clients;
mod fixtures;
mod handovers;
mod index;
mod links;
mod odd_requests;
mod operators;
mod platform;
mod resumable;
mod storage;
mod tasks;
mod tool_runner;
