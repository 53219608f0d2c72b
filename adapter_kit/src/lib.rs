//! The conformance kit for adapters (docs/adapter-check.md): starts an adapter against a gateway and a platform that
//! misbehave on purpose, and grades it. Must not be used by a node; the command line `turnway` calls it.
mod adapter_process;
mod bench;
pub mod catalog;
mod check_files;
mod check_gateway;
pub mod check_run;
mod checks;
mod control;
pub mod limits;
pub mod report;
pub mod scaffold;
