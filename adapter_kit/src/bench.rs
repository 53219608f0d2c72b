//! The surroundings of a check: the gateway, the platform and the adapter between them, and waits for each event. A wait
//! that ends without its event is a failure with the reason; the evidence comes from the recorded messages.
use crate::adapter_process::AdapterProcess;
use crate::check_gateway::{CheckGateway, InboundPlan, now_ms, without_secrets};
use crate::control::{ControlApi, PersonFile, PlatformLine};
use crate::limits::{
    ANSWER_TIMEOUT, EVIDENCE_CHARACTERS_MAX, EVIDENCE_MESSAGES_MAX, LOOK_INTERVAL, QUIET, RECONNECT_TIMEOUT, SETTLE,
    START_TIMEOUT,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{interval, sleep, timeout};

/// The reason why a check has failed, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckFailure(pub(crate) String);

pub(crate) type CheckResult<T = ()> = Result<T, CheckFailure>;

/// The surroundings of an adapter under test.
#[derive(Debug)]
pub(crate) struct CheckBench {
    pub(crate) gateway: CheckGateway,
    pub(crate) adapter: AdapterProcess,
    /// The key that the adapter has in its environment.
    pub(crate) api_key: String,
    platform: Option<ControlApi>,
    /// Begins the names of rooms: a platform that runs on has rooms of earlier runs.
    prefix: String,
    number: AtomicU64,
}

impl From<String> for CheckFailure {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

/// Fails with a reason unless a condition holds.
pub(crate) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(CheckFailure(reason())) }
}

// === impl CheckBench ===

impl CheckBench {
    pub(crate) fn new(
        gateway: CheckGateway,
        adapter: AdapterProcess,
        platform: Option<ControlApi>,
        api_key: String,
    ) -> Self {
        let prefix = format!("check-{}", now_ms() % 100_000_000);
        Self { gateway, adapter, api_key, platform, prefix, number: AtomicU64::new(0) }
    }

    /// Returns the platform; without one the check does not run.
    pub(crate) fn platform(&self) -> CheckResult<&ControlApi> {
        self.platform.as_ref().ok_or_else(|| CheckFailure("there is no platform".to_owned()))
    }

    /// Returns whether there is a platform to read.
    pub(crate) const fn has_platform(&self) -> bool {
        self.platform.is_some()
    }

