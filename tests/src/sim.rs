//! The simulator: a whole cluster, its store, its agents and its clients, in one thread and one call
//! stack, on virtual time.
//!
//! A world is made from a seed and nothing else, so every failure can be run again. What must hold
//! is checked by the files under `check`, one per guarantee, while the world runs and after it has
//! come to rest.
//!
//! # Layout (each line leans only on those below it)
//! - [`verdict`]: runs worlds, on every core, and tells what went wrong.
//! - [`mutants`]: hunts planted bugs.
//! - [`cases`]: directed situations that chance meets too seldom; [`clocks`]: one clock that is wrong.
//! - [`scenario`]: what a seed lets happen, in two acts.
//! - [`world`]: time, nodes and what happens to them; `clients`, `agents`, `storage`, `post` are its rooms.
//! - [`booth`]: one machine and its store, for the machine laws.
//! - `check`: one file per guarantee.
//! - [`faults`], `answer`, `cast`: values.
pub mod booth;
pub mod cases;
pub mod clocks;
pub mod faults;
pub mod mutants;
pub mod scenario;
mod steering;
pub mod verdict;
pub mod world;

mod agents;
mod answer;
mod cast;
mod check;
mod clients;
mod handing;
mod hands;
mod index;
mod lasting;
mod lines;
mod post;
mod storage;
mod tricks;
