//! The checks of bronze: the adapter connects, brings lines, sends texts, answers, and comes back.
use crate::bench::{CheckBench, CheckFailure, CheckResult, ensure};
use crate::check_gateway::now_ms;
use crate::limits::{RECONNECT_PAUSE_MIN, RECONNECT_TIMEOUT, REFUSED_CONNECTIONS, REFUSED_TIME_MIN, SLOW_PLATFORM};
use serde_json::{Value, json};
use std::time::Duration;

/// Largest difference between the times of the platform and of this machine.
const CLOCK_SKEW_MS_MAX: u64 = 10 * 60 * 1000;

/// The first message of the adapter. The gateway has parsed the fields as a node does.
pub(super) fn hello(bench: &CheckBench) -> CheckResult {
    let state = bench.gateway.state();
    let connection = state.present().and_then(|index| state.connections.get(index));
    let connection = connection.ok_or_else(|| CheckFailure("the adapter is not connected".to_owned()))?;
    let hello = connection.hello.as_ref().unwrap_or(&Value::Null);
    if let Some(protocols) = &connection.protocols {
        let is_offered = protocols.split(',').any(|protocol| protocol.trim() == "turnway.v1");
        ensure(is_offered, || format!("the offered subprotocols lack turnway.v1: {protocols}"))?;
    }
    let keys = [hello["api_key"].as_str(), hello["token"].as_str(), connection.bearer.as_deref()];
    ensure(keys.contains(&Some(bench.api_key.as_str())), || {
        "`hello` does not have the key of TURNWAY_API_KEY as api_key".to_owned()
    })?;
    ensure(hello["instance_id"].is_string(), || {
        "`hello` without instance_id: a restarted adapter waits until its earlier connection has ended".to_owned()
    })?;
    let known = hello["capabilities"].as_object().is_some_and(|capabilities| capabilities.contains_key("text"));
    ensure(known, || "`hello` declares no capability `text`, so the gateway splits at 2,000 UTF-16 units".to_owned())
}

/// A line is brought once, as the platform has it.
pub(super) async fn inbound(bench: &CheckBench) -> CheckResult {
    let room = bench.room("inbound");
    let text = "A line of Ann: \"ünïcödé\" 😀, <b>not bold</b> & *stars*";
    let id = bench.post(&room, text).await?;
    let event = bench.inbound(&room, 1).await?;
    let expect = |what: &str, found: &Value, wanted: Value| {
        ensure(*found == wanted, || format!("{what} is {found}, not {wanted}"))
    };
    let place = bench.place(&room);
    expect("conversation.channel", &event["conversation"]["channel"], place["channel"].clone())?;
    expect("conversation.account_id", &event["conversation"]["account_id"], place["account_id"].clone())?;
    expect("sender.id", &event["sender"]["id"], json!("ann"))?;
    expect("message.message_id", &event["message"]["message_id"], json!(id))?;
    let content = &event["message"]["content"];
    let first = if content.is_array() { &content[0]["text"] } else { content };
    expect("message.content", first, json!(text))?;
    let time = event["platform_time"].as_u64();
    let time = time.ok_or_else(|| CheckFailure("`inbound` without platform_time in Unix milliseconds".to_owned()))?;
    ensure(time.abs_diff(now_ms()) < CLOCK_SKEW_MS_MAX, || {
        format!("platform_time is not in Unix milliseconds: {time}")
    })?;
    ensure(event["request_id"].is_string(), || "`inbound` without request_id: its answer cannot be told".to_owned())?;
    bench.settle().await;
    ensure(bench.inbound_count(&room) == 1, || "an accepted line was brought again".to_owned())
}

/// Texts reach exactly their places. Without a platform only the reports are checked.
pub(super) async fn deliver(bench: &CheckBench) -> CheckResult {
    let room = bench.room("deliver");
    let order = bench.order(&room, "An answer: ünïcödé 😀 <&> `code`");
    if !bench.has_platform() {
        bench.give(&order)?;
        bench.report(&order, 1).await?;
        return expect_one_report(bench, &order).await;
    }
    let asked = bench.post(&room, "a question").await?;
    let mut order = order;
    order["reply_to"] = json!(asked);
    let id = bench.deliver(&order).await?;
    let lines = bench.expect_journal(&room, &["An answer: ünïcödé 😀 <&> `code`"]).await?;
    expect_id(&lines[0].id, &id)?;
    let elsewhere = bench.room("notice");
    let mut notice = bench.order(&elsewhere, "a notice");
    notice["kind"] = json!("notice");
    let seconds = SLOW_PLATFORM.as_secs_f64() / 2.0;
    bench.platform()?.plant(json!([{ "kind": "delay", "seconds": seconds, "room": elsewhere }])).await?;
    bench.give(&notice)?;
    let report = bench.report(&notice, 1).await?;
    let lines = bench.journal(&elsewhere).await?;
    ensure(report["outcome"] == "sent", || format!("the outcome is not `sent`: {report}"))?;
    let place = lines.first().ok_or_else(|| {
        CheckFailure(format!("`sent` is reported, but room {elsewhere} does not have the line: {report}"))
    })?;
    expect_id(&place.id, report["external_id"].as_str().unwrap_or_default())?;
    bench.receipt(&notice, 1).await?;
    bench.settle().await;
    bench.expect_journal(&elsewhere, &["a notice"]).await?;
    bench.expect_journal(&room, &["An answer: ünïcödé 😀 <&> `code`"]).await.map(drop)
}

