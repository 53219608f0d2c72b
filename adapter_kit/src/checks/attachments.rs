//! The check of files, both ways: files of an answer are sent with their line, and files of a line of a person are brought
//! with it. Each half runs for an adapter that does it.
use crate::bench::{CheckBench, CheckFailure, CheckResult, ensure};
use crate::check_files::{FileProblem, PreparePlan, UploadPlan, UploadRecord, sha256_hex};
use crate::check_gateway::{GatewayState, InboundPlan, file_paths};
use crate::control::{PersonFile, PlatformFile, PlatformLine};
use crate::limits::{ANSWER_TIMEOUT, FILE_ATTEMPTS_MAX};
use serde_json::{Value, json};
use std::time::Duration;
use turnway_core::rng::Rng;

const BUSY_NODE: FileProblem = FileProblem { status: 503, code: "store_unavailable", retry_after: None };
const SHARED_NODE: FileProblem = FileProblem { status: 429, code: "over_share", retry_after: Some(1) };
const ENDED_TOKEN: FileProblem = FileProblem { status: 401, code: "unauthorized", retry_after: None };
/// Errors that no repetition helps against. The first one is that of a media type.
const FINAL_PROBLEMS: [FileProblem; 3] = [
    FileProblem { status: 415, code: "invalid_message", retry_after: None },
    FileProblem { status: 413, code: "too_large", retry_after: None },
    FileProblem { status: 429, code: "quota_exceeded", retry_after: None },
];

/// Checks the files of answers if the capability is declared, and those of people if the capability is declared or the
/// adapter asks for a place for them; returns false if the adapter does neither.
pub(super) async fn attachments(bench: &CheckBench) -> CheckResult<bool> {
    let is_declared = bench.declares("attachments");
    let brings = asks_for_a_place(bench, is_declared).await?;
    ensure(brings || !is_declared, || {
        "`attachments` is declared, but a line with a file was brought without `prepare_files`: the file is lost"
            .to_owned()
    })?;
    if is_declared {
        sent_whole(bench).await?;
        sent_without_a_deleted_file(bench).await?;
        sent_after_a_failed_read(bench).await?;
        sent_once(bench).await?;
    }
    if brings {
        brought_whole(bench).await?;
        brought_after_failed_uploads(bench).await?;
        brought_without_refused_files(bench).await?;
        brought_to_another_session(bench).await?;
        brought_after_a_kill(bench).await?;
    }
    Ok(is_declared || brings)
}

/// Returns whether the adapter sends `prepare_files` for a line with a file.
async fn asks_for_a_place(bench: &CheckBench, is_declared: bool) -> CheckResult<bool> {
    let room = bench.room("files");
    let posted = bench.post_files(&room, "with a file", &[text_file("probe.txt", 1)]).await;
    if posted.is_err() && !is_declared {
        // The platform has no files.
        return Ok(false);
    }
    posted?;
    let asked = bench.gateway.wait(ANSWER_TIMEOUT, |state| {
        let has_asked = has_prepared(state, &room);
        (has_asked || !state.inbound(&room).is_empty()).then_some(has_asked)
    });
    asked.await.ok_or_else(|| CheckFailure(format!("a line with a file was not brought: room {room}")))
}

fn has_prepared(state: &GatewayState, room: &str) -> bool {
    state.records.iter().any(|record| {
        record.is_from_adapter
            && record.message["type"] == "prepare_files"
            && record.message["conversation"]["conversation_id"] == room
    })
}

/// Returns bytes that are not text and that no other number has.
fn file_bytes(number: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::from_number(number);
    std::iter::repeat_with(|| rng.next_u64().to_le_bytes()).flatten().take(length).collect()
}

fn text_file(name: &'static str, number: u64) -> PersonFile {
    PersonFile { name, media_type: "text/plain", bytes: format!("the text of file {number}\n").into_bytes() }
}

fn picture(name: &'static str, number: u64) -> PersonFile {
    PersonFile { name, media_type: "image/png", bytes: file_bytes(number, 120_000) }
}

// --- files of answers ---

/// A file of an answer, in the session of a room.
struct AnswerFile {
    path: String,
    item: Value,
    expected: PlatformFile,
}

fn answer_file(bench: &CheckBench, room: &str, file: &PersonFile, inline: bool) -> AnswerFile {
    let mut state = bench.gateway.state();
    let session = state.files.session_of(room);
    let path = state.files.add(&session, file.media_type, &file.bytes);
    let sha256 = sha256_hex(&file.bytes);
    let item = json!({ "name": file.name, "sha256": sha256, "url": path, "inline": inline });
    let name = file.name.to_owned();
    let media_type = file.media_type.to_owned();
    AnswerFile { path, item, expected: PlatformFile { name, media_type, sha256, inline: Some(inline) } }
}

