//! Copies of the example adapter with one planted fault each. A patch replaces a text that must be there exactly once, so a
//! change of the example that a patch no longer fits fails the test.
use super::{check, checks_with, repository};
use futures_util::StreamExt;
use futures_util::stream::iter;
use std::path::Path;
use tempfile::tempdir;

/// Runs that are made at a time. Each mostly waits.
pub(super) const AT_A_TIME: usize = 8;

/// Checks that every faulty adapter passes but for the one that is meant for its fault: the quick ones.
const QUICK: [&str; 11] = [
    "hello",
    "inbound",
    "deliver",
    "receipts",
    "edits",
    "deletes",
    "reactions",
    "typing",
    "previews",
    "error-classes",
    "capabilities",
];

/// A fault and the only check that must find it.
pub(super) struct AdapterFault {
    pub(super) name: &'static str,
    pub(super) check: &'static str,
    pub(super) old: &'static str,
    pub(super) new: &'static str,
}

const FAULTS: [AdapterFault; 21] = [
    // The key of the environment is not sent.
    AdapterFault {
        name: "hello_without_key",
        check: "hello",
        old: r##"        hello |= {"api_key": os.environ["TURNWAY_API_KEY"]} if os.environ.get("TURNWAY_API_KEY") else {}
"##,
        new: "",
    },
    // The platform's time is sent in seconds.
    AdapterFault {
        name: "time_in_seconds",
        check: "inbound",
        old: r##""platform_time": line["time"]"##,
        new: r##""platform_time": line["time"] // 1000"##,
    },
    // Notices go to one room, whatever the order names.
    AdapterFault {
        name: "wrong_place",
        check: "deliver",
        old: r##"{"room": message["conversation"]["conversation_id"], **message}"##,
        new: r##"{"room": "lobby" if message.get("kind") == "notice" else message["conversation"]["conversation_id"], **message}"##,
    },
    // `sent` is reported before the platform has the line.
    AdapterFault {
        name: "sent_too_early",
        check: "deliver",
        old: r##"        outcome = await asyncio.get_running_loop().run_in_executor(self.senders, self.send, order)
"##,
        new: r##"        sending = asyncio.get_running_loop().run_in_executor(self.senders, self.send, order)
        early = {"outcome": "sent", "external_id": "1", "place": order["conversation"]}
        outcome = early if order["kind"] == "notice" else await sending
"##,
    },
    // Only the first part of a delivery is sent.
    AdapterFault {
        name: "lost_part",
        check: "receipts",
        old: r##"            path = f"/{part['kind']}" if"##,
        new: r##"            if part["part"] > 1:
                return {"outcome": "sent", "external_id": "1", "place": part["conversation"]}
            path = f"/{part['kind']}" if"##,
    },
    // All parts of a delivery have one key: the platform takes the later ones for repetitions.
    AdapterFault {
        name: "key_of_the_delivery",
        check: "receipts",
        old: r##"            path = f"/{part['kind']}" if"##,
        new: r##"            part = {**part, "key": part["delivery_id"]}
            path = f"/{part['kind']}" if"##,
    },
    // An order is carried out after its deadline.
    AdapterFault {
        name: "deadline_ignored",
        check: "receipts",
        old: r##"if part["deadline_ts"] < time.time() * 1000:"##,
        new: r##"if part["deadline_ts"] < 0:"##,
    },
    // The adapter reconnects at once, again and again.
    AdapterFault {
        name: "no_pause",
        check: "reconnect",
        old: "await asyncio.sleep(random.uniform(0.2, delay))",
        new: "await asyncio.sleep(0)",
    },
    // The instance id is another one after a restart.
    AdapterFault { name: "instance_changes", check: "reconnect", old: "{socket.gethostname()}", new: "{os.getpid()}" },
    // A line that comes again has another id.
    AdapterFault {
        name: "message_id_changes",
        check: "duplicates",
        old: r##"            await asyncio.sleep(answer.get("retry_after_ms", 1000) / 1000)"##,
        new: r##"            event["message"]["message_id"] += "-again"
            await asyncio.sleep(answer.get("retry_after_ms", 1000) / 1000)"##,
    },
    // One message is sent at a time: a slow place holds up all others.
    AdapterFault { name: "one_lane", check: "reorder", old: "ThreadPoolExecutor(32)", new: "ThreadPoolExecutor(1)" },
    // A line comes again before the wait that the error names.
    AdapterFault {
        name: "retry_at_once",
        check: "slow-acks",
        old: r##"answer.get("retry_after_ms", 1000) / 1000"##,
        new: "0.2",
    },
    // The platform is read while another adapter is active.
    AdapterFault {
        name: "reads_on_standby",
        check: "lease",
        old: r##"        while True:
            await self.active.wait()
            try:
                updates"##,
        new: r##"        while True:
            try:
                updates"##,
    },
    // The offset is saved before the gateway has accepted the line.
    AdapterFault {
        name: "advance_early",
        check: "offsets",
        old: r##"                await self.forward(update)
                # Not earlier: a line that the gateway has not accepted must come again, also after a crash.
                offset = update["update"]
                Path(f"{file}.new").write_text(str(offset))
                Path(f"{file}.new").replace(file)
"##,
        new: r##"                offset = update["update"]
                Path(f"{file}.new").write_text(str(offset))
                Path(f"{file}.new").replace(file)
                await self.forward(update)
"##,
    },
    // An edit adds a line.
    AdapterFault {
        name: "edit_adds",
        check: "edits",
        old: r##"if "target" in part else "/send""##,
        new: r##"if part["kind"] in ("delete", "reaction") else "/send""##,
    },
    // A reaction is never taken back.
    AdapterFault {
        name: "reaction_stays",
        check: "reactions",
        old: r##"            path = f"/{part['kind']}" if"##,
        new: r##"            part = {**part, "reaction": {**part["reaction"], "remove": False}} if "reaction" in part else part
            path = f"/{part['kind']}" if"##,
    },
    // A preview is reported like a part.
    AdapterFault {
        name: "preview_reported",
        check: "previews",
        old: r##"                    self.signals.submit(self.ask, f"/{message.get('kind') or message['type']}", message)
"##,
        new: r##"                    self.signals.submit(self.ask, f"/{message.get('kind') or message['type']}", message)
                    if message["type"] == "deliver":
                        report = {"type": "delivered", "delivery_id": message["delivery_id"], "part": 1, "outcome": "sent"}
                        await self.gateway.send(json.dumps(report | {"external_id": "1", "place": message["conversation"]}))
"##,
    },
    // A part whose reply is lost is sent again with another key.
    AdapterFault {
        name: "sent_again",
        check: "unknown-sends",
        old: r##"            return {"outcome": "not_sent", "proof": str(error)} if is_refused else {"outcome": "unknown"}"##,
        new: r##"            if not is_refused:
                self.ask("/send", {**part, "key": part["key"] + "-2"})
            return {"outcome": "not_sent", "proof": str(error)} if is_refused else {"outcome": "unknown"}"##,
    },
    // A place that is gone counts as a passing failure.
    AdapterFault { name: "class_wrong", check: "error-classes", old: r##"404: "gone""##, new: r##"404: "transient""## },
    // The wait that the platform asks for is not reported.
    AdapterFault {
        name: "retry_after_ignored",
        check: "error-classes",
        old: r##""code": code, **wait}"##,
        new: r##""code": code}"##,
    },
    // A longer text is declared than the platform takes.
    AdapterFault {
        name: "limit_claimed",
        check: "capabilities",
        old: r##""delete", "reaction"], 2)"##,
        new: r##""delete", "reaction"], 2) | {"text": {"level": 2, "max": 4000}}"##,
    },
];

/// Returns the example with the fault.
pub(super) fn planted(example: &str, fault: &AdapterFault) -> String {
    assert_eq!(
        example.matches(fault.old).count(),
        1,
        "the patch {} does not fit the example: {}",
        fault.name,
        fault.old
    );
    example.replace(fault.old, fault.new)
}

/// Returns the names of the checks that fail for a fault.
async fn failed_checks(dir: &Path, example: &str, fault: &AdapterFault) -> Vec<String> {
    let adapter = dir.join(format!("{}.py", fault.name));
    std::fs::write(&adapter, planted(example, fault)).expect("a file");
    let names = QUICK.iter().copied().chain((!QUICK.contains(&fault.check)).then_some(fault.check));
    let mut options = vec!["--platform", "rooms", "--json"];
    options.extend(names.flat_map(|name| ["--only", name]));
    let ended = check(dir, &options, adapter.to_str().expect("UTF-8")).await;
    assert_eq!(ended.code, Some(1), "{}: {ended:?}", fault.name);
    checks_with(&ended.json(), "failed")
}

/// Covers: BR-36, BR-38.
#[tokio::test]
async fn each_planted_fault_is_found_by_its_check() {
    let dir = tempdir().expect("a directory");
    let example = std::fs::read_to_string(repository("examples/rooms/adapter.py")).expect("the example");
    let runs = iter(&FAULTS).map(|fault| async {
        let failed = failed_checks(dir.path(), &example, fault).await;
        (failed != [fault.check]).then(|| format!("{}: {failed:?}, not {}", fault.name, fault.check))
    });
    let wrong: Vec<Option<String>> = runs.buffer_unordered(AT_A_TIME).collect().await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
