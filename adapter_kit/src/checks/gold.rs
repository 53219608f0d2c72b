//! The checks of gold: changes of messages, signals, lost replies and errors of the platform, and declared capabilities.
use crate::bench::{CheckBench, CheckFailure, CheckResult, ensure};
use crate::limits::{PROVED_TEXT_MAX, QUIET};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Capabilities that the checks of the kit prove, apart from `create_conversation`.
const PROVED: [&str; 8] = ["text", "key", "edit", "delete", "reaction", "typing", "preview", "attachments"];

/// Returns the order of a change of a message.
fn change(bench: &CheckBench, room: &str, kind: &str, target: Value) -> Value {
    let mut order = bench.order(room, "");
    order["kind"] = json!(kind);
    order["target"] = target;
    if let Value::Object(fields) = &mut order {
        fields.remove("text");
    }
    order
}

/// Gives the order of a change, and requires a receipt with the target's id.
async fn carry_out(bench: &CheckBench, order: &Value) -> CheckResult {
    let id = bench.deliver(order).await?;
    let target = order["target"]["external_id"].as_str().or_else(|| order["target"]["message_id"].as_str());
    ensure(target == Some(id.as_str()), || format!("external_id is {id:?}, not the target of the change: {target:?}"))
}

fn find<'a>(lines: &'a [Value], id: &str) -> Option<&'a Value> {
    lines.iter().find(|line| crate::control::id_text(&line["id"]).as_deref() == Some(id))
}

/// An edit changes one line.
pub(super) async fn edits(bench: &CheckBench) -> CheckResult {
    let room = bench.room("edits");
    let id = bench.deliver(&bench.order(&room, "before")).await?;
    bench.deliver(&bench.order(&room, "another")).await?;
    let mut edit = change(bench, &room, "edit", json!({ "external_id": id }));
    edit["text"] = json!("after");
    carry_out(bench, &edit).await?;
    bench.settle().await;
    bench.expect_journal(&room, &["before", "another"]).await?;
    let lines = bench.platform()?.lines(&room).await?;
    let text = find(&lines, &id).map_or(Value::Null, |line| line["text"].clone());
    ensure(text == "after", || format!("the edited line has the text {text}"))?;
    ensure(lines.len() == 2, || format!("the room has {} lines after an edit, not 2", lines.len()))?;
    let mut missing = change(bench, &room, "edit", json!({ "external_id": "999999" }));
    missing["text"] = json!("of nothing");
    bench.give(&missing)?;
    let report = bench.report(&missing, 1).await?;
    ensure(report["outcome"] == "rejected", || {
        format!("the edit of a line that does not exist is not rejected: {report}")
    })?;
    bench.settle().await;
    bench.expect_journal(&room, &["before", "another"]).await.map(drop)
}

/// A deletion removes one line, and may come twice.
pub(super) async fn deletes(bench: &CheckBench) -> CheckResult {
    let room = bench.room("deletes");
    let id = bench.deliver(&bench.order(&room, "to be deleted")).await?;
    bench.deliver(&bench.order(&room, "to stay")).await?;
    let mut order = change(bench, &room, "delete", json!({ "external_id": id }));
    carry_out(bench, &order).await?;
    let lines = bench.platform()?.lines(&room).await?;
    let left: Vec<&Value> = lines.iter().map(|line| &line["text"]).collect();
    ensure(left == ["to stay"], || format!("after a deletion the room has {left:?}"))?;
    order["attempt"] = json!(2);
    bench.give(&order)?;
    let again = bench.report(&order, 2).await?;
    ensure(again["outcome"] == "sent", || format!("the repeated deletion is not `sent`: {again}"))?;
    bench.expect_journal(&room, &["to be deleted", "to stay"]).await.map(drop)
}

/// A reaction is added and taken back.
pub(super) async fn reactions(bench: &CheckBench) -> CheckResult {
    let room = bench.room("reactions");
    let id = bench.post(&room, "react to this").await?;
    bench.inbound(&room, 1).await?;
    let mut order = change(bench, &room, "reaction", json!({ "message_id": id }));
    order["reaction"] = json!({ "emoji": "👍", "remove": false });
    carry_out(bench, &order).await?;
    let reactions = |lines: &[Value]| find(lines, &id).map_or(Value::Null, |line| line["reactions"].clone());
    let shown = reactions(&bench.platform()?.lines(&room).await?);
    ensure(shown == json!(["👍"]), || format!("the line shows the reactions {shown}"))?;
    let mut order = change(bench, &room, "reaction", json!({ "message_id": id }));
    order["reaction"] = json!({ "emoji": "👍", "remove": true });
    carry_out(bench, &order).await?;
    let shown = reactions(&bench.platform()?.lines(&room).await?);
    ensure(shown.as_array().is_none_or(Vec::is_empty), || format!("a reaction that was taken back is shown: {shown}"))?;
    bench.expect_journal(&room, &[]).await.map(drop)
}