fn expect_id(platform: &str, reported: &str) -> CheckResult {
    ensure(platform == reported, || format!("external_id is {reported:?}, the platform's id is {platform:?}"))
}

async fn expect_one_report(bench: &CheckBench, order: &Value) -> CheckResult {
    bench.settle().await;
    let count = bench.report_count(order);
    ensure(count == 1, || format!("{count} reports about one attempt at a part"))
}

/// Each part is sent once and answered once; an order after its deadline is answered and not sent.
pub(super) async fn receipts(bench: &CheckBench) -> CheckResult {
    let room = bench.room("receipts");
    let mut late = bench.order(&room, "too late");
    late["deadline_ts"] = json!(now_ms() - 5_000);
    bench.give(&late)?;
    let report = bench.report(&late, 1).await?;
    ensure(report["outcome"] == "not_sent", || {
        format!("an order after its deadline is not answered not_sent: {report}")
    })?;
    expect_one_report(bench, &late).await?;
    if !bench.has_platform() {
        return Ok(());
    }
    let whole = bench.order(&room, "");
    let texts = ["first part", "second part", "third part"];
    for (n, text) in (1..).zip(texts) {
        let mut part = whole.clone();
        part["part"] = json!(n);
        part["parts"] = json!(texts.len());
        part["text"] = json!(text);
        part["key"] = json!(format!("{}.{n}", whole["key"].as_str().unwrap_or_default()));
        let id = bench.deliver(&part).await?;
        let lines = bench.expect_journal(&room, &texts[..n]).await?;
        expect_id(&lines[n - 1].id, &id)?;
        expect_one_report(bench, &part).await?;
    }
    bench.expect_journal(&room, &texts).await.map(drop)
}

/// The adapter comes back after a lost connection and after refused ones, not in haste, and is the same instance after
/// its own restart.
pub(super) async fn reconnect(bench: &CheckBench) -> CheckResult {
    let instance = bench.hello("instance_id");
    let count = |bench: &CheckBench| bench.gateway.state().connections.len();
    let before = count(bench);
    bench.gateway.cut();
    let index = bench.connected_after(before).await?;
    expect_pause(bench, before - 1, index)?;
    refuse_connections(bench).await?;
    bench.restart().await?;
    let again = bench.hello("instance_id");
    ensure(instance == again, || {
        format!("instance_id was {instance} and is {again} after a restart: the restarted adapter waits for its lease")
    })
}

fn expect_pause(bench: &CheckBench, lost: usize, next: usize) -> CheckResult {
    let state = bench.gateway.state();
    let closed = state.connections[lost].closed.unwrap_or(state.connections[lost].opened);
    let pause = state.connections[next].opened.saturating_duration_since(closed);
    ensure(pause >= RECONNECT_PAUSE_MIN, || {
        format!(
            "reconnected {} ms after a lost connection, at least {} ms",
            pause.as_millis(),
            RECONNECT_PAUSE_MIN.as_millis()
        )
    })
}

/// Refuses some connections in a row, and requires that the waits between them are no haste.
async fn refuse_connections(bench: &CheckBench) -> CheckResult {
    let before = {
        let mut state = bench.gateway.state();
        state.refused.clear();
        state.refusals_left = REFUSED_CONNECTIONS;
        state.connections.len()
    };
    bench.gateway.cut();
    let all = bench.gateway.wait(RECONNECT_TIMEOUT, |state| (state.refusals_left == 0).then_some(()));
    all.await.ok_or_else(|| CheckFailure("the adapter gave up while its connections were refused".to_owned()))?;
    bench.connected_after(before).await?;
    let state = bench.gateway.state();
    let lost = state.connections[before - 1].closed.unwrap_or(state.connections[before - 1].opened);
    let back = state.connections[before].opened;
    let took = back.saturating_duration_since(lost);
    ensure(took >= REFUSED_TIME_MIN, || {
        let ms = Duration::as_millis(&took);
        format!(
            "{} connections within {ms} ms while the gateway refused them: no growing pause",
            REFUSED_CONNECTIONS + 1
        )
    })
}
