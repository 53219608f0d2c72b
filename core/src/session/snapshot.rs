//! Snapshots of sessions: the structs of each version.
pub(super) mod version_6;