/// The platform shows that an answer is being written.
pub(super) async fn typing(bench: &CheckBench) -> CheckResult {
    let room = bench.room("typing");
    let place = bench.place(&room);
    bench.give(&json!({ "type": "typing", "conversation": place, "state": "on" }))?;
    bench.await_typing(&room, true).await?;
    bench.give(&json!({ "type": "typing", "conversation": place, "state": "off" }))?;
    bench.await_typing(&room, false).await?;
    bench.expect_journal(&room, &[]).await.map(drop)
}

/// Previews are one line that changes in order; the answer is a line of its own.
pub(super) async fn previews(bench: &CheckBench) -> CheckResult {
    let room = bench.room("previews");
    let mut preview = bench.order(&room, "");
    preview["kind"] = json!("preview");
    let is_shown = |text: &'static str| {
        move |lines: &[Value]| lines.len() == 1 && lines[0]["preview"] == true && lines[0]["text"] == text
    };
    preview["text"] = json!("one");
    bench.give(&preview)?;
    bench.await_lines(&room, "the preview is not shown", is_shown("one")).await?;
    for text in ["one two", "one two three", "one two three four"] {
        preview["text"] = json!(text);
        bench.give(&preview)?;
    }
    bench.await_lines(&room, "the newest preview is not shown", is_shown("one two three four")).await?;
    bench.settle().await;
    let lines = bench.platform()?.lines(&room).await?;
    ensure(is_shown("one two three four")(&lines), || {
        format!("an earlier preview overtook a later one: {}", json!(lines))
    })?;
    let count = bench.report_count(&preview);
    ensure(count == 0, || format!("a preview is reported like a part: {count} reports"))?;
    bench.deliver(&bench.order(&room, "one two three four five")).await?;
    bench.give(&json!({ "type": "delete_message", "conversation": bench.place(&room), "key": preview["key"] }))?;
    let is_answer = |lines: &[Value]| lines.len() == 1 && lines[0]["preview"] != true;
    bench.await_lines(&room, "the preview is not removed", is_answer).await?;
    bench.expect_journal(&room, &["one two three four five"]).await.map(drop)
}

/// A send whose reply is lost is not repeated by the adapter, and not reported as something that nobody knows.
pub(super) async fn unknown_sends(bench: &CheckBench) -> CheckResult {
    for fault in ["drop_reply", "no_id"] {
        let room = bench.room("unknown");
        bench.platform()?.plant(json!([{ "kind": fault, "room": room }])).await?;
        let mut order = bench.order(&room, fault);
        bench.give(&order)?;
        let report = bench.report(&order, 1).await?;
        let lines = bench.journal(&room).await?;
        let id = lines.first().map(|line| line.id.clone()).unwrap_or_default();
        let is_proved = report["outcome"] == "sent" && report["external_id"] == id.as_str();
        ensure(report["outcome"] == "unknown" || is_proved, || {
            format!("after {fault} the outcome is neither `unknown` nor a receipt with the platform's id: {report}")
        })?;
        sleep(QUIET).await;
        bench.expect_journal(&room, &[fault]).await?;
        if !bench.declares("key") {
            continue;
        }
        order["attempt"] = json!(2);
        bench.give(&order)?;
        let again = bench.receipt(&order, 2).await?;
        ensure(id == again, || format!("sent again with its key, the part has the id {again}, not {id}"))?;
        bench.expect_journal(&room, &[fault]).await?;
    }
    Ok(())
}

