//! Tests the Redis users of `deploy/redis-users.acl`: each has the rights that it needs and no others.
use crate::store_client::{StoreClient, accept, holder, key};
use redis::{Connection, Value};
use std::path::Path;
use tempfile::{TempDir, tempdir};
use turnway::config::Durability;
use turnway::config::redis::RedisLogin;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::id::{BodyId, ControlId, ListenStamp, OwnershipSnapshot, Principal, Seq, TenantId};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::store::blob::BlobAction;
use turnway_core::store::{ConversationOp, Op, OpTicket, Reply};
use turnway_core::time::{Millis, Mono};
use turnway_tests::real::command::run;
use turnway_tests::real::redis::Redis;

const NODE: &str = "for-nodes";
const DEPLOYER: &str = "for-the-deployer";

/// Starts a server with the shipped users and known passwords.
fn start() -> (TempDir, Redis) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/redis-users.acl");
    let shipped = std::fs::read_to_string(shipped).expect("the file");
    let nobody_knows = format!("#{}", "0".repeat(64));
    let users: Vec<String> = shipped
        .lines()
        .map(|line| {
            let password = if line.starts_with("user turnway-deployer ") { DEPLOYER } else { NODE };
            line.replace(&nobody_knows, &format!(">{password}"))
        })
        .collect();
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("users.acl");
    // The tests themselves log in as a user with all rights.
    let all = format!("{}\nuser admin on nopass ~* &* +@all\n", users.join("\n"));
    std::fs::write(&file, all).expect("a file");
    let server = Redis::start(dir.path(), &["--aclfile", &file.display().to_string()]);
    (dir, server)
}

fn login(server: &Redis, user: &str, password: &str) -> Connection {
    let url = format!("redis://{user}:{password}@127.0.0.1:{}", server.port);
    redis::Client::open(url).expect("a URL").get_connection().expect("a connection")
}

fn allowed(connection: &mut Connection, words: &str) -> Result<(), String> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    command.arg(words.collect::<Vec<_>>());
    match command.query::<Value>(connection) {
        Err(error) if error.code() == Some("NOPERM") => Err(error.to_string()),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn deployer() -> RedisLogin {
    RedisLogin::parse(&format!("turnway-deployer:{DEPLOYER}")).expect("a login")
}

fn control_id() -> ControlId {
    ControlId::parse("c1").expect("an id")
}

/// Returns a read of two conversations, which lie in different slots.
fn read_of_two(tenant: &TenantId) -> Op {
    let place = |id: &str| ConversationRef::without_parent("rooms", "main", id).expect("a conversation").key(tenant);
    ConversationOp::Read { keys: vec![place("7"), place("8")] }.into()
}

/// Covers: S-40.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_user_may_run_every_store_operation() {
    let (_dir, server) = start();
    let url = format!("redis://turnway:{NODE}@127.0.0.1:{}", server.port);
    let options =
        RedisStoreOptions { durability: Durability::Mem, deployer: Some(deployer()), ..RedisStoreOptions::default() };
    let mut store = StoreClient::try_open(&url, options).await.expect("a store");
    let me = holder(1, 1);
    store.era(me, true).await;
    let taken = store.accept("s", "m1").await.expect("accepted");
    let claimed = store.claim("s", me, taken.owner).await;
    store.claim("t", holder(2, 2), OwnershipSnapshot::default()).await;
    assert_eq!(store.accept("t", "m1").await.expect("accepted").offer_receivers, Some(0), "it may ring others");
    let session = key("s");
    let token = claimed.token;
    let tail = Seq(0);
    let Op::Accept { input, principal, .. } = accept("s", "m1") else { unreachable!("an accept") };
    let append = turnway_core::store::Append {
        key: session.clone(),
        token,
        after: tail,
        facts: Vec::new(),
        ends: vec![(taken.position, input.run_id.clone())],
        answers: Vec::new(),
        closed: Some(false),
        annotations: Vec::new(),
        known_listeners: claimed.version,
    };
    let at = claimed.view.tail;
    let state = b"state".to_vec().into();
    let keep = turnway_core::store::SnapshotWrite { key: session.clone(), token, at, state };
    let link = Default::default();
    let run_id = input.run_id.clone();
    let tenant = session.tenant.clone();
    let fence = Some(turnway_core::store::RouteVersion { place: input.run_id.clone(), version: 1 });
    let ops = [
        Op::Append(Box::new(append)),
        Op::WriteSnapshot(Box::new(keep)),
        Op::Trim { key: session.clone(), token, upto: tail },
        Op::Listen { key: session.clone(), node: me.node, stamp: ListenStamp(1) },
        Op::Unlisten { key: session.clone(), node: me.node, stamp: ListenStamp(1) },
        Op::ReadView { key: session.clone() },
        Op::Read { key: session.clone(), after: tail, limit: 1 },
        Op::Inbox { key: session.clone(), token, after: taken.position, control_after: taken.position },
        Op::Find { key: session.clone(), principal: principal.clone(), run_id: run_id.clone(), link, fence: None },
        Op::Find { key: session.clone(), principal: principal.clone(), run_id, link, fence },
        Op::FindControl { key: session.clone(), principal: principal.clone(), id: control_id(), ticket: OpTicket(1) },
        Op::Delete { key: session.clone(), principal: principal.clone(), link },
        Op::Expire { key: session.clone(), before_ms: 1 },
        Op::ScanIdle { from: None, before: Millis(u64::MAX), limit: 10 },
        Op::DeleteIdle { key: key("t"), before: Millis(u64::MAX) },
        Op::Transfer { key: session.clone(), token, tail, to: me, nonce: turnway_core::id::Nonce(9) },
        Op::Release { key: session, token, tail, drain: true },
        read_of_two(&tenant),
        act(&principal, BlobAction::Reserve { body: BodyId(1), bytes: 1 }),
        act(&principal, BlobAction::Tend),
        Op::Lease { node: me.node, sent: Mono::default() },
        Op::Sweep { limit: 10 },
        Op::ListSessions { tenant, user: None, before: None, limit: 10, link },
        Op::Put { name: "a".into(), expect: 0, value: Some(b"b".to_vec()) },
        Op::Get { name: "a".into() },
        Op::Retire { holder: me },
    ];
    for op in ops {
        let answer = store.ask(op.clone()).await;
        assert!(answer.is_ok(), "{op:?}: {answer:?}");
    }
    let owner = OwnershipSnapshot { holder: Some(holder(1, 2)), ..OwnershipSnapshot::default() };
    assert!(matches!(store.renew(holder(1, 2), false).await, Ok(Reply::LeaseLost)), "{owner:?}");
    check_plain_commands(&server);
}

