//! What travels: inputs, facts, orders and refusals.
pub mod action;
pub mod agent;
pub mod codec;
pub mod entry;
pub mod handover;
pub mod history;
pub mod input;
pub mod json;
pub mod member;
pub mod pattern;
pub mod qualified;
pub mod refusal;
pub mod steer;
pub mod trace;
