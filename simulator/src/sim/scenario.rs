//! The scenario of a seed: clients act while faults happen; then the faults end, and the world must settle.
use super::behaviour::AgentBehaviour;
use super::clients::{Act, Kind};
use super::faults::Faults;
use super::fixtures::{self, PlannedMessage};
use super::world::{ScheduledEvent, World};
use turnway_core::id::{RunId, SessionKey};
use turnway_core::protocol::input::Strategy;

/// Sessions of a scenario. Two tenants have a session of the same name.
const SESSIONS: [(&str, &str); 6] =
    [("default", "s0"), ("default", "s1"), ("default", "s2"), ("default", "s3"), ("default", "s4"), ("other", "s0")];
/// Seconds with faults.
const TROUBLE_S: u64 = 60;
/// Seconds within which a world without faults must settle: a full inbox of the slowest agents.
pub const REST_S: u64 = 240;

impl World {
    /// Runs the whole scenario of a seed.
    pub fn scenario(seed: u64, faults: Faults) -> Self {
        let mut world = Self::new(seed, 5, faults);
        world.play();
        world
    }

    /// Runs both parts in a new world.
    pub fn play(&mut self) {
        for (tenant, session) in SESSIONS {
            self.add_clients(&fixtures::key(tenant, session));
        }
        self.open_rooms(TROUBLE_S * 1000);
        self.pass(TROUBLE_S + 15);
        if self.rewinds {
            let writes = 1 + self.rng.below(6);
            self.forget(writes);
        }
        self.heal();
        self.come_to_rest(REST_S);
        self.last_words();
        self.come_to_rest(REST_S);
    }

