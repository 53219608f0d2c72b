//! Checks of the guarantees, one file per guarantee; each violation panics with the guarantee's name first.
mod actions;
mod bindings;
mod deliveries;
mod gathering;
mod handovers;
mod input_order;
mod ledger;
mod link;
mod members;
mod news;
mod order;
mod presses;
mod privacy;
mod settled;
mod steering;
mod tasks;
mod turn;

pub(crate) use bindings::{BindingRecord, RequestTime};
pub(crate) use ledger::StoreRecord;
pub(crate) use link::{LinkHistory, View};
pub(crate) use presses::PressRecord;
pub(crate) use privacy::{privacy, refused};
