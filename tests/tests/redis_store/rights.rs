//! Tests that a function of the store, which an operator deprives of a right, writes either all or nothing.
use crate::library::SOURCE;
use redis::{Connection, Value};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::tempdir;
use turnway_tests::real::redis::Redis;

/// Session under test; its keys are the argument of every call below.
const SESSION: &str = "{default/s}";
/// A holder, as node and incarnation, and the nonce of its claim.
const HOLDER: [&str; 2] = ["000000000000000000000000000000aa", "000000000000000000000000000000bb"];
const NONCE: &str = "7";
/// Time of every call, in milliseconds; also the first inbox position and the epoch.
const NOW: &str = "1000";

/// A call of a function: its name, keys and arguments.
struct Call {
    function: &'static str,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Call {
    /// Keys are kinds of keys of the session, or whole keys: those with `:` and, after `@`, those without.
    fn new(function: &'static str, kinds: &[&str], args: &[&str]) -> Self {
        let key = |kind: &&str| match kind.strip_prefix('@') {
            Some(whole) => whole.to_owned(),
            None if kind.contains(':') => (*kind).to_owned(),
            None => format!("{kind}:{SESSION}"),
        };
        Self { function, keys: kinds.iter().map(key).collect(), args: args.iter().map(|&arg| arg.to_owned()).collect() }
    }

    fn run(&self, connection: &mut Connection) -> Result<Value, String> {
        let mut command = redis::cmd("FCALL");
        command.arg(format!("turnway1_{}", self.function)).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command.query(connection).map_err(|error| error.to_string())
    }
}

/// Returns a text so long that the bytes of its user are counted at once.
fn long(text: &str) -> String {
    text.repeat(6000 / text.len())
}

fn accept(run: &str) -> Call {
    let json = long(run);
    let args =
        [NOW, "ann", "0", run, "hash", "10", "0", &json, "100", "100000", NOW, NOW, "", "bell", "1000000", "1000000"];
    Call::new("accept", &["own", "in", "dd"], &args)
}

fn control(id: &str) -> Call {
    let args = [NOW, "ann", "0", id, &long(id), "1", "", "100", NOW, NOW, "", "bell"];
    Call::new("control", &["own", "ctl", "ap", "dd"], &args)
}

/// Adds one fact, which ends an input (position and run) and answers control entries (positions).
fn append(after: &str, closed: &str, fact: &str, ended: Option<[&str; 2]>, answers: &[&str]) -> Call {
    let mut args = vec![NOW, NONCE, after, "9", closed, "1", "10", fact];
    args.push(if ended.is_some() { "1" } else { "0" });
    args.extend(ended.iter().flatten());
    let count = answers.len().to_string();
    args.push(&count);
    args.extend(answers);
    // The first fact sets an annotation, later ones remove it.
    args.extend(["1", "name", if after == "0" { "text" } else { "" }]);
    Call::new("append", &["own", "log", "in", "ctl", "dd", "ls"], &args)
}

const WIPED: [&str; 7] = ["own", "in", "ctl", "ap", "dd", "snap", "log"];

/// Returns the calls of a session's life, in an order in which each of them has an effect.
fn life() -> Vec<Call> {
    let lease = [NOW, HOLDER[1], "30000", "1", NOW];
    vec![
        Call::new("realm", &["@realm"], &["of-this-data"]),
        Call::new("enroll", &["@lives"], &[NOW, HOLDER[1]]),
        Call::new("renew", &["node:{aa}"], &lease),
        // The first one replaces the lease of an incarnation that is gone.
        Call::new("renew", &["node:{aa}"], &["90000", HOLDER[1], "30000", "1", "90000"]),
        Call::new("register", &["nidx:{aa}"], &[NOW, "s", "t"]),
        Call::new("enter", &["ix:{default}", "ix:{default}/ann"], &[NOW, "s"]),
        accept("run1"),
        Call::new(
            "claim",
            &["own", "in", "ctl", "ls", "snap", "log"],
            &[NOW, HOLDER[0], HOLDER[1], NONCE, "", "", "0", "0", NOW],
        ),
        accept("run2"),
        control("control1"),
        Call::new("listen", &["own", "ls"], &["cc", "5", "10"]),
        Call::new("listen", &["own", "ls"], &["dd", "6", "10", "cc", "5"]),
        append("0", "", &long("fact1"), Some(["1000", "run1"]), &["1000"]),
        append("1", "", "short fact", None, &[]),
        append("2", "1", &long("fact3"), Some(["1001", "run2"]), &[]),
        Call::new("keep", &["own", "snap"], &[NOW, NONCE, "3", NOW, &long("state")]),
        Call::new("trim", &["own", "log"], &[NOW, NONCE, "1"]),
        Call::new("unlisten", &["own", "ls"], &["dd", "6"]),
        Call::new("release", &["own", "in", "ctl"], &[NOW, NONCE, "3", "0", NOW, NOW]),
        Call::new("put", &["val:x"], &["0", "1", "text"]),
        Call::new("put", &["val:x"], &["1", "0", ""]),
        Call::new("expire", &["own", "dd"], &["9000", "0", "100"]),
        Call::new("delete", &WIPED, &["ann", "0"]),
    ]
}

