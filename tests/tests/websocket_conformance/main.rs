//! Tests RFC 6455 against a real node over bare TCP, with a table of cases for each chapter. After each case the
//! node must run and serve other clients. README.md in this directory lists what the tables contain.
//!
//! Covers: S-10, S-11, G-22.
mod case;
mod closing;
mod fragments;
mod framing;
mod handshake;
mod pings;
mod raw;
mod reserved;
mod text;
mod utf8;

use case::{Bench, Case, hold};
use std::collections::BTreeSet;

/// Minimum number of cases.
const CASES_LEAST: usize = 300;

fn tables() -> [Vec<Case>; 7] {
    [
        framing::cases(),
        framing::limits(),
        pings::cases(),
        reserved::cases(),
        fragments::cases(),
        text::cases(),
        closing::cases(),
    ]
}

/// Covers: G-22.
#[test]
fn case_tables_are_large_and_names_are_unique() {
    let names: Vec<String> = tables().into_iter().flatten().map(|case| case.name).collect();
    let names = names.into_iter().chain(handshake::all().into_iter().map(|one| one.name));
    let names: Vec<String> = names.collect();
    turnway_tests::real::figure("websocket cases", names.len());
    assert!(names.len() >= CASES_LEAST, "{}", names.len());
    let mut seen = BTreeSet::new();
    let twice: Vec<&String> = names.iter().filter(|name| !seen.insert(*name)).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// RFC 6455 §4. Covers: S-10, G-22.
#[tokio::test]
async fn only_valid_handshakes_are_upgraded() {
    let mut bench = Bench::set_up().await;
    handshake::the_key_is_answered(&bench).await;
    for one in handshake::all() {
        one.run(&bench).await;
        bench.others_are_served(&one.name).await;
    }
}

/// RFC 6455 §5.1 to §5.3. Covers: S-11, G-22.
#[tokio::test]
async fn frames_of_every_length_and_mask_are_read() {
    hold(framing::cases()).await;
}

/// RFC 6455 §10.4. Covers: S-11, G-22.
#[tokio::test]
async fn messages_over_the_size_limit_are_refused() {
    hold(framing::limits()).await;
}

/// RFC 6455 §5.5.2, §5.5.3. Covers: S-11, G-22.
#[tokio::test]
async fn pings_are_answered_in_every_position() {
    hold(pings::cases()).await;
}

/// RFC 6455 §5.2. Covers: S-11, G-22.
#[tokio::test]
async fn reserved_bits_and_opcodes_are_refused() {
    hold(reserved::cases()).await;
}

/// RFC 6455 §5.4. Covers: S-11, G-22.
#[tokio::test]
async fn fragmented_messages_are_reassembled_in_order() {
    hold(fragments::cases()).await;
}

/// RFC 6455 §5.6, §8.1. Covers: S-11, G-22.
#[tokio::test]
async fn invalid_utf8_text_is_refused() {
    hold(text::cases()).await;
}

/// RFC 6455 §5.5.1, §7. Covers: S-11, G-22.
#[tokio::test]
async fn close_frame_is_answered_and_ends_the_connection() {
    hold(closing::cases()).await;
}
