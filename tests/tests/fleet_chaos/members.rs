//! Sessions with many agents and all kinds of concurrent requests, while nodes and Redis are killed: the log
//! must be consistent, and no request may stay open.
use crate::PACE;
use crate::faults::{Faults, Fleet, NODES, ONE_BUILD, Shared};
use crate::member_client::{AGENTS, MemberClient};
use crate::takeovers::{Build, Takeovers};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::web::Web;
use turnway_tests::real::{PATIENCE, amount, figure, size};

async fn speak(stream: AgentStream, invocation: Invocation) -> Result<(), HungUp> {
    let mut pace = tokio::time::interval(PACE);
    let pieces = if invocation.text.starts_with("long") { 100 } else { 10 };
    for _ in 0..pieces {
        pace.tick().await;
        stream.delta("word ").await?;
    }
    if let Some(to) = invocation.text.strip_prefix("ask ") {
        stream.event("handover_request", &json!({"to": to, "reason": "chaos", "summary": "all of it"})).await?;
    }
    stream.done().await
}

/// Replays the log's facts about changes, members and runs, and collects violations.
#[derive(Default)]
struct LogChecker {
    members: BTreeSet<String>,
    active: String,
    /// Transactions that have begun, and whether they have ended.
    changes: BTreeMap<String, bool>,
    runs: BTreeMap<String, bool>,
    /// Inputs that were steered into another run.
    steered: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
    violations: Vec<String>,
}

impl LogChecker {
    fn text<'a>(of: &'a Value, name: &str) -> &'a str {
        of[name].as_str().unwrap_or_default()
    }

    fn begins(&mut self, id: &str, fact: &Value) {
        if self.changes.insert(id.to_owned(), false).is_some() {
            self.violations.push(format!("begun twice: {fact}"));
        }
    }

    fn ends(&mut self, id: &str, fact: &Value, must_begin: bool) {
        match self.changes.insert(id.to_owned(), true) {
            Some(false) => {}
            None if !must_begin => {}
            before => self.violations.push(format!("ended, and was {before:?}: {fact}")),
        }
    }

    fn take(&mut self, fact: &Value) {
        let kind = Self::text(fact, "type");
        let data = &fact["data"];
        let agent = Self::text(data, "agent_id").to_owned();
        let tx = Self::text(data, "tx_id").to_owned();
        let run = Self::text(fact, "run_id").to_owned();
        let code = data["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
        *self.counts.entry(format!("{kind}{code}")).or_default() += 1;
        match kind {
            "session.opened" => {
                let agents = data["agents"].as_array().expect("members");
                self.members = agents.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                self.active = Self::text(data, "active_agent").to_owned();
            }
            "agent.adding" | "agent.removing" => self.begins(&tx, fact),
            "agent.added" => {
                // The addition of an existing member is recorded once more.
                self.ends(&tx, fact, !self.members.contains(&agent));
                self.members.insert(agent);
            }
            "agent.removed" => {
                self.ends(&tx, fact, true);
                if !self.members.remove(&agent) || self.members.is_empty() {
                    self.violations.push(format!("it was no member, or the last: {fact}"));
                }
            }
            "agent.add_failed" | "agent.remove_failed" => self.ends(&tx, fact, false),
            "handover.requested" => self.begins(Self::text(data, "handover_id"), fact),
            "handover.confirmed" | "handover.rejected" => {
                self.ends(Self::text(data, "handover_id"), fact, true);
            }
            "agent.switched" => {
                let to = Self::text(data, "to").to_owned();
                if Self::text(data, "from") != self.active || !self.members.contains(&to) {
                    self.violations.push(format!("{} of {:?} was active: {fact}", self.active, self.members));
                }
                self.active = to;
            }
            "run.started" if !self.members.contains(&agent) => {
                self.violations.push(format!("asked though no member: {fact}"));
            }
            "user.message" => _ = self.runs.insert(run, false),
            "run.done" | "run.failed" | "run.cancelled" => {
                if data["stop_reason"] == "steered" {
                    self.steered.insert(run.clone());
                }
                if self.runs.insert(run, true) != Some(false) {
                    self.violations.push(format!("ended twice, or never begun: {fact}"));
                }
            }
            _ => {}
        }
    }

    /// Checks what must hold at the end.
    fn end(&mut self, session: &str, guest: &MemberClient, snapshot: &Value) {
        let stuck: Vec<_> = self.changes.iter().filter(|(_, is_over)| !**is_over).map(|(id, _)| id).collect();
        if !stuck.is_empty() {
            self.violations.push(format!("{session}: changes without an end: {stuck:?}"));
        }
        for run in &guest.accepted {
            if self.runs.get(run) != Some(&true) {
                self.violations.push(format!("{run} was accepted and has no end"));
            }
        }
        let agents = snapshot["agents"].as_array().expect("members");
        let there: BTreeSet<String> = agents.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if there != self.members || snapshot["active_agent"] != self.active {
            let of_log = (&self.members, &self.active);
            self.violations.push(format!("{session}: the log says {of_log:?}, the session {snapshot}"));
        }
    }
}

