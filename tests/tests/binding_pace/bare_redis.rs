//! A Redis server, plain commands over the kind of connection that the store uses, and the server's own counts.
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::cmd;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use turnway::config::redis::RedisUrl;
use turnway::redis::{RedisConnection, RedisConnectionOptions};
use turnway_tests::real::redis::Redis;

use crate::store_client::ABREAST;

/// A value as long as a row.
const VALUE: [u8; 400] = [b'x'; 400];
/// Commands that read keys or members that nobody has named.
const SCANS: [&str; 7] = ["keys", "scan", "sscan", "hscan", "zscan", "randomkey", "smembers"];

/// Calls of one command that the store makes for itself while something is measured: it looks from time to time whether it
/// still has the right to each command.
pub(crate) const OWN_CALLS_MAX: u64 = 20;

/// A server and a connection of the test's own.
pub(crate) struct BareRedis {
    pub(crate) server: Redis,
    connection: RedisConnection,
}

/// The counts of the server since [`BareRedis::reset_counts`].
#[derive(Debug)]
pub(crate) struct ServerCounts(BTreeMap<String, CommandCount>);

#[derive(Clone, Copy, Debug, Default)]
struct CommandCount {
    calls: u64,
    micros: u64,
}

impl BareRedis {
    pub(crate) async fn open(server: Redis) -> Self {
        let settings = RedisConnectionOptions {
            name: "bare",
            command_timeout: Duration::from_secs(3),
            channels: Vec::new(),
            push_handler: None,
        };
        let url = RedisUrl::parse(&server.url()).expect("a URL");
        let connection = RedisConnection::open(url, settings, &Handle::current());
        connection.wait_connected().await;
        connection.execute(cmd("SET").arg("bare").arg(&VALUE)).await.expect("an answer");
        Self { server, connection }
    }

    /// Returns the time of a `GET` of a value as long as a row.
    pub(crate) async fn get(&self) -> Duration {
        let mut command = cmd("GET");
        command.arg("bare");
        let start = Instant::now();
        self.connection.execute(&command).await.expect("an answer");
        start.elapsed()
    }

    /// Returns the time of a function that does nothing.
    pub(crate) async fn call(&self) -> Duration {
        let mut command = cmd("FCALL_RO");
        command.arg("turnway1_version").arg(0);
        let start = Instant::now();
        self.connection.execute(&command).await.expect("an answer");
        start.elapsed()
    }

    /// Returns how many `SET`s of a value as long as a row are done in a second, with as many in flight as ops of the store.
    pub(crate) async fn set_rate(&self, count: usize) -> f64 {
        self.rate(count, |n| {
            let mut command = cmd("SET");
            command.arg(format!("bare:{}", n % ABREAST)).arg(&VALUE);
            command
        })
        .await
    }

    /// Returns how many `GET`s are done in a second.
    pub(crate) async fn get_rate(&self, count: usize) -> f64 {
        self.rate(count, |_| {
            let mut command = cmd("GET");
            command.arg("bare");
            command
        })
        .await
    }

    async fn rate(&self, count: usize, command: impl Fn(usize) -> redis::Cmd) -> f64 {
        let mut in_flight = FuturesUnordered::new();
        let mut sent = 0;
        let start = Instant::now();
        loop {
            while in_flight.len() < ABREAST && sent < count {
                let command = command(sent);
                in_flight.push(async move { self.connection.execute(&command).await });
                sent += 1;
            }
            match in_flight.next().await {
                Some(answer) => drop(answer.expect("an answer")),
                None => return count as f64 / start.elapsed().as_secs_f64(),
            }
        }
    }

    // === counts of the server ===

    pub(crate) fn reset_counts(&self) {
        let _: redis::Value = self.server.command(&["CONFIG", "RESETSTAT"]);
    }

    pub(crate) fn counts(&self) -> ServerCounts {
        let text: String = self.server.command(&["INFO", "commandstats"]);
        let field = |line: &str, name: &str| -> Option<u64> {
            line.split_once(name).and_then(|(_, rest)| rest.split(',').next()?.parse().ok())
        };
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        let counted = lines.map(|(name, line)| {
            let calls = field(line, "calls=").expect("a number");
            let micros = field(line, "usec=").expect("a number");
            (name.to_owned(), CommandCount { calls, micros })
        });
        ServerCounts(counted.collect())
    }

    /// Returns the memory that the data of the server takes, in bytes.
    pub(crate) fn used_memory(&self) -> u64 {
        let text: String = self.server.command(&["INFO", "memory"]);
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.and_then(|used| used.trim().parse().ok()).expect("a number")
    }
}

impl ServerCounts {
    fn of(&self, command: &str) -> CommandCount {
        self.0.get(command).copied().unwrap_or_default()
    }

    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.of(command).calls
    }

    /// Returns the number of function calls, and the mean time that the server takes for one, in microseconds.
    pub(crate) fn functions(&self) -> (u64, f64) {
        let counts = ["fcall", "fcall_ro"].map(|name| self.of(name));
        let calls = counts.iter().map(|count| count.calls).sum();
        let micros: u64 = counts.iter().map(|count| count.micros).sum();
        (calls, micros as f64 / (calls as f64).max(1.0))
    }

    /// Fails the test if the server has searched through keys or members.
    pub(crate) fn assert_no_scan(&self) {
        for scan in SCANS {
            assert!(self.calls(scan) <= OWN_CALLS_MAX, "{scan}: {self:?}");
        }
    }
}
