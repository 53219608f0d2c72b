//! A bad network: real processes in network namespaces behind a router that drops packets (nftables, since
//! not every kernel has `tc netem`) and rewrites addresses. Needs root, iproute2 and nftables; `./test long
//! loss` runs the full size.
mod network;
mod rerouting;
mod slow_network;
mod timed_agents;
mod unread_answer;
