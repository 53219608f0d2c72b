//! TLS for clients: which certificate is shown, and how it is replaced while nobody notices.
//!
//! - [`pair`]: a certificate and its key, read from their files and held against each other.
//! - [`validity`]: until when a certificate is good.
//! - [`keeper`]: the pair in use; reads its files again when it is told to, or when they have changed.
//! - [`development`]: a pair to try things with.
pub mod development;
pub mod keeper;
pub mod pair;
mod validity;

pub use keeper::{Keeper, Shown};
pub use pair::{BadPair, Pair};
