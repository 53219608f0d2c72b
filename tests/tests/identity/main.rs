//! Who one is, where a node asks: keys, what they open, and how they are taken back.
//!
//! - [`keys`]: from `turnway key new` to `turnway key revoke`.
//! - [`matrix`]: what is somebody else's, for every operation there is.
//! - [`open`]: nodes that are not for this machine only.
//! - [`rates`]: how often may be asked; [`shared_rates`]: of all nodes of a fleet together.
//! - [`sealed`]: what a key grants, where somebody else writes to the store.
//! - [`slow_store`]: a key that is taken back where the store takes its time.
//! - [`tokens`]: those of an identity provider; [`forgeries`]: those that only look so.
mod forgeries;
mod keys;
mod matrix;
mod open;
mod rates;
mod sealed;
mod shared_rates;
mod slow_store;
mod tokens;
