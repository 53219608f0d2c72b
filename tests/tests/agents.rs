//! Agents over real HTTP sockets: the requests they receive, the part of their answers that is reported, and
//! how attempts stop.
#[path = "agents/builtins.rs"]
mod builtins;
#[path = "agents/limits.rs"]
mod limits;
#[path = "agents/orders.rs"]
mod orders;
#[path = "agents/resume.rs"]
mod resume;
#[path = "agents/stages.rs"]
mod stages;
#[path = "agents/stale.rs"]
mod stale;
#[path = "agents/steer.rs"]
mod steer;
#[path = "agents/talk.rs"]
mod talk;
#[path = "agents/tenants.rs"]
mod tenants;
#[path = "agents/trouble.rs"]
mod trouble;
#[path = "agents/world.rs"]
mod world;
