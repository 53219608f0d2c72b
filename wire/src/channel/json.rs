//! JSON encoding of `turnway.v1`, one object for each message. Errors name a field and never quote content (S-38).
//! Modules depend downwards only: [`parse`], [`render`], [`envelope`]; [`account`], [`adapter`], [`binding`], `mention`, `frame`;
//! [`conversation`]; `fields`, [`strict`];
//! [`malformed`].
pub mod account;
pub mod adapter;
pub mod binding;
pub mod conversation;
pub mod delivery;
#[cfg(test)]
pub(crate) mod documented;
pub mod envelope;
pub mod fields;
mod frame;
pub mod malformed;
pub(in crate::channel) mod mention;
pub mod parse;
pub mod render;
pub mod strict;