/// Returns the order of a text with files.
fn order_with(bench: &CheckBench, room: &str, text: &str, files: &[AnswerFile]) -> Value {
    let mut order = bench.order(room, text);
    let mut state = bench.gateway.state();
    let session = state.files.session_of(room);
    order["attachments"] = files.iter().map(|file| file.item.clone()).collect();
    order["file_token"] = json!(state.files.token(&session, false));
    order
}

/// Fails unless a line of the platform has exactly these files, in order.
fn expect_files<'a>(line: &PlatformLine, files: impl IntoIterator<Item = &'a AnswerFile>) -> CheckResult {
    let wanted: Vec<PlatformFile> = files.into_iter().map(|file| file.expected.clone()).collect();
    let names = |files: &[PlatformFile]| files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    ensure(names(&line.files) == names(&wanted), || {
        format!("the line {:?} has the files {:?}, not {:?}", line.text, names(&line.files), names(&wanted))
    })?;
    for (found, wanted) in line.files.iter().zip(&wanted) {
        let name = &wanted.name;
        ensure(found.sha256 == wanted.sha256, || {
            format!("the bytes of the file {name:?} are not those of the gateway")
        })?;
        ensure(found.media_type == wanted.media_type, || {
            format!("the file {name:?} has the media type {}, not {}", found.media_type, wanted.media_type)
        })?;
        ensure(found.inline.is_none_or(|inline| Some(inline) == wanted.inline), || {
            format!("`inline` of the file {name:?} is {:?}, not {:?}", found.inline, wanted.inline)
        })?;
    }
    Ok(())
}

/// Files are sent with their line: their bytes, names and order.
async fn sent_whole(bench: &CheckBench) -> CheckResult {
    let room = bench.room("answer");
    let files = [
        answer_file(bench, &room, &picture("a cat.png", 2), true),
        answer_file(bench, &room, &text_file("Größe 😀.txt", 3), false),
        answer_file(bench, &room, &picture("another cat.png", 4), false),
    ];
    let order = order_with(bench, &room, "three files", &files);
    bench.deliver(&order).await?;
    bench.deliver(&order_with(bench, &room, "", &files[..1])).await?;
    let lines = bench.expect_journal(&room, &["three files", ""]).await?;
    expect_files(&lines[0], &files)?;
    expect_files(&lines[1], &files[..1])
}

/// A file that was deleted meanwhile is left out.
async fn sent_without_a_deleted_file(bench: &CheckBench) -> CheckResult {
    let room = bench.room("deleted-file");
    let files = [
        answer_file(bench, &room, &text_file("gone.txt", 5), false),
        answer_file(bench, &room, &text_file("left.txt", 6), false),
    ];
    bench.gateway.state().files.delete(&files[0].path);
    bench.deliver(&order_with(bench, &room, "one file is gone", &files)).await?;
    let lines = bench.expect_journal(&room, &["one file is gone"]).await?;
    expect_files(&lines[0], &files[1..])
}

/// A part whose file cannot be read now is not sent without it, and not reported as something that nobody knows.
async fn sent_after_a_failed_read(bench: &CheckBench) -> CheckResult {
    let room = bench.room("late-file");
    let files = [answer_file(bench, &room, &picture("late.png", 7), true)];
    bench.gateway.state().files.plan_read(&files[0].path, BUSY_NODE);
    let mut order = order_with(bench, &room, "a late file", &files);
    bench.give(&order)?;
    let report = bench.report(&order, 1).await?;
    if report["outcome"] != "sent" {
        let passes = report["outcome"] == "not_sent"
            || (report["outcome"] == "rejected" && matches!(report["code"].as_str(), Some("transient" | "rate_limit")));
        ensure(passes, || {
            format!("a file could not be read, so nothing was sent, but the outcome is not `not_sent`: {report}")
        })?;
        bench.expect_journal(&room, &[]).await?;
        order["attempt"] = json!(2);
        bench.give(&order)?;
        bench.receipt(&order, 2).await?;
    }
    let lines = bench.expect_journal(&room, &["a late file"]).await?;
    expect_files(&lines[0], &files)
}

/// With `key`, a part that is ordered again appears once, with its files once, also after a lost reply.
async fn sent_once(bench: &CheckBench) -> CheckResult {
    if !bench.declares("key") {
        return Ok(());
    }
    let room = bench.room("files-once");
    let files = [
        answer_file(bench, &room, &picture("once.png", 8), true),
        answer_file(bench, &room, &text_file("once.txt", 9), false),
    ];
    let mut order = order_with(bench, &room, "files once", &files);
    bench.platform()?.plant(json!([{ "kind": "drop_reply", "room": room }])).await?;
    bench.give(&order)?;
    bench.report(&order, 1).await?;
    for attempt in [2, 3] {
        order["attempt"] = json!(attempt);
        bench.give(&order)?;
        bench.receipt(&order, attempt).await?;
    }
    bench.settle().await;
    let lines = bench.expect_journal(&room, &["files once"]).await?;
    expect_files(&lines[0], &files)
}

