//! Checks of the guarantees, one file per guarantee; each violation panics with the guarantee's name first.
mod acted;
mod company;
mod handed;
mod ledger;
mod link;
mod news;
mod order;
mod place;
mod privacy;
mod rest;
mod steered;
mod story;

pub(crate) use ledger::Ledger;
pub(crate) use link::{Follow, View};
pub(crate) use privacy::{privacy, refused};