/// Errors of the platform have their class.
pub(super) async fn error_classes(bench: &CheckBench) -> CheckResult {
    let room = bench.room("errors");
    let cases = [
        (json!({ "kind": "status", "status": 403 }), "permission", 0),
        (json!({ "kind": "status", "status": 404 }), "gone", 0),
        (json!({ "kind": "refuse", "status": 429, "retry_after": 7 }), "rate_limit", 7000),
        (json!({ "kind": "refuse", "status": 503 }), "transient", 0),
    ];
    for (mut fault, code, wait_ms) in cases {
        fault["room"] = json!(room);
        let status = fault["status"].clone();
        bench.platform()?.plant(json!([fault])).await?;
        let order = bench.order(&room, code);
        bench.give(&order)?;
        let report = bench.report(&order, 1).await?;
        ensure(report["outcome"] == "rejected" && report["code"] == code, || {
            format!("{status} of the platform is not rejected with the code {code}: {report}")
        })?;
        let waits = report["retry_after_ms"].as_u64().unwrap_or_default();
        ensure(waits >= wait_ms, || {
            format!("{status} with Retry-After {} s is reported with retry_after_ms {waits}", wait_ms / 1000)
        })?;
    }
    bench.settle().await;
    bench.expect_journal(&room, &[]).await?;
    bench.deliver(&bench.order(&room, "after all errors")).await?;
    bench.expect_journal(&room, &["after all errors"]).await.map(drop)
}

/// The text limit is real, and each declared capability is one that some check proves.
pub(super) async fn capabilities(bench: &CheckBench) -> CheckResult {
    let declared = bench.hello("capabilities");
    let names = declared.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let unproved: Vec<&str> =
        names.filter(|name| !PROVED.contains(name) && *name != "create_conversation" && bench.declares(name)).collect();
    ensure(unproved.is_empty(), || format!("the kit cannot prove the declared {}", unproved.join(", ")))?;
    let room = bench.room("text");
    let text = &declared["text"];
    let unit = text["unit"].as_str().unwrap_or("utf16");
    let max = text["max"].as_u64().unwrap_or(2_000).min(PROVED_TEXT_MAX);
    let longest = text_of(max, unit).ok_or_else(|| CheckFailure(format!("no unit of text {unit:?}")))?;
    bench.give(&bench.order(&room, "short"))?;
    let order = bench.order(&room, &longest);
    bench.give(&order)?;
    let report = bench.report(&order, 1).await?;
    ensure(report["outcome"] == "sent", || format!("a text of {max} {unit}, as declared, is not sent: {report}"))?;
    let lines = bench.journal(&room).await?;
    ensure(lines.iter().filter(|line| line.text == longest).count() == 1, || {
        let lengths: Vec<usize> = lines.iter().map(|line| line.text.chars().count()).collect();
        format!("a text of {max} {unit} is not one line of the platform; it has lines of {lengths:?} characters")
    })?;
    if bench.declares("create_conversation") { created_conversation(bench).await } else { Ok(()) }
}

/// Returns a text of a length in a unit, with characters of each width.
fn text_of(length: u64, unit: &str) -> Option<String> {
    let width = |c: char| match unit {
        "utf16" => Some(c.len_utf16()),
        "chars" => Some(1),
        "bytes" => Some(c.len_utf8()),
        _ => None,
    };
    let mut left = usize::try_from(length).ok()?;
    let mut text = String::new();
    for c in ['😀', 'ü', 'a'].into_iter().cycle() {
        let takes = width(c)?;
        if left == 0 {
            break;
        }
        if takes <= left {
            text.push(c);
            left -= takes;
        }
    }
    Some(text)
}

/// The adapter makes a conversation within another one, and sends there.
async fn created_conversation(bench: &CheckBench) -> CheckResult {
    let room = bench.room("parent");
    let mut order = bench.order(&room, "");
    order["type"] = json!("create_conversation");
    order["parent"] = order["conversation"].take();
    order["name"] = json!("A thread");
    bench.give(&order)?;
    let report = bench.report(&order, 1).await?;
    let made = report["conversation"]["conversation_id"].as_str().unwrap_or_default();
    ensure(report["outcome"] == "created" && !made.is_empty() && made != room, || {
        format!("the declared create_conversation did not make a conversation: {report}")
    })?;
    bench.deliver(&bench.order(made, "in the new conversation")).await?;
    bench.expect_journal(made, &["in the new conversation"]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_length_in_each_unit() {
        for length in [1, 2, 3, 64, 2_000] {
            let wide = text_of(length, "utf16").expect("a unit");
            assert_eq!(wide.encode_utf16().count() as u64, length);
            assert_eq!(text_of(length, "chars").expect("a unit").chars().count() as u64, length);
            assert_eq!(text_of(length, "bytes").expect("a unit").len() as u64, length);
        }
        assert_eq!(text_of(1, "words"), None);
    }
}
