//! Tests of the Redis store against real servers: crashes, lost connections, wiped data, upgrades, failovers, and
//! access rights.
#[path = "redis_store/bounds.rs"]
mod bounds;
#[path = "redis_store/conversations.rs"]
mod conversations;
#[path = "redis_store/faults.rs"]
mod faults;
#[path = "redis_store/latency.rs"]
mod latency;
#[path = "redis_store/library.rs"]
mod library;
#[path = "redis_store/managed.rs"]
mod managed;
#[path = "redis_store/offers.rs"]
mod offers;
#[path = "redis_store/outage.rs"]
mod outage;
#[path = "redis_store/performance.rs"]
mod performance;
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
#[path = "redis_store/rights.rs"]
mod rights;
#[path = "redis_store/start.rs"]
mod start;
#[path = "redis_store/store_client.rs"]
mod store_client;
#[path = "redis_store/sweep.rs"]
mod sweep;
#[path = "redis_store/takeover.rs"]
mod takeover;
#[path = "redis_store/users.rs"]
mod users;
