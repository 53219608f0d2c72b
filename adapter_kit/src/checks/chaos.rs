//! The check of platinum: lines and deliveries under faults of a seeded script. The verdict comes from the platform's
//! journal and from the accepted events.
use crate::bench::{CheckBench, CheckFailure, CheckResult, ensure, is_same_place};
use crate::check_gateway::{ExchangedMessage, GatewayState};
use crate::limits::{ANSWER_TIMEOUT, CHAOS_ATTEMPTS_MAX, CHAOS_SETTLE_TIMEOUT};
use futures_util::future::{join_all, try_join3};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use turnway_core::rng::Rng;

/// Rooms in which people write and answers are sent.
const ROOMS: usize = 6;
/// Lines and deliveries of each room for each 10 s.
const EVENTS_PER_TEN_SECONDS: u64 = 4;
/// Attempts of a part wait for a report as long as this: the platform delays answers for less.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Inbound events may be on their way for as long as this when the lease is taken away.
const LEASE_GRACE: Duration = Duration::from_secs(1);

/// Length and seed of a chaos script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChaosScript {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

/// The traffic of one room.
struct ChaosRoom {
    name: String,
    lines: Vec<String>,
    answers: Vec<String>,
}

/// Performs the script and compares both ends.
pub(super) async fn chaos(bench: &CheckBench, script: ChaosScript) -> CheckResult {
    let count = (script.seconds * EVENTS_PER_TEN_SECONDS).div_ceil(10);
    let room = |n: usize| {
        let name = bench.room(&format!("chaos{n}"));
        let texts = |what: &str| (0..count).map(|n| format!("{what} {n} of {name}")).collect();
        ChaosRoom { lines: texts("line"), answers: texts("answer"), name }
    };
    let rooms: Vec<ChaosRoom> = (0..ROOMS).map(room).collect();
    let length = Duration::from_secs(script.seconds);
    let until = Instant::now() + length;
    bench.gateway.set_chaos(Some(Rng::from_number(script.seed)));
    let pause = length / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let traffic = try_join3(
        join_rooms(rooms.iter().map(|room| write_lines(bench, room, pause))),
        join_rooms(rooms.iter().map(|room| deliver_answers(bench, room, pause))),
        trouble(bench, script.seed, until),
    );
    let ended = timeout(length + CHAOS_SETTLE_TIMEOUT, traffic).await;
    bench.gateway.set_chaos(None);
    let (ids, _, ()) = ended.map_err(|_| {
        CheckFailure(format!("deliveries are not settled {} s after the faults", CHAOS_SETTLE_TIMEOUT.as_secs()))
    })??;
    for (room, ids) in rooms.iter().zip(&ids) {
        expect_accepted(bench, room, ids).await?;
        let answers: Vec<&str> = room.answers.iter().map(String::as_str).collect();
        bench.expect_journal(&room.name, &answers).await?;
    }
    Ok(())
}

async fn join_rooms<T>(rooms: impl Iterator<Item = impl Future<Output = CheckResult<T>>>) -> CheckResult<Vec<T>> {
    join_all(rooms).await.into_iter().collect()
}

/// Has a person write the lines of a room; returns the platform's ids.
async fn write_lines(bench: &CheckBench, room: &ChaosRoom, pause: Duration) -> CheckResult<Vec<String>> {
    let mut ids = Vec::new();
    for line in &room.lines {
        ids.push(bench.post(&room.name, line).await?);
        sleep(pause).await;
    }
    Ok(ids)
}

/// Sends the answers of a room, one after another, each until it has a receipt.
async fn deliver_answers(bench: &CheckBench, room: &ChaosRoom, pause: Duration) -> CheckResult {
    for answer in &room.answers {
        deliver_until_sent(bench, bench.order(&room.name, answer)).await?;
        sleep(pause / 2).await;
    }
    Ok(())
}