    /// Returns a room that nothing else uses.
    pub(crate) fn room(&self, subject: &str) -> String {
        format!("{}-{subject}-{}", self.prefix, self.next())
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a field of the adapter's `hello`.
    pub(crate) fn hello(&self, field: &str) -> Value {
        self.gateway.state().hello().map_or(Value::Null, |hello| hello[field].clone())
    }

    /// Returns whether the adapter declares a capability with a level above 0.
    pub(crate) fn declares(&self, capability: &str) -> bool {
        let declared = &self.hello("capabilities")[capability];
        declared.as_i64().or_else(|| declared["level"].as_i64()).is_some_and(|level| level > 0)
    }

    /// Returns the reference of a room as a conversation of the account.
    pub(crate) fn place(&self, room: &str) -> Value {
        json!({ "channel": self.hello("channel"), "account_id": self.hello("account_id"), "conversation_id": room })
    }

    // --- the state in which checks begin ---

    /// Makes sure that the adapter runs, is connected and has the lease.
    pub(crate) async fn prepare(&self) -> CheckResult {
        if self.adapter.ended().is_some() {
            self.adapter.start().await?;
        }
        self.connected().await?;
        if self.gateway.state().is_standby {
            self.gateway.set_standby(false);
        }
        if let Some(platform) = &self.platform {
            platform.plant(json!([])).await?;
        }
        Ok(())
    }

    /// Waits until the adapter is connected; returns the index of its connection.
    pub(crate) async fn connected(&self) -> CheckResult<usize> {
        let late = format!("no connection with a `hello` within {} s", START_TIMEOUT.as_secs());
        self.await_connection(0, START_TIMEOUT, late).await
    }

    /// Waits for a connection after those that there were.
    pub(crate) async fn connected_after(&self, connections: usize) -> CheckResult<usize> {
        let late = format!("the adapter did not reconnect within {} s", RECONNECT_TIMEOUT.as_secs());
        self.await_connection(connections, RECONNECT_TIMEOUT, late).await
    }

    /// Waits for a connection from an index on, as long as the adapter runs.
    async fn await_connection(&self, first: usize, longest: Duration, late: String) -> CheckResult<usize> {
        let until = Instant::now() + longest;
        loop {
            let found = self.gateway.wait(QUIET, |state| state.present().filter(|index| *index >= first)).await;
            if let Some(index) = found {
                return Ok(index);
            }
            if let Some(how) = self.adapter.ended() {
                return Err(CheckFailure(format!("the adapter has ended: {how}")));
            }
            ensure(Instant::now() < until, || late.clone())?;
        }
    }

    /// Kills the adapter with SIGKILL and starts it again; returns once it is connected.
    pub(crate) async fn restart(&self) -> CheckResult {
        let connections = self.gateway.state().connections.len();
        self.adapter.start().await?;
        self.connected_after(connections).await.map(drop)
    }

    /// Waits for what must not come.
    pub(crate) async fn settle(&self) {
        sleep(SETTLE).await;
    }

    // Lines of people.

    /// Posts a line of a person; returns the platform's id.
    pub(crate) async fn post(&self, room: &str, text: &str) -> CheckResult<String> {
        Ok(self.platform()?.post(room, "ann", text, &[]).await?)
    }

    /// Posts a line of a person with files; returns the platform's id.
    pub(crate) async fn post_files(&self, room: &str, text: &str, files: &[PersonFile]) -> CheckResult<String> {
        Ok(self.platform()?.post(room, "ann", text, files).await?)
    }

    /// Plans the answers to the next lines of a room.
    pub(crate) fn plan(&self, room: &str, answers: impl IntoIterator<Item = InboundPlan>) {
        self.gateway.state().plan(room, answers);
    }

    /// Waits for the n-th event of a room, counted from 1.
    pub(crate) async fn inbound(&self, room: &str, n: usize) -> CheckResult<Value> {
        let nth =
            self.gateway.wait(ANSWER_TIMEOUT, |state| state.inbound(room).get(n - 1).map(|it| it.message.clone()));
        nth.await.ok_or_else(|| {
            let seen = self.inbound_count(room);
            CheckFailure(format!("{seen} of {n} inbound events of room {room} within {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }

    /// Waits until a line of a room is accepted; returns the event by which it was.
    pub(crate) async fn accepted(&self, room: &str, id: &str) -> CheckResult<Value> {
        let key = (room.to_owned(), id.to_owned());
        let accepted = self.gateway.wait(ANSWER_TIMEOUT, |state| {
            let is_accepted = state.accepted_messages().contains(&key);
            let events = state.inbound(room);
            let last = events.iter().rfind(|event| event.message["message"]["message_id"] == id);
            last.filter(|_| is_accepted).map(|event| event.message.clone())
        });
        accepted.await.ok_or_else(|| {
            CheckFailure(format!("line {id} of room {room} was not accepted within {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }

    /// Returns the number of events of a room so far.
    pub(crate) fn inbound_count(&self, room: &str) -> usize {
        self.gateway.state().inbound(room).len()
    }

    // Orders of parts.

    /// Returns the order of a text for a room, the only part of its delivery.
    pub(crate) fn order(&self, room: &str, text: &str) -> Value {
        let n = self.next();
        json!({ "type": "deliver", "delivery_id": delivery_id(n), "attempt": 1, "part": 1, "parts": 1,
            "conversation": self.place(room), "kind": "final", "text": text, "key": format!("{}{n}", self.prefix),
            "deadline_ts": now_ms() + 3_600_000 })
    }

    /// Gives an order to the adapter.
    pub(crate) fn give(&self, order: &Value) -> CheckResult {
        ensure(self.gateway.send(order.clone()), || "the adapter is not connected".to_owned())
    }

    /// Waits for the n-th report about an order, counted from 1.
    pub(crate) async fn report(&self, order: &Value, n: usize) -> CheckResult<Value> {
        let id = order["delivery_id"].as_str().unwrap_or_default();
        let part = order["part"].as_u64().unwrap_or(1);
        let nth =
            self.gateway.wait(ANSWER_TIMEOUT, |state| state.reports(id, part).get(n - 1).map(|it| it.message.clone()));
        nth.await.ok_or_else(|| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            CheckFailure(format!("{} of {n} reports about a part within {seconds} s", self.report_count(order)))
        })
    }

    /// Returns the number of reports about an order so far.
    pub(crate) fn report_count(&self, order: &Value) -> usize {
        let id = order["delivery_id"].as_str().unwrap_or_default();
        self.gateway.state().reports(id, order["part"].as_u64().unwrap_or(1)).len()
    }

    /// Waits for the n-th report, which must be a receipt from the ordered place; returns the platform's id.
    pub(crate) async fn receipt(&self, order: &Value, n: usize) -> CheckResult<String> {
        let report = self.report(order, n).await?;
        ensure(report["outcome"] == "sent", || format!("the outcome is not `sent`: {report}"))?;
        ensure(is_same_place(&report["place"], &order["conversation"]), || {
            format!("the receipt's place is not the ordered conversation: {report}")
        })?;
        let id = report["external_id"].as_str().filter(|id| !id.is_empty());
        id.map(str::to_owned).ok_or_else(|| CheckFailure(format!("`sent` without external_id: {report}")))
    }

    /// Gives an order and waits for its receipt.
    pub(crate) async fn deliver(&self, order: &Value) -> CheckResult<String> {
        self.give(order)?;
        self.receipt(order, 1).await
    }

    // The platform.

    /// Returns the bot's lines in a room by the platform's journal.
    pub(crate) async fn journal(&self, room: &str) -> CheckResult<Vec<PlatformLine>> {
        let lines = self.platform()?.journal().await?;
        Ok(lines.into_iter().filter(|line| line.room == room).collect())
    }

    /// Fails unless the journal has exactly these texts in a room, in order; returns the lines.
    pub(crate) async fn expect_journal(&self, room: &str, texts: &[&str]) -> CheckResult<Vec<PlatformLine>> {
        let lines = self.journal(room).await?;
        let found: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        ensure(found == texts, || {
            format!("the platform has {} lines of the bot in room {room}, not {}: {found:?}", found.len(), texts.len())
        })?;
        Ok(lines)
    }

    /// Waits until the lines that a room shows have a property.
    pub(crate) async fn await_lines(
        &self,
        room: &str,
        what: &str,
        holds: impl Fn(&[Value]) -> bool,
    ) -> CheckResult<Vec<Value>> {
        let platform = self.platform()?;
        let mut looks = interval(LOOK_INTERVAL);
        let mut last = Vec::new();
        let found = timeout(ANSWER_TIMEOUT, async {
            loop {
                looks.tick().await;
                last = platform.lines(room).await?;
                if holds(&last) {
                    return Ok(());
                }
            }
        });
        match found.await {
            Ok(looked) => looked.map(|()| last),
            Err(_) => Err(CheckFailure(format!(
                "{what} within {} s; room {room} shows {}",
                ANSWER_TIMEOUT.as_secs(),
                json!(last)
            ))),
        }
    }

    /// Waits until the bot is shown as writing in a room, or not.
    pub(crate) async fn await_typing(&self, room: &str, expected: bool) -> CheckResult {
        let platform = self.platform()?;
        let mut looks = interval(LOOK_INTERVAL);
        let found = timeout(ANSWER_TIMEOUT, async {
            while platform.is_typing(room).await? != expected {
                looks.tick().await;
            }
            Ok(())
        });
        let late = || CheckFailure(format!("room {room} does not show typing {}", if expected { "on" } else { "off" }));
        found.await.map_err(|_| late())?
    }

    /// Returns the last messages since a record, the platform's journal and the adapter's output, for a failed check.
    pub(crate) async fn evidence(&self, since: usize) -> Vec<String> {
        let mut lines = self.message_evidence(since);
        if let Some(platform) = &self.platform {
            match platform.journal().await {
                Ok(journal) => {
                    let newest = journal.iter().skip(journal.len().saturating_sub(EVIDENCE_MESSAGES_MAX / 2));
                    lines.extend(
                        newest.map(|line| clip(format!("journal: {} in {}: {:?}", line.id, line.room, line.text))),
                    );
                }
                Err(why) => lines.push(why),
            }
        }
        lines.extend(self.adapter.last_output().into_iter().rev().take(6).rev().map(|line| format!("output: {line}")));
        if let Some(how) = self.adapter.ended() {
            lines.push(format!("the adapter has ended: {how}"));
        }
        lines
    }

    fn message_evidence(&self, since: usize) -> Vec<String> {
        let state = self.gateway.state();
        let records = state.records.get(since..).unwrap_or_default();
        let newest = &records[records.len().saturating_sub(EVIDENCE_MESSAGES_MAX)..];
        let begun = newest.first().map(|record| record.at);
        let shown = newest.iter().map(|record| {
            let message = without_secrets(&record.message);
            let after = begun.map_or(Duration::ZERO, |begun| record.at - begun).as_secs_f64();
            clip(format!("{after:>6.2} s {} {message}", if record.is_from_adapter { "←" } else { "→" }))
        });
        shown.collect()
    }
}

/// Returns whether two conversation references name one place.
pub(crate) fn is_same_place(one: &Value, other: &Value) -> bool {
    ["channel", "account_id", "conversation_id"].iter().all(|field| !one[field].is_null() && one[field] == other[field])
}

/// Returns a delivery's id: 26 characters of base 32, as the gateway's are.
fn delivery_id(number: u64) -> String {
    let digit = |place: u32| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[(number >> (5 * place)) as usize & 31]);
    "check".chars().chain((0..21).rev().map(|place| if place < 12 { digit(place) } else { 'a' })).collect()
}

fn clip(text: String) -> String {
    if text.chars().count() <= EVIDENCE_CHARACTERS_MAX {
        return text;
    }
    text.chars().take(EVIDENCE_CHARACTERS_MAX).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::DeliveryId;

    #[test]
    fn delivery_ids_are_those_of_the_protocol() {
        for number in [1, 31, 32, 1_000_000] {
            assert!(DeliveryId::parse(&delivery_id(number)).is_ok(), "{}", delivery_id(number));
        }
        assert_ne!(delivery_id(1), delivery_id(33));
    }

    #[test]
    fn places_are_the_same_only_with_every_field() {
        let place = json!({ "channel": "rooms", "account_id": "main", "conversation_id": "a" });
        assert!(is_same_place(&place, &place.clone()));
        assert!(!is_same_place(&Value::Null, &Value::Null));
        assert!(!is_same_place(&place, &json!({ "channel": "rooms", "account_id": "main", "conversation_id": "b" })));
    }
}
