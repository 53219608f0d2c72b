//! TLS for clients: loads the certificate ([`pair`], [`validity`]), replaces it without disturbing connections
//! ([`keeper`]), and makes self-signed ones for tests ([`development`]). Used by `listen` and `app`.
pub mod development;
pub mod keeper;
pub mod pair;
mod validity;

pub use keeper::{Keeper, Shown};
pub use pair::{BadPair, Pair};
