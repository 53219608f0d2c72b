//! Tests of the models route: a real node between raw callers, or official clients, and scripted upstream servers.
mod agents;
mod bodies;
mod caller;
mod cancel;
mod config;
mod cuts;
mod fallback;
mod headers;
mod judges;
mod limits;
mod metrics;
mod relay;
mod rights;
mod route;
mod run_tokens;
mod streams;
mod world;
