//! Copies of the example adapter with the SDK, with one planted fault each about files. The check `attachments` must find
//! each, for its own reason.
use super::faults::{AT_A_TIME, AdapterFault, planted};
use super::{check, repository};
use futures_util::StreamExt;
use futures_util::stream::iter;
use std::path::Path;
use tempfile::tempdir;

const CHECK: &str = "attachments";

/// A fault, and words of the reason that the report must give.
struct FileFault {
    fault: AdapterFault,
    reason: &'static str,
}

const fn fault(name: &'static str, reason: &'static str, old: &'static str, new: &'static str) -> FileFault {
    FileFault { fault: AdapterFault { name, check: CHECK, old, new }, reason }
}

const FAULTS: [FileFault; 10] = [
    // Every file of an answer gets the bytes of the first one.
    fault(
        "bytes_of_another_file",
        "are not those of the gateway",
        r##"data = base64.b64encode(file.content).decode()"##,
        r##"data = files[0]["data"] if files else base64.b64encode(file.content).decode()"##,
    ),
    // A part with files has another key in each attempt, so that its files are sent again.
    fault(
        "files_sent_twice",
        "has 2 lines of the bot",
        r##""key": delivery.key,"##,
        r##""key": f"{delivery.key}-{delivery.attempt}" if files else delivery.key,"##,
    ),
    // A deleted file is sent as an empty one.
    fault(
        "deleted_file_sent_empty",
        "has the files",
        r##"            if file := await item.read():"##,
        r##"            if file := await item.read() or __import__("turnway.files").files.File(b"", "text/plain"):"##,
    ),
    // Files have their hashes as names.
    fault("names_lost", "has the files", r##""name": item.name,"##, r##""name": item.sha256,"##),
    // Pictures are never shown within the line.
    fault("inline_ignored", "`inline` of the file", r##""inline": item.inline,"##, r##""inline": False,"##),
    // The token is in the URL of a request.
    fault(
        "token_in_the_url",
        "the token of a file is in the URL",
        r##"class Rooms(Adapter):"##,
        r##"import turnway.files as files_of_the_sdk

transfer = files_of_the_sdk.transfer
files_of_the_sdk.transfer = lambda gateway, token, path: transfer(gateway, token, f"{path}?token={token}")


class Rooms(Adapter):"##,
    ),
    // The files of people are dropped.
    fault("files_dropped", "without `prepare_files`", r##"files=files, platform_time"##, r##"platform_time"##),
    // Every file of a person has the bytes of the first one.
    fault(
        "bytes_of_another_upload",
        "are not those that the person has attached",
        r##"self.ask(f"/files/{file['id']}")"##,
        r##"self.ask(f"/files/{self.__dict__.setdefault('first', file['id'])}")"##,
    ),
    // The offset is saved before a line with one file is accepted.
    fault(
        "offset_before_the_file",
        "the adapter did not bring it again",
        r##"                yield Update(offset, Inbound("##,
        r##"                if len(files) == 1:
                    self.background = asyncio.ensure_future(
                        self.forward(Inbound(**ids, content=line["text"], files=files, platform_time=line["time"]))
                    )
                    yield Update(offset)
                    continue
                yield Update(offset, Inbound("##,
    ),
    // A file that is refused for good is uploaded again and again, and its line waits for it.
    fault(
        "refused_file_stops_the_line",
        "was not accepted within",
        r##"class Rooms(Adapter):"##,
        r##"import turnway.retry
import turnway.uploads

refusal = turnway.uploads._refusal
turnway.uploads.FAILURES_MAX = 1000


def again(answer):
    error = refusal(answer)
    is_final = isinstance(error, turnway.uploads.LeftOut)
    return turnway.retry.GatewayError(str(error), retryable=True) if is_final else error


turnway.uploads._refusal = again


class Rooms(Adapter):"##,
    ),
];

/// Runs the check on an example with a fault; returns the complaint if it does not fail for the fault's reason.
async fn complaint(dir: &Path, example: &str, file_fault: &FileFault) -> Option<String> {
    let name = file_fault.fault.name;
    let adapter = dir.join(format!("{name}.py"));
    std::fs::write(&adapter, planted(example, &file_fault.fault)).expect("a file");
    let options = ["--platform", "rooms", "--json", "--only", CHECK];
    let ended = check(dir, &options, adapter.to_str().expect("UTF-8")).await;
    assert_eq!(ended.code, Some(1), "{name}: {ended:?}");
    let row = ended.json()["checks"][0].clone();
    let is_found =
        row["outcome"] == "failed" && row["reason"].as_str().is_some_and(|why| why.contains(file_fault.reason));
    (!is_found).then(|| format!("{name}: {}, not {:?}", row["reason"], file_fault.reason))
}

/// Covers: BR-36, BR-38, PR-24.
#[tokio::test]
async fn each_planted_fault_about_files_is_found() {
    let dir = tempdir().expect("a directory");
    let example = std::fs::read_to_string(repository("examples/rooms/adapter_sdk.py")).expect("the example");
    let runs = iter(&FAULTS).map(|fault| complaint(dir.path(), &example, fault));
    let wrong: Vec<Option<String>> = runs.buffer_unordered(AT_A_TIME).collect().await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
