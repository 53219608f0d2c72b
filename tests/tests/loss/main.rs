//! A bad network: real processes in network namespaces, with a router between them that loses packets (nftables;
//! `tc netem` is a module that not every kernel has) and rewrites addresses. Needs root, iproute2 and nftables.
//! `./test long loss` at full size.
//!
//! - [`way`]: the namespaces, and what the router does; [`talk`]: agents whose every word has a time.
//! - [`stalled`]: ten answers on one connection, and one of them is not read.
//! - [`moved`]: the router forgets a client in mid-answer, or leads it to another node.
//! - [`slow`]: a network that is slow and bad is not taken for a dead one.
mod moved;
mod slow;
mod stalled;
mod talk;
mod way;