    /// Lets every remaining client send one more message without faults.
    fn last_words(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].kind == Kind::Talker {
                self.later(0, 500, ScheduledEvent::Client { client, act: Act::Open });
                let n = 10_000 + client as u64;
                self.schedule_message(client, n, AgentBehaviour::Plain, Strategy::Enqueue, (600, 1500));
            }
        }
        self.last_lines();
        self.pass(3);
    }

    /// Lets time pass until no work is left; panics if that takes too long.
    pub fn come_to_rest(&mut self, seconds: u64) {
        for _ in 0..seconds / 5 {
            self.pass(5);
            if self.unsettled_reason().is_none() {
                break;
            }
        }
        self.check_settled();
        self.tally.turns = self.ledger.ended;
        self.tally.posts = self.platform.posts.len() as u64;
        self.count_origins();
    }

    fn when(&mut self) -> (u64, u64) {
        let at = self.rng.below(TROUBLE_S * 1000);
        (at, at)
    }

    /// Creates the clients of one session and schedules their actions.
    fn add_clients(&mut self, key: &SessionKey) {
        let name = format!("u-{}-{}", key.tenant, key.session);
        let tenant = key.tenant.as_str();
        let user = fixtures::user(&name, tenant, false);
        let talker = self.client(Kind::Talker, key, user.clone());
        let light = self.client(Kind::Light, key, user.clone());
        let watcher = self.client(Kind::Watcher, key, user.clone());
        let mut people = vec![talker, talker, light];
        if self.rng.chance(50) {
            self.later(0, 500, ScheduledEvent::Client { client: talker, act: Act::Open });
        }
        if self.rng.chance(40) {
            let operator = self.client(Kind::Watcher, key, fixtures::user("ops", tenant, true));
            self.later(2000, 20_000, ScheduledEvent::Client { client: operator, act: Act::Connect });
        }
        self.later(1000, 20_000, ScheduledEvent::Client { client: watcher, act: Act::Connect });
        for _ in 0..self.rng.below(3) {
            people.push(self.client(Kind::Leaver, key, user.clone()));
        }
        let prober = self.client(Kind::Prober, key, fixtures::user("mallory", tenant, false));
        for _ in 0..self.rng.below(6) {
            let at = self.when();
            let way = self.rng.next_u64();
            self.later(at.0, at.1, ScheduledEvent::Client { client: prober, act: Act::Probe(way) });
        }
        let count = 3 + self.rng.below(8);
        let rush = self.rng.chance(20);
        for _ in 0..count {
            let who = people[self.rng.below(people.len() as u64) as usize];
            let n = self.sayings.len() as u64 + 1;
            let roll = self.rng.below(100);
            let manner = AgentBehaviour::of(n, roll);
            let strategy = match self.rng.below(10) {
                0 | 1 => Strategy::Interrupt,
                2 => Strategy::Reject,
                3 => Strategy::Rollback,
                4 => Strategy::Steer,
                _ => Strategy::Enqueue,
            };
            let at = if rush { (5000, 6000) } else { self.when() };
            self.schedule_message(who, n, manner, strategy, at);
            self.schedule_interference(who, n, at.0);
            if self.faults.steering && self.rng.chance(60) {
                self.interject(who, n, at.0);
            }
        }
        self.schedule_session_actions([talker, light, watcher]);
    }

    /// Lets a client send more messages before the first can be answered.
    fn interject(&mut self, who: usize, host: u64, at: u64) {
        if let Some(saying) = self.sayings.get_mut(&host)
            && host.is_multiple_of(2)
        {
            saying.manner = AgentBehaviour::Slow;
        }
        let agent_id = self.sayings.get(&host).and_then(|saying| saying.agent_id.clone());
        for _ in 0..=self.rng.below(3) {
            let n = self.sayings.len() as u64 + 1;
            let roll = self.rng.below(100);
            let at = at + 100 + self.rng.below(5000);
            self.schedule_message(who, n, AgentBehaviour::of(n, roll), Strategy::Steer, (at, at + 500));
            if let Some(saying) = self.sayings.get_mut(&n)
                && self.rng.chance(70)
            {
                saying.agent_id.clone_from(&agent_id);
            }
            self.schedule_interference(who, n, at);
            if self.rng.chance(30) {
                self.think_better(who, n, at);
            }
        }
    }

    /// Lets a client replace a message that it has just sent.
    fn think_better(&mut self, who: usize, of: u64, at: u64) {
        let n = self.sayings.len() as u64 + 1;
        let roll = self.rng.below(100);
        let at = at + self.rng.below(3000);
        self.schedule_message(who, n, AgentBehaviour::of(n, roll), Strategy::Enqueue, (at, at + 500));
        let replaces = self.sayings.get(&of).map(|old| old.run_id.clone());
        if let Some(saying) = self.sayings.get_mut(&n) {
            saying.replaces = replaces;
        }
    }

    /// Schedules a cancel or a conflicting repeat of a message.
    fn schedule_interference(&mut self, who: usize, n: u64, at: u64) {
        if self.rng.chance(25) {
            let wait = self.rng.below(4000);
            self.later(at + wait, at + wait, ScheduledEvent::Client { client: who, act: Act::Cancel(n) });
        }
        if self.rng.chance(10) {
            self.later(at + 500, at + 20_000, ScheduledEvent::Client { client: who, act: Act::Twist(n) });
        }
    }

    /// Schedules actions on the session and its links besides messages.
    fn schedule_session_actions(&mut self, [talker, light, watcher]: [usize; 3]) {
        let often = |world: &mut Self, percent: u64, client: usize, act: Act| {
            while world.rng.chance(percent) {
                let at = world.when();
                world.later(at.0, at.1, ScheduledEvent::Client { client, act: act.clone() });
            }
        };
        often(self, 40, talker, Act::CancelAll);
        often(self, 25, talker, Act::Close);
        often(self, 25, light, Act::Close);
        often(self, 30, talker, Act::Open);
        often(self, 30, light, Act::Unsubscribe);
        if self.faults.company {
            for client in [talker, light, talker, light] {
                let way = self.rng.next_u64();
                often(self, 60, client, Act::Members(way));
            }
        }
        for client in [talker, light, watcher] {
            let way = self.rng.next_u64();
            often(self, 40, client, Act::Resubscribe(way));
        }
        for client in [talker, light] {
            if self.rng.chance(self.faults.hangup) {
                often(self, 50, client, Act::Vanish);
            }
        }
    }

    /// Schedules a new message of a client.
    pub(crate) fn schedule_message(
        &mut self,
        client: usize,
        n: u64,
        manner: AgentBehaviour,
        strategy: Strategy,
        (from, to): (u64, u64),
    ) {
        let agent_id = match self.rng.below(12) {
            0..=2 => Some(fixtures::agent(fixtures::AGENTS[1].0)),
            3 | 4 => Some(fixtures::agent(fixtures::AGENTS[2].0)),
            5 if n < 10_000 => Some(fixtures::agent(fixtures::STRANGER)),
            6 => Some(fixtures::agent(fixtures::AGENTS[0].0)),
            7..=9 if self.lasting => Some(fixtures::agent(fixtures::AGENTS[3].0)),
            _ => None,
        };
        let who = &mut self.clients[client];
        who.said.push(n);
        let run_id = RunId::derive(&who.key, &who.principal.user, &fixtures::message_id(n));
        self.sayings.insert(n, PlannedMessage { client, run_id, manner, strategy, replaces: None, agent_id });
        self.later(from, to, ScheduledEvent::Client { client, act: Act::Speak(n) });
    }
}
