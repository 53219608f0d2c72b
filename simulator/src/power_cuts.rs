//! Power cuts: a disk that loses unsynced writes, and histories of the embedded store on this disk.
mod disk;
mod history;

pub use disk::Disk;
pub use history::{Tally, Violation, run};
