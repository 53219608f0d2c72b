//! Who one is, where a node asks: keys, what they open, and how they are taken back.
//!
//! - [`keys`]: from `turnway key new` to `turnway key revoke`.
//! - [`matrix`]: what is somebody else's, for every operation there is.
//! - [`open`]: nodes that are not for this machine only.
//! - [`rates`]: how often may be asked.
//! - [`tokens`]: those of an identity provider; [`forgeries`]: those that only look so.
mod forgeries;
mod keys;
mod matrix;
mod open;
mod rates;
mod tokens;
