//! Power cuts: a disk that forgets what was not synced, and histories of the embedded store on it.
mod disk;
mod history;

pub use disk::Disk;
pub use history::{Tally, Violation, run};
