//! Real counterparts for tests: the node's binary as operators run it, HTTP agents, raw clients, Redis, proxies and
//! browsers.
pub mod agent;
pub mod bare;
pub mod bench;
pub mod chromium;
pub mod command;
pub mod devtools;
pub mod documented;
pub mod files;
pub mod haproxy;
pub mod http;
pub mod identity;
pub mod load;
pub mod nginx;
pub mod node;
pub mod operations;
pub mod provider;
pub mod python;
pub mod quic;
mod recording;
pub mod redis;
pub mod s3;
pub mod scripted_gateway;
pub mod slow;
mod stale;
pub mod steers;
pub mod terminal;
pub mod tls;
pub mod upstream;
pub mod web;
pub mod wire;

use std::time::Duration;

/// Longest wait of a test for something that must happen. Generous, because the machine may be busy; anything
/// slower is an error.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a size from the environment, such as `CHAOS_KILLS`, which `./test` sets; else the small default.
pub fn size(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
        Err(_) => default,
    }
}

/// Returns a size as [`size`] does, which must be at least 1: a number of kills, clients, turns or pairs. Panics on 0,
/// because a test without any of them would pass whatever the node does.
pub fn amount(name: &str, default: usize) -> usize {
    let amount = size(name, default);
    assert!(amount > 0, "{name} must be at least 1: nothing would be tested");
    amount
}

/// Prints a measured value in the form that `./test long` copies into its page.
#[expect(clippy::print_stdout, reason = "a test's figures are its output")]
pub fn figure(name: &str, value: impl std::fmt::Display) {
    println!("FIGURE {name}: {value}");
}

/// Returns the value at a rank, 0.0 to 1.0, of measurements in any order.
pub fn quantile(of: &mut [Duration], rank: f64) -> Duration {
    of.sort_unstable();
    let last = of.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank within a slice"
    )]
    let at = (last as f64 * rank).round() as usize;
    of.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amount_without_a_setting_is_the_default() {
        assert_eq!(amount("AN_AMOUNT_THAT_NOTHING_SETS", 3), 3);
    }

    #[test]
    #[should_panic(expected = "AN_AMOUNT_THAT_NOTHING_SETS must be at least 1")]
    fn amount_of_nothing_is_refused() {
        amount("AN_AMOUNT_THAT_NOTHING_SETS", 0);
    }
}