/// Covers: SR-D12, SR-T11, SR-T12, SR-T13, SR-T14, SR-K4, ST-9, G3, G9, G-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_nodes_leave_no_member_change_incomplete() {
    let blows = Faults {
        seed: size("FLEET_MEMBERS_SEED", 1) as u64,
        kills: amount("FLEET_MEMBERS_KILLS", 3),
        stops: amount("FLEET_MEMBERS_STOPS", 2),
        redis: amount("FLEET_MEMBERS_REDIS_KILLS", 1),
        patience: 4 * PATIENCE,
    };
    change_members_under_faults(ONE_BUILD, &blows, |_| true).await;
}

/// Further kills, if the takeovers of fewer are not enough: which node takes over is chance.
const FURTHER_KILLS_MAX: usize = 12;

/// Changes members of many sessions on nodes of these builds under faults, and under further kills until the takeovers are
/// enough, and checks the logs. Returns the takeovers.
pub(crate) async fn change_members_under_faults(
    builds: [Build; NODES],
    blows: &Faults,
    are_enough: impl Fn(&Takeovers) -> bool,
) -> Takeovers {
    let dir = tempfile::tempdir().expect("a directory");
    let agents = Agents::start_steered(|asked| Reply::speak(|stream| speak(stream, asked)), Arc::default()).await;
    let flags = AGENTS.map(|agent| agents.flag(agent) + ",on_owner_loss=retry,steer=true,handover=2s");
    let mut fleet = Fleet::start(dir.path(), &flags, builds, None).await;
    let stage = Arc::new(Shared::new(fleet.addresses(), blows.patience));
    let mut guests = JoinSet::new();
    for n in 0..amount("FLEET_MEMBERS_SESSIONS", 40) {
        guests.spawn(MemberClient::new(Arc::clone(&stage), n, blows.seed).run());
    }
    let mut rng = Rng::from_number(blows.seed);
    let mut gaps = fleet.inject_faults(&stage, &mut rng, blows).await;
    let mut total = Faults { ..*blows };
    for _ in 1..amount("FLEET_MEMBERS_ROUNDS", 1) {
        if stage.is_over() {
            break;
        }
        gaps.append(fleet.inject_faults(&stage, &mut rng, blows).await);
        total.kills += blows.kills;
        total.stops += blows.stops;
        total.redis += blows.redis;
    }
    let kills = total.kills;
    while !are_enough(&fleet.takeovers) && total.kills < kills + FURTHER_KILLS_MAX && !stage.is_over() {
        gaps.append(fleet.inject_faults(&stage, &mut rng, &Faults { kills: 1, stops: 0, redis: 0, ..*blows }).await);
        total.kills += 1;
    }
    stage.end();
    let mut ended = Vec::new();
    while let Some(guest) = guests.join_next().await {
        ended.push(guest.expect("no client gave up"));
    }
    let asked: BTreeSet<String> = agents.journal().into_iter().map(|asked| asked.run_id).collect();
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut accepted = 0;
    let readers = fleet.addresses();
    for (n, mut guest) in ended.into_iter().enumerate() {
        let web = Web::new(readers[n % readers.len()], Some(&guest.user));
        let mut order = LogChecker::default();
        for fact in web.facts(&guest.session).await {
            order.take(&fact);
        }
        let snapshot = web.json(&format!("/v1/sessions/{}", guest.session)).await;
        order.end(&guest.session, &guest, &snapshot);
        // An input that was steered into a run never gets an attempt of its own.
        order.violations.extend(order.steered.intersection(&asked).map(|run| format!("{run}: both")));
        accepted += guest.accepted.len();
        for (kind, count) in order.counts {
            *counts.entry(kind).or_insert(0) += count;
        }
        wrong.append(&mut order.violations);
        wrong.append(&mut guest.violations);
    }
    figure("inputs accepted, all of them ended once", accepted);
    figure("facts", format!("{counts:?}"));
    let first: Vec<_> = wrong.iter().take(10).collect();
    assert!(wrong.is_empty(), "{} things are wrong: {first:#?}", wrong.len());
    for kind in ["agent.added", "agent.removed", "agent.switched", "handover.confirmed", "handover.rejected"] {
        assert!(counts.get(kind).is_some_and(|count| *count > 10), "{kind}: {counts:?}");
    }
    total.must_have_happened(&gaps, accepted);
    fleet.leave().await;
    fleet.takeovers
}