fn act(principal: &Principal, action: BlobAction) -> Op {
    Op::Blob { key: key("s"), principal: principal.clone(), action, link: Default::default() }
}

/// Checks the commands that a node sends outside of functions.
fn check_plain_commands(server: &Redis) {
    let mut node = login(server, "turnway", NODE);
    for words in [
        "WAIT 0 1",
        "PUBLISH inbox:a x",
        "PING",
        "HGETALL nodes",
        "HSET nodes a b",
        "HDEL nodes a",
        "FCALL turnway1_owe 1 rate:{a}:work 1000 1000000",
    ] {
        allowed(&mut node, words).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
}

/// Commands that neither a node nor the deployer may run.
const NOBODY: &[&str] = &[
    "EVAL return 0",
    "EVALSHA x 0",
    "SCRIPT FLUSH",
    "FUNCTION FLUSH",
    "FUNCTION DELETE turnway1",
    "FUNCTION KILL",
    "FUNCTION DUMP",
    "FUNCTION RESTORE x",
    "KEYS *",
    "SCAN 0",
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG SET save x",
    "CONFIG REWRITE",
    "CONFIG RESETSTAT",
    "DEBUG SLEEP 0",
    "SHUTDOWN",
    "MONITOR",
    "ACL LIST",
    "ACL SETUSER x",
    "ACL WHOAMI",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT PAUSE 1",
    "REPLICAOF NO ONE",
    "FAILOVER",
    "SYNC",
    "PSYNC x 0",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "SWAPDB 0 1",
    "MODULE LIST",
    "MIGRATE x 1 a 0 1",
    "RESTORE own:a 0 x",
    "DUMP own:a",
    "RENAME own:a own:b",
    "SORT own:a",
    "MOVE own:a 1",
    "COPY own:a own:b",
    "CLUSTER INFO",
    "LATENCY DOCTOR",
    "SLOWLOG GET",
    "MEMORY DOCTOR",
    "OBJECT HELP",
    "RANDOMKEY",
    "DBSIZE",
    "XREAD STREAMS own:a 0",
    "BLPOP own:a 1",
    "GET anything",
    "SET anything x",
    "HGETALL somebody:else",
    "PUBLISH anything x",
    "SUBSCRIBE anything",
    "PSUBSCRIBE *",
];

/// Covers: S-40.
#[test]
fn users_have_no_unneeded_rights() {
    let (_dir, server) = start();
    let anonymous = redis::Client::open(server.url()).expect("a URL").get_connection();
    assert!(anonymous.and_then(|mut it| redis::cmd("PING").query::<Value>(&mut it)).is_err());
    let node = ["CONFIG GET requirepass", "FUNCTION LOAD x", "FUNCTION LIST", "GET library:turnway1", "WATCH own:a"];
    let deployer =
        ["FCALL turnway1_accept 0", "GET own:a", "SET own:a x", "PUBLISH inbox:a x", "INCR own:a", "HGET own:a b"];
    for (user, password, own) in [("turnway", NODE, &node[..]), ("turnway-deployer", DEPLOYER, &deployer[..])] {
        for words in NOBODY.iter().chain(own) {
            // A new connection for each command, because some of them change the connection.
            let refused = allowed(&mut login(&server, user, password), words);
            assert!(refused.is_err(), "{user} may {words}");
        }
    }
}

/// Covers: S-40, S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_rights_to_inspect_names_the_deployer_setting() {
    let (dir, server) = start();
    let url = format!("redis://turnway:{NODE}@127.0.0.1:{}", server.port);
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off", "--store", &url];
    let ended = run(dir.path(), &[&serve[..], &["--durability", "mem"]].concat(), &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.err.contains("store.deployer") && !ended.err.contains(NODE), "{}", ended.err);
    // With a deployer login, startup gets as far as the durability check.
    let env = [("TURNWAY_STORE_DEPLOYER", format!("turnway-deployer:{DEPLOYER}"))];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let ended = run(dir.path(), &[&serve[..], &["--durability", "os"]].concat(), &env).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.err.contains("durability mem, not os"), "{}", ended.err);
}
