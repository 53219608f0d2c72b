//! What the store of a fleet promises, held against real servers: that are killed, cut off, wiped,
//! upgraded, replaced by their replicas, and told to obey only those who may.
#[path = "redis_store/away.rs"]
mod away;
#[path = "redis_store/bell.rs"]
mod bell;
#[path = "redis_store/bounds.rs"]
mod bounds;
#[path = "redis_store/desk.rs"]
mod desk;
#[path = "redis_store/far.rs"]
mod far;
#[path = "redis_store/harm.rs"]
mod harm;
#[path = "redis_store/library.rs"]
mod library;
#[path = "redis_store/managed.rs"]
mod managed;
#[path = "redis_store/pace.rs"]
mod pace;
#[path = "redis_store/proxy.rs"]
mod proxy;
#[path = "redis_store/quota.rs"]
mod quota;
#[path = "redis_store/race.rs"]
mod race;
#[path = "redis_store/refusals.rs"]
mod refusals;
#[path = "redis_store/replica.rs"]
mod replica;
#[path = "redis_store/rewind.rs"]
mod rewind;
#[path = "redis_store/start.rs"]
mod start;
#[path = "redis_store/sweep.rs"]
mod sweep;
#[path = "redis_store/takeover.rs"]
mod takeover;
#[path = "redis_store/users.rs"]
mod users;