// --- files of people ---

/// A line of a person with files, and what must become of it.
struct PersonLine<'a> {
    room: &'a str,
    text: &'a str,
    files: &'a [PersonFile],
    /// Codes of the files that the gateway refuses, by name.
    left_out: &'a [(&'static str, &'static str)],
}

/// Waits until the line is accepted, with its text and its files in the session of its conversation.
async fn expect_brought(bench: &CheckBench, id: &str, line: &PersonLine<'_>) -> CheckResult {
    let event = bench.accepted(line.room, id).await?;
    let content = &event["message"]["content"];
    let texts: Vec<&str> = match content.as_str() {
        Some(text) => vec![text],
        None => content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect(),
    };
    let said = texts.join("\n");
    ensure(said.starts_with(line.text), || format!("the text of a line with files is {said:?}, not {:?}", line.text))?;
    for (name, code) in line.left_out {
        let wanted = format!("[file {name} was not taken: {code}]");
        ensure(said.lines().any(|found| found == wanted), || {
            format!("a file was refused, but the text has no line {wanted:?}: {said:?}")
        })?;
    }
    let is_taken = |file: &&PersonFile| !line.left_out.iter().any(|(name, _)| *name == file.name);
    let wanted: Vec<&PersonFile> = line.files.iter().filter(is_taken).collect();
    expect_parts(bench, line.room, content, &wanted)
}

/// Fails unless a content names exactly these files, in order.
fn expect_parts(bench: &CheckBench, room: &str, content: &Value, wanted: &[&PersonFile]) -> CheckResult {
    let paths = file_paths(content);
    ensure(paths.len() == wanted.len(), || {
        format!("{} files of a line of room {room} were brought, not {}: {content}", paths.len(), wanted.len())
    })?;
    let state = bench.gateway.state();
    for (path, wanted) in paths.iter().zip(wanted) {
        let name = wanted.name;
        let found = state.files.find(path).ok_or_else(|| CheckFailure(format!("no file was uploaded to {path}")))?;
        ensure(found.bytes == wanted.bytes, || {
            format!("the bytes at the place of the file {name:?} are not those that the person has attached")
        })?;
        ensure(found.media_type == wanted.media_type, || {
            format!("the file {name:?} was uploaded as {}, not as {}", found.media_type, wanted.media_type)
        })?;
    }
    let named = content.as_array().into_iter().flatten().filter(|part| part["type"] == "file");
    for part in named {
        let filename = part["file"]["filename"].as_str();
        ensure(wanted.iter().any(|file| Some(file.name) == filename), || {
            format!("a part has the file name {filename:?}, which no file of the line has")
        })?;
    }
    Ok(())
}

/// Returns the uploads for a room, in order of arrival.
fn uploads<'a>(state: &'a GatewayState, room: &str) -> Vec<&'a UploadRecord> {
    state.files.uploads.iter().filter(|upload| upload.conversation == room).collect()
}

/// Files are brought with their line: their bytes, names and order. A line may have files only.
async fn brought_whole(bench: &CheckBench) -> CheckResult {
    let room = bench.room("brought");
    let files = [picture("mine.png", 20), text_file("Größe 😀.txt", 21), picture("mine too.png", 22)];
    bench.gateway.state().files.plan_prepare(&room, PreparePlan::Retry(100));
    let line = PersonLine { room: &room, text: "three files of mine", files: &files, left_out: &[] };
    let id = bench.post_files(&room, line.text, &files).await?;
    let next = bench.post(&room, "the line after them").await?;
    expect_brought(bench, &id, &line).await?;
    bench.accepted(&room, &next).await?;
    let order: Vec<Value> = {
        let state = bench.gateway.state();
        state.inbound(&room).iter().map(|event| event.message["message"]["message_id"].clone()).collect()
    };
    ensure(order == [json!(id), json!(next)], || {
        format!("a line overtook the one before, which has files: {order:?}")
    })?;
    let alone = PersonLine { text: "", files: &files[..1], ..line };
    let id = bench.post_files(&room, alone.text, alone.files).await?;
    expect_brought(bench, &id, &alone).await
}

