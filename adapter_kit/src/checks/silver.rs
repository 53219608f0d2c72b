//! The checks of silver: repeated, reordered and slow answers, the lease, and the offset.
use crate::bench::{CheckBench, CheckFailure, CheckResult, ensure};
use crate::check_gateway::InboundPlan;
use crate::limits::{ANSWER_TIMEOUT, QUIET, SLOW_ACK, SLOW_PLATFORM};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// An event without an answer comes again; an order that is repeated has one effect.
pub(super) async fn duplicates(bench: &CheckBench) -> CheckResult {
    let room = bench.room("duplicates");
    bench.plan(&room, [InboundPlan::Cut]);
    bench.post(&room, "answered late").await?;
    let first = bench.inbound(&room, 1).await?;
    let second = bench.inbound(&room, 2).await?;
    for field in ["message", "conversation", "sender"] {
        ensure(first[field] == second[field], || {
            format!(
                "a line without an answer comes again with another `{field}`: {} and {}",
                first[field], second[field]
            )
        })?;
    }
    bench.settle().await;
    ensure(bench.inbound_count(&room) == 2, || "an accepted line was brought again".to_owned())?;
    if !bench.declares("key") {
        return Ok(());
    }
    let mut order = bench.order(&room, "said once");
    let id = bench.deliver(&order).await?;
    order["attempt"] = json!(2);
    bench.give(&order)?;
    let again = bench.receipt(&order, 2).await?;
    ensure(id == again, || format!("the repeated part has another external_id: {id} and {again}"))?;
    bench.settle().await;
    bench.expect_journal(&room, &["said once"]).await.map(drop)
}

/// Slow places do not hold others up, and answers may overtake each other.
pub(super) async fn reorder(bench: &CheckBench) -> CheckResult {
    let slow_room = bench.room("slow");
    let seconds = SLOW_PLATFORM.as_secs_f64();
    bench.platform()?.plant(json!([{ "kind": "delay", "seconds": seconds, "room": slow_room }])).await?;
    let slow = bench.order(&slow_room, "slow");
    bench.give(&slow)?;
    let quick: Vec<_> = ["a", "b", "c", "d"].map(|name| bench.room(name)).to_vec();
    let orders: Vec<_> = quick.iter().map(|room| bench.order(room, room)).collect();
    for order in &orders {
        bench.give(order)?;
    }
    for order in &orders {
        bench.receipt(order, 1).await?;
    }
    let is_late = bench.report_count(&slow) == 0;
    ensure(is_late, || format!("a place that the platform answers after {seconds} s holds up the others"))?;
    bench.receipt(&slow, 1).await?;
    for room in &quick {
        bench.expect_journal(room, &[room]).await?;
    }
    bench.expect_journal(&slow_room, &["slow"]).await?;
    let rooms = [bench.room("one"), bench.room("two")];
    for room in &rooms {
        bench.plan(room, [InboundPlan::Hold]);
        bench.post(room, "in any order").await?;
    }
    bench.inbound(&rooms[0], 1).await?;
    // An adapter that brings one line at a time does not bring the second one yet.
    let both = bench.gateway.wait(QUIET, |state| (!state.inbound(&rooms[1]).is_empty()).then_some(()));
    both.await;
    bench.gateway.release_in_reverse();
    bench.inbound(&rooms[1], 1).await?;
    bench.gateway.release_in_reverse();
    bench.settle().await;
    let counts = [bench.inbound_count(&rooms[0]), bench.inbound_count(&rooms[1])];
    ensure(counts == [1, 1], || format!("lines were brought {counts:?} times though their answers came"))
}