/// Returns the whole content of the server, by key.
fn content(connection: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).expect("its keys");
    keys.into_iter()
        .map(|key| {
            let dump = redis::cmd("DUMP").arg(&key).query(connection).expect("its content");
            (key, dump)
        })
        .collect()
}

/// Returns the rules of the shipped node user: commands (`+xadd`) and the patterns of keys and channels.
fn shipped_rules() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/redis-users.acl");
    let text = std::fs::read_to_string(file).expect("the file");
    let line = text.lines().find(|line| line.starts_with("user turnway ")).expect("the user");
    line.split(' ').filter(|word| word.starts_with(['+', '~', '&'])).map(str::to_owned).collect()
}

/// A server with the functions, and the two users of these tests.
struct Fixture {
    _server: Redis,
    admin: Connection,
    app: Connection,
    rules: Vec<String>,
}

impl Fixture {
    fn start(dir: &Path) -> Self {
        let server = Redis::start(dir, &[]);
        let mut admin = server.connection();
        redis::cmd("FUNCTION").arg(&["LOAD", SOURCE]).exec(&mut admin).expect("the functions");
        let rules = shipped_rules();
        let mut fixture = Self { app: server.connection(), _server: server, admin, rules };
        fixture.permit_all_but(None);
        redis::cmd("AUTH").arg(&["app", "pw"]).exec(&mut fixture.app).expect("the user");
        fixture
    }

    fn permit_all_but(&mut self, revoked: Option<&str>) {
        let rules = self.rules.iter().map(String::as_str).filter(|&rule| Some(rule) != revoked);
        let all: Vec<&str> = ["SETUSER", "app", "reset", "on", ">pw"].into_iter().chain(rules).collect();
        redis::cmd("ACL").arg(&all).exec(&mut self.admin).expect("the rules");
    }

    /// Brings the server into the state after these calls.
    fn replay(&mut self, calls: &[Call]) {
        redis::cmd("FLUSHALL").exec(&mut self.admin).expect("empty");
        for call in calls {
            call.run(&mut self.admin).unwrap_or_else(|error| panic!("{}: {error}", call.function));
        }
    }
}

/// Each function is called without each of the rights that nodes are given.
///
/// Covers: S-40, G1.
#[test]
fn call_without_a_right_writes_nothing() {
    let dir = tempdir().expect("a directory");
    let mut fixture = Fixture::start(dir.path());
    let calls = life();
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, call) in calls.iter().enumerate() {
        fixture.replay(&calls[..=at]);
        let whole = content(&mut fixture.admin);
        for rule in fixture.rules.clone() {
            fixture.replay(&calls[..at]);
            let before = content(&mut fixture.admin);
            fixture.permit_all_but(Some(&rule));
            let answer = call.run(&mut fixture.app);
            let after = content(&mut fixture.admin);
            fixture.permit_all_but(None);
            let Err(error) = answer else {
                assert!(after == whole, "{} without {rule}: {answer:?}", call.function);
                continue;
            };
            assert!(before == after, "{} without {rule} wrote a part: {error}", call.function);
            *refused.entry(call.function).or_default() += 1;
            call.run(&mut fixture.app).unwrap_or_else(|error| panic!("{} after {rule}: {error}", call.function));
            assert!(content(&mut fixture.admin) == whole, "{} after {rule}", call.function);
        }
    }
    let expected = calls.iter().map(|call| call.function).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(refused.keys().copied().collect::<std::collections::BTreeSet<_>>(), expected);
    assert!(refused.values().all(|&count| count >= 3), "command, key and FCALL: {refused:?}");
}

/// Facts behind the end, which releases before version 9 of the functions left when they lost a right, are not read and
/// do not refuse later ones.
///
/// Covers: S-40, G1.
#[test]
fn facts_behind_the_end_of_a_log_are_replaced() {
    let dir = tempdir().expect("a directory");
    let mut fixture = Fixture::start(dir.path());
    let calls = life();
    let first = calls.iter().position(|call| call.function == "append").expect("a call");
    fixture.replay(&calls[..=first]);
    let second = &calls[first + 1];
    second.run(&mut fixture.admin).expect("the second fact");
    let whole = content(&mut fixture.admin);

    fixture.replay(&calls[..=first]);
    let log = format!("log:{SESSION}");
    let read = Call::new("read", &["own", "log"], &["0", "100", "1000000"]);
    let open = Call::new("open", &["own", "snap", "log"], &[]);
    let answers = [&read, &open].map(|call| call.run(&mut fixture.admin).expect("an answer"));
    for id in ["2-0", "3-0"] {
        redis::cmd("XADD")
            .arg(&[&log, id, "e", "1000", "w", "1", "j", "lost"])
            .exec(&mut fixture.admin)
            .expect("a fact");
    }
    let same = [&read, &open].map(|call| call.run(&mut fixture.app).expect("an answer"));
    assert_eq!(answers, same);
    second.run(&mut fixture.app).expect("the second fact");
    assert!(content(&mut fixture.admin) == whole);
}