/// An upload that fails for a while is repeated, not before the wait that the gateway names.
async fn brought_after_failed_uploads(bench: &CheckBench) -> CheckResult {
    let room = bench.room("uploads");
    let files = [picture("repeated.png", 30)];
    let plans = [UploadPlan::Refuse(SHARED_NODE), UploadPlan::Refuse(BUSY_NODE), UploadPlan::Cut];
    bench.gateway.state().files.plan_uploads(&room, plans);
    bench.gateway.state().files.plan_uploads(&room, [UploadPlan::Refuse(ENDED_TOKEN)]);
    let line = PersonLine { room: &room, text: "an upload that fails", files: &files, left_out: &[] };
    let id = bench.post_files(&room, line.text, &files).await?;
    expect_brought(bench, &id, &line).await?;
    let state = bench.gateway.state();
    let found = uploads(&state, &room);
    ensure(found.len() <= FILE_ATTEMPTS_MAX, || format!("{} uploads of one file, of which four failed", found.len()))?;
    let pause = found.get(1).map_or(Duration::ZERO, |second| second.at - found[0].at);
    ensure(pause >= Duration::from_millis(900), || {
        format!("uploaded again {} ms after 429 with Retry-After 1 s", pause.as_millis())
    })
}

/// A file that is refused for good is left out; its line and the next one are brought.
async fn brought_without_refused_files(bench: &CheckBench) -> CheckResult {
    let room = bench.room("refused");
    let names = ["one.bin", "two.bin", "three.bin"];
    let refused = (40..).zip(names).map(|(number, name)| text_file(name, number));
    let files: Vec<PersonFile> = refused.chain([picture("taken.png", 43)]).collect();
    for (file, problem) in files.iter().zip(FINAL_PROBLEMS) {
        bench.gateway.state().files.refuse(&file.bytes, problem);
    }
    let left_out: Vec<_> = names.into_iter().zip(FINAL_PROBLEMS.map(|problem| problem.code)).collect();
    let line = PersonLine { room: &room, text: "one of four is taken", files: &files, left_out: &left_out };
    let id = bench.post_files(&room, line.text, &files).await?;
    expect_brought(bench, &id, &line).await?;
    let next = bench.post(&room, "after the refused files").await?;
    bench.accepted(&room, &next).await.map(drop)
}

/// A conversation that is bound to another session in between has its files uploaded there.
async fn brought_to_another_session(bench: &CheckBench) -> CheckResult {
    let room = bench.room("rebound");
    let files = [picture("follows.png", 50), text_file("follows.txt", 51)];
    bench.gateway.state().files.plan_prepare(&room, PreparePlan::Rebind);
    let line = PersonLine { room: &room, text: "to the next session", files: &files, left_out: &[] };
    let id = bench.post_files(&room, line.text, &files).await?;
    expect_brought(bench, &id, &line).await?;
    let mut state = bench.gateway.state();
    let session = state.files.session_of(&room);
    let found = uploads(&state, &room).iter().filter(|upload| upload.session == session).count();
    ensure(found == files.len(), || {
        format!("{found} of {} files were uploaded to the session that the conversation leads to now", files.len())
    })
}

/// A killed adapter brings a line again whose files were on their way, or which was not accepted yet.
async fn brought_after_a_kill(bench: &CheckBench) -> CheckResult {
    let room = bench.room("killed");
    let files = [picture("survives.png", 60)];
    bench.gateway.state().files.plan_uploads(&room, [UploadPlan::Silence]);
    let line = PersonLine { room: &room, text: "killed in between", files: &files, left_out: &[] };
    let id = bench.post_files(&room, line.text, &files).await?;
    expect_upload(bench, &room, 1).await?;
    bench.plan(&room, [InboundPlan::Ignore]);
    bench.restart().await?;
    // An adapter that saves its offset too early may still be killed before it has saved it, once.
    let lost = |_| CheckFailure("killed before its line was accepted, the adapter did not bring it again".to_owned());
    bench.inbound(&room, 1).await.map_err(lost)?;
    bench.restart().await?;
    bench.accepted(&room, &id).await.map_err(lost)?;
    expect_brought(bench, &id, &line).await?;
    let state = bench.gateway.state();
    let sent = uploads(&state, &room);
    let sha256 = sha256_hex(&files[0].bytes);
    ensure(sent.iter().all(|upload| upload.sha256 == sha256), || {
        "after a kill the file was uploaded with other bytes".to_owned()
    })
}

async fn expect_upload(bench: &CheckBench, room: &str, count: usize) -> CheckResult {
    let arrived = bench.gateway.wait(ANSWER_TIMEOUT, |state| (uploads(state, room).len() >= count).then_some(()));
    arrived.await.ok_or_else(|| CheckFailure(format!("no upload of a file within {} s", ANSWER_TIMEOUT.as_secs())))
}
