//! Messages between the parts of a fleet: inputs, facts, orders, reports and refusals, with their JSON and binary
//! forms.
pub mod action;
pub mod agent;
pub mod annotation;
pub mod binding;
pub mod channels;
pub mod chunk;
pub mod codec;
pub mod conversation;
pub mod delivery;
pub mod entry;
pub mod file_url;
pub mod handover;
pub mod history;
pub mod input;
pub mod json;
pub mod member;
pub mod message_action;
pub mod pattern;
pub mod qualified;
pub mod refusal;
pub mod route;
pub mod signal;
pub mod steer;
pub mod task;
pub mod trace;
pub mod versioned;