/// A line waits for its acceptance; errors decide whether it comes again.
pub(super) async fn slow_acks(bench: &CheckBench) -> CheckResult {
    let room = bench.room("slow-acks");
    bench.plan(&room, [InboundPlan::Hold]);
    bench.post(&room, "held").await?;
    bench.inbound(&room, 1).await?;
    sleep(SLOW_ACK).await;
    let count = bench.inbound_count(&room);
    ensure(count == 1, || format!("a line came {count} times within {} s of waiting", SLOW_ACK.as_secs()))?;
    bench.gateway.release_in_reverse();
    let wait_ms = 700;
    bench.plan(&room, [InboundPlan::Retry(wait_ms), InboundPlan::Accept, InboundPlan::Refuse]);
    bench.post(&room, "not now").await?;
    let first = bench.inbound(&room, 2).await?;
    let second = bench.inbound(&room, 3).await?;
    ensure(first["message"]["content"] == second["message"]["content"], || {
        format!("after a retryable error another line came: {}", second["message"]["content"])
    })?;
    let pause = {
        let state = bench.gateway.state();
        let events = state.inbound(&room);
        events[2].at - events[1].at
    };
    let least = Duration::from_millis(wait_ms * 9 / 10);
    ensure(pause >= least, || {
        format!("came again after {} ms, though retry_after_ms was {wait_ms}", pause.as_millis())
    })?;
    bench.post(&room, "never").await?;
    bench.inbound(&room, 4).await?;
    bench.post(&room, "the next").await?;
    let next = bench.inbound(&room, 5).await?;
    ensure(next["message"]["content"] == "the next", || {
        format!("after an error that is not retryable the line came again: {}", next["message"]["content"])
    })
}

/// Only the active adapter reads.
pub(super) async fn lease(bench: &CheckBench) -> CheckResult {
    let platform = bench.platform()?;
    let room = bench.room("lease");
    bench.post(&room, "while active").await?;
    bench.inbound(&room, 1).await?;
    bench.settle().await;
    bench.gateway.set_standby(true);
    bench.settle().await;
    bench.settle().await;
    let before = platform.reads().await?;
    platform.wake().await?;
    sleep(QUIET).await;
    let reads = platform.reads().await?.saturating_sub(before);
    ensure(reads == 0, || format!("{reads} reads from the platform while on standby"))?;
    bench.post(&room, "while on standby").await?;
    sleep(QUIET / 2).await;
    ensure(bench.inbound_count(&room) == 1, || "a line was brought while on standby".to_owned())?;
    bench.gateway.set_standby(false);
    // The line before may come again, if its offset was not saved when the lease was lost.
    let text = "while on standby";
    let brought = bench.gateway.wait(ANSWER_TIMEOUT, |state| {
        state.inbound(&room).iter().any(|event| event.message["message"]["content"] == text).then_some(())
    });
    brought
        .await
        .ok_or_else(|| CheckFailure("active again, the adapter did not bring the line of the meantime".to_owned()))
}

/// A killed adapter begins behind the last accepted line.
pub(super) async fn offsets(bench: &CheckBench) -> CheckResult {
    let room = bench.room("offsets");
    bench.plan(&room, [InboundPlan::Accept, InboundPlan::Retry(300), InboundPlan::Ignore]);
    bench.post(&room, "accepted").await?;
    bench.inbound(&room, 1).await?;
    bench.settle().await;
    bench.post(&room, "not accepted").await?;
    let open = bench.inbound(&room, 2).await?;
    // The adapter has had the retryable error, and waits for the answer to its second try.
    bench.inbound(&room, 3).await?;
    bench.restart().await?;
    let again = bench.gateway.wait(ANSWER_TIMEOUT, |state| state.inbound(&room).get(3).map(|it| it.message.clone()));
    let again = again.await.unwrap_or_default();
    ensure(again["message"]["message_id"] == open["message"]["message_id"], || {
        format!("killed before the line was accepted, the adapter began with another one: {}", again["message"])
    })?;
    bench.post(&room, "after the restart").await?;
    let next = bench.inbound(&room, 5).await?;
    ensure(next["message"]["content"] == "after the restart", || {
        format!("after a restart an accepted line came again: {}", next["message"])
    })
}