/// Orders a part as the gateway does: again after every outcome that permits it, with the same key.
async fn deliver_until_sent(bench: &CheckBench, mut order: Value) -> CheckResult {
    for attempt in 1..=CHAOS_ATTEMPTS_MAX {
        let is_active = |state: &GatewayState| (!state.is_standby && state.present().is_some()).then_some(());
        let active = bench.gateway.wait(CHAOS_SETTLE_TIMEOUT, is_active).await;
        active.ok_or_else(|| CheckFailure("the adapter did not come back".to_owned()))?;
        order["attempt"] = json!(attempt);
        let known = bench.report_count(&order);
        let id = order["delivery_id"].as_str().unwrap_or_default();
        // The adapter may have gone since.
        let _ = bench.give(&order);
        let report =
            bench.gateway.wait(REPORT_TIMEOUT, |state| state.reports(id, 1).get(known).map(|it| it.message.clone()));
        let report = report.await.unwrap_or_default();
        let wait = match (report["outcome"].as_str(), report["code"].as_str()) {
            (Some("sent"), _) => {
                return ensure(is_same_place(&report["place"], &order["conversation"]), || {
                    format!("misplaced: {report}")
                });
            }
            (Some("rejected"), Some("transient" | "rate_limit")) => report["retry_after_ms"].as_u64().unwrap_or(200),
            (Some("rejected"), _) => return Err(CheckFailure(format!("a part is refused for good: {report}"))),
            // Without a key nobody may send the part again: the gateway holds the delivery, and a person decides.
            (Some("unknown") | None, _) if !bench.declares("key") => return Ok(()),
            (Some(_) | None, _) => 200,
        };
        sleep(Duration::from_millis(wait.min(2_000))).await;
    }
    Err(CheckFailure(format!("a part has no receipt after {CHAOS_ATTEMPTS_MAX} attempts: {order}")))
}

/// Plants one fault after another until the time is over, and then takes all of them back.
async fn trouble(bench: &CheckBench, seed: u64, until: Instant) -> CheckResult {
    let mut rng = Rng::from_number(seed.wrapping_add(1));
    let platform = bench.platform()?;
    while Instant::now() < until {
        match rng.below(10) {
            0 | 1 => bench.gateway.cut(),
            2 => {
                bench.adapter.start().await?;
            }
            3 | 4 => {
                bench.gateway.set_standby(true);
                expect_silence(bench, Duration::from_millis(500 + rng.below(1000))).await?;
                bench.gateway.set_standby(false);
            }
            5 | 6 => {
                platform.plant(json!([{ "kind": "drop_reply" }, { "kind": "no_id" }, { "kind": "drop_reply" }])).await?
            }
            7 | 8 => {
                let faults = json!([{ "kind": "refuse", "status": 503 },
                    { "kind": "refuse", "status": 429, "retry_after": 1 }, { "kind": "delay", "seconds": 1 }]);
                platform.plant(faults).await?;
            }
            _ => platform.plant(json!([{ "kind": "delay", "seconds": 2 }, { "kind": "drop_reply" }])).await?,
        }
        sleep(Duration::from_millis(1000 + rng.below(2500))).await;
    }
    bench.gateway.set_chaos(None);
    platform.plant(json!([])).await?;
    if bench.adapter.ended().is_some() {
        bench.adapter.start().await?;
    }
    Ok(())
}

/// Requires that nothing is brought while the adapter is on standby, apart from what was on its way.
async fn expect_silence(bench: &CheckBench, longest: Duration) -> CheckResult {
    let begun = Instant::now();
    sleep(LEASE_GRACE + longest).await;
    let state = bench.gateway.state();
    let is_late = |record: &&ExchangedMessage| record.at > begun + LEASE_GRACE && record.message["type"] == "inbound";
    let late = state.records.iter().rev().find(is_late);
    match late {
        Some(record) => Err(CheckFailure(format!("a line was brought while on standby: {}", record.message))),
        None => Ok(()),
    }
}

/// Requires that the lines of a room are accepted, with their texts and in order.
async fn expect_accepted(bench: &CheckBench, room: &ChaosRoom, ids: &[String]) -> CheckResult {
    let is_complete = |state: &GatewayState| {
        let accepted = state.accepted_messages();
        ids.iter().all(|id| accepted.contains(&(room.name.clone(), id.clone()))).then_some(())
    };
    let complete = bench.gateway.wait(CHAOS_SETTLE_TIMEOUT.max(ANSWER_TIMEOUT), is_complete).await;
    let state = bench.gateway.state();
    let accepted = state.accepted_messages();
    complete.ok_or_else(|| {
        let lost: Vec<&String> =
            ids.iter().filter(|id| !accepted.contains(&(room.name.clone(), (*id).clone()))).collect();
        CheckFailure(format!(
            "{} of {} lines of room {} were never accepted: {lost:?}",
            lost.len(),
            ids.len(),
            room.name
        ))
    })?;
    let mut first_seen: Vec<String> = Vec::new();
    for event in state.inbound(&room.name) {
        let message = &event.message["message"];
        let id = message["message_id"].as_str().unwrap_or_default().to_owned();
        let text = ids.iter().position(|known| *known == id).map(|n| room.lines[n].as_str());
        ensure(text == message["content"].as_str(), || format!("room {} has no line like {message}", room.name))?;
        if !first_seen.contains(&id) {
            first_seen.push(id);
        }
    }
    ensure(first_seen == ids, || format!("the lines of room {} came out of order: {first_seen:?}", room.name))
}
