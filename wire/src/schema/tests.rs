//! The documents that are made from the table, and the table itself.
mod documents;
mod random;
